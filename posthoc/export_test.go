package posthoc

// Principal is principal, for tests: to see it in a fitted score takes minutes.
var Principal = principal

// Largest finds the nearest neighbours as NNGuide does.
var Largest = largest

// LeastCoarse is how many queries, and rows for each neighbour, pay for coarse products.
var LeastCoarse = &leastCoarse

// Needs tells what a score reads.
type Needs = needs

const (
	Features      = featureRows
	Logits        = logitRows
	Labels        = labelRows
	Validation    = validation
	LastLayer     = lastLayer
	NetworkNeeded = network
)

// AllNeeds lists them.
var AllNeeds = []Needs{Features, Logits, Labels, Validation, LastLayer, NetworkNeeded}

// NeedsOf returns what a score declares to read and to need.
func NeedsOf(name string) (reads, needs Needs) {
	m, _ := methodOf(name)
	return m.reads, m.needs
}

// MemoryOf returns the bytes that a score declares to need, 0 if it declares none.
func MemoryOf(name string, d, c int) int64 {
	m, _ := methodOf(name)
	if m.memory == nil {
		return 0
	}
	return int64(8 * m.memory(float64(d), float64(c)))
}
