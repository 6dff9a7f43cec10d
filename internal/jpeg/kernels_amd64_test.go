//go:build !noasm

package jpeg

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/mlrbfn/mlrbfn/internal/testenv"
)

// onEachPath runs a test with and without assembly.
func onEachPath(t *testing.T, test func(t *testing.T)) {
	defer func(saved bool) { assembled = saved }(assembled)
	if assembled {
		t.Run("assembly", test)
	}
	assembled = false
	t.Run("plain", test)
}

// TestKernelsAgree: assembly and plain Go give the same bytes, for any input.
func TestKernelsAgree(t *testing.T) {
	if !assembled {
		t.Skip("this machine lacks AVX2 or BMI2")
	}
	t.Run("coefficients", func(t *testing.T) {
		var table decoderTable
		if err := table.build(&standardAC[0]); err != nil {
			t.Fatal(err)
		}
		rapid.Check(t, func(t *rapid.T) {
			var got, want bitReader
			for i := range blockBytes + 8 {
				got.window[i] = rapid.Byte().Draw(t, "bits")
			}
			want.window = got.window
			var gotBlock, wantBlock block
			from := rapid.IntRange(0, 62).Draw(t, "from")
			gotLast, wantLast := got.coefficients(&gotBlock, &table, from), want.coefficientsPlain(&wantBlock, &table, from)
			if gotLast != wantLast || gotBlock != wantBlock || 8*got.at-got.n != 8*want.at-want.n {
				t.Errorf("coefficients up to %d are %v, want %v up to %d", gotLast, gotBlock, wantBlock, wantLast)
			}
		})
	})
	t.Run("transform", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			var b block
			var quant [64]uint16
			large := rapid.Bool().Draw(t, "large")
			rows := rapid.SampledFrom([]int{1, 2, 8}).Draw(t, "rows")
			for i := range 8 * rows {
				b[i] = int16(rapid.IntRange(-200, 200).Draw(t, "coefficient"))
				quant[i] = uint16(rapid.IntRange(0, 60).Draw(t, "step"))
				if large {
					b[i] = rapid.Int16().Draw(t, "coefficient")
					quant[i] = rapid.Uint16().Draw(t, "step")
				}
			}
			stride := rapid.IntRange(8, 20).Draw(t, "stride")
			got, want := make([]uint8, 7*stride+8), make([]uint8, 7*stride+8)
			transform(got, stride, &b, &quant)
			transformPlain(want, stride, &b, &quant)
			if !bytes.Equal(got, want) {
				t.Errorf("samples are %v, want %v", got, want)
			}
			if rows == 1 {
				for i := range b[1:] {
					b[1+i] = 0
				}
				transformPlain(want, stride, &b, &quant)
				flat(got, stride, b[0]*int16(quant[0]))
				if !bytes.Equal(got, want) {
					t.Errorf("samples of DC %d are %v, want %v", b[0], got, want)
				}
			}
		})
	})
	samples := func(t *rapid.T, n int) []uint8 {
		return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "samples")
	}
	t.Run("interpolate", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			n := rapid.IntRange(1, 80).Draw(t, "width")
			near, far := samples(t, n), samples(t, n)
			got, want := make([]uint8, 2*n), make([]uint8, 2*n)
			interpolate(got, near, far, 8, 7)
			interpolatePlain(want, near, far, 8, 7)
			if !bytes.Equal(got, want) {
				t.Errorf("samples are %v, want %v", got, want)
			}
		})
	})
	t.Run("colours", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			n := rapid.IntRange(1, 80).Draw(t, "width")
			luma, cb, cr := samples(t, n), samples(t, n), samples(t, n)
			got, want := make([]uint8, 4*n), make([]uint8, 4*n)
			colours(got, luma, cb, cr)
			coloursPlain(want, luma, cb, cr)
			if !bytes.Equal(got, want) {
				t.Errorf("pixels are %v, want %v", got, want)
			}
		})
	})
}

// TestAllColours: the fixed-point conversion of the assembly, for every colour.
func TestAllColours(t *testing.T) {
	if !assembled {
		t.Skip("this machine lacks AVX2 or BMI2")
	}
	var luma, cb, cr [256]uint8
	for i := range luma {
		luma[i] = uint8(i)
	}
	got, want := make([]uint8, 4*256), make([]uint8, 4*256)
	for b := range 256 {
		for r := range 256 {
			for i := range cb {
				cb[i], cr[i] = uint8(b), uint8(r)
			}
			colours(got, luma[:], cb[:], cr[:])
			coloursPlain(want, luma[:], cb[:], cr[:])
			if !bytes.Equal(got, want) {
				t.Fatalf("colours of chroma %d, %d differ", b, r)
			}
		}
	}
}
