package figures_test

import (
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"

	"github.com/mlrbfn/mlrbfn/scripts/figures"
)

// Scores of images of known classes and of others, as a picture.
func ExampleHistogram() {
	dir, err := os.MkdirTemp("", "figures")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	rng := rand.New(rand.NewPCG(1, 2))
	known, other := make([]float64, 1000), make([]float64, 1000)
	for i := range known {
		known[i], other[i] = rng.NormFloat64(), rng.NormFloat64()-3
	}
	p, err := figures.Histogram("Scores", "score", -6, 4, 50, figures.Series{Name: "in-distribution", Values: known}, figures.Series{Name: "OOD", Values: other})
	if err != nil {
		log.Fatal(err)
	}
	file := filepath.Join(dir, "scores.svg")
	if err := figures.Save(12*vg.Centimeter, 8*vg.Centimeter, []*plot.Plot{p}, file); err != nil {
		log.Fatal(err)
	}
	data, err := os.ReadFile(file)
	fmt.Printf("%.5s… %v\n", data, err)
	// Output:
	// <?xml… <nil>
}
