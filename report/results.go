package report

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
)

// ReadResults reads a results.csv or an ablation.csv. An empty figure is NaN.
func ReadResults(file string) ([]Row, error) {
	f, err := os.Open(file)
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
	var rows []Row
	for i, record := range records[1:] {
		r := Row{Method: record[0], Seed: record[1], Group: record[2], Dataset: record[3]}
		for k, to := range []*int{&r.NID, &r.NOOD} {
			if *to, err = strconv.Atoi(record[4+k]); err != nil {
				return nil, fmt.Errorf("results %s, row %d: %w", file, i+1, err)
			}
		}
		for k, to := range []*float64{&r.AUROC, &r.AUPROut, &r.AUPRIn, &r.FPR95, &r.FPR95ID, &r.IDAcc} {
			*to = math.NaN()
			if text := record[6+k]; text != "" {
				if *to, err = strconv.ParseFloat(text, 64); err != nil {
					return nil, fmt.Errorf("results %s, row %d: %w", file, i+1, err)
				}
			}
		}
		rows = append(rows, r)
	}
	return rows, nil
}

var resultColumns = []string{
	"method", "seed", "group", "dataset", "n_id", "n_ood",
	"auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id", "id_acc",
}
