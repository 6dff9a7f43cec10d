package main

import (
	"fmt"
	"log"
	"math"
	"strings"
)

// vector is one of the processor's vector registers; numbers from vectors on are
// virtual registers, which assign replaces.
type vector int

const vectors = 32

// gp is a general register.
type gp string

// The registers that Go and the platforms leave to a function.
var gps = strings.Fields("R0 R1 R2 R3 R4 R5 R6 R7 R8 R9 R10 R11 R12 R13 R14 R15 R16 R17 R19 R20 R21 R22 R23 R24 R25")

// tableAt is the register that addresses the constants.
const tableAt gp = "R26"

// line is an instruction: text for Go's assembler, with a %d for each vector
// register; or, if Go's assembler does not have the instruction, a word of machine
// code and its text in the usual syntax. A label is text alone.
type line struct {
	text   string
	in     []vector
	word   uint32
	label  string // of this line, if it is a label
	branch string // that this line branches to
}

// function is a function that is being built.
type function struct {
	params    []param
	head      []line // before lines
	lines     []line
	chosen    vector // number of virtual vector registers
	tabled    bool   // whether it has constants
	general   int    // number of general registers in use
	labels    int
	constants map[uint32]vector
}

type param struct {
	name   string
	offset int
}

var (
	assembly, declarations strings.Builder
	table                  []uint32 // of constants
)

// write writes a function whose Go declaration is "func name(params)".
func write(name, params string, body func(*function)) {
	arguments, result, returns := strings.Cut(params, ") (")
	if !returns {
		params += ")"
	}
	fmt.Fprintf(&declarations, "\n//go:noescape\nfunc %s(%s\n", name, params)

	f := &function{constants: map[uint32]vector{}, chosen: vectors}
	size := 0
	place := func(list string) {
		var names []string
		for _, p := range strings.Split(list, ", ") {
			name, of, typed := strings.Cut(p, " ")
			if names = append(names, name); !typed {
				continue
			}
			for _, name := range names {
				bytes := 8
				if of == "float32" {
					bytes = 4
				}
				size = (size + bytes - 1) / bytes * bytes
				f.params = append(f.params, param{name, size})
				size += bytes
			}
			names = nil
		}
	}
	place(arguments)
	if size = (size + 7) / 8 * 8; returns {
		place(strings.TrimSuffix(result, ")"))
	}
	body(f)
	f.put("RET")

	fmt.Fprintf(&assembly, "\n// func %s(%s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", name, params, name, size)
	if f.tabled {
		f.head = append([]line{{text: fmt.Sprintf("MOVD $constants<>(SB), %s", tableAt)}}, f.head...)
	}
	f.lines = append(f.head, f.lines...)
	is := f.assign(name)
	for _, l := range f.lines {
		if l.label != "" {
			fmt.Fprintf(&assembly, "\n%s:\n", l.label)
			continue
		}
		word := l.word
		var in []any
		for i, v := range l.in {
			in = append(in, is[v])
			word |= uint32(is[v]) << []int{0, 5, 16}[i]
		}
		text := fmt.Sprintf(l.text, in...)
		if l.word != 0 {
			text = fmt.Sprintf("WORD $%#08x // %s", word, text)
		}
		assembly.WriteString("\t" + text + "\n")
	}
}

// assign chooses a register for each virtual one of f. It is in use from the first
// line that has it to the last, or to the end of a loop in which its value is still
// needed.
func (f *function) assign(name string) []int {
	first, last := make([]int, f.chosen), make([]int, f.chosen)
	at := map[string]int{}
	var loops [][2]int
	for i, l := range f.lines {
		for _, v := range l.in {
			if first[v] == 0 {
				first[v] = i + 1
			}
			last[v] = i + 1
		}
		if l.label != "" {
			at[l.label] = i + 1
		}
		if begin := at[l.branch]; begin > 0 {
			loops = append(loops, [2]int{begin, i + 1})
		}
	}
	for again := true; again; {
		again = false
		for _, loop := range loops {
			for v := range first {
				if first[v] < loop[0] && last[v] >= loop[0] && last[v] < loop[1] {
					last[v], again = loop[1], true
				}
			}
		}
	}
	is, until := make([]int, f.chosen), [vectors]int{}
	for v := range vectors {
		is[v] = v
		until[v] = last[v] // a register that is named is in use from the start
	}
	for i, l := range f.lines {
		for _, v := range l.in {
			if v < vectors || first[v] != i+1 {
				continue // it is chosen
			}
			free := 0 // the one that has been free for the longest time
			for r, u := range until {
				if u < until[free] {
					free = r
				}
			}
			// It may be written by the instruction that reads its last value.
			if u := until[free]; u > i+1 || u == i+1 && v != l.in[0] {
				log.Fatalf("%s needs more than %d vector registers", name, vectors)
			}
			is[v], until[free] = free, last[v]
		}
	}
	return is
}

// put adds an instruction of Go's assembler.
func (f *function) put(format string, a ...any) { f.with(nil, format, a...) }

// with is put for an instruction with vector registers, each %%d.
func (f *function) with(in []vector, format string, a ...any) {
	f.lines = append(f.lines, line{text: fmt.Sprintf(format, a...), in: in})
}

func (f *function) label(name string) { f.lines = append(f.lines, line{label: name}) }

// branch adds a branch to a label, by an instruction such as BNE, or CBZ of a register.
func (f *function) branch(by, to string, of ...gp) {
	for _, r := range of {
		by += fmt.Sprintf(" %s,", r)
	}
	f.lines = append(f.lines, line{text: by + " " + to, branch: to})
}

// named returns a unique label.
func (f *function) named(name string) string {
	f.labels++
	return fmt.Sprintf("%s%d", name, f.labels)
}

// fresh returns a new virtual register. The first instruction with it must set it.
func (f *function) fresh() vector {
	f.chosen++
	return f.chosen - 1
}

// several returns n of them.
func (f *function) several(n int) []vector {
	in := make([]vector, n)
	for i := range in {
		in[i] = f.fresh()
	}
	return in
}

// gp returns a general register that is not in use yet.
func (f *function) gp() gp {
	if f.general == len(gps) {
		log.Fatal("no general register is left")
	}
	f.general++
	return gp(gps[f.general-1])
}

// gpFrom returns a general register with a value.
func (f *function) gpFrom(format string, a ...any) gp {
	r := f.gp()
	f.put("MOVD %s, %s", fmt.Sprintf(format, a...), r)
	return r
}

// param returns a register with a pointer or an int that is an argument.
func (f *function) param(name string) gp { return f.gpFrom("%s", f.argument(name)) }

// argument addresses an argument or a result.
func (f *function) argument(name string) string {
	for _, p := range f.params {
		if p.name == name {
			return fmt.Sprintf("%s+%d(FP)", name, p.offset)
		}
	}
	panic("no parameter " + name)
}

// instructions are the vector instructions that Go's assembler does not have, and,
// for a uniform syntax, the others too. Bit 22 turns one for 4s into the one for
// 2d.
var instructions = map[string]struct {
	word uint32
	of   string // arrangement of the lanes
}{
	"fmla":   {0x4e20cc00, "4s"},
	"fmls":   {0x4ea0cc00, "4s"},
	"fadd":   {0x4e20d400, "4s"},
	"fsub":   {0x4ea0d400, "4s"},
	"fmul":   {0x6e20dc00, "4s"},
	"fdiv":   {0x6e20fc00, "4s"},
	"fmax":   {0x4e20f400, "4s"},
	"fmin":   {0x4ea0f400, "4s"},
	"fabd":   {0x6ea0d400, "4s"},
	"faddp":  {0x6e20d400, "4s"},
	"fcmeq":  {0x4e20e400, "4s"},
	"fcmge":  {0x6e20e400, "4s"},
	"fcmgt":  {0x6ea0e400, "4s"},
	"fsqrt":  {0x6ea1f800, "4s"},
	"frintn": {0x4e218800, "4s"},
	"fcvtns": {0x4e21a800, "4s"},
	"scvtf":  {0x4e21d800, "4s"},
	"fneg":   {0x6ea0f800, "4s"},
	"add":    {0x4ea08400, "4s"},
	"sub":    {0x6ea08400, "4s"},
	"cmeq":   {0x6ea08c00, "4s"},
	"trn1":   {0x4e802800, "4s"},
	"trn2":   {0x4e806800, "4s"},
	"zip1":   {0x4e803800, "4s"},
	"zip2":   {0x4e807800, "4s"},
	"uzp1":   {0x4e801800, "4s"},
	"and":    {0x4e201c00, "16b"},
	"bic":    {0x4e601c00, "16b"},
	"orr":    {0x4ea01c00, "16b"},
	"eor":    {0x6e201c00, "16b"},
	"bsl":    {0x6e601c00, "16b"},
	"bit":    {0x6ea01c00, "16b"},
	"bif":    {0x6ee01c00, "16b"},
}

// do adds an instruction on vectors. It sets the first one and returns it.
func (f *function) do(name string, in ...vector) vector { return f.on(name, 0, in) }

// double is do for vectors of float64.
func (f *function) double(name string, in ...vector) vector { return f.on(name, 1<<22, in) }

func (f *function) on(name string, size uint32, in []vector) vector {
	i := instructions[name]
	if i.word == 0 {
		panic("no instruction " + name)
	}
	of := i.of
	if size != 0 {
		of = "2d"
	}
	operand := "v%d." + of
	return f.encoded(i.word|size, name+" "+strings.Join([]string{operand, operand, operand}[:len(in)], ", "), in...)
}

// encoded adds a word of machine code with the numbers of the registers.
func (f *function) encoded(word uint32, text string, in ...vector) vector {
	f.lines = append(f.lines, line{text: text, in: in, word: word})
	return in[0]
}

// get is do with a fresh register for the result.
func (f *function) get(name string, in ...vector) vector {
	return f.do(name, append([]vector{f.fresh()}, in...)...)
}

// byElement adds name, fmla or fmul, of n and the i-th float32 of m.
func (f *function) byElement(name string, d, n, m vector, i int) {
	word := map[string]uint32{"fmla": 0x4f801000, "fmul": 0x4f809000}[name]
	f.encoded(word|uint32(i&1)<<21|uint32(i>>1)<<11, fmt.Sprintf("%s v%%d.4s, v%%d.4s, v%%d.s[%d]", name, i), d, n, m)
}

// byDouble is byElement for the i-th float64.
func (f *function) byDouble(name string, d, n, m vector, i int) {
	word := map[string]uint32{"fmla": 0x4fc01000, "fmul": 0x4fc09000}[name]
	f.encoded(word|uint32(i)<<11, fmt.Sprintf("%s v%%d.2d, v%%d.2d, v%%d.d[%d]", name, i), d, n, m)
}

// shift returns x shifted by n bits of 32: shl, ushr or sshr.
func (f *function) shift(name string, x vector, n int) vector {
	word := map[string]uint32{"shl": 0x4f005400 | uint32(32+n)<<16, "ushr": 0x6f000400 | uint32(64-n)<<16, "sshr": 0x4f000400 | uint32(64-n)<<16}[name]
	return f.encoded(word, fmt.Sprintf("%s v%%d.4s, v%%d.4s, #%d", name, n), f.fresh(), x)
}

// zero sets registers to 0.
func (f *function) zero(in ...vector) {
	for _, v := range in {
		f.encoded(0x4f000400, "movi v%d.4s, #0x0", v)
	}
}

func (f *function) zeroed() vector {
	v := f.fresh()
	f.zero(v)
	return v
}

func (f *function) copied(x vector) vector {
	return f.encoded(0x4ea01c00, "mov v%[1]d.16b, v%[2]d.16b", f.fresh(), x, x)
}

// spread fills a vector with its first float32.
func (f *function) spread(x vector) vector {
	return f.encoded(0x4e040400, "dup v%d.4s, v%d.s[0]", f.fresh(), x)
}

// sum adds up the floats of x into the first.
func (f *function) sum(x vector) vector {
	pairs := f.get("faddp", x, x)
	return f.encoded(0x7e30d800, "faddp s%d, v%d.2s", f.fresh(), pairs)
}

// load and store move size bytes, 16 or 4, between a vector and base + index.
// Other lanes become 0.
func (f *function) load(v vector, base, index gp, size int) {
	f.indexed("ldr", 1<<22, v, base, index, size)
}

func (f *function) store(v vector, base, index gp, size int) {
	f.indexed("str", 0, v, base, index, size)
}

func (f *function) indexed(name string, to uint32, v vector, base, index gp, size int) {
	word, letter := uint32(0x3ca06800), "q"
	if size == 4 {
		word, letter = 0xbc206800, "s"
	}
	number := func(r gp) (n uint32) {
		fmt.Sscanf(string(r), "R%d", &n)
		return n
	}
	n, m := number(base), number(index)
	f.encoded(word|to|n<<5|m<<16, fmt.Sprintf("%s %s%%d, [x%d,x%d]", name, letter, n, m), v)
}

// pairs lists registers two by two; an odd last one is alone.
func pairs(in []vector, each func(at int, pair []vector)) {
	for i := 0; i < len(in); i += 2 {
		each(i, in[i:min(i+2, len(in))])
	}
}

// loadRow and storeRow load and store registers from and to the memory at base.
func (f *function) loadRow(base gp, in []vector) {
	pairs(in, func(at int, pair []vector) {
		if len(pair) == 2 {
			f.with(pair, "FLDPQ %d(%s), (F%%d, F%%d)", 16*at, base)
		} else {
			f.with(pair, "FMOVQ %d(%s), F%%d", 16*at, base)
		}
	})
}

func (f *function) storeRow(base gp, in []vector) {
	pairs(in, func(at int, pair []vector) {
		if len(pair) == 2 {
			f.with(pair, "FSTPQ (F%%d, F%%d), %d(%s)", 16*at, base)
		} else {
			f.with(pair, "FMOVQ F%%d, %d(%s)", 16*at, base)
		}
	})
}

// constant returns a vector of a constant, which must not be changed.
func (f *function) constant(bits uint32) vector {
	v, ok := f.constants[bits]
	if !ok {
		v = f.fresh()
		f.constants[bits] = v
		body := f.lines
		f.lines = f.head
		f.loadConstant(v, bits)
		f.head, f.lines = f.lines, body
	}
	return v
}

func (f *function) float(c float64) vector { return f.constant(math.Float32bits(float32(c))) }

// settable returns a vector of a constant that may be changed.
func (f *function) settable(c float64) vector {
	v := f.fresh()
	f.loadConstant(v, math.Float32bits(float32(c)))
	return v
}

func (f *function) loadConstant(v vector, bits uint32) {
	at := 0
	for at < len(table) && table[at] != bits {
		at++
	}
	if at == len(table) {
		table = append(table, bits)
	}
	f.with([]vector{v}, "FMOVQ %d(%s), F%%d", 16*at, tableAt)
	f.tabled = true
}
