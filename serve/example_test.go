package serve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/serve"
)

// A service within another program, whose handler may stand beside others. This detector
// judges features; one whose model is known judges images, too.
func ExampleNew() {
	dir, err := os.MkdirTemp("", "serve")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "animals.safetensors")
	if err := train(file); err != nil {
		log.Fatal(err)
	}
	service, err := serve.New(context.Background(), serve.Options{
		Detectors: serve.Detectors{Detectors: []serve.Named{{Name: "animals", File: file}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer service.Close()
	server := httptest.NewServer(service.Handler())
	defer server.Close()

	rows := `{"inputs": [{"name": "features", "shape": [2, 2], "datatype": "FP32", "data": [5, 0.2, 3, 40]}],
		"outputs": [{"name": "class"}, {"name": "ood"}]}`
	response, err := http.Post(server.URL+"/v2/models/animals/infer", "application/json", strings.NewReader(rows))
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct {
		Outputs []struct {
			Name string
			Data []any
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		log.Fatal(err)
	}
	for _, o := range answer.Outputs {
		fmt.Println(o.Name, o.Data)
	}
	// Output:
	// class [dog dog]
	// ood [false true]
}

// train writes a detector of two clouds of points, around 1, 0 and 5, 0.
func train(file string) error {
	rng := rand.New(rand.NewPCG(1, 2))
	var x []float32
	var labels []int64
	for i := range 400 {
		x = append(x, float32(4*(i%2)+1)+0.2*float32(rng.NormFloat64()), 0.2*float32(rng.NormFloat64()))
		labels = append(labels, int64(i%2))
	}
	rows, err := features.InMemory(x, 2, labels, []string{"cat", "dog"})
	if err != nil {
		return err
	}
	opts := training.Options{Rows: rows}
	opts.Train.Epochs = 20
	d, _, err := training.Train(context.Background(), opts)
	if err != nil {
		return err
	}
	return d.Save(file)
}
