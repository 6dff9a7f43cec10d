// Demoreport reads the verdicts of `mlrbfn detect --format jsonl` on the folders of
// the demonstration and prints how good they are:
//
//	demoreport VERDICTS.jsonl
//
// Images in a folder digits/ are in-distribution; the part of their name before the
// underscore is their true class. Images in every other folder are
// out-of-distribution (OOD) images.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"mlrbfn/metrics"
)

const known = "digits"

// verdict is one line of detect's JSON.
type verdict struct {
	Path       string  `json:"path"`
	Class      string  `json:"class"`
	Confidence float64 `json:"confidence"`
	Score      float64 `json:"score"`
	OOD        bool    `json:"ood"`
	PValue     float64 `json:"p_value"`
	Error      string  `json:"error"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: demoreport VERDICTS.jsonl")
		os.Exit(2)
	}
	if err := run(os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "demoreport:", err)
		os.Exit(1)
	}
}

// run prints the report on the verdicts of a file.
func run(w io.Writer, name string) error {
	groups, err := read(name)
	if err != nil {
		return err
	}
	digits := groups[known]
	if len(digits) == 0 {
		return fmt.Errorf("%s: no verdict on an image under %s/", name, known)
	}

	right := share(digits, func(v verdict) bool { return strings.HasPrefix(path.Base(v.Path), v.Class+"_") })
	fmt.Fprintf(w, "\n%d unseen digits: %.1f%% given their right class, %.1f%% falsely flagged as OOD.\n\n", len(digits), 100*right, 100*share(digits, flagged))

	others := slices.DeleteFunc(slices.Sorted(maps.Keys(groups)), func(group string) bool { return group == known })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "OOD images\tnumber\tAUROC\tcaught at the default threshold\t")
	for _, group := range others {
		vs := groups[group]
		fmt.Fprintf(t, "%s\t%d\t%.3f\t%.1f%%\t\n", group, len(vs), metrics.AUROC(scores(digits), scores(vs)), 100*share(vs, flagged))
	}
	if err := t.Flush(); err != nil {
		return err
	}

	fmt.Fprint(w, "\nSome verdicts (p-value: how often a digit has so low a score):\n\n")
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "image\tnearest class\tconfidence\tp-value\tverdict")
	for _, group := range append([]string{known}, others...) {
		for _, v := range spread(groups[group], 4) {
			word := "known"
			if v.OOD {
				word = "OOD"
			}
			fmt.Fprintf(t, "%s/%s\t%s\t%.3f\t%.4f\t%s\n", group, path.Base(v.Path), v.Class, v.Confidence, v.PValue, word)
		}
	}
	return t.Flush()
}

// read returns the verdicts of a file by the folder of their images.
func read(name string) (map[string][]verdict, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	groups := map[string][]verdict{}
	for dec := json.NewDecoder(f); ; {
		var v verdict
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return groups, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if v.Error != "" {
			return nil, fmt.Errorf("%s could not be read: %s", v.Path, v.Error)
		}
		v.Path = filepath.ToSlash(v.Path)
		group := path.Base(path.Dir(v.Path))
		groups[group] = append(groups[group], v)
	}
}

func flagged(v verdict) bool { return v.OOD }

// share returns the fraction of verdicts for which f holds.
func share(vs []verdict, f func(verdict) bool) float64 {
	n := 0
	for _, v := range vs {
		if f(v) {
			n++
		}
	}
	return float64(n) / float64(len(vs))
}

func scores(vs []verdict) []float64 {
	s := make([]float64, len(vs))
	for i, v := range vs {
		s[i] = v.Score
	}
	return s
}

// spread returns n verdicts at even distances, or all if there are fewer.
func spread(vs []verdict, n int) []verdict {
	if len(vs) <= n {
		return vs
	}
	some := make([]verdict, n)
	for i := range some {
		some[i] = vs[(2*i+1)*len(vs)/(2*n)]
	}
	return some
}
