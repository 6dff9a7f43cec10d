package head

// AlwaysNarrow makes all products float32 until the function that it returns is
// called.
func AlwaysNarrow() (back func()) {
	before := narrowWork
	narrowWork = 0
	return func() { narrowWork = before }
}
