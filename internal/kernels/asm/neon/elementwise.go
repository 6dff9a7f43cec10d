package main

import (
	"fmt"
	"math"
	"strings"
)

// row is a loop over the n floats of a row: first whole vectors, then single
// floats, each in the first lane of a vector whose other lanes are 0.
type row struct {
	*function
	bytes, whole gp // 4n, and the part of it that whole vectors cover
	at           gp // position of the loop, in bytes
}

func (f *function) row(n gp) *row {
	r := &row{f, n, f.gp(), f.gp()}
	f.put("LSL $2, %s", n)
	f.put("AND $~15, %s, %s", n, r.whole)
	return r
}

// stride is by how many bytes the loop advances.
func stride(tail bool) int {
	if tail {
		return 4
	}
	return 16
}

// each emits body for whole vectors and for the rest.
func (r *row) each(body func(tail bool)) {
	r.put("MOVD $0, %s", r.at)
	r.eachFromHere(body)
}

func (r *row) eachFromHere(body func(tail bool)) {
	for _, tail := range []bool{false, true} {
		loop, check, until := r.named("loop"), r.named("check"), r.whole
		if tail {
			until = r.bytes
		}
		r.branch("JMP", check)
		r.label(loop)
		taken := r.general
		body(tail)
		r.general = taken
		r.put("ADD $%d, %s", stride(tail), r.at)
		r.label(check)
		r.put("CMP %s, %s", until, r.at)
		r.branch("BLT", loop)
	}
}

// down emits body for each of the rows, at least one, in the loop's current
// columns.
func (r *row) down(body func()) {
	columns, loop := r.at, r.named("down")
	r.at = r.gpFrom("%s", columns)
	left := r.param("rows")
	r.label(loop)
	body()
	r.put("ADD %s, %s", r.bytes, r.at)
	r.put("SUBS $1, %s", left)
	r.branch("BNE", loop)
	r.at = columns
}

// read and set load and store the floats of an array at the loop's position.
func (r *row) read(array gp, tail bool) vector {
	x := r.fresh()
	r.load(x, array, r.at, stride(tail))
	return x
}

func (r *row) set(array gp, x vector, tail bool) { r.store(x, array, r.at, stride(tail)) }

// next returns a vector of the first float of an array, and advances the pointer.
func (f *function) next(array gp) vector {
	x := f.fresh()
	f.with([]vector{x}, "VLD1R.P 4(%s), [V%%d.S4]", array)
	return x
}

// factor returns a vector of an argument.
func (f *function) factor(name string) vector {
	x := f.fresh()
	f.with([]vector{x}, "FMOVS %s, F%%d", f.argument(name))
	return f.spread(x)
}

// push sets the first float of an array, and advances the pointer.
func (f *function) push(array gp, x vector) { f.with([]vector{x}, "FMOVS.P F%%d, 4(%s)", array) }

// rows emits body for each of count rows; body advances its pointers.
func (f *function) rows(count gp, body func()) {
	f.branch("CBZ", "done", count)
	f.label("rows")
	body()
	f.put("SUBS $1, %s", count)
	f.branch("BNE", "rows")
	f.label("done")
}

// elementwise writes the kernels that are not products; package kernels documents
// what each computes.
func elementwise() {
	var names strings.Builder
	kernel := func(name, params string, body func(*function)) {
		write(name+"NEON", params, body)
		fmt.Fprintf(&names, "%[1]s: %[1]sNEON,\n", name)
	}
	defer func() { fmt.Fprintf(&declarations, "\nvar vectorsNEON = vectorKernels{\n%s}\n", names.String()) }()

	for _, each := range []struct {
		name string
		of   func(*function, vector) vector
	}{
		{"exp", (*function).exp},
		{"log", func(f *function, x vector) vector { return f.log(x, false) }},
		{"softplus", (*function).softplus},
		{"sigmoid", (*function).sigmoid},
	} {
		kernel(each.name, "dst, src *float32, n int", func(f *function) {
			dst, src, r := f.param("dst"), f.param("src"), f.row(f.param("n"))
			r.each(func(tail bool) { r.set(dst, each.of(f, r.read(src, tail)), tail) })
		})
	}

	for _, each := range []struct{ name, instruction string }{{"add", "fadd"}, {"multiply", "fmul"}} {
		kernel(each.name, "dst, src *float32, n int", func(f *function) {
			dst, src, r := f.param("dst"), f.param("src"), f.row(f.param("n"))
			r.each(func(tail bool) {
				x, y := r.read(dst, tail), r.read(src, tail)
				r.set(dst, f.do(each.instruction, x, x, y), tail)
			})
		})
	}

	kernel("sumSquares", "dst, x *float32, rows, n int", func(f *function) {
		dst, x, count, r := f.param("dst"), f.param("x"), f.param("rows"), f.row(f.param("n"))
		last, here := f.gp(), f.gp()
		f.put("SUB $64, %s, %s", r.bytes, last)
		f.rows(count, func() {
			// Four sums at once, as each waits for the one before.
			sums := []vector{f.zeroed(), f.zeroed(), f.zeroed(), f.zeroed()}
			f.put("MOVD $0, %s", r.at)
			f.branch("JMP", "fours")
			f.label("four")
			f.put("ADD %s, %s, %s", r.at, x, here)
			y := f.several(4)
			f.loadRow(here, y)
			for i, sum := range sums {
				f.do("fmla", sum, y[i], y[i])
			}
			f.put("ADD $64, %s", r.at)
			f.label("fours")
			f.put("CMP %s, %s", last, r.at)
			f.branch("BLE", "four")
			r.eachFromHere(func(tail bool) {
				y := r.read(x, tail)
				f.do("fmla", sums[0], y, y)
			})
			f.do("fadd", sums[0], sums[0], sums[1])
			f.do("fadd", sums[2], sums[2], sums[3])
			f.push(dst, f.sum(f.do("fadd", sums[0], sums[0], sums[2])))
			f.put("ADD %s, %s", r.bytes, x)
		})
	})

	kernel("addSquares", "sums, x *float32, rows, n int", func(f *function) {
		sums, x, count, r := f.param("sums"), f.param("x"), f.param("rows"), f.row(f.param("n"))
		f.rows(count, func() {
			r.each(func(tail bool) {
				sum, y := r.read(sums, tail), r.read(x, tail)
				r.set(sums, f.do("fmla", sum, y, y), tail)
			})
			f.put("ADD %s, %s", r.bytes, x)
		})
	})

	kernel("squaredDistances", "dist, csq, xsq *float32, rows, n int", func(f *function) {
		dist, csq, xsq, count, r := f.param("dist"), f.param("csq"), f.param("xsq"), f.param("rows"), f.row(f.param("n"))
		f.rows(count, func() {
			square := f.next(csq)
			r.each(func(tail bool) {
				y := r.read(dist, tail)
				f.do("fadd", y, y, square)
				f.do("fadd", y, y, r.read(xsq, tail))
				r.set(dist, f.do("fmax", y, y, f.constant(0)), tail)
			})
			f.put("ADD %s, %s", r.bytes, dist)
		})
	})

	kernel("logPhi", "dst, dist, width, limit *float32, rows, n int", func(f *function) {
		dst, dist, width, limit, count, r := f.param("dst"), f.param("dist"), f.param("width"), f.param("limit"), f.param("rows"), f.row(f.param("n"))
		f.rows(count, func() {
			w := f.next(width)
			r.each(func(tail bool) {
				y := r.read(limit, tail)
				r.set(dst, f.do("fmls", y, w, r.read(dist, tail)), tail)
			})
			f.put("ADD %s, %s", r.bytes, dist)
			f.put("ADD %s, %s", r.bytes, dst)
		})
	})

	kernel("activate", "dst, top *float32, largest *int32, dist, logRatio, width, limit *float32, rows, n int", activate)
	kernel("backward", "gDist, gWidth, sumDist, gLimit, perColumn, grad, dist, width, inverse *float32, rows, n int", backward)
	kernel("softmax", "dst, norm, l *float32, rows, n int", softmax)
	kernel("softmaxBackward", "grad, sum, share *float32, rows, n int", softmaxBackward)
	kernel("logBCE", "grad, logY *float32, labels *int, shift, scale float32, rows, n int) (sum float64)", logBCE)
	kernel("adam", "p, grad, m, v *float32, size, scale float32, n int", adam)
}

func activate(f *function) {
	dst, top, largest := f.param("dst"), f.param("top"), f.param("largest")
	dist, limit, r := f.param("dist"), f.param("limit"), f.row(f.param("n"))
	r.each(func(tail bool) {
		most := r.read(limit, tail)
		best, bestAt, place := f.copied(f.constant(signBit|infinity)), f.zeroed(), f.zeroed()
		logRatio, width := f.param("logRatio"), f.param("width")
		r.down(func() {
			y := f.next(logRatio)
			f.do("fmls", y, f.next(width), r.read(dist, tail))
			f.do("fadd", y, y, most)
			greater := f.get("fcmgt", y, best)
			f.do("bit", best, y, greater)
			f.do("bit", bestAt, place, greater)
			r.set(dst, f.exp(y), tail)
			f.do("add", place, place, f.constant(1))
		})
		r.set(top, best, tail)
		r.set(largest, bestAt, tail)
	})
}

func backward(f *function) {
	gDist, gWidth, sumDist, gLimit, perColumn := f.param("gDist"), f.param("gWidth"), f.param("sumDist"), f.param("gLimit"), f.param("perColumn")
	g, dist, width, inverse := f.param("grad"), f.param("dist"), f.param("width"), f.param("inverse")
	count, r := f.param("rows"), f.row(f.param("n"))
	f.rows(count, func() {
		byWidth, byDist, inv := f.zeroed(), f.zeroed(), f.next(inverse)
		minus := f.next(width)
		f.do("fneg", minus, minus)
		r.each(func(tail bool) {
			y := r.read(g, tail)
			out := f.get("fmul", y, minus)
			f.do("fmla", byWidth, y, f.get("fsub", inv, r.read(dist, tail)))
			f.do("fadd", byDist, byDist, out)
			limit, column := r.read(gLimit, tail), r.read(perColumn, tail)
			r.set(gDist, out, tail)
			r.set(gLimit, f.do("fadd", limit, limit, y), tail)
			r.set(perColumn, f.do("fadd", column, column, out), tail)
		})
		f.push(gWidth, f.sum(byWidth))
		f.push(sumDist, f.sum(byDist))
		for _, array := range []gp{g, dist, gDist} {
			f.put("ADD %s, %s", r.bytes, array)
		}
	})
}

func softmax(f *function) {
	dst, norm, l, r := f.param("dst"), f.param("norm"), f.param("l"), f.row(f.param("n"))
	r.each(func(tail bool) {
		top, sum := r.read(l, tail), f.zeroed()
		r.down(func() { f.do("fmax", top, top, r.read(l, tail)) })
		r.down(func() {
			y := f.exp(f.get("fsub", r.read(l, tail), top))
			f.do("fadd", sum, sum, y)
			r.set(dst, y, tail)
		})
		inverse := f.inverse(sum)
		r.down(func() { r.set(dst, f.get("fmul", r.read(dst, tail), inverse), tail) })
		r.set(norm, f.get("fadd", top, f.log(sum, true)), tail)
	})
}

func softmaxBackward(f *function) {
	g, sum, share, r := f.param("grad"), f.param("sum"), f.param("share"), f.row(f.param("n"))
	r.each(func(tail bool) {
		total := f.zeroed()
		r.down(func() { f.do("fadd", total, total, r.read(g, tail)) })
		r.down(func() {
			y := r.read(g, tail)
			r.set(g, f.do("fmls", y, total, r.read(share, tail)), tail)
		})
		r.set(sum, total, tail)
	})
}

func logBCE(f *function) {
	grad, logY, labels := f.param("grad"), f.param("logY"), f.param("labels")
	shift, scale, r := f.factor("shift"), f.factor("scale"), f.row(f.param("n"))
	loss, one := f.zeroed(), f.float(1)
	r.each(func(tail bool) {
		label, total, place := r.labels(labels, tail), f.zeroed(), f.zeroed()
		// Σ log u is the logarithm of the product of the u, m·2ᵉ.
		m, exponent := f.copied(one), f.zeroed()
		r.down(func() {
			l := f.get("fsub", r.read(logY, tail), shift)
			// e = eˡ and u = 1−eˡ, without cancellation where n = 0.
			n, p := f.reduced(f.clamped(l, -105, 0))
			power := f.scaled(one, n)
			e := f.copied(power)
			f.do("fmla", e, p, power)
			u := f.get("fsub", one, power)
			f.do("fmls", u, p, power)
			inverse := f.inverse(u)
			// log(1−eˡ) = log u + (−e − (u−1))/u, the latter 0 where n = 0.
			lost := f.get("fadd", e, f.get("fsub", u, one))
			f.do("bic", lost, lost, f.get("fcmeq", n, f.constant(0)))
			entry := f.get("fmul", lost, inverse) // except for its sign and log u
			slope := f.get("fmul", e, inverse)
			own := f.get("cmeq", label, place)
			f.do("bit", entry, f.get("fneg", l), own)
			f.do("bit", slope, f.float(-1), own)
			f.do("bit", u, one, own)
			f.do("fadd", total, total, entry)
			f.do("fmul", m, m, u)
			f.split(m, exponent)
			f.do("add", place, place, f.constant(1))
			f.do("fmul", slope, slope, scale)
			skip := f.named("noGradient")
			f.branch("CBZ", skip, grad)
			r.set(grad, slope, tail)
			f.label(skip)
		})
		f.do("fsub", total, total, f.log(m, true))
		f.do("fmls", total, exponent, f.float(math.Ln2))
		if !tail {
			total = f.sum(total)
		}
		double := f.fresh()
		f.with([]vector{double, total}, "FCVTSD F%%[2]d, F%%[1]d")
		f.with([]vector{loss, double}, "FADDD F%%[2]d, F%%[1]d")
	})
	f.with([]vector{loss}, "FMOVD F%%d, %s", f.argument("sum"))
}

// split brings positive numbers m into [1, 2) and adds the exponents of 2 that
// this takes to e.
func (f *function) split(m, e vector) {
	exponent := f.get("sub", f.shift("ushr", m, 23), f.constant(127))
	f.do("fadd", e, e, f.get("scvtf", exponent))
	f.do("and", m, m, f.constant(0x007fffff))
	f.do("orr", m, m, f.float(1))
}

// labels reads the lower halves of the ints of an array for the loop's current
// columns.
func (r *row) labels(array gp, tail bool) vector {
	from := r.gp()
	r.put("ADD %s<<1, %s, %s", r.at, array, from)
	if tail {
		x := r.fresh()
		r.with([]vector{x}, "FMOVS (%s), F%%d", from)
		return x
	}
	low, high := r.fresh(), r.fresh()
	r.loadRow(from, []vector{low, high})
	return r.get("uzp1", low, high)
}

func adam(f *function) {
	p, g, m, v := f.param("p"), f.param("grad"), f.param("m"), f.param("v")
	size, scale, r := f.factor("size"), f.factor("scale"), f.row(f.param("n"))
	r.each(func(tail bool) {
		grad, first, second := r.read(g, tail), r.read(m, tail), r.read(v, tail)
		f.do("fmla", first, f.get("fsub", grad, first), f.float(0.1))
		r.set(m, first, tail)
		square := f.get("fmul", f.get("fmul", grad, grad), f.float(0.001))
		f.do("fmla", square, second, f.float(0.999))
		r.set(v, square, tail)
		root := f.get("fsqrt", square)
		below := f.settable(1e-8)
		f.do("fmla", below, root, scale)
		change := f.get("fdiv", f.get("fmul", first, size), below)
		value := r.read(p, tail)
		r.set(p, f.do("fsub", value, value, change), tail)
	})
}
