package main

import "fmt"

// float64Kernels writes the kernels of float64.
func float64Kernels() {
	for _, of := range []string{"float64", "float32"} {
		fmt.Fprintf(&declarations, "\nvar %sTilesNEON = [...]tileOf[%s]{nil", of, of)
		for nv := 1; nv <= float64Vectors; nv++ {
			fmt.Fprintf(&declarations, ", %sTile%dNEON", of, nv)
		}
		declarations.WriteString("}\n")
		for nv := 1; nv <= float64Vectors; nv++ {
			float64Tile(nv, of)
		}
	}
	dot(4)
	dot(8)
	packFour()
	rowsTimes("symmetricRows", true, true)
	rowsTimes("rowsTimes", true, false)
	rowsTimes("timesRows", false, true)
}

// A tile has float64Rows rows and at most float64Vectors times four columns; four
// columns take two registers. With a row of B and the values of A this fills all
// registers.
const (
	float64Rows    = 4
	float64Vectors = 3
)

// float64Tile writes C = alpha·Σ_p A[p]·B[p], added to what C holds if add is
// not 0, for packed A [k, rows] in float64 and B [k, 4·nv] in float64 or float32. A step
// with three vectors takes 32 instructions for 24 multiply-adds, 4 of them to load;
// with float32 37, 3 to load and 6 to widen.
func float64Tile(nv int, of string) {
	params := fmt.Sprintf("a *float64, b *%s, c *float64, k, ldc int, alpha float64, add int", of)
	write(fmt.Sprintf("%sTile%dNEON", of, nv), params, func(f *function) {
		a, b, c, k, ldc, add := f.param("a"), f.param("b"), f.param("c"), f.param("k"), f.param("ldc"), f.param("add")
		f.put("LSL $3, %s", ldc)
		var sums [float64Rows][]vector
		for i := range sums {
			sums[i] = f.several(2 * nv)
			f.zero(sums[i]...)
		}
		f.label("step")
		left, row := f.several(float64Rows/2), f.several(2*nv)
		f.loadRow(a, left)
		if of == "float32" {
			packed := make([]vector, nv)
			for j := range packed {
				packed[j] = row[2*j]
			}
			f.loadRow(b, packed)
			for j := range packed {
				f.widen(row[2*j], row[2*j+1], packed[j])
			}
			f.put("ADD $%d, %s", 16*nv, b)
		} else {
			f.loadRow(b, row)
			f.put("ADD $%d, %s", 32*nv, b)
		}
		for i := range sums {
			for j, sum := range sums[i] {
				f.byDouble("fmla", sum, row[j], left[i/2], i%2)
			}
		}
		f.put("ADD $%d, %s", 8*float64Rows, a)
		f.put("SUBS $1, %s", k)
		f.branch("BNE", "step")

		alpha := f.fresh()
		f.with([]vector{alpha}, "FMOVD %s, F%%d", f.argument("alpha"))
		f.branch("CBNZ", "add", add)
		for i := range sums {
			for _, sum := range sums[i] {
				f.byDouble("fmul", sum, sum, alpha, 0)
			}
			f.storeRow(c, sums[i])
			f.put("ADD %s, %s", ldc, c)
		}
		f.put("RET")
		f.label("add")
		for i := range sums {
			for j, sum := range sums[i] {
				value := f.fresh()
				f.with([]vector{value}, "FMOVQ %d(%s), F%%d", 16*j, c)
				f.byDouble("fmla", value, sum, alpha, 0)
				f.with([]vector{value}, "FMOVQ F%%d, %d(%s)", 16*j, c)
			}
			f.put("ADD %s, %s", ldc, c)
		}
	})
}

// widen sets low and high to the halves of four float32s, which may be in low.
func (f *function) widen(low, high, x vector) {
	f.encoded(0x4e617800, "fcvtl2 v%d.2d, v%d.4s", high, x)
	f.encoded(0x0e617800, "fcvtl v%d.2d, v%d.2s", low, x)
}

// packFour writes a transposition of four rows, four columns at a time.
func packFour() {
	write("packFour", "dst *float64, ldd int, src *float64, lds, n int", func(f *function) {
		dst, ldd, src, lds, n := f.param("dst"), f.param("ldd"), f.param("src"), f.param("lds"), f.param("n")
		f.put("LSL $3, %s", ldd)
		f.put("LSL $3, %s", lds)
		from := f.gp()
		f.label("block")
		f.put("MOVD %s, %s", src, from)
		var rows [4][]vector
		for i := range rows {
			rows[i] = f.several(2)
			f.loadRow(from, rows[i])
			f.put("ADD %s, %s", lds, from)
		}
		for j := range 4 {
			half := []string{"zip1", "zip2"}[j%2]
			r := func(i int) vector { return rows[i][j/2] }
			f.storeRow(dst, []vector{f.double(half, f.fresh(), r(0), r(1)), f.double(half, f.fresh(), r(2), r(3))})
			f.put("ADD %s, %s", ldd, dst)
		}
		f.put("ADD $32, %s", src)
		f.put("SUBS $1, %s", n)
		f.branch("BNE", "block")
	})
}

// rowsTimes writes, for four rows of A that are lda apart and four times n columns, what
// sets sums to A·x, what adds vᵀA to y, or both.
func rowsTimes(name string, toSums, toY bool) {
	params := "a *float64, lda int, "
	switch {
	case !toY:
		params += "x, sums"
	case !toSums:
		params += "y, v"
	default:
		params += "x, y, v, sums"
	}
	write(name, params+" *float64, n int", func(f *function) {
		a, lda, n := f.param("a"), f.param("lda"), f.param("n")
		f.put("LSL $3, %s", lda)
		rows := []gp{a, f.gp(), f.gp(), f.gp()}
		for i := range rows[1:] {
			f.put("ADD %s, %s, %s", lda, rows[i], rows[i+1])
		}
		var x, y, sumsAt gp
		var v, from, out []vector
		var sums [4][]vector
		if toSums {
			x, sumsAt = f.param("x"), f.param("sums")
			for i := range sums {
				sums[i] = []vector{f.zeroed(), f.zeroed()}
			}
		}
		if toY {
			y, v = f.param("y"), f.several(2) // two rows each
			f.loadRow(f.param("v"), v)
		}
		f.label("four")
		if toSums {
			from = f.several(2)
			f.loadRow(x, from)
			f.put("ADD $32, %s", x)
		}
		if toY {
			out = f.several(2)
			f.loadRow(y, out)
		}
		for i, at := range rows {
			row := f.several(2)
			f.loadRow(at, row)
			for j := range row {
				if toSums {
					f.double("fmla", sums[i][j], row[j], from[j])
				}
				if toY {
					f.byDouble("fmla", out[j], row[j], v[i/2], i%2)
				}
			}
			f.put("ADD $32, %s", at)
		}
		if toY {
			f.storeRow(y, out)
			f.put("ADD $32, %s", y)
		}
		f.put("SUBS $1, %s", n)
		f.branch("BNE", "four")
		if toSums {
			for i := range sums {
				f.double("fadd", sums[i][0], sums[i][0], sums[i][1])
			}
			f.storeRow(sumsAt, []vector{
				f.double("faddp", f.fresh(), sums[0][0], sums[1][0]),
				f.double("faddp", f.fresh(), sums[2][0], sums[3][0]),
			})
		}
	})
}

// dot writes Σ x·y in float64, for 32·n numbers of a size in bytes.
func dot(size int) {
	name, of := fmt.Sprintf("dot%dNEON", 8*size), fmt.Sprintf("float%d", 8*size)
	write(name, fmt.Sprintf("x, y *%s, n int) (sum float64)", of), func(f *function) {
		x, y, n := f.param("x"), f.param("y"), f.param("n")
		sums := make([]vector, 16) // enough to hide the latency of an addition
		for i := range sums {
			sums[i] = f.zeroed()
		}
		f.label("step")
		for i := 0; i < len(sums); i += 2 {
			a, b := f.several(2), f.several(2)
			for _, from := range []struct {
				array gp
				to    []vector
			}{{x, a}, {y, b}} {
				if size == 8 {
					f.with(from.to, "FLDPQ.P 32(%s), (F%%d, F%%d)", from.array)
				} else {
					f.with(from.to[:1], "FMOVQ.P 16(%s), F%%d", from.array)
					f.widen(from.to[0], from.to[1], from.to[0])
				}
			}
			for half := range 2 {
				f.double("fmla", sums[i+half], a[half], b[half])
			}
		}
		f.put("SUBS $1, %s", n)
		f.branch("BNE", "step")
		f.result(sums)
	})
}

// result returns the sum of all lanes of registers.
func (f *function) result(sums []vector) {
	for half := len(sums) / 2; half > 0; half /= 2 {
		for i := range half {
			f.double("fadd", sums[i], sums[i], sums[i+half])
		}
	}
	f.encoded(0x7e70d800, "faddp d%d, v%d.2d", sums[0], sums[0])
	f.with(sums[:1], "FMOVD F%%d, %s", f.argument("sum"))
}
