package onnx

// This file has formulas that graphs of float64 have in common. Rows are [batch, n];
// one number of each row is [batch, 1].

// Number adds a constant.
func (m *Model) Number(v float64) Value { return m.Doubles([]float64{v}) }

// Vector adds a constant [n].
func (m *Model) Vector(v []float64) Value { return m.Doubles(v, len(v)) }

// Neg adds −v.
func (m *Model) Neg(v Value) Value { return m.Op("Neg", v) }

// Times adds x·Rᵀ [batch, n] for rows x [batch, k] and R [n, k].
func (m *Model) Times(x Value, r []float64, k int) Value {
	return m.Op("MatMul", x, m.Transposed(r, k))
}

// Transposed adds the constant Rᵀ [k, n] for R [n, k].
func (m *Model) Transposed(r []float64, k int) Value {
	n := len(r) / k
	transposed := make([]float64, len(r))
	for i := range n {
		for j, v := range r[i*k : (i+1)*k] {
			transposed[j*n+i] = v
		}
	}
	return m.Doubles(transposed, k, n)
}

// Sum adds the sum of each row.
func (m *Model) Sum(v Value) Value { return m.Reduce("ReduceSum", v, true, 1) }

// Largest adds the largest number of each row.
func (m *Model) Largest(v Value) Value { return m.Reduce("ReduceMax", v, true, 1) }

// ArgMax adds where the first largest number of each row is, [batch].
func (m *Model) ArgMax(v Value) Value {
	return m.Node("ArgMax", []Value{v}, Int("axis", 1), Int("keepdims", 0))
}

// Take adds the rows [batch, n] of a table [·, n] whose indices are at [batch].
func (m *Model) Take(table, at Value) Value {
	return m.Node("Gather", []Value{table, at}, Int("axis", 0))
}

// First adds the first n columns of v.
func (m *Model) First(v Value, n int) Value {
	columns := make([]int64, n)
	for i := range columns {
		columns[i] = int64(i)
	}
	return m.Node("Gather", []Value{v, m.Int64s(columns...)}, Int("axis", 1))
}

// Dot adds the sum of products of two rows.
func (m *Model) Dot(a, b Value) Value { return m.Sum(m.Op("Mul", a, b)) }

// Length adds ‖v‖₂ of each row.
func (m *Model) Length(v Value) Value { return m.Op("Sqrt", m.Dot(v, v)) }

// LogSumExp adds log Σ exp(v) of each row.
func (m *Model) LogSumExp(v Value) Value {
	top := m.Largest(v)
	return m.Op("Add", top, m.Op("Log", m.Sum(m.Op("Exp", m.Op("Sub", v, top)))))
}

// Positive adds 1 where v > 0, else 0.
func (m *Model) Positive(v Value) Value { return m.Cast(m.Op("Greater", v, m.Number(0)), Double) }

// Over adds a/b, and 0 where b, which is not negative, is 0.
func (m *Model) Over(a, b Value) Value {
	positive := m.Positive(b)
	return m.Op("Div", m.Op("Mul", a, positive), m.Op("Add", b, m.Op("Sub", m.Number(1), positive)))
}

// AtLeast returns a ≥ b, element by element, and false for NaN in a. b must not be
// NaN.
func (m *Model) AtLeast(a, b Value) Value {
	if m.opset >= 12 {
		return m.Op("GreaterOrEqual", a, b)
	}
	number := m.Op("Or", m.Op("Less", a, m.Doubles([]float64{1})), m.Op("Greater", a, m.Doubles([]float64{0})))
	return m.Op("And", number, m.Op("Not", m.Op("Less", a, b)))
}
