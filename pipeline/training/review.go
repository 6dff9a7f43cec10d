package training

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// ReviewedImage is a line of the list of calibration images that a person looks through.
type ReviewedImage struct {
	Path   string  `json:"path"`  // "" where the features do not say it
	Row    int     `json:"row"`   // see detector.CalibrationImage
	Label  string  `json:"label"` // "" if it has none
	Class  string  `json:"class"` // that the detector gives it
	Score  float64 `json:"score"`
	PValue float64 `json:"p_value"`
	Remove bool    `json:"-"` // it is of no class
}

// ReviewList lists the first of the images that c gives, at most n.
func ReviewList(c *detector.Calibration, images []detector.CalibrationImage, n int) ([]ReviewedImage, error) {
	var paths, labels []string
	for _, set := range c.Sets {
		known, err := set.Images()
		if err != nil {
			return nil, err
		}
		for i, y := range set.Labels() {
			path, label := "", ""
			if i < len(known) {
				path = known[i].Path
			}
			if y >= 0 {
				label = set.Classes[y]
			}
			paths, labels = append(paths, path), append(labels, label)
		}
	}
	var list []ReviewedImage
	for _, i := range images[:min(n, len(images))] {
		list = append(list, ReviewedImage{Path: paths[i.Row], Row: i.Row, Label: labels[i.Row], Class: i.Class, Score: i.Score, PValue: i.PValue})
	}
	return list, nil
}

var reviewColumns = []string{"path", "row", "label", "class", "score", "p_value", "remove"}

// FormatReview writes a list as CSV, for a person to put a word, such as x, into the column remove
// of images that do not belong. Cells are harmless as those of WriteIssues.
func FormatReview(w io.Writer, list []ReviewedImage) error {
	out := csv.NewWriter(w)
	errs := []error{out.Write(reviewColumns)}
	for _, i := range list {
		remove := ""
		if i.Remove {
			remove = "x"
		}
		errs = append(errs, out.Write([]string{harmless(i.Path), strconv.Itoa(i.Row), harmless(i.Label), harmless(i.Class),
			strconv.FormatFloat(i.Score, 'g', 9, 64), strconv.FormatFloat(i.PValue, 'f', 6, 64), remove}))
	}
	out.Flush()
	return errors.Join(append(errs, out.Error())...)
}

// WriteReview writes a list to a file, whole or not at all.
func WriteReview(file string, list []ReviewedImage) error {
	return disk.Write(file, func(w io.Writer) error { return FormatReview(w, list) })
}

// ReadReview reads a list in which a person has marked what does not belong. It returns the
// rows of these, and how many images were looked at: all lines, which must be those of the first
// of list, in any order, as ReviewList gives them now.
func ReadReview(file string, list []ReviewedImage) (reviewed int, remove []int, err error) {
	data, err := disk.ReadFile(file, disk.Page)
	if err != nil {
		return 0, nil, err
	}
	lines, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(string(data), "\ufeff"))).ReadAll()
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(lines) == 0 || !slices.Equal(lines[0], reviewColumns) {
		return 0, nil, fmt.Errorf("%s: its first line is not %s", file, strings.Join(reviewColumns, ","))
	}
	lines = lines[1:]
	next := map[string]ReviewedImage{}
	for _, i := range list[:min(len(lines), len(list))] {
		next[strconv.Itoa(i.Row)] = i
	}
	for at, cells := range lines {
		i, ok := next[cells[1]]
		if !ok || harmless(i.Path) != cells[0] {
			return 0, nil, fmt.Errorf("%s: line %d (%s) is not among the %d lowest calibration images: the list must be of this detector, with all its lines", file, at+2, cells[0], len(lines))
		}
		delete(next, cells[1])
		if strings.TrimSpace(cells[6]) != "" {
			remove = append(remove, i.Row)
		}
	}
	return len(lines), remove, nil
}
