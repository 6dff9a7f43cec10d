package detector_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// A detector is one file. Loaded, it judges rows of features, from wherever they come.
func ExampleLoad() {
	file, err := trained()
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(file))

	d, err := detector.Load(file)
	if err != nil {
		log.Fatal(err)
	}
	verdicts, err := d.Verdicts(context.Background(), []float32{
		1, 0, // as the images of class 0
		2.5, 40, // as none
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, v := range verdicts {
		if v.OOD {
			fmt.Println("of no class; p-value at most 5%:", v.PValue <= 0.05)
		} else {
			fmt.Println("class", v.Class)
		}
	}
	// From now on at most 10% of in-distribution images are flagged, and no longer 5%.
	fmt.Println(d.TargetTPR)
	if err := d.SetMaxFalseAlarms(0.1); err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.TargetTPR)
	// Output:
	// class 0
	// of no class; p-value at most 5%: true
	// 0.95
	// 0.9
}

// trained trains a detector on two clouds of points.
func trained() (file string, err error) {
	dir, err := os.MkdirTemp("", "detector")
	if err != nil {
		return "", err
	}
	var x []float32
	var y []int64
	for i := range 400 {
		x = append(x, float32(4*(i%2)+1)+float32(i%9)/20, float32(i%11)/20)
		y = append(y, int64(i%2))
	}
	if err := npy.WriteFile(filepath.Join(dir, "features.npy"), x, 400, 2); err != nil {
		return "", err
	}
	if err := npy.WriteFile(filepath.Join(dir, "labels.npy"), y, 400); err != nil {
		return "", err
	}
	opts := pipeline.TrainOptions{Features: []string{dir}}
	opts.Train.Epochs = 20
	d, _, err := pipeline.Train(context.Background(), opts)
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "detector.safetensors")
	return file, d.Save(file)
}
