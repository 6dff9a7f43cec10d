//go:build !amd64 || noasm

package preprocess

import "image"

// Without assembly fastest is nil and no layout fits.

type machine struct{}

var fastest *machine

type assembly struct{}

func (assembly) assembled(_, _ *image.NRGBA, _, _ *axis) {}

type layout struct{}

func (*layout) setColumns(*windows, *machine) {}
func (*layout) setRows(*windows, *machine)    {}
func (*layout) fits() bool                    { return false }

type arithmetic struct{}

func (arithmetic) derive(*Spec, *[3][256]float32, *machine) {}

func (arithmetic) calculate([]float32, []uint8) bool { return false }
