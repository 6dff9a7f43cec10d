package main

import (
	"fmt"
	"strings"
)

// shapes is the largest number of rows of a tile of 1, 2, 3 … vectors: it leaves
// registers for a row of B and for what else a step needs. The sums of |a−b| and their
// gradients, which no preset uses, have one small shape each.
var shapes = map[string][]int{
	"product":  {8, 8, 8, 6},
	"distance": {4},
	"signs":    {2},
}

// matrix writes the micro-kernels of the products, of the sums of |a−b| and of
// their gradients, and the tables of them by vectors and rows.
func matrix() {
	for _, op := range []string{"product", "distance", "signs"} {
		fmt.Fprintf(&declarations, "\nvar %sNEON = [...][]func(*tile){\n", op)
		for nv, most := range shapes[op] {
			var row []string
			for mr := range most {
				row = append(row, fmt.Sprintf("%s%dx%dNEON", op, mr+1, nv+1))
			}
			fmt.Fprintf(&declarations, "%d: {nil, %s},\n", nv+1, strings.Join(row, ", "))
		}
		declarations.WriteString("}\n")
		for nv, most := range shapes[op] {
			for mr := range most {
				microKernel(op, mr+1, nv+1)
			}
		}
	}
}

// microKernel writes C = alpha·Σ_p A[i,p]∘B[p,j] for mr rows and nv vectors of
// columns; ∘ is the product, to which it adds S[i,j]·D[i,j] unless D is nil, or
// |a−b|, or a·sign(b−D[i,j]). S has a value for each row, or for each column, or a
// single one, depending on its strides. It computes as many such tiles, one below
// the other, as the field times says.
//
// A step of the product by 6 rows and 4 vectors takes 36 instructions for 24
// multiply-adds: 8 to load, 2 to advance pointers, 2 to count; one by 8 rows and 3
// vectors takes 38. Values of A are loaded as they are and multiplied as elements,
// because filling a vector with one would delay the multiplications.
func microKernel(op string, mr, nv int) {
	write(fmt.Sprintf("%s%dx%dNEON", op, mr, nv), "t *tile", func(f *function) {
		t := f.param("t")
		at := func(field string) string { return fmt.Sprintf("tile_%s(%s)", field, t) } // by go_asm.h
		field := func(name string) gp { return f.gpFrom("%s", at(name)) }
		a, ras, cas, ldb := field("a"), field("ras"), field("cas"), field("ldb")
		c, ldc, times := field("c"), field("ldc"), field("times")
		b, k, offset := f.gp(), f.gp(), f.gp()
		var d, ldd, s, rss gp
		if op != "distance" {
			d, ldd = field("d"), field("ldd")
		}
		if op == "product" {
			s, rss = field("s"), field("rss")
		}
		rows := make([]gp, mr)
		for i := range rows {
			rows[i] = f.gp()
		}
		next := 0
		take := func(n int) []vector {
			in := make([]vector, n)
			for i := range in {
				in[i] = vector(next)
				next++
			}
			return in
		}
		row, acc, all := take(nv), make([][]vector, mr), []vector(nil)
		for i := range acc {
			acc[i] = take(nv)
			all = append(all, acc[i]...)
		}

		f.label("tile")
		f.put("MOVD %s, %s", a, rows[0])
		for i := 1; i < mr; i++ {
			f.put("ADD %s, %s, %s", ras, rows[i-1], rows[i])
		}
		f.put("ADD %s, %s, %s", ras, rows[mr-1], a) // the next tile's
		f.put("MOVD %s, %s", at("b"), b)
		f.put("MOVD %s, %s", at("k"), k)
		f.zero(all...)
		against := make([][]vector, mr) // D, of the signs
		switch op {
		case "product":
			f.put("MOVD $0, %s", offset)
		case "signs":
			for i := range against {
				against[i] = take(nv)
				f.loadRow(d, against[i])
				f.put("ADD %s, %s", ldd, d)
			}
		}

		f.label("step")
		f.loadRow(b, row)
		for i, from := range rows {
			x := f.fresh()
			if op == "product" {
				f.with([]vector{x}, "FMOVS (%s)(%s), F%%d", from, offset)
			} else {
				f.with([]vector{x}, "VLD1R.P (%s)(%s), [V%%d.S4]", from, cas)
			}
			for j, sum := range acc[i] {
				switch op {
				case "product":
					f.byElement("fmla", sum, row[j], x, 0)
				case "distance":
					f.do("fadd", sum, sum, f.get("fabd", row[j], x))
				case "signs":
					above, below := f.get("fcmgt", row[j], against[i][j]), f.get("fcmgt", against[i][j], row[j])
					f.do("fadd", sum, sum, f.do("and", above, above, x))
					f.do("fsub", sum, sum, f.do("and", below, below, x))
				}
			}
		}
		if op == "product" {
			f.put("ADD %s, %s", cas, offset)
		}
		f.put("ADD %s, %s", ldb, b)
		f.put("SUBS $1, %s", k)
		f.branch("BNE", "step")

		alpha := f.fresh()
		f.with([]vector{alpha}, "FMOVS %s, F%%d", at("alpha"))
		for _, sum := range all {
			f.byElement("fmul", sum, sum, alpha, 0)
		}
		if op == "product" {
			f.branch("CBZ", "store", d)
			// value by value, so that no more registers are needed than in a step
			value := f.fresh()
			add := func(i int, each func(j int)) {
				for j := range nv {
					f.with([]vector{value}, "FMOVQ %d(%s), F%%d", 16*j, d)
					each(j)
				}
				f.put("ADD %s, %s", ldd, d)
			}
			f.put("MOVD %s, %s", at("css"), k)
			f.branch("CBNZ", "columns", k)
			for i, sums := range acc {
				factor := row[0]
				f.with([]vector{factor}, "FMOVS (%s), F%%d", s)
				f.put("ADD %s, %s", rss, s)
				add(i, func(j int) { f.byElement("fmla", sums[j], value, factor, 0) })
			}
			f.branch("JMP", "store")
			f.label("columns")
			f.loadRow(s, row)
			for i, sums := range acc {
				add(i, func(j int) { f.do("fmla", sums[j], value, row[j]) })
			}
			f.label("store")
		}
		for _, sums := range acc {
			f.storeRow(c, sums)
			f.put("ADD %s, %s", ldc, c)
		}
		f.put("SUBS $1, %s", times)
		f.branch("BNE", "tile")
	})
}

// transpose writes transposeStrip16, which turns 16 rows of 4·n columns into 4·n
// rows of 16, a whole cache line each, and transposeStrip4, the same for 4 rows.
func transpose() {
	for _, high := range []int{16, 4} {
		write(fmt.Sprintf("transposeStrip%d", high), "dst *float32, ldd int, src *float32, lds, n int", func(f *function) {
			dst, ldd, src, lds, n := f.param("dst"), f.param("ldd"), f.param("src"), f.param("lds"), f.param("n")
			f.put("LSL $2, %s", ldd)
			f.put("LSL $2, %s", lds)
			from := f.gp()
			f.label("block")
			f.put("MOVD %s, %s", src, from)
			columns := make([][]vector, 4)
			for range high / 4 {
				var r, t [4]vector
				for i := range r {
					r[i] = f.fresh()
					f.with([]vector{r[i]}, "VLD1.P (%s)(%s), [V%%d.S4]", from, lds)
				}
				for i := 0; i < 4; i += 2 {
					t[i], t[i+1] = f.get("trn1", r[i], r[i+1]), f.get("trn2", r[i], r[i+1])
				}
				for i := range columns {
					half := []string{"zip1", "zip2"}[i/2]
					columns[i] = append(columns[i], f.double(half, f.fresh(), t[i%2], t[2+i%2]))
				}
			}
			for _, column := range columns {
				f.storeRow(dst, column)
				f.put("ADD %s, %s", ldd, dst)
			}
			f.put("ADD $16, %s", src)
			f.put("SUBS $1, %s", n)
			f.branch("BNE", "block")
		})
	}
}
