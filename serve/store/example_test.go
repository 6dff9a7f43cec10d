package store_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// A store keeps verdicts and what people said about them, and proves that nothing of it
// was altered.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "store")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	db, err := store.Open(ctx, filepath.Join(dir, "verdicts.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	flagged := store.Verdict{ID: store.NewID(), Source: "gate", Name: "0002.jpg", Verdict: detector.Verdict{Class: "dog", PValue: 0.001, OOD: true}}
	if err := db.Add(ctx, []store.Verdict{flagged}); err != nil {
		log.Fatal(err)
	}
	if err := db.Review(ctx, []store.Review{{ID: flagged.ID, By: "Ada", Decision: store.IsNew, Class: "fox"}}); err != nil {
		log.Fatal(err)
	}

	record, err := db.Get(ctx, flagged.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: the detector said %s, %s says %s\n", record.Name, record.Class, record.Review.By, record.Review.Class)
	head, err := db.Verify(ctx)
	fmt.Println(head.Seq, "lines are as they were written:", err == nil)
	// Output:
	// 0002.jpg: the detector said dog, Ada says fox
	// 2 lines are as they were written: true
}
