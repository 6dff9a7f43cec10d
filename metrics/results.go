package metrics

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Groups of out-of-distribution sets, by how similar they are to the training
// classes.
const (
	Near = "near"
	Far  = "far"
)

// Measurement is a row of results.csv: how well a method separates one set of
// out-of-distribution (OOD) images from the in-distribution test set. Metrics are
// in [0, 1]; NaN means not measured.
type Measurement struct {
	Method  string
	Seed    string // a seed, or "mean" or "std" over the seeds
	Group   string // Near or Far
	Dataset string // a set's name, or "mean" over the sets of the group
	NID     int    // in-distribution images
	NOOD    int    // OOD images
	Result
	IDAcc float64 // accuracy on the in-distribution test set
}

// Measure computes the metrics from the scores of in-distribution and OOD images.
// The caller adds the names and the accuracy.
func Measure(id, ood []float64) Measurement {
	return Measurement{NID: len(id), NOOD: len(ood), Result: Evaluate(id, ood), IDAcc: math.NaN()}
}

// metrics lists the metrics in the order of the columns.
func (r *Measurement) metrics() []*float64 {
	return append(r.values(), &r.IDAcc)
}

// Summarise adds means to the results of one method on single sets: after the sets
// of each seed the unweighted means over the sets of each group, and at the end the
// means and the standard deviations (ddof 0) over the seeds.
func Summarise(single []Measurement) []Measurement {
	var all []Measurement
	for _, ofSeed := range grouped(single, func(r Measurement) string { return r.Seed }) {
		all = append(all, ofSeed...)
		byGroup := grouped(ofSeed, func(r Measurement) string { return r.Group })
		slices.SortFunc(byGroup, func(a, b []Measurement) int { return strings.Compare(b[0].Group, a[0].Group) }) // near first
		for _, members := range byGroup {
			mean, _ := spread(members)
			mean.Dataset, mean.NOOD = "mean", 0
			for _, r := range members {
				mean.NOOD += r.NOOD
			}
			all = append(all, mean)
		}
	}
	var means, deviations []Measurement
	for _, seeds := range grouped(all, func(r Measurement) [2]string { return [2]string{r.Group, r.Dataset} }) {
		mean, std := spread(seeds)
		mean.Seed, std.Seed = "mean", "std"
		means, deviations = append(means, mean), append(deviations, std)
	}
	return slices.Concat(all, means, deviations)
}

// grouped divides results by a key, in the order of the first of each.
func grouped[K comparable](results []Measurement, key func(Measurement) K) (groups [][]Measurement) {
	at := map[K]int{}
	for _, r := range results {
		i, known := at[key(r)]
		if !known {
			i = len(groups)
			at[key(r)], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], r)
	}
	return groups
}

// spread returns the mean and the standard deviation (ddof 0) of each metric. The
// other fields are those of the first member.
func spread(members []Measurement) (mean, std Measurement) {
	mean, std = members[0], members[0]
	n := float64(len(members))
	for i := range mean.metrics() {
		var sum, squares float64
		for _, r := range members {
			sum += *r.metrics()[i]
		}
		m := sum / n
		for _, r := range members {
			squares += (*r.metrics()[i] - m) * (*r.metrics()[i] - m)
		}
		*mean.metrics()[i], *std.metrics()[i] = m, math.Sqrt(squares/n)
	}
	return mean, std
}

var resultColumns = []string{
	"method", "seed", "group", "dataset", "n_id", "n_ood",
	"auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id", "id_acc",
}

// WriteResults writes results as CSV and makes the folder of the file. A metric
// that is NaN is an empty field.
func WriteResults(file string, results []Measurement) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return disk.Write(file, func(w io.Writer) error {
		out := csv.NewWriter(w)
		if err := out.Write(resultColumns); err != nil {
			return err
		}
		for _, r := range results {
			record := []string{r.Method, r.Seed, r.Group, r.Dataset, strconv.Itoa(r.NID), strconv.Itoa(r.NOOD)}
			for _, v := range r.metrics() {
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

// ReadResults reads a file of WriteResults.
func ReadResults(file string) ([]Measurement, error) {
	f, err := disk.Open(file, disk.Table)
	if err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	defer f.Close()
	records, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("results %s: %w", file, err)
	}
	if len(records) == 0 || !slices.Equal(records[0], resultColumns) {
		return nil, fmt.Errorf("results %s: its columns are not %v", file, resultColumns)
	}
	var results []Measurement
	for i, record := range records[1:] {
		r := Measurement{Method: record[0], Seed: record[1], Group: record[2], Dataset: record[3]}
		for k, to := range []*int{&r.NID, &r.NOOD} {
			if *to, err = strconv.Atoi(record[4+k]); err != nil {
				return nil, fmt.Errorf("results %s, row %d: %w", file, i+1, err)
			}
		}
		for k, to := range r.metrics() {
			*to = math.NaN()
			if text := record[6+k]; text != "" {
				if *to, err = strconv.ParseFloat(text, 64); err != nil {
					return nil, fmt.Errorf("results %s, row %d: %w", file, i+1, err)
				}
			}
		}
		results = append(results, r)
	}
	return results, nil
}

// ErrForeign means that a file with the wanted name was not written by this
// program. Such a file is never replaced.
var ErrForeign = errors.New("not written by this program; choose another folder")

// RemoveResults removes a CSV of WriteResults, if it exists. Any other file is not
// touched, and the error wraps ErrForeign.
func RemoveResults(file string) error {
	text, err := disk.ReadFile(file, disk.Table)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !strings.HasPrefix(string(text), strings.Join(resultColumns, ",")+"\n") {
		err = fmt.Errorf("%s: %w", file, ErrForeign)
	}
	if err == nil {
		err = os.Remove(file)
	}
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return nil
}
