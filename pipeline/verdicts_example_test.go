package pipeline_test

import (
	"fmt"
	"log"
	"os"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// A run that ended early goes on with the image after the last one that it judged.
func ExampleCreate() {
	dir, err := os.MkdirTemp("", "verdicts")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shard, err := features.ParseShard("1/2")
	if err != nil {
		log.Fatal(err)
	}
	images := []string{"a.jpg", "b.jpg", "c.jpg"}
	work := pipeline.Work{Shard: shard.String(), Judge: "the detector's hash", Images: len(images), Listing: "the images' hash", Format: pipeline.JSONL}
	for run := range 2 {
		at := 0
		known := func(path string) bool { at++; return path == images[at-1] }
		w, err := pipeline.CreateVerdicts(dir, shard, work, known, pipeline.VerdictOptions{})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("run", run+1, "finds", w.Len(), "images")
		for _, image := range images[w.Len():] {
			line := fmt.Sprintf(`{"path": %q, "class": "cat", "confidence": 0.9, "score": 1.5, "ood": false, "p_value": 0.4}`+"\n", image)
			if err := w.Append([]byte(line)); err != nil {
				log.Fatal(err)
			}
			if run == 0 && image == "b.jpg" {
				break // the first run is stopped here
			}
		}
		if w.Len() == len(images) {
			record, err := w.Commit()
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("finished:", record.Images, "images,", record.InDistribution, "in-distribution")
		}
		if err := w.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// run 1 finds 0 images
	// run 2 finds 2 images
	// finished: 3 images, 3 in-distribution
}
