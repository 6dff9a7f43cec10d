package report

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Kinds of methods, as the OpenOOD v1.5 study and the paper's first table group
// them.
const (
	PostHoc  = "Post-hoc"      // a score of an ordinary network
	Training = "Mod. Training" // a network trained for OOD detection, without outliers
	Outliers = "Outlier Exp."  // a network trained with outlier images
)

var kinds = []string{PostHoc, Training, Outliers}

// Entry is a line of OpenOOD's leaderboard, with metrics in [0, 1].
type Entry struct {
	Training      string // how the network was trained
	Postprocessor string // the score
	Arch          string // the network
	Kind          string // PostHoc, Training or Outliers; "" for data augmentation only
	Cell
}

// The methods of the OpenOOD v1.5 study. The leaderboard has more methods now; GEN
// is among them and was not in the paper's averages.
var (
	studied = map[string][]string{
		PostHoc: {"OpenMax", "MSP", "TempScale", "ODIN", "MDS", "MDSEns", "RMDS", "Gram", "EBO", "OpenGAN", "GradNorm",
			"ReAct", "MLS", "KLM", "VIM", "KNN", "DICE", "RankFeat", "ASH", "SHE"},
		Training: {"ConfBranch", "RotPred", "G-ODIN", "CSI", "ARPL", "MOS", "VOS", "LogitNorm", "CIDER", "NPOS"},
		Outliers: {"OE", "MCD", "UDG", "MixOE"},
	}
	augmentations = []string{"StyleAugment", "RandAugment", "AugMix", "DeepAugment", "PixMix", "RegMixup", "Cutout"}
)

// InStudy reports whether the entry is a method of the OpenOOD v1.5 study on one
// of its networks. The paper compares with these.
func (e Entry) InStudy() bool {
	name := e.Training
	if e.Kind == PostHoc {
		name = e.Postprocessor
	}
	return slices.Contains(studied[e.Kind], name) && (e.Arch == "ResNet18" || e.Arch == "ResNet50")
}

// ReadLeaderboard reads a file of OpenOOD's leaderboard: CSV with the columns
// Training, Postprocessor, Near-OOD_AUROC, Far-OOD_AUROC, ID_Accuracy,
// Outlier_Data and Arch. Metrics are in per cent, as 87.62 or 87.62 ± 0.29; "/"
// means none.
func ReadLeaderboard(file string) (entries []Entry, err error) {
	f, err := disk.Open(file, disk.Table)
	if err != nil {
		return nil, fmt.Errorf("leaderboard: %w", err)
	}
	defer f.Close()
	entries, err = readLeaderboard(f)
	if err != nil {
		return nil, fmt.Errorf("leaderboard %s: %w", file, err)
	}
	return entries, nil
}

func readLeaderboard(r io.Reader) ([]Entry, error) {
	in := csv.NewReader(r)
	head, err := in.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("it is empty")
	}
	if err != nil {
		return nil, err
	}
	if len(head) > 0 {
		head[0] = strings.TrimPrefix(head[0], "\ufeff")
	}
	column := map[string]int{}
	for _, name := range []string{"Training", "Postprocessor", "Near-OOD_AUROC", "Far-OOD_AUROC", "ID_Accuracy", "Outlier_Data", "Arch"} {
		if column[name] = slices.Index(head, name); column[name] < 0 {
			return nil, fmt.Errorf("it has no column %s", name)
		}
	}
	var entries []Entry
	for {
		record, err := in.Read()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		field := func(name string) string { return strings.TrimSpace(record[column[name]]) }
		e := Entry{Training: field("Training"), Postprocessor: field("Postprocessor"), Arch: field("Arch")}
		e.Kind = kind(e.Training, field("Outlier_Data"))
		for name, to := range map[string]*Value{"Near-OOD_AUROC": &e.Near, "Far-OOD_AUROC": &e.Far, "ID_Accuracy": &e.Acc} {
			if *to, err = parseValue(field(name)); err != nil {
				line, _ := in.FieldPos(column[name])
				return nil, fmt.Errorf("line %d, %s: %w", line, name, err)
			}
		}
		entries = append(entries, e)
	}
}

func kind(training, outliers string) string {
	switch {
	case strings.EqualFold(outliers, "yes"):
		return Outliers
	case training == "CrossEntropy":
		return PostHoc
	case slices.Contains(augmentations, training):
		return ""
	}
	return Training
}

// parseValue reads a number in per cent, with or without a deviation.
func parseValue(text string) (Value, error) {
	if text == "/" || text == "" {
		return none, nil
	}
	mean, std, has := strings.Cut(text, "±")
	v := none
	var err error
	if v.Mean, err = parsePercent(mean); err == nil && has {
		v.Std, err = parsePercent(std)
	}
	return v, err
}

func parsePercent(text string) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !(v >= 0 && v <= 100) {
		return 0, fmt.Errorf("%q is not a number in per cent", text)
	}
	return v / 100, nil
}

// Benchmarks returns the lines of the paper's first table: for each kind of method
// the best entry of every column with its deviation, then the averages without
// deviations. Boards are leaderboards, one for each benchmark.
//
// Only entries for which keep returns true count; nil means [Entry.InStudy], which
// reproduces the paper's numbers within a hundredth of a point. The averages of
// post-hoc methods on ImageNet differ by up to 0.4 points, because these boards
// have changed.
func Benchmarks(keep func(Entry) bool, boards ...[]Entry) (lines []Line) {
	if keep == nil {
		keep = Entry.InStudy
	}
	for _, what := range []struct {
		name string
		of   func([]Value) Value
	}{{"Best ", highest}, {"Avg. ", average}} {
		for _, kind := range kinds {
			line := Line{Method: what.name + kind}
			for _, board := range boards {
				var columns [3][]Value
				for _, e := range board {
					if e.Kind == kind && keep(e) {
						for k, v := range e.values() {
							if !math.IsNaN(v.Mean) {
								columns[k] = append(columns[k], v)
							}
						}
					}
				}
				line.Cells = append(line.Cells, Cell{what.of(columns[0]), what.of(columns[1]), what.of(columns[2])})
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func highest(values []Value) Value {
	top := none
	for _, v := range values {
		if math.IsNaN(top.Mean) || v.Mean > top.Mean {
			top = v
		}
	}
	return top
}

func average(values []Value) Value {
	sum := 0.0
	for _, v := range values {
		sum += v.Mean
	}
	return Value{sum / float64(len(values)), math.NaN()} // NaN without values
}
