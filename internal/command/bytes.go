package cli

import (
	"fmt"
	"strconv"
	"strings"
)

// Bytes is the value of a flag that takes an amount of memory: a number of
// bytes, or of kibi-, mebi-, gibi- or tebibytes with KiB, MiB, GiB or TiB behind
// it.
type Bytes int64

var units = []string{"B", "KiB", "MiB", "GiB", "TiB"}

// String writes the amount in the largest unit that divides it.
func (b *Bytes) String() string {
	v, unit := int64(*b), 0
	for v > 0 && v%1024 == 0 && unit < len(units)-1 {
		v, unit = v/1024, unit+1
	}
	return strconv.FormatInt(v, 10) + units[unit]
}

// Set reads the amount.
func (b *Bytes) Set(text string) error {
	number, scale := text, 1.0
	for i, unit := range units[1:] {
		if n, ok := strings.CutSuffix(text, unit); ok {
			number, scale = n, float64(int64(1)<<(10*(i+1)))
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSuffix(number, "B"), 64)
	if err != nil || !(v*scale >= 1 && v*scale < 1<<62) {
		return fmt.Errorf("%q is no amount of memory, as 512MiB is", text)
	}
	*b = Bytes(v * scale)
	return nil
}

// Type names the value in the usage text.
func (b *Bytes) Type() string { return "BYTES" }
