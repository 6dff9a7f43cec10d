package main

import (
	"fmt"
	"math"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// row is a loop over the n floats of a row, whole vectors first and what is
// left over under a mask.
type row struct {
	isa
	bytes, whole reg.GPVirtual // 4n, and how much of it whole vectors cover
	mask         reg.VecVirtual
	at           reg.GPVirtual // where the loop is, in bytes
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
	r.loops++
	label := func(name string) string { return fmt.Sprintf("%s%d", name, r.loops) }
	XORQ(r.at, r.at)
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

// here addresses the vector of an array that the loop is at.
func (r *row) here(base reg.Register) Mem { return Mem{Base: base, Index: r.at, Scale: 1} }

// load reads the vector at the loop's place; masked lanes are 0.
func (r *row) load(base reg.Register, tail bool) reg.VecVirtual {
	x := r.reg()
	switch {
	case !tail:
		VMOVUPS(r.here(base), x)
	case r.width == 16:
		VMOVUPS_Z(r.here(base), reg.K1, x)
	default:
		VMASKMOVPS(r.here(base), r.mask, x)
	}
	return x
}

func (r *row) store(x reg.Register, base reg.Register, tail bool) {
	switch {
	case !tail:
		VMOVUPS(x, r.here(base))
	case r.width == 16:
		VMOVUPS(x, reg.K1, r.here(base))
	default:
		VMASKMOVPS(x, r.mask, r.here(base))
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

// rows emits body for each of the rows; body advances its pointers by
// r.bytes. What comes after the rows is at the end.
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

// elementwise writes the kernels that are no products; package kernels says
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

	declare("multiply", "dst, src *float32, n int")
	{
		saved := flushing()
		dst, src := pointer("dst"), pointer("src")
		r := v.row(pointer("n"))
		r.each(func(tail bool) {
			x, y := r.load(src, tail), r.load(dst, tail)
			VMULPS(x, y, y)
			r.store(y, dst, tail)
		})
		finish(saved)
	}

	declare("sumSquares", "dst, x *float32, rows, n int")
	{
		dst, x, count := pointer("dst"), pointer("x"), pointer("rows")
		r := v.row(pointer("n"))
		rows(count, func() {
			sum := v.zero()
			r.each(func(tail bool) {
				y := r.load(x, tail)
				VFMADD231PS(y, y, sum)
			})
			VMOVSS(v.sum(sum).AsX(), Mem{Base: dst})
			ADDQ(I8(4), dst)
			ADDQ(r.bytes, x)
		})
	}

	declare("scaleRows", "dst, src, by *float32, factor float32, rows, n int")
	{
		dst, src, by, count := pointer("dst"), pointer("src"), pointer("by"), pointer("rows")
		factor := v.factor("factor")
		r := v.row(pointer("n"))
		rows(count, func() {
			scale := v.broadcast(Mem{Base: by})
			VMULPS(factor, scale, scale)
			r.each(func(tail bool) {
				y := r.load(src, tail)
				VMULPS(scale, y, y)
				r.store(y, dst, tail)
			})
			ADDQ(I8(4), by)
			ADDQ(r.bytes, src)
			ADDQ(r.bytes, dst)
		})
	}

	declare("squaredDistances", "dist, xsq, csq *float32, rows, n int")
	{
		dist, xsq, csq, count := pointer("dist"), pointer("xsq"), pointer("csq"), pointer("rows")
		zero := v.zero()
		r := v.row(pointer("n"))
		rows(count, func() {
			square := v.broadcast(Mem{Base: xsq})
			r.each(func(tail bool) {
				y := r.load(dist, tail)
				VADDPS(square, y, y)
				VADDPS(r.load(csq, tail), y, y)
				VMAXPS(y, zero, y)
				r.store(y, dist, tail)
			})
			ADDQ(I8(4), xsq)
			ADDQ(r.bytes, dist)
		})
	}

	declare("logPhi", "dst, dist, width, limit *float32, rows, n int")
	{
		dst, dist, width, limit, count := pointer("dst"), pointer("dist"), pointer("width"), pointer("limit"), pointer("rows")
		r := v.row(pointer("n"))
		rows(count, func() {
			most := v.broadcast(Mem{Base: limit})
			r.each(func(tail bool) {
				y := v.copied(most)
				VFNMADD231PS(r.load(dist, tail), r.load(width, tail), y)
				r.store(y, dst, tail)
			})
			ADDQ(I8(4), limit)
			ADDQ(r.bytes, dist)
			ADDQ(r.bytes, dst)
		})
	}

	activate(v, declare)
	backward(v, declare)
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
	declare("activate", "dst, top *float32, largest *int, dist, logRatio, width, limit *float32, rows, n int")
	dst, top, largest := pointer("dst"), pointer("top"), pointer("largest")
	dist, logRatio, width, limit, count := pointer("dist"), pointer("logRatio"), pointer("width"), pointer("limit"), pointer("rows")
	r := v.row(pointer("n"))
	rows(count, func() {
		most := v.broadcast(Mem{Base: limit})
		best, bestAt := v.copied(constant(0xff800000)), v.zero()
		place := v.copied(laneNumbers())
		r.each(func(tail bool) {
			y := r.load(logRatio, tail)
			VFNMADD231PS(r.load(dist, tail), r.load(width, tail), y)
			VADDPS(most, y, y)
			v.greater(r, y, best, bestAt, place, tail)
			r.store(v.exp(y), dst, tail)
			VPADDD(constant(bits(v.width)), place, place)
		})
		// The first of the largest: fold the maximum, then the least place
		// among the lanes that have it; 0 where there is none but NaN.
		all := v.copied(best)
		v.fold(all, func(a, b reg.Register) { VMAXPS(a, b, b) })
		VMOVSS(all.AsX(), Mem{Base: top})
		VBROADCASTSS(all.AsX(), all)
		least := v.copied(constant(0x7fffffff))
		if v.width == 16 {
			VCMPPS(U8(0), all, best, reg.K2)
			VMOVAPS(bestAt, reg.K2, least)
		} else {
			VCMPPS(U8(0), all, best, all)
			VBLENDVPS(all, bestAt, least, least)
		}
		v.fold(least, func(a, b reg.Register) { VPMINSD(a, b, b) })
		at, none := GP64(), GP64()
		VMOVD(least.AsX(), at.As32())
		XORQ(none, none)
		CMPQ(at, U32(0x7fffffff))
		CMOVQEQ(none, at)
		MOVQ(at, Mem{Base: largest})
		ADDQ(I8(4), limit)
		ADDQ(I8(4), top)
		ADDQ(I8(8), largest)
		ADDQ(r.bytes, dist)
		ADDQ(r.bytes, dst)
	})
}

// greater takes the lanes of y, and their places, where they exceed best.
func (v isa) greater(r *row, y, best, bestAt, place reg.Register, tail bool) {
	const greater = 0x1e
	if v.width == 16 {
		if tail {
			VCMPPS(U8(greater), best, y, reg.K1, reg.K2)
		} else {
			VCMPPS(U8(greater), best, y, reg.K2)
		}
		VMOVAPS(y, reg.K2, best)
		VMOVDQA32(place, reg.K2, bestAt)
		return
	}
	is := v.reg()
	VCMPPS(U8(greater), best, y, is)
	r.cut(is, tail)
	VBLENDVPS(is, y, best, best)
	VBLENDVPS(is, place, bestAt, bestAt)
}

func backward(v isa, declare func(name, params string)) {
	declare("backward", "gDist, gBeta, colSum, sum, rowSum, grad, dist, width, inverse *float32, rows, n int")
	gDist, gBeta, colSum, sum, rowSum := pointer("gDist"), pointer("gBeta"), pointer("colSum"), pointer("sum"), pointer("rowSum")
	g, dist, width, inverse := pointer("grad"), pointer("dist"), pointer("width"), pointer("inverse")
	r := v.row(pointer("n"))
	// All registers are taken: the count of the rows stays on the stack.
	rowsLeft := ParamAddr("rows")
	saved := flushing()
	// What a masked store has written cannot be read again at once, so the
	// last columns' sums stay in registers.
	MOVQ(r.whole, r.at)
	betaTail, colTail := r.load(gBeta, true), r.load(colSum, true)
	CMPQ(rowsLeft, U8(0))
	JE(LabelRef("done"))
	Label("rows")
	total, totalDist := v.zero(), v.zero()
	r.each(func(tail bool) {
		y, beta, out := r.load(g, tail), r.load(inverse, tail), v.zero()
		VFNMADD231PS(r.load(width, tail), y, out)
		VADDPS(y, total, total)
		VADDPS(out, totalDist, totalDist)
		VSUBPS(r.load(dist, tail), beta, beta)
		r.store(out, gDist, tail)
		if tail {
			VFMADD231PS(beta, y, betaTail)
			VADDPS(out, colTail, colTail)
			return
		}
		b, c := r.load(gBeta, tail), r.load(colSum, tail)
		VFMADD231PS(beta, y, b)
		VADDPS(out, c, c)
		r.store(b, gBeta, tail)
		r.store(c, colSum, tail)
	})
	VMOVSS(v.sum(total).AsX(), Mem{Base: sum})
	VMOVSS(v.sum(totalDist).AsX(), Mem{Base: rowSum})
	ADDQ(I8(4), sum)
	ADDQ(I8(4), rowSum)
	ADDQ(r.bytes, g)
	ADDQ(r.bytes, dist)
	ADDQ(r.bytes, gDist)
	DECQ(rowsLeft)
	JNZ(LabelRef("rows"))
	Label("done")
	MOVQ(r.whole, r.at)
	r.store(betaTail, gBeta, true)
	r.store(colTail, colSum, true)
	finish(saved)
}

func logBCE(v isa, declare func(name, params string)) {
	declare("logBCE", "grad, logY *float32, labels *int, shift, scale float32, rows, n int) (sum float64)")
	grad, logY, labels, count := pointer("grad"), pointer("logY"), pointer("labels"), pointer("rows")
	loss := XMM()
	VXORPD(loss, loss, loss)
	shift, scale := v.factor("shift"), v.factor("scale")
	r := v.row(pointer("n"))
	rows(count, func() {
		label := v.reg()
		VPBROADCASTD(Mem{Base: labels}, label)
		place := v.copied(laneNumbers())
		total := v.zero()
		r.each(func(tail bool) {
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
			// log(1−eˡ) = log u + (−e − (u−1))/u, the latter 0 where n = 0.
			minus, lost := v.reg(), v.reg()
			VSUBPS(float(1), u, lost)
			VXORPS(constant(0x80000000), e, minus)
			VSUBPS(lost, minus, lost)
			slope := v.reg()
			VMULPS(inverse, e, slope)
			if v.width == 16 {
				VCMPPS(U8(4), float(0), n, reg.K2)
				VMOVAPS_Z(lost, reg.K2, lost)
			} else {
				nonzero := v.reg()
				VCMPPS(U8(4), float(0), n, nonzero)
				VANDPS(nonzero, lost, lost)
			}
			entry := v.log(u, true)
			VFMADD231PS(inverse, lost, entry)
			minusOne := v.copied(float(-1))
			if v.width == 16 {
				VPCMPEQD(label, place, reg.K2)
				VMOVAPS(l, reg.K2, entry)
				VMOVAPS(minusOne, reg.K2, slope)
			} else {
				own := v.reg()
				VPCMPEQD(label, place, own)
				VBLENDVPS(own, l, entry, entry)
				VBLENDVPS(own, minusOne, slope, slope)
			}
			r.cut(entry, tail)
			VSUBPS(entry, total, total)
			VPADDD(constant(bits(v.width)), place, place)
			VMULPS(scale, slope, slope)
			skip := fmt.Sprintf("noGradient%v", tail)
			TESTQ(grad, grad)
			JZ(LabelRef(skip))
			r.store(slope, grad, tail)
			Label(skip)
		})
		wide := v.sum(total).AsX()
		VCVTSS2SD(wide, wide, wide)
		VADDSD(wide, loss, loss)
		ADDQ(I8(8), labels)
		ADDQ(r.bytes, logY)
		TESTQ(grad, grad)
		JZ(LabelRef("next"))
		ADDQ(r.bytes, grad)
		Label("next")
	}, func() { Store(loss, ReturnIndex(0)) })
}

func adam(v isa, declare func(name, params string)) {
	declare("adam", "p, grad, m, v *float32, size, scale float32, n int")
	p, g, m, s := pointer("p"), pointer("grad"), pointer("m"), pointer("v")
	size, scale := v.factor("size"), v.factor("scale")
	saved := flushing()
	r := v.row(pointer("n"))
	beta2 := v.copied(float(0.999))
	r.each(func(tail bool) {
		grad, first, second, value := r.load(g, tail), r.load(m, tail), r.load(s, tail), r.load(p, tail)
		change := v.reg()
		VSUBPS(first, grad, change)
		VFMADD231PS(float(0.1), change, first)
		r.store(first, m, tail)
		VMULPS(grad, grad, grad)
		VMULPS(float(0.001), grad, grad)
		VFMADD213PS(grad, beta2, second)
		r.store(second, s, tail)
		root := v.sqrt(second)
		VMULPS(scale, root, root)
		VADDPS(float(1e-8), root, root)
		VMULPS(size, first, first)
		VDIVPS(root, first, first)
		VSUBPS(first, value, value)
		r.store(value, p, tail)
	})
	finish(saved)
}

// sqrt returns √x for x ≥ 0, for AVX-512 by an approximation and one step of
// Newton's, as its own square roots hold up the divisions. It takes infinity
// for the largest number.
func (v isa) sqrt(x reg.Register) reg.VecVirtual {
	root := v.reg()
	if v.width == 8 {
		VSQRTPS(x, root)
		return root
	}
	y, inverse, e := v.clamped(x, 0x1p-126, math.MaxFloat32), v.reg(), v.copied(float(1))
	VRSQRT14PS(y, inverse)
	VMULPS(y, inverse, root)
	VFNMADD231PS(inverse, root, e)
	VMULPS(float(0.5), e, e)
	VFMADD231PS(root, e, root)
	return root
}
