//go:build !amd64 || noasm

package preprocess

import "image"

type machine struct{}

var fastest *machine

type assembly struct{ fast bool }

func (*pass) assemble(*machine) bool { return false }

func (*pass) run(_, _ *image.NRGBA) {}
