package detector_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"mlrbfn/pipeline/detector"
	"mlrbfn/pipeline/internal/pipetest"
)

func TestMin(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 2))
	for _, size := range [][2]int{{768, 10}, {1280, 10}, {768, 1000}} {
		d, det := size[0], joined(size[0], size[1])
		all := det.Scoring.Parts
		for _, i := range []int{0, 5, 6, len(all)} {
			name := "all"
			if det.Scoring.Parts = all; i < len(all) {
				name, det.Scoring.Parts = all[i].Name, all[i:i+1]
			}
			for _, n := range []int{1, detector.JudgeRows} {
				x := pipetest.RandomArray(rng, n*d, 0, 1)
				judge := det.NewJudge()
				best := time.Hour
				for range 40 {
					s := time.Now()
					judge(x)
					best = min(best, time.Since(s))
				}
				fmt.Println(d, size[1], name, n, best/time.Duration(n))
			}
		}
	}
}
