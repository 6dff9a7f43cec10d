package main

import "math"

const (
	signBit   = 0x80000000
	infinity  = 0x7f800000
	notNumber = 0x7fc00000
)

// polynomial evaluates coefficients, the highest first, at r.
func (f *function) polynomial(r vector, coefficients ...float64) vector {
	p := f.settable(coefficients[0])
	for _, c := range coefficients[1:] {
		p = f.do("fmla", f.settable(c), p, r)
	}
	return p
}

// ln2High is ln 2 rounded to few bits, so that its product with an exponent is exact.
const ln2High = 0x1.62e4p-1

// reduced splits x in [-105, 89] into n·ln 2 + r, |r| ≤ ln 2/2, and returns
// n and eʳ−1.
func (f *function) reduced(x vector) (n, p vector) {
	n = f.get("fmul", x, f.float(math.Log2E))
	f.do("frintn", n, n)
	r := f.copied(x)
	f.do("fmls", r, n, f.float(ln2High))
	f.do("fmls", r, n, f.float(math.Ln2-ln2High))
	// Minimax by Lawson's iteration for the relative error of eʳ−1: 1.3e-8.
	p = f.polynomial(r, 0.00138825283, 0.00836653821, 0.0416672006, 0.166665435, 0.49999997)
	square := f.get("fmul", r, r)
	return n, f.do("fmla", r, square, p)
}

// scaled returns p·2ⁿ, -152 ≤ n ≤ 129.
func (f *function) scaled(p, n vector) vector {
	whole := f.get("fcvtns", n) // 2ⁿ itself may be out of range
	half := f.shift("sshr", whole, 1)
	for _, e := range []vector{half, f.get("sub", whole, half)} {
		power := f.shift("shl", f.get("add", e, f.constant(127)), 23)
		p = f.get("fmul", p, power)
	}
	return p
}

// clamped returns x limited to [low, high]; NaN stays NaN.
func (f *function) clamped(x vector, low, high float64) vector {
	r := f.get("fmax", x, f.float(low))
	return f.do("fmin", r, r, f.float(high))
}

// exp returns eˣ.
func (f *function) exp(x vector) vector {
	n, p := f.reduced(f.clamped(x, -105, 89))
	return f.scaled(f.get("fadd", p, f.float(1)), n)
}

// log returns log x; with onlyPositive x must be positive, normal and finite
// or the result is of no meaning.
func (f *function) log(x vector, onlyPositive bool) vector {
	y, below := x, vector(-1)
	if !onlyPositive {
		below = f.get("fcmgt", f.constant(0x00800000), x) // the smallest normal number
		y = f.copied(x)
		f.do("bit", y, f.get("fmul", x, f.float(1<<23)), below)
	}
	// x = m·2ᵉ, 0.75 ≤ m < 1.5
	whole := f.shift("sshr", f.get("sub", y, f.constant(0x3f400000)), 23)
	m := f.get("sub", y, f.shift("shl", whole, 23))
	e := f.get("scvtf", whole)
	if !onlyPositive {
		f.do("fsub", e, e, f.get("and", below, f.float(23)))
	}
	f.do("fsub", m, m, f.float(1))
	square := f.get("fmul", m, m)
	// Minimax as above for the relative error of log(1+f): 4.9e-9.
	y = f.polynomial(m, -0.0450817458, 0.104645528, -0.13162142, 0.144784912, -0.166472375, 0.19990845, -0.250000983, 0.333334506)
	f.do("fmul", y, y, m)
	f.do("fmul", y, y, square)
	f.do("fmla", y, e, f.float(math.Ln2-ln2High))
	f.do("fmls", y, square, f.float(0.5))
	f.do("fadd", y, y, m)
	f.do("fmla", y, e, f.float(ln2High))
	if !onlyPositive {
		zero := f.constant(0)
		f.do("bit", y, f.constant(infinity), f.get("fcmeq", x, f.constant(infinity)))
		f.do("bit", y, f.constant(signBit|infinity), f.get("fcmeq", x, zero))
		f.do("bif", y, f.constant(notNumber), f.get("fcmge", x, zero))
	}
	return y
}

// inverse returns 1/x.
func (f *function) inverse(x vector) vector { return f.get("fdiv", f.float(1), x) }

// expOfMinusAbs returns exp(−|x|).
func (f *function) expOfMinusAbs(x vector) vector {
	return f.exp(f.get("orr", x, f.constant(signBit)))
}

// softplus returns log(1+eˣ) as max(x, 0) + log1p(z), z = exp(−|x|). With u = 1+z,
// rounded, log1p(z) is log u plus the rounding error of u times the derivative 1/u.
func (f *function) softplus(x vector) vector {
	z := f.expOfMinusAbs(x)
	u := f.get("fadd", z, f.float(1))
	lost := f.get("fsub", z, f.get("fsub", u, f.float(1)))
	y := f.log(u, true)
	f.do("fmla", y, f.inverse(u), lost)
	return f.do("fadd", y, y, f.get("fmax", x, f.constant(0)))
}

// sigmoid returns 1/(1+e⁻ˣ): with z = exp(−|x|), 1/(1+z) or z/(1+z).
func (f *function) sigmoid(x vector) vector {
	z := f.expOfMinusAbs(x)
	top := f.shift("sshr", x, 31)
	f.do("bsl", top, z, f.float(1))
	return f.get("fdiv", top, f.get("fadd", z, f.float(1)))
}
