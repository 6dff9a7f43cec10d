//go:build !noasm

package preprocess

import "golang.org/x/sys/cpu"

//go:generate go run -C asm . -out ../resize_amd64.s -stubs ../resize_amd64.go -pkg preprocess

// assembled says whether this machine can run the assembly. It gives the same
// bits as plain Go; tests turn it off.
var assembled = cpu.X86.HasAVX2

// rowBytes is the least n of sumRows.
const rowBytes = 32
