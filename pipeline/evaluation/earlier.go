package evaluation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/metrics"
)

// This file reads what an earlier evaluation left, to compare with.

// ErrOtherImages means that two reports are not on the same images.
var ErrOtherImages = errors.New("the reports are not on the same images")

// Earlier is an earlier report to compare with.
type Earlier struct {
	Dir     string
	Results []metrics.Measurement
	sets    []setRecord // nil if it does not record them
	limits  []limitRecord
}

// setRecord says in sets.json which images a set of a report has.
type setRecord struct {
	Name   string `json:"name"` // "id" for the in-distribution test images
	Group  string `json:"group,omitempty"`
	N      int    `json:"n"`
	Images string `json:"images,omitempty"` // see Set.Images
}

// limitRecord says in sets.json by which threshold a detector decides.
type limitRecord struct {
	Method    string  `json:"method"`
	Seed      string  `json:"seed"`
	Threshold float64 `json:"threshold"`
}

type setsFile struct {
	Version    int           `json:"version"`
	Sets       []setRecord   `json:"sets"`
	Thresholds []limitRecord `json:"thresholds,omitempty"`
}

const setsName = "sets.json"

func recordSets(id images.Set, ood []images.Set) []setRecord {
	records := []setRecord{{"id", "", id.N, id.Images}}
	for _, s := range ood {
		records = append(records, setRecord{s.Name, s.Group, s.N, s.Images})
	}
	return records
}

// Save writes results.csv and sets.json, which says what images the results are on, to
// the folder dir.
func (r *Evaluation) Save(dir string) error {
	if err := metrics.WriteResults(filepath.Join(dir, "results.csv"), r.Results); err != nil {
		return err
	}
	var limits []limitRecord
	for _, run := range r.Runs {
		if run.Threshold != nil {
			limits = append(limits, limitRecord{run.Method, run.Seed, *run.Threshold})
		}
	}
	return disk.Write(filepath.Join(dir, setsName), func(w io.Writer) error {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		return out.Encode(setsFile{1, recordSets(r.ID, r.OOD), limits})
	})
}

// ReadEarlier reads what a report of an evaluation left in its folder.
func ReadEarlier(dir string) (*Earlier, error) {
	e := &Earlier{Dir: dir}
	var err error
	if e.Results, err = metrics.ReadResults(filepath.Join(dir, "results.csv")); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, setsName)
	text, err := disk.ReadFile(file, disk.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil // a report of an earlier version
	}
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	var sets setsFile
	if err := json.Unmarshal(text, &sets); err != nil {
		return nil, fmt.Errorf("report: %s: %w", file, err)
	}
	if sets.Version != 1 {
		return nil, fmt.Errorf("report: %s has version %d, and this program reads version 1", file, sets.Version)
	}
	e.sets, e.limits = sets.Sets, sets.Thresholds
	return e, nil
}

// Threshold returns the threshold of the detector that gave a method's scores; nil
// without one.
func (e *Earlier) Threshold(method, seed string) *float64 {
	for _, l := range e.limits {
		if l.Method == method && l.Seed == seed {
			return &l.Threshold
		}
	}
	return nil
}

// Check returns an error that wraps ErrOtherImages unless the earlier report is on
// these images, in this order. Where it does not record them, their numbers count.
func (e *Earlier) Check(id images.Set, ood []images.Set) error {
	want := recordSets(id, ood)
	have := e.sets
	if have == nil {
		for _, r := range e.Results {
			if r.Dataset == "mean" {
				continue
			}
			for _, s := range []setRecord{{Name: "id", N: r.NID}, {Name: r.Dataset, Group: r.Group, N: r.NOOD}} {
				if !slices.Contains(have, s) {
					have = append(have, s)
				}
			}
		}
	}
	var wrong []string
	for _, s := range want {
		at := slices.IndexFunc(have, func(h setRecord) bool { return h.Name == s.Name })
		switch {
		case at < 0:
			wrong = append(wrong, fmt.Sprintf("%s is not in it", s.Name))
		case have[at].N != s.N:
			wrong = append(wrong, fmt.Sprintf("%s had %d images and has %d", s.Name, have[at].N, s.N))
		case have[at].Group != s.Group:
			wrong = append(wrong, fmt.Sprintf("%s was a %s set", s.Name, have[at].Group))
		case have[at].Images != s.Images && have[at].Images != "" && s.Images != "":
			wrong = append(wrong, fmt.Sprintf("%s has other images, or in another order", s.Name))
		}
	}
	for _, h := range have {
		if !slices.ContainsFunc(want, func(s setRecord) bool { return s.Name == h.Name }) {
			wrong = append(wrong, h.Name+" is only in it")
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("report %s: %w: %s", e.Dir, ErrOtherImages, strings.Join(wrong, "; "))
	}
	return nil
}

// Recorded reports whether the earlier report says which images it is on.
func (e *Earlier) Recorded() bool {
	return !slices.ContainsFunc(e.sets, func(s setRecord) bool { return s.Images == "" }) && e.sets != nil
}

// Scores reads n scores of a method on a set.
func (e *Earlier) Scores(method, seed, dataset string, n int) ([]float64, error) {
	name := filepath.Join("scores", method, seed, dataset+".npy")
	if !filepath.IsLocal(name) || strings.ContainsAny(method+seed+dataset, `/\`) {
		return nil, fmt.Errorf("report %s: no file can be named by method %q, seed %q and set %q", e.Dir, method, seed, dataset)
	}
	scores, _, err := npy.ReadUpTo[float64](filepath.Join(e.Dir, name), n)
	if err != nil {
		return nil, fmt.Errorf("report %s: %w", e.Dir, err)
	}
	if len(scores) != n {
		return nil, fmt.Errorf("report %s: %s has %d scores, and there are %d images", e.Dir, name, len(scores), n)
	}
	return scores, nil
}

// Seed is the seed of a method that is compared: the given one if it is there.
func (e *Earlier) Seed(method, wanted string) (seed string, ok bool) {
	for _, r := range e.Results {
		if r.Method != method || r.Seed == "mean" || r.Seed == "std" {
			continue
		}
		if r.Seed == wanted {
			return wanted, true
		}
		if !ok {
			seed, ok = r.Seed, true
		}
	}
	return seed, ok
}
