package posthoc

// Principal is principal, for tests: to see it in a fitted score takes minutes.
var Principal = principal

// Largest is what NNGuide keeps of a query's neighbours.
var Largest = largest
