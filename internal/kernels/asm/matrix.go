package main

import (
	"fmt"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in kernels.tile.
const (
	tileK     = 0
	tileA     = 8
	tileRAS   = 16
	tileCAS   = 24
	tileB     = 32
	tileLDB   = 40
	tileC     = 48
	tileLDC   = 56
	tileAlpha = 64
	tileMask  = 68
	tileD     = 104
	tileLDD   = 112
	tileS     = 120
	tileRSS   = 128
	tileCSS   = 136
	tileTimes = 144
)

// shapes is the largest number of rows of a tile by its number of vectors: it
// leaves registers for a row of B and one or two values of A. The sums of |a−b| and
// their gradients, which no preset uses, have one small shape each.
func (v isa) shapes(op string) map[int]int {
	switch {
	case op == "fours":
		return map[int]int{1: 14}
	case op == "signs":
		return map[int]int{1: 2}
	case op == "distance":
		return map[int]int{1: 4}
	case v.regs == 16:
		return map[int]int{1: 8, 2: 6, 3: 4}
	}
	return map[int]int{1: 14, 2: 14, 3: 9, 4: 6}
}

// matrix writes the micro-kernels of the products, of the sums of |a−b| and of
// their gradients, and the tables of them by rows and vectors.
func matrix() {
	for _, v := range []isa{avx2, avx512} {
		for _, op := range []string{"product", "distance", "signs"} {
			table(v, op)
		}
	}
	table(avx512, "fours")
}

func table(v isa, op string) {
	masks := []string{""}
	if v.regs == 16 {
		masks = []string{"", "Masked"}
	}
	shapes := v.shapes(op)
	for _, mask := range masks {
		fmt.Fprintf(&declarations, "\nvar %s%s%s = [...][]func(*tile){\n", op, v.name, mask)
		for nv := 1; nv <= len(shapes); nv++ {
			var row []string
			for mr := 1; mr <= shapes[nv]; mr++ {
				row = append(row, fmt.Sprintf("%s%dx%d%s%s", op, mr, nv, v.name, mask))
			}
			fmt.Fprintf(&declarations, "%d: {nil, %s},\n", nv, strings.Join(row, ", "))
		}
		declarations.WriteString("}\n")
		for nv := 1; nv <= len(shapes); nv++ {
			for mr := 1; mr <= shapes[nv]; mr++ {
				microKernel(v, op, mr, nv, mask != "" || v.regs == 32, fmt.Sprintf("%s%dx%d%s%s", op, mr, nv, v.name, mask))
			}
		}
	}
}

// vector returns the i-th vector register.
func (v isa) vector(i int) reg.Register {
	if v.width == 16 {
		return []reg.Register{
			reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
			reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23, reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
		}[i]
	}
	return []reg.Register{reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7, reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15}[i]
}

// rowsOf addresses rows of A by two bases and the multiples 1, 3 and 5 of its
// row stride, which is what x86 can scale by 1, 2, 4 and 8.
func rowsOf(base, far, s1, s3, s5 reg.Register, i int) Mem {
	type way struct {
		base  reg.Register
		index reg.Register
		scale uint8
	}
	ways := map[int]way{
		1: {base, s1, 1}, 2: {base, s1, 2}, 4: {base, s1, 4}, 8: {base, s1, 8},
		3: {base, s3, 1}, 6: {base, s3, 2}, 12: {base, s3, 4},
		5: {base, s5, 1}, 10: {base, s5, 2},
		9: {far, s1, 2}, 11: {far, s1, 4}, 13: {far, s3, 2},
	}
	switch i {
	case 0:
		return Mem{Base: base}
	case 7:
		return Mem{Base: far}
	}
	w := ways[i]
	return Mem{Base: w.base, Index: w.index, Scale: w.scale}
}

// microKernel writes C = alpha·Σ_p A[i,p]∘B[p,j] for mr rows and nv vectors of
// columns, of which the last may be masked; ∘ is the product, to which it adds
// S[i,j]·D[i,j] unless D is nil, or |a−b|, or a·sign(b−D[i,j]). S has a value for
// each row, or for each column, or a single one, depending on its strides. It
// computes as many such tiles, one below the other, as the field times says.
//
// The operation "fours" is the product for up to four columns, four p at a time: a
// vector of B has four values of the first column, then of the second, and so on,
// and p counts such fours.
func microKernel(v isa, op string, mr, nv int, masked bool, name string) {
	function(name, "t *tile", "t *uint8")
	saved := flushing()
	Load(Param("t"), reg.RDI)
	field := func(offset int) Mem { return Mem{Base: reg.RDI, Disp: offset} }
	a, far, b, c := reg.RAX, reg.R8, reg.RBX, reg.RDX
	s1, s3, s5 := reg.R9, reg.R10, reg.R14
	MOVQ(field(tileRAS), s1)
	MOVQ(field(tileCAS), reg.R11)
	MOVQ(field(tileLDB), reg.R12)
	MOVQ(field(tileC), c)
	MOVQ(field(tileLDC), reg.R13)
	LEAQ(Mem{Base: s1, Index: s1, Scale: 2}, s3)
	LEAQ(Mem{Base: s1, Index: s1, Scale: 4}, s5)
	// The address of the next tile is on the stack: the garbage collector must not
	// find an address beyond an array in a tile.
	nextA, nextD, nextS, times := AllocLocal(8), AllocLocal(8), AllocLocal(8), reg.RSI
	MOVQ(field(tileTimes), times)
	MOVQ(field(tileA), a)
	if op != "distance" {
		MOVQ(field(tileD), reg.R15)
		MOVQ(reg.R15, nextD)
	}
	if op == "product" || op == "fours" {
		MOVQ(field(tileS), reg.R15)
		MOVQ(reg.R15, nextS)
	}
	Label("tile")
	MOVQ(a, nextA)
	MOVQ(field(tileK), reg.RCX)
	MOVQ(field(tileB), b)
	if mr > 7 {
		LEAQ(Mem{Base: a, Index: s1, Scale: 1}, far)
		LEAQ(Mem{Base: far, Index: s3, Scale: 2}, far)
	}
	size := 4 * v.width
	first := v.regs - mr*nv
	acc := func(i, j int) reg.Register { return v.vector(first + i*nv + j) }
	col := func(j int) reg.Register { return v.vector(j) }
	mask := reg.K1
	if masked && v.width == 16 {
		KMOVW(field(tileMask), mask)
	}
	// load and store take the j-th vector of a row.
	load := func(m Mem, j int, to reg.Register) {
		switch {
		case !masked || j < nv-1:
			VMOVUPS(m.Offset(j*size), to)
		case v.width == 16:
			VMOVUPS_Z(m.Offset(j*size), mask, to)
		default:
			VMOVUPS(field(tileMask), to)
			VMASKMOVPS(m.Offset(j*size), to, to)
		}
	}
	for i := range mr {
		for j := range nv {
			VXORPS(acc(i, j), acc(i, j), acc(i, j))
		}
	}
	free := first - nv // for broadcast values, and |a−b|
	broadcasts := min(free, 4)
	diff := v.vector(first - 1)
	var d func(i, j int) reg.Register
	switch op {
	case "distance":
		broadcasts = min(free-1, 3)
	case "signs":
		broadcasts = 1
		d = func(i, j int) reg.Register { return v.vector(nv + 1 + i*nv + j) }
		MOVQ(nextD, reg.R15)
		for i := range mr {
			for j := range nv {
				load(Mem{Base: reg.R15}, j, d(i, j))
			}
			ADDQ(field(tileLDD), reg.R15)
		}
		MOVQ(reg.R15, nextD)
	}
	loop := "loop"
	Label(loop)
	for j := range nv {
		if op == "fours" {
			VMOVUPS(Mem{Base: b}, col(j)) // whole, whatever the columns
		} else {
			load(Mem{Base: b}, j, col(j))
		}
	}
	for i := range mr {
		x := v.vector(nv + i%broadcasts)
		if op == "fours" {
			VBROADCASTF32X4(rowsOf(a, far, s1, s3, s5, i), x)
		} else {
			VBROADCASTSS(rowsOf(a, far, s1, s3, s5, i), x)
		}
		for j := range nv {
			switch op {
			case "product", "fours":
				VFMADD231PS(col(j), x, acc(i, j))
			case "distance":
				VSUBPS(col(j), x, diff)
				VANDPS(constant(0x7fffffff), diff, diff)
				VADDPS(diff, acc(i, j), acc(i, j))
			case "signs":
				v.addSigned(x, col(j), d(i, j), diff, v.vector(first-2), acc(i, j))
			}
		}
	}
	ADDQ(reg.R11, a)
	if mr > 7 {
		ADDQ(reg.R11, far)
	}
	ADDQ(reg.R12, b)
	DECQ(reg.RCX)
	JNZ(LabelRef(loop))

	if op == "fours" {
		// Add the four partial sums of each column.
		t := v.vector(0)
		MOVL(U32(0x1111), reg.ECX)
		KMOVW(reg.ECX, reg.K2)
		for i := range mr {
			for _, other := range []uint8{0b01001110, 0b10110001} {
				VPERMILPS(U8(other), acc(i, 0), t)
				VADDPS(t, acc(i, 0), acc(i, 0))
			}
			VCOMPRESSPS_Z(acc(i, 0), reg.K2, acc(i, 0))
		}
	}
	alpha := v.vector(0)
	VBROADCASTSS(field(tileAlpha), alpha)
	for i := range mr {
		for j := range nv {
			VMULPS(alpha, acc(i, j), acc(i, j))
		}
	}
	if op == "product" || op == "fours" {
		scaled, s, value := reg.R15, reg.RBX, v.vector(nv) // D and S; a and b are not needed here
		add := func(i int, s func(j int) reg.Register) {
			for j := range nv {
				load(Mem{Base: scaled}, j, value)
				VFMADD231PS(value, s(j), acc(i, j))
			}
			ADDQ(field(tileLDD), scaled)
		}
		MOVQ(nextD, scaled)
		TESTQ(scaled, scaled)
		JZ(LabelRef("store"))
		MOVQ(nextS, s)
		CMPQ(field(tileCSS), U8(0))
		JNE(LabelRef("columns"))
		for i := range mr {
			VBROADCASTSS(Mem{Base: s}, v.vector(0))
			add(i, func(int) reg.Register { return v.vector(0) })
			ADDQ(field(tileRSS), s)
		}
		MOVQ(s, nextS)
		JMP(LabelRef("added"))
		Label("columns")
		for j := range nv {
			load(Mem{Base: s}, j, col(j))
		}
		for i := range mr {
			add(i, col)
		}
		Label("added")
		MOVQ(scaled, nextD)
		Label("store")
	}
	if masked && v.width == 8 {
		VMOVUPS(field(tileMask), v.vector(0))
	}
	for i := range mr {
		for j := range nv {
			m := Mem{Base: c, Disp: j * size}
			switch {
			case !masked || j < nv-1:
				VMOVUPS(acc(i, j), m)
			case v.width == 16:
				VMOVUPS(acc(i, j), mask, m)
			default:
				VMASKMOVPS(acc(i, j), v.vector(0), m)
			}
		}
		ADDQ(reg.R13, c)
	}
	IMUL3Q(U8(mr), s1, a)
	ADDQ(nextA, a)
	DECQ(times)
	JNZ(LabelRef("tile"))
	finish(saved)
}

// addSigned adds x·sign(b−r) to sum, 0 if b = r.
func (v isa) addSigned(x, b, r, diff, other, sum reg.Register) {
	VSUBPS(r, b, diff)
	const notEqual = 4
	if v.width == 16 {
		VCMPPS(U8(notEqual), r, b, reg.K2)
		const signOfDiffTimesX = 0x6c // (diff & sign bit) ^ x
		VPTERNLOGD(U8(signOfDiffTimesX), constant(0x80000000), x, diff)
		VADDPS(diff, sum, reg.K2, sum)
		return
	}
	VCMPPS(U8(notEqual), r, b, other)
	VANDPS(constant(0x80000000), diff, diff)
	VXORPS(x, diff, diff)
	VANDPS(other, diff, diff)
	VADDPS(diff, sum, sum)
}

// transpose writes transposeStrip, which turns 16 rows of 8·n columns into 8·n rows
// of 16, a whole cache line each; transposeStripAVX512, the same for 16·n columns;
// and transposeEdge, for up to 8 by 8.
func transpose() {
	function("transposeStripAVX512", "dst *float32, ldd int, src *float32, lds, n int", "dst *float32, ldd int, src *float32, lds, n int")
	{
		dst, ldd, src, lds, n := Load(Param("dst"), GP64()), Load(Param("ldd"), GP64()), Load(Param("src"), GP64()), Load(Param("lds"), GP64()), Load(Param("n"), GP64())
		strideRows(ldd, lds)
		// Rows i, i+4, i+8 and i+12 of four columns make a vector, a quarter each.
		// They are combined while they are loaded, which needs none of the shuffles
		// that limit the speed of the rest.
		lds3, ldd3 := GP64(), GP64()
		LEAQ(Mem{Base: lds, Index: lds, Scale: 2}, lds3)
		LEAQ(Mem{Base: ldd, Index: ldd, Scale: 2}, ldd3)
		quarters := []reg.Register{nil, reg.K1, reg.K2, reg.K3}
		bases := []reg.Register{src, GP64(), GP64(), GP64()}
		for i := 1; i < 4; i++ {
			lanes := GP32()
			MOVL(U32(0xf<<(4*i)), lanes)
			KMOVW(lanes, quarters[i])
			LEAQ(Mem{Base: bases[i-1], Index: lds, Scale: 4}, bases[i])
		}
		four := func(base, s1, s3 reg.Register) []Mem {
			return []Mem{{Base: base}, {Base: base, Index: s1, Scale: 1}, {Base: base, Index: s1, Scale: 2}, {Base: base, Index: s3, Scale: 1}}
		}
		Label("block")
		for columns := range 4 {
			x, t := together(4, func(int) reg.VecVirtual { return ZMM() }), together(4, func(int) reg.VecVirtual { return ZMM() })
			for i := range x {
				VBROADCASTF32X4(four(bases[0], lds, lds3)[i].Offset(16*columns), x[i])
				for q := 1; q < 4; q++ {
					VBROADCASTF32X4(four(bases[q], lds, lds3)[i].Offset(16*columns), quarters[q], x[i])
				}
			}
			quads(x, t)
			for i, to := range four(dst, ldd, ldd3) {
				VMOVUPS(x[i], to)
			}
			LEAQ(Mem{Base: dst, Index: ldd, Scale: 4}, dst)
		}
		for _, base := range bases {
			ADDQ(U8(64), base)
		}
		DECQ(n)
		JNZ(LabelRef("block"))
		finish(nil)
	}

	function("transposeStrip", "dst *float32, ldd int, src *float32, lds, n int", "dst *float32, ldd int, src *float32, lds, n int")
	dst, ldd, src, lds, n := Load(Param("dst"), GP64()), Load(Param("ldd"), GP64()), Load(Param("src"), GP64()), Load(Param("lds"), GP64()), Load(Param("n"), GP64())
	strideRows(ldd, lds)
	ldd3, lds3 := GP64(), GP64()
	LEAQ(Mem{Base: ldd, Index: ldd, Scale: 2}, ldd3)
	LEAQ(Mem{Base: lds, Index: lds, Scale: 2}, lds3)
	src4, dst4, corner := GP64(), GP64(), GP64()
	Label("block")
	LEAQ(Mem{Base: dst, Index: ldd, Scale: 4}, dst4)
	MOVQ(src, corner)
	four := func(base, s1, s3 reg.Register) []Mem {
		return []Mem{{Base: base}, {Base: base, Index: s1, Scale: 1}, {Base: base, Index: s1, Scale: 2}, {Base: base, Index: s3, Scale: 1}}
	}
	rows, t := ymms(8), ymms(4)
	for eight := range 2 {
		LEAQ(Mem{Base: corner, Index: lds, Scale: 4}, src4)
		low, high := four(corner, lds, lds3), four(src4, lds, lds3)
		for i := range 4 { // columns 0..3 of rows i and i+4, then columns 4..7
			for half := range 2 {
				r := rows[4*half+i]
				VMOVUPS(low[i].Offset(16*half), r.AsX())
				VINSERTF128(U8(1), high[i].Offset(16*half), r, r)
			}
		}
		for half := range 2 {
			out := rows[4*half : 4*half+4]
			quads(out, t)
			to := four([]reg.Register{dst, dst4}[half], ldd, ldd3)
			for i := range 4 {
				VMOVUPS(out[i], to[i].Offset(32*eight))
			}
		}
		LEAQ(Mem{Base: corner, Index: lds, Scale: 8}, corner)
	}
	ADDQ(U8(32), src)
	LEAQ(Mem{Base: dst, Index: ldd, Scale: 8}, dst)
	DECQ(n)
	JNZ(LabelRef("block"))
	finish(nil)

	function("transposeEdge", "dst *float32, ldd int, src *float32, lds, rows, cols int", "dst *float32, ldd int, src *float32, lds, rows, cols int")
	dst, ldd, src, lds = Load(Param("dst"), GP64()), Load(Param("ldd"), GP64()), Load(Param("src"), GP64()), Load(Param("lds"), GP64())
	nr, nc := Load(Param("rows"), GP64()), Load(Param("cols"), GP64())
	strideRows(ldd, lds)
	colMask, rowMask := YMM(), YMM()
	tailMask(nc, colMask)
	tailMask(nr, rowMask)
	full := ymms(8)
	left := GP64()
	MOVQ(nr, left)
	for i := range 8 { // rows after the last repeat the last
		VMASKMOVPS(Mem{Base: src}, colMask, full[i])
		if i < 7 {
			next := GP64()
			LEAQ(Mem{Base: src, Index: lds, Scale: 1}, next)
			DECQ(left)
			CMOVQNE(next, src)
			keep := fmt.Sprintf("row%d", i)
			JNZ(LabelRef(keep))
			MOVQ(U32(1), left)
			Label(keep)
		}
	}
	rows = ymms(8)
	for i := range 4 {
		VPERM2F128(U8(0x20), full[i+4], full[i], rows[i])
		VPERM2F128(U8(0x31), full[i+4], full[i], rows[4+i])
	}
	for half := range 2 {
		quads(rows[4*half:4*half+4], full)
		for _, r := range rows[4*half : 4*half+4] {
			VMASKMOVPS(r, rowMask, Mem{Base: dst})
			ADDQ(ldd, dst)
			DECQ(nc)
			JZ(LabelRef("done"))
		}
	}
	Label("done")
	finish(nil)
}

// strideRows turns counts of float32s into bytes.
func strideRows(strides ...reg.Register) {
	for _, s := range strides {
		SHLQ(U8(2), s)
	}
}

// quads transposes the 4×4 blocks in both halves of four registers with four others
// as temporaries.
func quads(r, t []reg.VecVirtual) {
	VUNPCKLPS(r[1], r[0], t[0])
	VUNPCKHPS(r[1], r[0], t[1])
	VUNPCKLPS(r[3], r[2], t[2])
	VUNPCKHPS(r[3], r[2], t[3])
	VSHUFPS(U8(0x44), t[2], t[0], r[0])
	VSHUFPS(U8(0xee), t[2], t[0], r[1])
	VSHUFPS(U8(0x44), t[3], t[1], r[2])
	VSHUFPS(U8(0xee), t[3], t[1], r[3])
}

func ymms(n int) []reg.VecVirtual {
	r := make([]reg.VecVirtual, n)
	for i := range r {
		r[i] = YMM()
	}
	return r
}
