package main

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/report"
)

// paperCSV holds the numbers of the paper's tables, in per cent, with their lines
// in its LaTeX source. The metric openood is the AUROC of its first table.
//
//go:embed paper.csv
var paperCSV string

// published is a cell of a table in the paper.
type published struct {
	metric, benchmark, method, backbone string
	cell                                report.Cell
	beside                              bool // is printed next to a line of ours
}

const firstTable = "openood"

func readPaper(text string) (all []published, err error) {
	records, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("paper.csv: %w", err)
	}
	for i, r := range records[1:] {
		var v [6]float64
		for k, text := range r[5:] {
			v[k] = math.NaN()
			if text == "" {
				continue
			}
			if v[k], err = strconv.ParseFloat(text, 64); err != nil {
				return nil, fmt.Errorf("paper.csv, line %d: %w", i+2, err)
			}
			v[k] /= 100
		}
		all = append(all, published{metric: r[0], benchmark: r[2], method: r[3], backbone: r[4], cell: report.Cell{
			Near: report.Value{Mean: v[0], Std: v[1]}, Far: report.Value{Mean: v[2], Std: v[3]}, Acc: report.Value{Mean: v[4], Std: v[5]},
		}})
	}
	return all, nil
}

// paperName returns the paper's name of one of our methods.
func paperName(method string) string {
	for _, c := range contests {
		if c.suffix != "" {
			method = strings.TrimSuffix(method, c.suffix)
		}
	}
	return strings.ToUpper(strings.ReplaceAll(method, "-", ""))
}

var none = report.Value{Mean: math.NaN(), Std: math.NaN()}

var nothing = report.Cell{Near: none, Far: none, Acc: none}

// compare writes comparison.md of the data set and the paper's tables of all
// data sets under e.out, and prints the comparison.
func (e *experiment) compare(w io.Writer) error {
	paper, err := readPaper(paperCSV)
	if err != nil {
		return err
	}
	originals, standIns := grids()
	var here, all []report.Study
	var benchmarks []string // the paper's names of the studies in all
	for _, kind := range []struct {
		grids  map[string]grid
		suffix string
	}{{originals, ""}, {standIns, "-stand-in"}} {
		for _, key := range []string{"cifar10", "cifar100", "imagenet200", "imagenet1k"} {
			some, err := studies(e.out, key+kind.suffix, kind.grids[key].title)
			if err != nil {
				return err
			}
			if len(some) > 0 {
				all, benchmarks = append(all, some...), append(benchmarks, kind.grids[key].name)
			}
			if key+kind.suffix == e.key {
				here = some
			}
		}
	}
	var b strings.Builder
	e.comparison(&b, here, paper)
	file := filepath.Join(e.out, e.key, "comparison.md")
	if err := disk.Write(file, func(w io.Writer) error { _, err := io.WriteString(w, b.String()); return err }); err != nil {
		return err
	}
	if err := report.WriteTables(e.out, all, benchmarkLines(paper, benchmarks)); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\nThis is %s; %s has all data sets so far in the paper's layout,\nand each BACKBONE/HEAD under %s its report.html.\n",
		file, filepath.Join(e.out, "tables.md"), filepath.Join(e.out, e.key, "reports"))
	_, err = io.WriteString(w, b.String())
	return err
}

// benchmarkLines returns the lines of the paper's first table that are not about
// MLRBFNs, or nothing if none of the benchmarks is in the paper.
func benchmarkLines(paper []published, benchmarks []string) (lines []report.Line) {
	if !slices.ContainsFunc(benchmarks, func(b string) bool { return b != "" }) {
		return nil
	}
	for _, p := range paper {
		if p.metric != firstTable || p.backbone != "" || slices.ContainsFunc(lines, func(l report.Line) bool { return l.Method == p.method }) {
			continue
		}
		line := report.Line{Method: p.method}
		for _, b := range benchmarks {
			cell := nothing
			for _, other := range paper {
				if other.metric == firstTable && other.method == p.method && other.benchmark == b {
					cell = other.cell
				}
			}
			line.Cells = append(line.Cells, cell)
		}
		lines = append(lines, line)
	}
	return lines
}

// comparison writes our numbers and the paper's, a table for each metric.
func (e *experiment) comparison(b *strings.Builder, here []report.Study, paper []published) {
	fmt.Fprintf(b, "# %s\n\n%s.\n\n", e.title, strings.TrimSuffix(e.describe(), "."))
	fmt.Fprintf(b, "Mean ± standard deviation %s\n", e.trained)
	if len(e.notes) > 0 {
		b.WriteString("\n")
	}
	for _, note := range e.notes {
		fmt.Fprintf(b, "- %s\n", note)
	}
	benchmark := e.name
	if e.standIn != "" {
		original, _ := grids()
		benchmark = original[strings.TrimSuffix(e.key, "-stand-in")].name
		fmt.Fprintf(b, "\nThe paper's numbers are of the true %s on other backbones: they show the order of magnitude and cannot be compared with ours.\n", benchmark)
	}
	for _, m := range []report.Metric{report.AUROC, report.AUPROut, report.FPR95} {
		better := "higher is better"
		if m.Lower {
			better = "lower is better"
		}
		fmt.Fprintf(b, "\n## %s in per cent (%s)\n\n", m.Name, better)
		b.WriteString("| method | backbone | near | near, paper | far | far, paper | ID acc. | ID acc., paper |\n|---|---|---:|---:|---:|---:|---:|---:|\n")
		var theirs []published
		for _, p := range paper {
			// The first table has AUROCs that the second does not have.
			first := p.metric == firstTable && m.Name == report.AUROC.Name && p.backbone != "CLIP" && p.backbone != "DINOv2"
			if p.benchmark == benchmark && (p.metric == m.Name || first) {
				theirs = append(theirs, p)
			}
		}
		var lines []line
		for _, s := range report.PaperTable(m, here).Sections {
			for _, l := range s.Lines {
				cell := nothing
				for i, p := range theirs {
					if p.method == paperName(l.Method) && p.backbone == l.Backbone {
						cell, theirs[i].beside = p.cell, true
					}
				}
				lines = append(lines, line{paperName(l.Method), l.Method, l.Backbone, l.Cells[0], cell})
			}
		}
		for _, p := range theirs {
			if !p.beside {
				lines = append(lines, line{p.method, "the paper's " + p.method, p.backbone, nothing, p.cell})
			}
		}
		var methods []string
		for _, l := range lines {
			if !slices.Contains(methods, l.of) {
				methods = append(methods, l.of)
			}
		}
		slices.SortStableFunc(lines, func(a, b line) int { return slices.Index(methods, a.of) - slices.Index(methods, b.of) })
		for _, l := range lines {
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", l.method, l.backbone,
				show(l.ours.Near), show(l.theirs.Near), show(l.ours.Far), show(l.theirs.Far), show(l.ours.Acc), show(l.theirs.Acc))
		}
	}
}

// line is a line of a comparison: one method on any network.
type line struct {
	of, method, backbone string
	ours, theirs         report.Cell
}

func show(v report.Value) string {
	switch {
	case math.IsNaN(v.Mean):
		return "–"
	case math.IsNaN(v.Std):
		return fmt.Sprintf("%.2f", 100*v.Mean)
	}
	return fmt.Sprintf("%.2f ± %.2f", 100*v.Mean, 100*v.Std)
}
