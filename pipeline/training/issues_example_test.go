package training_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// What an inspection found is a CSV file, from which a person deletes the lines that are
// no issues.
func ExampleWriteIssues() {
	dir, err := os.MkdirTemp("", "issues")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "issues.csv")
	found := []training.Issue{
		{Path: "cat/17.jpg", Row: 16, Kind: training.Duplicate, Score: 0.8, Label: "cat", Other: "cat/3.jpg"},
		{Path: "cat/4.jpg", Row: 3, Kind: training.Label, Score: 0.97, Label: "cat", Suggested: "dog"},
	}
	training.SortIssues(found)
	if err := training.WriteIssues(file, found); err != nil {
		log.Fatal(err)
	}

	read, err := training.ReadIssues(file)
	if err != nil {
		log.Fatal(err)
	}
	for _, i := range read {
		fmt.Println(i.Path, i.Kind, i.Suggested+i.Other)
	}
	// Output:
	// cat/4.jpg label dog
	// cat/17.jpg duplicate cat/3.jpg
}
