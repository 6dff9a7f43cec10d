package store

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkCount counts 300,000 verdicts of a month, by the table and without it.
func BenchmarkCount(b *testing.B) {
	s, err := Open(ctx, filepath.Join(b.TempDir(), "store.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const n = 300_000
	list := verdicts(1000)
	for i := range n / len(list) {
		for j := range list {
			at := i*len(list) + j
			list[j].ID, list[j].Time = fmt.Sprint(at), start.Add(30*24*time.Hour*time.Duration(at)/n)
		}
		if err := s.Add(ctx, list); err != nil {
			b.Fatal(err)
		}
	}
	for _, tallied := range []bool{true, false} {
		b.Run(fmt.Sprintf("table=%v", tallied), func(b *testing.B) {
			s.(*db).tallied = tallied
			for b.Loop() {
				all, err := s.Count(ctx, Query{From: start}, 24*time.Hour)
				if err != nil || len(all) == 0 {
					b.Fatal(err)
				}
			}
		})
	}
}
