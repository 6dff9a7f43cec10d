package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// float64Kernels writes the kernels of float64.
func float64Kernels() {
	for _, v := range []isa{avx2, avx512} {
		for _, of := range []string{"float64", "float32"} {
			for rows := 1; rows <= v.regs/4; rows *= 2 {
				fmt.Fprintf(&declarations, "\nvar %sTilesOf%d%s = [...]tileOf[%s]{nil", of, rows, v.name, of)
				for nv := 1; nv <= float64Vectors; nv++ {
					fmt.Fprintf(&declarations, ", %sTile%dx%d%s", of, rows, nv, v.name)
				}
				declarations.WriteString("}\n")
				for nv := 1; nv <= float64Vectors; nv++ {
					float64Tile(v, rows, nv, of)
				}
			}
		}
		dot(v, 4)
		dot(v, 8)
		below(v)
		atLeast(v)
	}
	packRows()
	copyRows()
	rowsTimes("symmetricRows", true, true)
	rowsTimes("rowsTimes", true, false)
	rowsTimes("timesRows", false, true)
	secularTerms()
	quotients()
	bytes()
	largest()
	shrink()
	prefetch()
}

// float64Vectors is the largest number of vectors of columns in a tile. A tile has
// at most a quarter as many rows as there are registers, which leaves registers for a
// row of B and values of A. Tiles with fewer rows serve matrices with few rows.
const float64Vectors = 3

// ahead is how far ahead a float32 B is prefetched, in bytes: the hardware does not
// prefetch beyond a page of memory.
const ahead = 4096

// float64Tile writes C = alpha·Σ_p A[p]·B[p], added to what C holds if add is
// not 0, for packed A [k, rows] in float64 and B [k, nv vectors] in float64 or float32.
func float64Tile(v isa, rows, nv int, of string) {
	params := fmt.Sprintf("a *float64, b *%s, c *float64, k, ldc int, alpha float64, add int", of)
	function(fmt.Sprintf("%sTile%dx%d%s", of, rows, nv, v.name), params, params)
	a, b, c := Load(Param("a"), reg.RAX), Load(Param("b"), reg.RBX), Load(Param("c"), reg.RDX)
	k, ldc := Load(Param("k"), reg.RCX), Load(Param("ldc"), reg.R8)
	SHLQ(U8(3), ldc)
	size := 4 * v.width
	acc := func(i, j int) reg.Register { return v.vector(v.regs - rows*nv + i*nv + j) }
	broadcasts := min(v.regs-(rows+1)*nv, 4)
	for i := range rows {
		for j := range nv {
			VXORPD(acc(i, j), acc(i, j), acc(i, j))
		}
	}
	Label("loop")
	for j := range nv {
		if of == "float32" {
			VCVTPS2PD(Mem{Base: b, Disp: j * size / 2}, v.vector(j))
		} else {
			VMOVUPD(Mem{Base: b, Disp: j * size}, v.vector(j))
		}
	}
	if of == "float32" { // which is read from memory, not from a cache
		for at := 0; at < nv*size/2; at += 64 {
			PREFETCHT0(Mem{Base: b, Disp: ahead + at})
		}
	}
	for i := range rows {
		x := v.vector(nv + i%broadcasts)
		VBROADCASTSD(Mem{Base: a, Disp: 8 * i}, x)
		for j := range nv {
			VFMADD231PD(v.vector(j), x, acc(i, j))
		}
	}
	ADDQ(U32(8*rows), a)
	if of == "float32" {
		ADDQ(U32(nv*size/2), b)
	} else {
		ADDQ(U32(nv*size), b)
	}
	DECQ(k)
	JNZ(LabelRef("loop"))

	alpha := v.vector(0)
	VBROADCASTSD(NewParamAddr("alpha", 40), alpha)
	CMPQ(NewParamAddr("add", 48), U8(0))
	JNE(LabelRef("add"))
	for i := range rows {
		for j := range nv {
			VMULPD(acc(i, j), alpha, acc(i, j))
			VMOVUPD(acc(i, j), Mem{Base: c, Disp: j * size})
		}
		ADDQ(ldc, c)
	}
	finish(nil)
	Label("add")
	for i := range rows {
		for j := range nv {
			VFMADD213PD(Mem{Base: c, Disp: j * size}, alpha, acc(i, j))
			VMOVUPD(acc(i, j), Mem{Base: c, Disp: j * size})
		}
		ADDQ(ldc, c)
	}
	finish(nil)
}

// packRows writes a transposition of four rows, four columns at a time. AVX2 does
// this as fast as AVX-512.
func packRows() {
	const params = "dst *float64, ldd int, src *float64, lds, n int"
	function("packFour", params, params)
	dst, ldd := Load(Param("dst"), GP64()), Load(Param("ldd"), GP64())
	src, lds, n := Load(Param("src"), GP64()), Load(Param("lds"), GP64()), Load(Param("n"), GP64())
	SHLQ(U8(3), ldd)
	SHLQ(U8(3), lds)
	ldd3, lds3 := GP64(), GP64()
	LEAQ(Mem{Base: ldd, Index: ldd, Scale: 2}, ldd3)
	LEAQ(Mem{Base: lds, Index: lds, Scale: 2}, lds3)
	four := func(base, s1, s3 reg.Register) []Mem {
		return []Mem{{Base: base}, {Base: base, Index: s1, Scale: 1}, {Base: base, Index: s1, Scale: 2}, {Base: base, Index: s3, Scale: 1}}
	}
	Label("block")
	var r, t, out [4]reg.VecVirtual
	for i, m := range four(src, lds, lds3) {
		r[i], t[i], out[i] = YMM(), YMM(), YMM()
		VMOVUPD(m, r[i])
	}
	VUNPCKLPD(r[1], r[0], t[0])
	VUNPCKHPD(r[1], r[0], t[1])
	VUNPCKLPD(r[3], r[2], t[2])
	VUNPCKHPD(r[3], r[2], t[3])
	VPERM2F128(U8(0x20), t[2], t[0], out[0])
	VPERM2F128(U8(0x20), t[3], t[1], out[1])
	VPERM2F128(U8(0x31), t[2], t[0], out[2])
	VPERM2F128(U8(0x31), t[3], t[1], out[3])
	for i, m := range four(dst, ldd, ldd3) {
		VMOVUPD(out[i], m)
	}
	ADDQ(U8(32), src)
	LEAQ(Mem{Base: dst, Index: ldd, Scale: 4}, dst)
	DECQ(n)
	JNZ(LabelRef("block"))
	finish(nil)
}

// copyRows writes a copy of n rows of four times fours columns. AVX2 does this as fast
// as AVX-512.
func copyRows() {
	const params = "dst *float64, ldd int, src *float64, lds, fours, n int"
	function("copyRows", params, params)
	dst, ldd := Load(Param("dst"), GP64()), Load(Param("ldd"), GP64())
	src, lds := Load(Param("src"), GP64()), Load(Param("lds"), GP64())
	fours, n := Load(Param("fours"), GP64()), Load(Param("n"), GP64())
	SHLQ(U8(3), ldd)
	SHLQ(U8(3), lds)
	CMPQ(fours, U8(float64Vectors))
	JE(LabelRef("three"))
	Label("row")
	offset, left := GP64(), GP64()
	XORQ(offset, offset)
	MOVQ(fours, left)
	Label("four")
	x := YMM()
	VMOVUPD(Mem{Base: src, Index: offset, Scale: 1}, x)
	VMOVUPD(x, Mem{Base: dst, Index: offset, Scale: 1})
	ADDQ(U8(32), offset)
	DECQ(left)
	JNZ(LabelRef("four"))
	ADDQ(lds, src)
	ADDQ(ldd, dst)
	DECQ(n)
	JNZ(LabelRef("row"))
	finish(nil)
	Label("three") // a panel of AVX2
	for at := range float64Vectors {
		x := YMM()
		VMOVUPD(Mem{Base: src, Disp: 32 * at}, x)
		VMOVUPD(x, Mem{Base: dst, Disp: 32 * at})
	}
	ADDQ(lds, src)
	ADDQ(ldd, dst)
	DECQ(n)
	JNZ(LabelRef("three"))
	finish(nil)
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
	params += " *float64, n int"
	function(name, params, params)
	a, lda, n := Load(Param("a"), GP64()), Load(Param("lda"), GP64()), Load(Param("n"), GP64())
	SHLQ(U8(3), lda)
	fourth := GP64()
	LEAQ(Mem{Base: lda, Index: lda, Scale: 2}, fourth)
	seventh := GP64()
	LEAQ(Mem{Base: a, Index: fourth, Scale: 2}, seventh)
	ADDQ(a, fourth)
	arrays := []reg.Register{a, fourth, seventh}
	rows := []Mem{{Base: a}, {Base: a, Index: lda, Scale: 1}, {Base: a, Index: lda, Scale: 2}, {Base: fourth}}
	var x, y reg.Register
	var sums, v [4]reg.VecVirtual
	if toSums {
		x = Load(Param("x"), GP64())
		arrays = append(arrays, x)
		for i := range rows {
			sums[i] = YMM()
			VXORPD(sums[i], sums[i], sums[i])
		}
	}
	if toY {
		y = Load(Param("y"), GP64())
		arrays = append(arrays, y)
		by := Load(Param("v"), GP64())
		for i := range rows {
			v[i] = YMM()
			VBROADCASTSD(Mem{Base: by, Disp: 8 * i}, v[i])
		}
	}
	Label("loop")
	from, out := YMM(), YMM()
	if toSums {
		VMOVUPD(Mem{Base: x}, from)
	}
	if toY {
		VMOVUPD(Mem{Base: y}, out)
	}
	// The rows are short, and the hardware does not know which come next.
	for _, next := range []Mem{{Base: a, Index: lda, Scale: 4}, {Base: fourth, Index: lda, Scale: 2}, {Base: seventh}, {Base: fourth, Index: lda, Scale: 4}} {
		PREFETCHT0(next)
	}
	for i, at := range rows {
		row := YMM()
		VMOVUPD(at, row)
		if toSums {
			VFMADD231PD(row, from, sums[i])
		}
		if toY {
			VFMADD231PD(row, v[i], out)
		}
	}
	if toY {
		VMOVUPD(out, Mem{Base: y})
	}
	for _, array := range arrays {
		ADDQ(U8(32), array)
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	if toSums {
		VHADDPD(sums[1], sums[0], sums[0])
		VHADDPD(sums[3], sums[2], sums[2])
		VPERM2F128(U8(0x20), sums[2], sums[0], sums[1])
		VPERM2F128(U8(0x31), sums[2], sums[0], sums[3])
		VADDPD(sums[3], sums[1], sums[1])
		VMOVUPD(sums[1], Mem{Base: Load(Param("sums"), GP64())})
	}
	finish(nil)
}

// secularTerms writes, for four times n poles and squares of which each four are step
// numbers after those before, the sums of the terms square/(pole − x), of their
// derivatives, and of what each of four sums of terms was after each step.
func secularTerms() {
	const params = "poles, squares *float64, step, n int, x float64, sums *float64"
	function("secularTerms", params, params)
	poles, squares := Load(Param("poles"), GP64()), Load(Param("squares"), GP64())
	step, n := Load(Param("step"), GP64()), Load(Param("n"), GP64())
	SHLQ(U8(3), step)
	x, one := YMM(), YMM()
	VBROADCASTSD(NewParamAddr("x", 32), x)
	VPCMPEQQ(one, one, one) // the bits of 1
	VPSLLQ(U8(54), one, one)
	VPSRLQ(U8(2), one, one)
	var sums [3]reg.VecVirtual
	for i := range sums {
		sums[i] = YMM()
		VXORPD(sums[i], sums[i], sums[i])
	}
	Label("loop")
	t, u := YMM(), YMM()
	VMOVUPD(Mem{Base: poles}, t)
	VSUBPD(x, t, t)
	VDIVPD(t, one, t)
	VMULPD(Mem{Base: squares}, t, u)
	VADDPD(u, sums[0], sums[0])
	VFMADD231PD(u, t, sums[1])
	VADDPD(sums[0], sums[2], sums[2])
	ADDQ(step, poles)
	ADDQ(step, squares)
	DECQ(n)
	JNZ(LabelRef("loop"))
	to := Load(Param("sums"), GP64())
	for i, sum := range sums {
		half := XMM()
		VEXTRACTF128(U8(1), sum, half)
		VADDPD(half, sum.AsX(), sum.AsX())
		VHADDPD(sum.AsX(), sum.AsX(), sum.AsX())
		VMOVSD(sum.AsX(), Mem{Base: to, Disp: 8 * i})
	}
	finish(nil)
}

// quotients writes products_i ← products_i · Π_j rows_ji/(poles_i − others_j) for 16
// columns i of rows that are ld apart.
func quotients() {
	const params = "products, rows *float64, ld int, poles, others *float64, n int"
	function("quotients", params, params)
	to, rows, ld := Load(Param("products"), GP64()), Load(Param("rows"), GP64()), Load(Param("ld"), GP64())
	from, others, n := Load(Param("poles"), GP64()), Load(Param("others"), GP64()), Load(Param("n"), GP64())
	SHLQ(U8(3), ld)
	var products, poles [4]reg.VecVirtual
	for i := range products {
		products[i], poles[i] = YMM(), YMM()
		VMOVUPD(Mem{Base: to, Disp: 32 * i}, products[i])
		VMOVUPD(Mem{Base: from, Disp: 32 * i}, poles[i])
	}
	Label("loop")
	other := YMM()
	VBROADCASTSD(Mem{Base: others}, other)
	for i := range products {
		below, value := YMM(), YMM()
		VSUBPD(other, poles[i], below)
		VMOVUPD(Mem{Base: rows, Disp: 32 * i}, value)
		VDIVPD(below, value, value)
		VMULPD(value, products[i], products[i])
	}
	ADDQ(ld, rows)
	ADDQ(U8(8), others)
	DECQ(n)
	JNZ(LabelRef("loop"))
	for i := range products {
		VMOVUPD(products[i], Mem{Base: to, Disp: 32 * i})
	}
	finish(nil)
}

// dot writes Σ x·y in float64, for 32·n numbers of a size in bytes.
func dot(v isa, size int) {
	bits, load := 8*size, VMOVUPD
	if size == 4 {
		load = VCVTPS2PD
	}
	params := fmt.Sprintf("x, y *float%d, n int) (sum float64)", bits)
	function(fmt.Sprintf("dot%d%s", bits, v.name), params, params)
	x, y, n := Load(Param("x"), GP64()), Load(Param("y"), GP64()), Load(Param("n"), GP64())
	vector, lanes := YMM, v.width/2
	if lanes == 8 {
		vector = ZMM
	}
	sums := make([]reg.VecVirtual, 32/lanes) // enough to hide the latency of an addition
	for i := range sums {
		sums[i] = vector()
		VXORPD(sums[i], sums[i], sums[i])
	}
	Label("loop")
	for i, sum := range sums {
		a, b := vector(), vector()
		load(Mem{Base: x, Disp: size * lanes * i}, a)
		load(Mem{Base: y, Disp: size * lanes * i}, b)
		VFMADD231PD(a, b, sum)
	}
	ADDQ(U32(32*size), x)
	ADDQ(U32(32*size), y)
	DECQ(n)
	JNZ(LabelRef("loop"))
	for half := len(sums) / 2; half > 0; half /= 2 {
		for i := range half {
			VADDPD(sums[i+half], sums[i], sums[i])
		}
	}
	sum := sums[0]
	if lanes == 8 {
		sum = YMM()
		VEXTRACTF64X4(U8(1), sums[0], sum)
		VADDPD(sums[0].AsY(), sum, sum)
	}
	storeSum(sum)
}

// below writes Below for n rows, a multiple of four vectors.
func below(v isa) {
	const params = "x *float32, p, q *float64, classes, ld, n int, low, high, band float64, near *byte) (sum float64)"
	function("below"+v.name, params, params)
	x, p, q, classes := Load(Param("x"), GP64()), Load(Param("p"), GP64()), Load(Param("q"), GP64()), Load(Param("classes"), GP64())
	ld, n, near := Load(Param("ld"), GP64()), Load(Param("n"), GP64()), Load(Param("near"), GP64())
	SHLQ(U8(3), ld)
	const vectors = 4
	lanes, size := v.width/2, 4*v.width
	vector := YMM
	if lanes == 8 {
		vector = ZMM
	}
	low, high, band, sum := vector(), vector(), vector(), vector()
	for i, bound := range []reg.VecVirtual{low, high, band} {
		VBROADCASTSD(NewParamAddr([]string{"low", "high", "band"}[i], 48+8*i), bound)
	}
	VXORPD(sum, sum, sum)
	Label("rows")
	var weights [vectors]reg.VecVirtual
	for i := range weights {
		weights[i] = vector()
		VXORPD(weights[i], weights[i], weights[i])
	}
	row, share, left := GP64(), GP64(), GP64()
	MOVQ(p, row)
	MOVQ(q, share)
	MOVQ(classes, left)
	Label("classes")
	factor := vector()
	VBROADCASTSD(Mem{Base: share}, factor)
	for i, w := range weights {
		VFMADD231PD(Mem{Base: row, Disp: i * size}, factor, w)
	}
	ADDQ(ld, row)
	ADDQ(U8(8), share)
	DECQ(left)
	JNZ(LabelRef("classes"))
	const less, atMost = 0x11, 0x12 // and not NaN
	bits := GP64()
	for i, w := range weights {
		value, least := vector(), vector()
		VCVTPS2PD(Mem{Base: x, Disp: 4 * lanes * i}, value)
		VMULPD(w, value, value)
		VMOVAPD(low, least)
		VFNMADD231PD(w, band, least)
		VFMADD213PD(high, band, w)
		if lanes == 8 {
			VCMPPD(U8(less), least, value, reg.K1)
			VCMPPD(U8(atMost), w, value, reg.K2)
			VADDPD(value, sum, reg.K1, sum)
			KANDNW(reg.K2, reg.K1, reg.K2)
			KMOVB(reg.K2, Mem{Base: near, Disp: i})
			continue
		}
		VCMPPD(U8(less), least, value, least)
		VCMPPD(U8(atMost), w, value, w)
		VANDNPD(w, least, w)
		VANDPD(value, least, least)
		VADDPD(least, sum, sum)
		some := GP64()
		VMOVMSKPD(w, some.As32())
		if i == 0 {
			MOVQ(some, bits)
			continue
		}
		SHLQ(U8(lanes*i), some)
		ORQ(some, bits)
	}
	if lanes == 4 {
		MOVW(bits.As16(), Mem{Base: near})
	}
	ADDQ(U32(4*lanes*vectors), x)
	ADDQ(U32(size*vectors), p)
	ADDQ(U32(lanes*vectors/8), near)
	SUBQ(U32(lanes*vectors), n)
	JNZ(LabelRef("rows"))
	if lanes == 8 {
		half := YMM()
		VEXTRACTF64X4(U8(1), sum, half)
		VADDPD(sum.AsY(), half, half)
		sum = half
	}
	storeSum(sum)
}

// atLeast writes AtLeast for n numbers, a multiple of 32.
func atLeast(v isa) {
	const params = "x *float32, floor float32, bits *byte, n int"
	function("atLeast"+v.name, params, params)
	x, bits, n := Load(Param("x"), GP64()), Load(Param("bits"), GP64()), Load(Param("n"), GP64())
	floor := v.vector(0)
	VBROADCASTSS(NewParamAddr("floor", 8), floor)
	const ordered = 0x0d
	Label("loop")
	for i := range 32 / v.width {
		from, to := Mem{Base: x, Disp: 4 * v.width * i}, Mem{Base: bits, Disp: v.width / 8 * i}
		if v.width == 16 {
			y := v.vector(1)
			VMOVUPS(from, y)
			VCMPPS(U8(ordered), floor, y, reg.K1)
			KMOVW(reg.K1, to)
			continue
		}
		y, some := YMM(), GP64()
		VMOVUPS(from, y)
		VCMPPS(U8(ordered), floor, y, y)
		VMOVMSKPS(y, some.As32())
		MOVB(some.As8(), to)
	}
	ADDQ(U32(4*32), x)
	ADDQ(U8(4), bits)
	SUBQ(U8(32), n)
	JNZ(LabelRef("loop"))
	finish(nil)
}

// bytes writes the product of bytes, of which AVX2 multiplies and adds twice as many as of
// float32 in the same time. It takes four rows of A and 16 of B at a time.
func bytes() {
	function("bytesAVX2", "t *bytesTask", "t *byte")
	t := Load(Param("t"), GP64())
	field := func(number int) Mem { return Mem{Base: t, Disp: 8 * number} }
	b, c, ldc, size := GP64(), GP64(), GP64(), GP64()
	MOVQ(field(1), b)
	MOVQ(field(2), c)
	MOVQ(field(3), ldc)
	MOVQ(field(4), size)
	SHLQ(U8(10), size) // of 16 rows
	columns, start := GP64(), GP64()
	MOVQ(field(7), columns)
	MOVQ(field(9), start)
	acc := func(i, j int) reg.Register { return avx2.vector(2*i + j) }
	x, ones := avx2.vector(10), avx2.vector(11)
	VPCMPEQW(ones, ones, ones)
	VPSRLW(U8(15), ones, ones)

	Label("panel")
	half := GP64()
	MOVQ(U32(2), half)
	Label("half")
	a, rows, to, groups := GP64(), GP64(), GP64(), GP64()
	MOVQ(field(0), a)
	MOVQ(field(6), rows)
	MOVQ(c, to)
	MOVQ(U32(8), groups)
	Label("rows")
	for i := range 4 {
		for j := range 2 {
			VMOVDQU(Mem{Base: start, Disp: 32 * j}, acc(i, j))
		}
	}
	left, right, steps := GP64(), GP64(), GP64()
	MOVQ(a, left)
	MOVQ(b, right)
	MOVQ(field(4), steps)
	Label("step")
	for p := range 16 {
		column := func(j int) reg.Register { return avx2.vector(8 + j) }
		for j := range 2 {
			VMOVDQU(Mem{Base: right, Disp: 64*p + 32*j}, column(j))
		}
		for i := range 4 {
			VPBROADCASTD(Mem{Base: left, Disp: 64*i + 4*p}, x)
			for j := range 2 {
				product := avx2.vector(12 + (2*i+j)%4)
				VPMADDUBSW(column(j), x, product)
				VPMADDWD(ones, product, product)
				VPADDD(product, acc(i, j), acc(i, j))
			}
		}
	}
	ADDQ(U32(1024), left)
	ADDQ(U32(1024), right)
	DECQ(steps)
	JNZ(LabelRef("step"))

	// C = sum·(scale of the row)·(scale of the column) + length·error
	for j := range 2 {
		VMOVUPS(Mem{Base: columns, Disp: 32 * j}, avx2.vector(8+j))
	}
	for i := range 4 {
		scale, length := avx2.vector(12), avx2.vector(13)
		VBROADCASTSS(Mem{Base: rows, Disp: 8 * i}, scale)
		VBROADCASTSS(Mem{Base: rows, Disp: 8*i + 4}, length)
		for j := range 2 {
			VCVTDQ2PS(acc(i, j), acc(i, j))
			VMULPS(avx2.vector(8+j), acc(i, j), acc(i, j))
			VMULPS(Mem{Base: columns, Disp: 128 + 32*j}, length, x)
			VFMADD231PS(scale, acc(i, j), x)
			VMOVUPS(x, Mem{Base: to, Disp: 32 * j})
		}
		ADDQ(ldc, to)
	}
	ADDQ(U8(32), rows)
	ADDQ(U32(256), a)
	DECQ(groups)
	JZ(LabelRef("columns"))
	CMPQ(groups, U8(4))
	JNE(LabelRef("rows"))
	LEAQ(Mem{Base: a, Index: size, Scale: 1, Disp: -1024}, a) // the last 16 rows of A
	JMP(LabelRef("rows"))

	Label("columns")
	ADDQ(size, b)
	ADDQ(U8(64), c)
	ADDQ(U8(64), columns)
	ADDQ(U8(64), start)
	DECQ(half)
	JNZ(LabelRef("half"))
	SUBQ(I8(-128), columns)
	DECQ(field(5))
	JNZ(LabelRef("panel"))
	finish(nil)
}

// largest writes the largest magnitude of n numbers, a multiple of 16.
func largest() {
	const params = "row *float32, n int) float32"
	function("largestAVX2", params, params)
	row, n := Load(Param("row"), GP64()), Load(Param("n"), GP64())
	most, x, magnitude := YMM(), YMM(), YMM()
	VPXOR(most, most, most)
	VPCMPEQD(magnitude, magnitude, magnitude)
	VPSRLD(U8(1), magnitude, magnitude)
	Label("loop")
	for i := range 2 {
		VANDPS(Mem{Base: row, Disp: 32 * i}, magnitude, x)
		VMAXPS(x, most, most)
	}
	ADDQ(U8(64), row)
	SUBQ(U8(16), n)
	JNZ(LabelRef("loop"))
	fold(VMAXPS, most)
}

// shrink writes the rounding of n numbers times by to bytes, a multiple of 16, and
// Σ (x − scale·byte)².
func shrink() {
	const params = "to *int8, row *float32, n int, by, scale float32) float32"
	function("shrinkAVX2", params, params)
	to, row, n := Load(Param("to"), GP64()), Load(Param("row"), GP64()), Load(Param("n"), GP64())
	by, scale, sum := YMM(), YMM(), YMM()
	VBROADCASTSS(NewParamAddr("by", 24), by)
	VBROADCASTSS(NewParamAddr("scale", 28), scale)
	VPXOR(sum, sum, sum)
	Label("loop")
	whole := []reg.VecVirtual{YMM(), YMM()}
	for i, w := range whole {
		x, rounded := YMM(), YMM()
		VMOVUPS(Mem{Base: row, Disp: 32 * i}, x)
		VMULPS(by, x, w)
		VCVTPS2DQ(w, w)
		VCVTDQ2PS(w, rounded)
		VFNMADD231PS(scale, rounded, x)
		VFMADD231PS(x, x, sum)
	}
	// Packing takes turns at halves of the registers.
	const inOrder = 0xd8
	VPACKSSDW(whole[1], whole[0], whole[0])
	VPERMQ(U8(inOrder), whole[0], whole[0])
	half := XMM()
	VEXTRACTI128(U8(1), whole[0], half)
	VPACKSSWB(half, whole[0].AsX(), half)
	VMOVDQU(half, Mem{Base: to})
	ADDQ(U8(64), row)
	ADDQ(U8(16), to)
	SUBQ(U8(16), n)
	JNZ(LabelRef("loop"))
	fold(VADDPS, sum)
}

// prefetch writes Prefetch for cache lines.
func prefetch() {
	const params = "row *float32, lines int"
	function("prefetchRow", params, params)
	row, lines := Load(Param("row"), GP64()), Load(Param("lines"), GP64())
	Label("loop")
	PREFETCHT0(Mem{Base: row})
	ADDQ(U8(64), row)
	DECQ(lines)
	JNZ(LabelRef("loop"))
	RET()
}

// fold returns what of leaves of a register's eight numbers.
func fold(of func(...Op), x reg.VecVirtual) {
	other := XMM()
	VEXTRACTF128(U8(1), x, other)
	of(other, x.AsX(), x.AsX())
	for _, order := range []uint8{0x4e, 0xb1} {
		VPERMILPS(U8(order), x.AsX(), other)
		of(other, x.AsX(), x.AsX())
	}
	Store(x.AsX(), ReturnIndex(0))
	finish(nil)
}

// storeSum returns the sum of a register's four numbers.
func storeSum(sum reg.VecVirtual) {
	half := XMM()
	VEXTRACTF128(U8(1), sum, half)
	VADDPD(half, sum.AsX(), sum.AsX())
	VHADDPD(sum.AsX(), sum.AsX(), sum.AsX())
	Store(sum.AsX(), ReturnIndex(0))
	finish(nil)
}
