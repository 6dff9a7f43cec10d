//go:build !amd64 || noasm

package preprocess

import "image"

type machine struct{}

var fastest *machine

type assembly struct{ fast bool }

func (*pass) assemble(*machine) bool { return false }

func (*pass) run(_, _ *image.NRGBA) {}

type arithmetic struct{}

func (arithmetic) derive(*Spec, *[3][256]float32, *machine) {}

func (arithmetic) calculate([]float32, []uint8) bool { return false }
