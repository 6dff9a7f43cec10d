package evaluation

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"mlrbfn/internal/atomicfile"
	"mlrbfn/pipeline/detector"
	"mlrbfn/pipeline/internal/files"
)

// resultColumns are the columns of results.csv.
var resultColumns = []string{
	"method", "seed", "group", "dataset", "n_id", "n_ood",
	"auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id", "id_acc",
}

// writeResults writes figures as CSV; a figure that there is none of is empty.
func writeResults(path string, figures []Figures) error {
	if err := files.MkdirFor(path); err != nil {
		return err
	}
	return atomicfile.Write(path, func(w io.Writer) error {
		out := csv.NewWriter(w)
		if err := out.Write(resultColumns); err != nil {
			return err
		}
		for _, f := range figures {
			record := []string{f.Method, f.Seed, f.Group, f.Dataset, strconv.Itoa(f.NID), strconv.Itoa(f.NOOD)}
			for _, v := range f.values() {
				text := ""
				if !math.IsNaN(*v) {
					text = strconv.FormatFloat(*v, 'g', -1, 64)
				}
				record = append(record, text)
			}
			if err := out.Write(record); err != nil {
				return err
			}
		}
		out.Flush()
		return out.Error()
	})
}

// clearResults removes the CSV that an earlier run has written. One that it did
// not write is an error.
func clearResults(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !strings.HasPrefix(string(text), strings.Join(resultColumns, ",")+"\n") {
		return fmt.Errorf("%s is no report of this program; choose another --out", path)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("report folder: %w", err)
	}
	return nil
}

// clearReport removes what an earlier run has left in the folder of a report,
// which must not stand beside what this one writes, and nothing else. Results
// that Evaluate did not write are an error.
func clearReport(dir string) error {
	if err := clearResults(filepath.Join(dir, "results.csv")); err != nil {
		return err
	}
	methods, err := os.ReadDir(filepath.Join(dir, "scores"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("report folder: %w", err)
	}
	for _, method := range methods {
		if _, _, err := detector.ScoreParts(method.Name()); err != nil {
			continue // not ours
		}
		scores, err := filepath.Glob(filepath.Join(dir, "scores", method.Name(), "*", "*.npy"))
		if err != nil {
			return fmt.Errorf("report folder: %w", err)
		}
		for _, file := range scores {
			if err := os.Remove(file); err != nil {
				return fmt.Errorf("report folder: %w", err)
			}
			_ = os.Remove(filepath.Dir(file)) // if that was the last
		}
	}
	return nil
}

// summary names a mean over the sets of a group: of a method over the seeds,
// with seed "mean", or the deviation, "std".
type summary struct{ method, group, seed string }

// overview picks out the summaries, and the methods in order.
func overview(figures []Figures) (methods []string, means map[summary]Figures) {
	means = map[summary]Figures{}
	for _, f := range figures {
		if f.Dataset == "mean" && (f.Seed == "mean" || f.Seed == "std") {
			if len(methods) == 0 || methods[len(methods)-1] != f.Method {
				methods = append(methods, f.Method)
			}
			means[summary{f.Method, f.Group, f.Seed}] = f
		}
	}
	return methods, means
}

// WriteTable writes the paper's tables: for AUROC, AUPR-Out and FPR@95 by either
// convention a line per method with the means over near- and far-OOD sets, each
// mean ± standard deviation over the seeds in per cent, and the accuracy.
// results.csv has the single sets and seeds.
func WriteTable(w io.Writer, figures []Figures) error {
	methods, means := overview(figures)
	for i, metric := range []struct {
		name string
		of   func(Figures) float64
	}{
		{"AUROC", func(f Figures) float64 { return f.AUROC }},
		{"AUPR-Out", func(f Figures) float64 { return f.AUPROut }},
		{"FPR@95", func(f Figures) float64 { return f.FPR95 }},
		{"FPR@95-ID", func(f Figures) float64 { return f.FPR95ID }},
	} {
		if i > 0 {
			fmt.Fprintln(w)
		}
		out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(out, "%s\tNear-OOD\tFar-OOD\tID Acc.\t\n", metric.name)
		for _, method := range methods {
			cell := func(group string, of func(Figures) float64) string {
				mean, ok := means[summary{method, group, "mean"}]
				if !ok || math.IsNaN(of(mean)) {
					return "–"
				}
				return fmt.Sprintf("%.2f ± %.2f", 100*of(mean), 100*of(means[summary{method, group, "std"}]))
			}
			accuracy := func(f Figures) float64 { return f.IDAcc }
			acc := cell(Near, accuracy)
			if _, ok := means[summary{method, Near, "mean"}]; !ok {
				acc = cell(Far, accuracy)
			}
			fmt.Fprintf(out, "%s\t%s\t%s\t%s\t\n", method, cell(Near, metric.of), cell(Far, metric.of), acc)
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return nil
}
