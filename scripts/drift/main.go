// Drift measures what is written in docs/drift.md: how often watching a calm stream
// raises a false alarm, and how soon a shift is noticed.
//
//	scripts/run drift [-runs 1000] [-picture docs/drift.svg]
//	scripts/run drift [-runs 100] DETECTOR FEATURES STRANGE-FEATURES
package main

import (
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/drift/simulation"
	"github.com/mlrbfn/mlrbfn/report"
	"github.com/mlrbfn/mlrbfn/report/figures"
)

func main() {
	runs := flag.Int("runs", 1000, "how many streams")
	picture := flag.String("picture", "", "draw the course of one stream into this `FILE`, .svg or .png")
	flag.Parse()
	log.SetFlags(0)
	if n := flag.NArg(); n != 0 && n != 3 || *runs < 1 {
		log.Fatal("usage: drift [-runs N] [-picture FILE | DETECTOR FEATURES STRANGE-FEATURES]")
	}
	if flag.NArg() == 3 {
		if err := onFeatures(flag.Arg(0), flag.Arg(1), flag.Arg(2), *runs); err != nil {
			log.Fatal(err)
		}
		return
	}
	if *picture != "" {
		if err := draw(*picture); err != nil {
			log.Fatal(err)
		}
		return
	}
	const alpha = 0.01
	methods := []simulation.Method{simulation.Fixed, simulation.Jumper, simulation.Ours}
	fmt.Printf("400 calibration scores, 20,000 calm ones, alarm with a chance of %g: runs of %d that raise it\n", alpha, *runs)
	for _, m := range methods {
		n := simulation.Stream{Calibration: 400, Calm: 20_000}.FalseAlarms(m, alpha, *runs)
		fmt.Printf("  %-56s %5.1f%%\n", m.Name, 100*float64(n)/float64(*runs))
	}
	few := max(*runs/10, 1)
	fmt.Printf("\nScores fall by some standard deviations after calm ones: images until the alarm, median (90%% quantile) of %d runs\n", few)
	fmt.Printf("  %8s %6s", "calm", "shift")
	for _, m := range methods[1:] {
		fmt.Printf("  %s", m.Name)
	}
	fmt.Println()
	for _, calm := range []int{0, 2000, 20_000, 200_000} {
		for _, shift := range []float64{0.25, 0.5, 1} {
			fmt.Printf("  %8d %6g", calm, shift)
			for _, m := range methods[1:] {
				delays := simulation.Stream{Calibration: 400, Calm: calm, Shift: shift, Until: 50_000}.Delays(m, alpha, few)
				cell := "none"
				if n := len(delays); n > 0 {
					cell = fmt.Sprintf("%d (%d)", delays[n/2], delays[n*9/10])
				}
				fmt.Printf("  %*s", len(m.Name), cell)
			}
			fmt.Println()
		}
	}
}

// draw draws the capital of the methods on one stream that shifts.
func draw(file string) error {
	const calm, all, step = 5000, 6000, 10
	stream := simulation.Stream{Calibration: 400, Calm: calm, Shift: 0.5, Until: all - calm}
	chart := report.Chart{
		Name: "drift",
		X:    report.Axis{Label: "images; from 5000 on their scores are lower by half a standard deviation", Max: all},
		Y:    report.Axis{Label: "log10 of the capital", Min: -12, Max: 8},
	}
	for i, m := range []simulation.Method{simulation.Ours, simulation.Jumper} {
		s := report.Series{Name: []string{"mlrbfn: with a reserve", "simple jumper"}[i], Colour: []string{"c0", "c1"}[i], Width: 1.5}
		stream.Run(m, 0.01, 1, func(t int, log float64) {
			if y := log / math.Ln10; t%step == 0 && y <= chart.Y.Max {
				s.Points = append(s.Points, metrics.Point{X: float64(t), Y: y})
			}
		})
		chart.Series = append(chart.Series, s)
	}
	chart.Series = append(chart.Series, report.Series{
		Name: "alarm at a chance of 1%", Colour: "faint", Width: 1, Dashes: []float64{4, 3},
		Points: []metrics.Point{{X: 0, Y: 2}, {X: all, Y: 2}},
	})
	data, err := figures.Draw(chart, strings.TrimPrefix(filepath.Ext(file), "."))
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o666)
}
