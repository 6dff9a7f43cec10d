package inspection

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"mlrbfn/pipeline/issues"
)

func TestTry(t *testing.T) {
	for _, dir := range strings.Fields(os.Getenv("TRY")) {
		start := time.Now()
		r, err := Inspect(context.Background(), Options{Features: []string{dir}})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("%s: %v acc %.3f kinds", dir, time.Since(start).Round(time.Millisecond), r.Accuracy)
		count := map[issues.Kind]int{}
		for _, i := range r.Issues {
			count[i.Kind]++
		}
		fmt.Println(count, len(r.Odd), r.Unread, r.Notes)
		for _, o := range r.Overlaps {
			fmt.Println(o)
		}
		for i, o := range r.Odd {
			if i < 10 {
				fmt.Println(o)
			}
		}
		truth, _, err2 := readInts(dir + "/true.npy")
		given, _, _ := readInts(dir + "/labels.npy")
		if err2 == nil {
			k := 0
			for i := range truth {
				if truth[i] != given[i] {
					k++
				}
			}
			hit, n, all := 0, 0, 0
			for _, i := range r.Issues {
				if i.Kind == issues.Label {
					bad := truth[i.Row] != given[i.Row]
					if n < k && bad {
						hit++
					}
					if bad {
						all++
					}
					n++
				}
			}
			fmt.Printf("planted %d: top-k %.3f; flagged %d prec %.3f rec %.3f\n", k, float64(hit)/float64(k), n, float64(all)/float64(n), float64(all)/float64(k))
		} else {
			for _, i := range r.Issues {
				fmt.Println(i.Score, i.Kind, i.Path, i.Label, i.Suggested, i.Other)
			}
		}
	}
}

func readInts(name string) ([]int64, []int, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, err
	}
	n := len(b) - 128
	v := make([]int64, n/8)
	for i := range v {
		for j := 7; j >= 0; j-- {
			v[i] = v[i]<<8 | int64(b[128+8*i+j])
		}
	}
	return v, nil, nil
}
