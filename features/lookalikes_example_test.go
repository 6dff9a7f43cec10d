package features_test

import (
	"context"
	"fmt"
	"log"

	"github.com/mlrbfn/mlrbfn/features"
)

// How near images of one class are to each other says which flagged images a person can
// decide on together.
func ExampleLookAlikes() {
	training, err := features.InMemory([]float32{
		1, 0.1, 1, 0.2, 1, 0.3, // images of class 0
		0.1, 1, 0.2, 1, 0.3, 1, // of class 1
	}, 2, []int64{0, 0, 0, 1, 1, 1}, []string{"cat", "dog"})
	if err != nil {
		log.Fatal(err)
	}
	reach, _, err := features.Reach(context.Background(), []*features.Set{training})
	if err != nil {
		log.Fatal(err)
	}

	flagged := [][]float32{{-1, 0.1}, {0.1, -1}, {-1, 0.15}, {-1, 0.12}}
	keys := []string{"a", "b", "c", "d"} // hashes of the files
	fmt.Println(features.LookAlikes(flagged, keys, reach, 50))
	// Output:
	// [[0 2 3] [1]]
}
