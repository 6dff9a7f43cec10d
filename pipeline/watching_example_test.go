package pipeline_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// How far two processes have come, of which one has begun.
func ExampleLookAt() {
	dir, err := os.MkdirTemp("", "watching")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shard, err := features.ParseShard("1/2")
	if err != nil {
		log.Fatal(err)
	}
	work := pipeline.Work{Shard: shard.String(), Judge: "the detector's hash", Images: 1, Listing: "the images' hash", Format: pipeline.JSONL}
	w, err := pipeline.CreateVerdicts(dir, shard, work, func(string) bool { return false }, pipeline.VerdictOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if err := w.Append([]byte(`{"path": "a.jpg", "class": "cat", "confidence": 0.9, "score": 1.5, "ood": true, "p_value": 0.01}` + "\n")); err != nil {
		log.Fatal(err)
	}
	if _, err := w.Commit(); err != nil {
		log.Fatal(err)
	}

	far, err := pipeline.LookAt(context.Background(), dir, time.Now())
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range far.Shards {
		fmt.Println(s.Shard, s.State)
	}
	fmt.Println(far.Finished, "finished,", far.Summary.OOD, "image flagged;", pipeline.DurationText(7384), "left")
	// Output:
	// 1/2 finished
	// 2/2 not begun
	// 1 finished, 1 image flagged; 2.1 h left
}
