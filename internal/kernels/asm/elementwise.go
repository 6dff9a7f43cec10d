package main

import (
	"fmt"
	"math"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// row is a loop over the n floats of a row: first whole vectors, then the rest with
// a mask.
type row struct {
	isa
	bytes, whole reg.GPVirtual // 4n, and the part of it that whole vectors cover
	mask         reg.VecVirtual
	at           reg.GPVirtual // position of the loop, in bytes
	loops        int
}

func (v isa) row(n reg.Register) *row {
	r := &row{isa: v, bytes: GP64(), whole: GP64(), at: GP64()}
	MOVQ(n, r.bytes)
	ANDQ(U8(v.width-1), r.bytes)
	if v.width == 16 {
		ones := GP32()
		MOVL(I32(-1), ones)
		BZHIL(r.bytes.As32(), ones, ones)
		KMOVW(ones, reg.K1)
	} else {
		r.mask = YMM()
		tailMask(r.bytes, r.mask)
	}
	MOVQ(n, r.bytes)
	SHLQ(U8(2), r.bytes)
	MOVQ(r.bytes, r.whole)
	ANDQ(I8(int8(-4*v.width)), r.whole)
	return r
}

// tailMask sets the first n of 8 lanes, 0 ≤ n ≤ 8.
func tailMask(n reg.Register, mask reg.VecVirtual) {
	VMOVD(n.(reg.GP).As32(), mask.AsX())
	VPBROADCASTD(mask.AsX(), mask)
	VPCMPGTD(laneNumbers(), mask, mask)
}

var laneTable *Mem

// laneNumbers is the memory 0, 1, 2 … as integers.
func laneNumbers() Mem {
	if laneTable == nil {
		m := GLOBL("lanes", 8|16)
		for i := range 16 {
			DATA(4*i, U32(i))
		}
		laneTable = &m
	}
	return *laneTable
}

// each emits body for whole vectors and for the rest.
func (r *row) each(body func(tail bool)) {
	zero := GP64()
	XORQ(zero, zero)
	r.eachFrom(zero, body)
}

// eachFrom does the same, beginning at an offset in bytes.
func (r *row) eachFrom(from reg.Register, body func(tail bool)) {
	r.loops++
	loop := r.loops
	label := func(name string) string { return fmt.Sprintf("%s%d", name, loop) }
	MOVQ(from, r.at)
	JMP(LabelRef(label("check")))
	Label(label("whole"))
	body(false)
	ADDQ(I8(int8(4*r.width)), r.at)
	Label(label("check"))
	CMPQ(r.at, r.whole)
	JL(LabelRef(label("whole")))
	CMPQ(r.at, r.bytes)
	JGE(LabelRef(label("end")))
	body(true)
	Label(label("end"))
}

// eachOf does the same for up to most vectors at a time, then for one. In a long
// computation, the steps of several vectors alternate and so wait less for each
// other. body gets the number of vectors.
func (r *row) eachOf(most int, body func(vectors int, tail bool)) {
	at, last := GP64(), GP64()
	XORQ(at, at)
	if most > 1 {
		step := int32(4 * r.width * most)
		MOVQ(r.bytes, last)
		SUBQ(I32(step), last)
		MOVQ(at, r.at)
		JMP(LabelRef("several"))
		Label("vectors")
		body(most, false)
		ADDQ(I32(step), r.at)
		Label("several")
		CMPQ(r.at, last)
		JLE(LabelRef("vectors"))
		MOVQ(r.at, at)
	}
	r.eachFrom(at, func(tail bool) { body(1, tail) })
}

// together returns the results of of for each of n vectors.
func together(n int, of func(i int) reg.VecVirtual) []reg.VecVirtual {
	all := make([]reg.VecVirtual, n)
	for i := range all {
		all[i] = of(i)
	}
	return all
}

// down emits body for each of the rows, at least one, in the loop's current
// columns. i counts the rows.
func (r *row) down(count Op, body func(i reg.Register)) {
	r.loops++
	label := fmt.Sprintf("down%d", r.loops)
	columns, i := r.at, GP64()
	r.at = GP64()
	MOVQ(columns, r.at)
	XORQ(i, i)
	Label(label)
	body(i)
	ADDQ(r.bytes, r.at)
	INCQ(i)
	CMPQ(i, count)
	JL(LabelRef(label))
	r.at = columns
}

// of broadcasts the i-th float of an array.
func (v isa) of(array, i reg.Register) reg.VecVirtual {
	return v.broadcast(Mem{Base: array, Index: i, Scale: 4})
}

// here addresses the vector of an array at the loop's position.
func (r *row) here(base reg.Register) Mem { return Mem{Base: base, Index: r.at, Scale: 1} }

// load reads the vector at the loop's position; masked lanes are 0.
func (r *row) load(base reg.Register, tail bool) reg.VecVirtual { return r.loadNext(0, base, tail) }

// loadNext reads the i-th vector from there on.
func (r *row) loadNext(i int, base reg.Register, tail bool) reg.VecVirtual {
	x, from := r.reg(), r.here(base).Offset(4*r.width*i)
	switch {
	case !tail:
		VMOVUPS(from, x)
	case r.width == 16:
		VMOVUPS_Z(from, reg.K1, x)
	default:
		VMASKMOVPS(from, r.mask, x)
	}
	return x
}

func (r *row) store(x reg.Register, base reg.Register, tail bool) { r.storeNext(0, x, base, tail) }

// storeNext writes the i-th vector from there on.
func (r *row) storeNext(i int, x reg.Register, base reg.Register, tail bool) {
	to := r.here(base).Offset(4 * r.width * i)
	switch {
	case !tail:
		VMOVUPS(x, to)
	case r.width == 16:
		VMOVUPS(x, reg.K1, to)
	default:
		VMASKMOVPS(x, r.mask, to)
	}
}

// cut sets the masked lanes of x to 0 where tail.
func (r *row) cut(x reg.Register, tail bool) {
	switch {
	case !tail:
	case r.width == 16:
		VMOVAPS_Z(x, reg.K1, x)
	default:
		VANDPS(r.mask, x, x)
	}
}

func pointer(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }

// rows emits body for each of the rows; body advances its pointers by r.bytes. The
// functions end emit code after the rows.
func rows(count reg.Register, body func(), end ...func()) {
	saved := flushing()
	TESTQ(count, count)
	JZ(LabelRef("done"))
	Label("rows")
	body()
	DECQ(count)
	JNZ(LabelRef("rows"))
	Label("done")
	for _, f := range end {
		f()
	}
	finish(saved)
}

// elementwise writes the kernels that are not products; package kernels documents
// what each computes.
func elementwise(v isa) {
	var table strings.Builder
	declare := func(name, params string) {
		function(name+v.name, params, params)
		fmt.Fprintf(&table, "%[1]s: %[1]s%[2]s,\n", name, v.name)
	}
	defer func() { fmt.Fprintf(&declarations, "\nvar vectors%s = vectorKernels{\n%s}\n", v.name, table.String()) }()

	for _, f := range []struct {
		name string
		of   func(reg.Register) reg.VecVirtual
	}{
		{"exp", v.exp},
		{"log", func(x reg.Register) reg.VecVirtual { return v.log(x, false) }},
		{"softplus", v.softplus},
		{"sigmoid", v.sigmoid},
	} {
		declare(f.name, "dst, src *float32, n int")
		dst, src := pointer("dst"), pointer("src")
		r := v.row(pointer("n"))
		r.each(func(tail bool) { r.store(f.of(r.load(src, tail)), dst, tail) })
		finish(nil)
	}

	for _, f := range []struct {
		name string
		do   func(ops ...Op)
	}{{"add", VADDPS}, {"multiply", VMULPS}} {
		declare(f.name, "dst, src *float32, n int")
		saved := flushing()
		dst, src := pointer("dst"), pointer("src")
		r := v.row(pointer("n"))
		r.each(func(tail bool) {
			x, y := r.load(src, tail), r.load(dst, tail)
			f.do(x, y, y)
			r.store(y, dst, tail)
		})
		finish(saved)
	}

	declare("sumSquares", "dst, x *float32, rows, n int")
	{
		dst, x, count := pointer("dst"), pointer("x"), pointer("rows")
		r := v.row(pointer("n"))
		rows(count, func() {
			// Four sums at once, as each waits for the one before.
			sums := [4]reg.VecVirtual{v.zero(), v.zero(), v.zero(), v.zero()}
			at, last := GP64(), GP64()
			XORQ(at, at)
			MOVQ(r.bytes, last)
			SUBQ(I32(int32(16*v.width)), last)
			JMP(LabelRef("fours"))
			Label("four")
			for i, sum := range sums {
				y := v.copied(Mem{Base: x, Index: at, Scale: 1, Disp: 4 * v.width * i})
				VFMADD231PS(y, y, sum)
			}
			ADDQ(I32(int32(16*v.width)), at)
			Label("fours")
			CMPQ(at, last)
			JLE(LabelRef("four"))
			r.eachFrom(at, func(tail bool) {
				y := r.load(x, tail)
				VFMADD231PS(y, y, sums[0])
			})
			VADDPS(sums[1], sums[0], sums[0])
			VADDPS(sums[3], sums[2], sums[2])
			VADDPS(sums[2], sums[0], sums[0])
			VMOVSS(v.sum(sums[0]).AsX(), Mem{Base: dst})
			ADDQ(I8(4), dst)
			ADDQ(r.bytes, x)
		})
	}

	declare("addSquares", "sums, x *float32, rows, n int")
	{
		sums, x, count := pointer("sums"), pointer("x"), pointer("rows")
		r := v.row(pointer("n"))
		rows(count, func() {
			r.each(func(tail bool) {
				y, sum := r.load(x, tail), r.load(sums, tail)
				VFMADD231PS(y, y, sum)
				r.store(sum, sums, tail)
			})
			ADDQ(r.bytes, x)
		})
	}

	declare("squaredDistances", "dist, csq, xsq *float32, rows, n int")
	{
		dist, csq, xsq, count := pointer("dist"), pointer("csq"), pointer("xsq"), pointer("rows")
		zero := v.zero()
		r := v.row(pointer("n"))
		rows(count, func() {
			square := v.broadcast(Mem{Base: csq})
			r.each(func(tail bool) {
				y := r.load(dist, tail)
				VADDPS(square, y, y)
				VADDPS(r.load(xsq, tail), y, y)
				VMAXPS(y, zero, y)
				r.store(y, dist, tail)
			})
			ADDQ(I8(4), csq)
			ADDQ(r.bytes, dist)
		})
	}

	declare("logPhi", "dst, dist, width, limit *float32, rows, n int")
	{
		dst, dist, width, limit, count := pointer("dst"), pointer("dist"), pointer("width"), pointer("limit"), pointer("rows")
		r := v.row(pointer("n"))
		rows(count, func() {
			w := v.broadcast(Mem{Base: width})
			r.each(func(tail bool) {
				y := r.load(limit, tail)
				VFNMADD231PS(r.load(dist, tail), w, y)
				r.store(y, dst, tail)
			})
			ADDQ(I8(4), width)
			ADDQ(r.bytes, dist)
			ADDQ(r.bytes, dst)
		})
	}

	activate(v, declare)
	backward(v, declare)
	softmax(v, declare)
	logBCE(v, declare)
	adam(v, declare)
}

func (v isa) factor(param string) reg.VecVirtual {
	return v.broadcast(ParamAddr(param))
}

// ParamAddr addresses an argument on the stack.
func ParamAddr(name string) Mem {
	b, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

func activate(v isa, declare func(name, params string)) {
	declare("activate", "dst, top *float32, largest *int32, dist, logRatio, width, limit *float32, rows, n int")
	saved := flushing()
	dst, top, largest := pointer("dst"), pointer("top"), pointer("largest")
	dist, logRatio, width, limit := pointer("dist"), pointer("logRatio"), pointer("width"), pointer("limit")
	r := v.row(pointer("n"))
	several := 1
	if v.width == 16 { // AVX2 has too few registers for this
		several = 4 // adjacent cache lines
	}
	r.eachOf(several, func(vectors int, tail bool) {
		fresh := func(x Op) []reg.VecVirtual {
			return together(vectors, func(int) reg.VecVirtual { return v.copied(x) })
		}
		most := together(vectors, func(i int) reg.VecVirtual { return r.loadNext(i, limit, tail) })
		best, bestAt, place := fresh(constant(0xff800000)), fresh(constant(0)), v.zero()
		r.down(ParamAddr("rows"), func(i reg.Register) {
			ratio, w := v.of(logRatio, i), v.of(width, i)
			for j := range vectors {
				y := v.copied(ratio)
				VFNMADD231PS(r.loadNext(j, dist, tail), w, y)
				VADDPS(most[j], y, y)
				v.greater(y, best[j], bestAt[j], place)
				r.storeNext(j, v.exp(y), dst, tail)
			}
			VPADDD(constant(1), place, place)
		})
		for j := range vectors {
			r.storeNext(j, best[j], top, tail)
			r.storeNext(j, bestAt[j], largest, tail)
		}
	})
	finish(saved)
}

// greater replaces the lanes of best, and their positions, by those of y that are greater.
func (v isa) greater(y, best, bestAt, place reg.Register) {
	const greater = 0x1e
	if v.width == 16 {
		VCMPPS(U8(greater), best, y, reg.K2)
		VMOVAPS(y, reg.K2, best)
		VMOVDQA32(place, reg.K2, bestAt)
		return
	}
	is := v.reg()
	VCMPPS(U8(greater), best, y, is)
	VBLENDVPS(is, y, best, best)
	VBLENDVPS(is, place, bestAt, bestAt)
}

func backward(v isa, declare func(name, params string)) {
	declare("backward", "gDist, gWidth, sumDist, gLimit, perColumn, grad, dist, width, inverse *float32, rows, n int")
	gDist, gWidth, sumDist, gLimit, perColumn := pointer("gDist"), pointer("gWidth"), pointer("sumDist"), pointer("gLimit"), pointer("perColumn")
	g, dist, width, inverse := pointer("grad"), pointer("dist"), pointer("width"), pointer("inverse")
	r := v.row(pointer("n"))
	saved := flushing()
	i := GP64()
	XORQ(i, i)
	Label("rows")
	byWidth, byDist, w, inv := v.zero(), v.zero(), v.of(width, i), v.of(inverse, i)
	r.each(func(tail bool) {
		y, out, beta, limit, column := r.load(g, tail), v.zero(), v.copied(inv), r.load(gLimit, tail), r.load(perColumn, tail)
		VFNMADD231PS(w, y, out)
		VSUBPS(r.load(dist, tail), beta, beta)
		VFMADD231PS(beta, y, byWidth)
		VADDPS(out, byDist, byDist)
		VADDPS(y, limit, limit)
		VADDPS(out, column, column)
		r.store(out, gDist, tail)
		r.store(limit, gLimit, tail)
		r.store(column, perColumn, tail)
	})
	VMOVSS(v.sum(byWidth).AsX(), Mem{Base: gWidth, Index: i, Scale: 4})
	VMOVSS(v.sum(byDist).AsX(), Mem{Base: sumDist, Index: i, Scale: 4})
	ADDQ(r.bytes, g)
	ADDQ(r.bytes, dist)
	ADDQ(r.bytes, gDist)
	INCQ(i)
	CMPQ(i, ParamAddr("rows"))
	JL(LabelRef("rows"))
	finish(saved)
}

func softmax(v isa, declare func(name, params string)) {
	declare("softmax", "dst, norm, l *float32, rows, n int")
	{
		saved := flushing()
		dst, norm, l := pointer("dst"), pointer("norm"), pointer("l")
		r := v.row(pointer("n"))
		r.each(func(tail bool) {
			top, sum := r.load(l, tail), v.zero()
			r.down(ParamAddr("rows"), func(reg.Register) { VMAXPS(r.load(l, tail), top, top) })
			r.down(ParamAddr("rows"), func(reg.Register) {
				y := r.load(l, tail)
				VSUBPS(top, y, y)
				y = v.exp(y)
				VADDPS(y, sum, sum)
				r.store(y, dst, tail)
			})
			inverse := v.inverse(sum)
			r.down(ParamAddr("rows"), func(reg.Register) {
				y := r.load(dst, tail)
				VMULPS(inverse, y, y)
				r.store(y, dst, tail)
			})
			VADDPS(v.log(sum, true), top, top)
			r.store(top, norm, tail)
		})
		finish(saved)
	}

	declare("softmaxBackward", "grad, sum, share *float32, rows, n int")
	{
		saved := flushing()
		g, sum, share := pointer("grad"), pointer("sum"), pointer("share")
		r := v.row(pointer("n"))
		r.each(func(tail bool) {
			total := v.zero()
			r.down(ParamAddr("rows"), func(reg.Register) { VADDPS(r.load(g, tail), total, total) })
			r.down(ParamAddr("rows"), func(reg.Register) {
				y := r.load(g, tail)
				VFNMADD231PS(r.load(share, tail), total, y)
				r.store(y, g, tail)
			})
			r.store(total, sum, tail)
		})
		finish(saved)
	}
}

func logBCE(v isa, declare func(name, params string)) {
	declare("logBCE", "grad, logY *float32, labels *int, shift, scale float32, rows, n int) (sum float64)")
	saved := flushing()
	grad, logY, labels := pointer("grad"), pointer("logY"), pointer("labels")
	loss := XMM()
	VXORPD(loss, loss, loss)
	shift, scale := v.factor("shift"), v.factor("scale")
	r := v.row(pointer("n"))
	r.each(func(tail bool) {
		label, total, place := r.labels(labels, tail), v.zero(), v.zero()
		// Σ log u is the logarithm of the product of the u, m·2ᵉ.
		m, exponent := v.copied(float(1)), v.zero()
		r.down(ParamAddr("rows"), func(reg.Register) {
			l := r.load(logY, tail)
			VSUBPS(shift, l, l)
			// e = eˡ and u = 1−eˡ, without cancellation where n = 0.
			n, p := v.reduced(v.clamped(l, -105, 0))
			one := v.copied(float(1))
			v.scaled(one, n)
			e, u := v.copied(one), v.copied(float(1))
			VFMADD213PS(one, p, e)
			VSUBPS(one, u, u)
			VFNMADD231PS(one, p, u)
			inverse := v.inverse(u)
			// −log(1−eˡ) = (e + (u−1))/u − log u, the former 0 where n = 0.
			lost, slope := v.reg(), v.reg()
			VSUBPS(float(1), u, lost)
			if v.width == 16 {
				VCMPPS(U8(4), float(0), n, reg.K2)
				VADDPS_Z(e, lost, reg.K2, lost)
			} else {
				nonzero := v.reg()
				VCMPPS(U8(4), float(0), n, nonzero)
				VADDPS(e, lost, lost)
				VANDPS(nonzero, lost, lost)
			}
			VMULPS(inverse, e, slope)
			// Few vectors contain the label's row of a column.
			others := fmt.Sprintf("others%v", tail)
			if v.width == 16 {
				VPCMPEQD(label, place, reg.K2)
				KORTESTW(reg.K2, reg.K2)
				JZ(LabelRef(others))
				VXORPS(lost, lost, reg.K2, lost)
				VSUBPS(l, total, reg.K2, total)
				VMOVUPS(float(-1), reg.K2, slope)
				VMOVUPS(float(1), reg.K2, u)
			} else {
				own, any := v.reg(), GP32()
				VPCMPEQD(label, place, own)
				VMOVMSKPS(own, any)
				TESTL(any, any)
				JZ(LabelRef(others))
				VANDNPS(lost, own, lost)
				VANDPS(own, l, l)
				VSUBPS(l, total, total)
				VBLENDVPS(own, float(-1), slope, slope)
				VBLENDVPS(own, float(1), u, u)
			}
			Label(others)
			VFMADD231PS(inverse, lost, total)
			VMULPS(u, m, m)
			v.split(m, exponent)
			VPADDD(constant(1), place, place)
			VMULPS(scale, slope, slope)
			skip := fmt.Sprintf("noGradient%v", tail)
			TESTQ(grad, grad)
			JZ(LabelRef(skip))
			r.store(slope, grad, tail)
			Label(skip)
		})
		VSUBPS(v.log(m, true), total, total)
		VFNMADD231PS(float(math.Ln2), exponent, total)
		r.cut(total, tail)
		wide := v.sum(total).AsX()
		VCVTSS2SD(wide, wide, wide)
		VADDSD(wide, loss, loss)
	})
	Store(loss, ReturnIndex(0))
	finish(saved)
}

// split brings positive numbers m into [1, 2) and adds the exponents of 2 that
// this takes to e.
func (v isa) split(m, e reg.Register) {
	exponent := v.reg()
	if v.width == 16 {
		VGETEXPPS(m, exponent)
		VGETMANTPS(U8(0), m, m)
	} else {
		VPSRLD(U8(23), m, exponent)
		VPSUBD(constant(127), exponent, exponent)
		VCVTDQ2PS(exponent, exponent)
		VPAND(constant(0x007fffff), m, m)
		VPOR(float(1), m, m)
	}
	VADDPS(exponent, e, e)
}

// labels reads the ints of an array for the loop's current columns.
func (r *row) labels(array reg.Register, tail bool) reg.VecVirtual {
	at, lanes, x := GP64(), r.copied(laneNumbers()), r.zero()
	LEAQ(Mem{Base: array, Index: r.at, Scale: 2}, at)
	low := Mem{Base: at, Index: lanes, Scale: 8} // the lower half of each
	if r.width == 16 {
		if tail {
			KMOVW(reg.K1, reg.K2)
		} else {
			KXNORW(reg.K2, reg.K2, reg.K2)
		}
		VPGATHERDD(low, reg.K2, x)
		return x
	}
	mask := r.copied(constant(0xffffffff))
	r.cut(mask, tail)
	VPGATHERDD(mask, low, x)
	return x
}

func adam(v isa, declare func(name, params string)) {
	declare("adam", "p, grad, m, v *float32, size, scale float32, n int")
	p, g, m, s := pointer("p"), pointer("grad"), pointer("m"), pointer("v")
	size, scale := v.factor("size"), v.factor("scale")
	saved := flushing()
	r := v.row(pointer("n"))
	several, most := 1, v.copied(float(math.MaxFloat32))
	if v.width == 16 {
		several = 4
	}
	r.eachOf(several, func(vectors int, tail bool) {
		loaded := func(base reg.Register) []reg.VecVirtual {
			return together(vectors, func(i int) reg.VecVirtual { return r.loadNext(i, base, tail) })
		}
		each := func(do func(i int)) {
			for i := range vectors {
				do(i)
			}
		}
		grad, first, second := loaded(g), loaded(m), loaded(s)
		change := together(vectors, func(int) reg.VecVirtual { return v.reg() })
		each(func(i int) { VSUBPS(first[i], grad[i], change[i]) })
		each(func(i int) { VFMADD231PS(float(0.1), change[i], first[i]) })
		each(func(i int) { r.storeNext(i, first[i], m, tail) })
		// v + 0.001(g²−v) is 0.999v + 0.001g² with one rounding fewer.
		each(func(i int) { VFMSUB213PS(second[i], grad[i], grad[i]) })
		each(func(i int) { VFMADD231PS(float(0.001), grad[i], second[i]) })
		each(func(i int) { VMINPS(second[i], most, second[i]) }) // ∞ − ∞ would be NaN
		each(func(i int) { r.storeNext(i, second[i], s, tail) })
		divisor := v.root(second, scale, float(1e-8))
		each(func(i int) { VMULPS(size, first[i], first[i]) })
		inverse, value := v.inverses(divisor), loaded(p)
		each(func(i int) { VFNMADD231PS(inverse[i], first[i], value[i]) })
		each(func(i int) { r.storeNext(i, value[i], p, tail) })
	})
	finish(saved)
}

// root returns scale·√x + plus for 0 ≤ x < ∞, for AVX-512 by an approximation y of
// 1/√x and one Newton step, √x ≈ xy(3−xy²)/2, because its square-root instructions
// delay the divisions.
func (v isa) root(x []reg.VecVirtual, scale reg.VecVirtual, plus Mem) []reg.VecVirtual {
	fresh := func() []reg.VecVirtual {
		return together(len(x), func(int) reg.VecVirtual { return v.reg() })
	}
	root := fresh()
	if v.width == 8 {
		for i, x := range x {
			VSQRTPS(x, root[i])
			VFMADD213PS(plus, scale, root[i])
		}
		return root
	}
	y, half := fresh(), v.reg()
	VMULPS(float(0.5), scale, half)
	for i, x := range x {
		least := v.copied(float(0x1p-126)) // 1/√0 is infinite
		VMAXPS(x, least, root[i])
		VRSQRT14PS(root[i], y[i])
	}
	for i := range x {
		VMULPS(y[i], root[i], root[i])
	}
	step := together(len(x), func(int) reg.VecVirtual { return v.copied(float(3)) })
	for i := range x {
		VFNMADD231PS(y[i], root[i], step[i])
		VMULPS(half, root[i], root[i])
	}
	for i := range x {
		VFMADD213PS(plus, step[i], root[i])
	}
	return root
}
