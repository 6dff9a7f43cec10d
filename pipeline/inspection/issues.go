package inspection

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"mlrbfn/internal/atomicfile"
	"mlrbfn/internal/regular"
)

// Kind is what may be wrong with an image.
type Kind string

const (
	Label     Kind = "label"     // its label seems to be another class
	Duplicate Kind = "duplicate" // it shows the same as an earlier row
	Leak      Kind = "leak"      // a test image shows the same
	Outlier   Kind = "outlier"   // it is far from every class
)

// Kinds lists all kinds.
var Kinds = []Kind{Label, Duplicate, Leak, Outlier}

// Issue is a line of issues.csv.
type Issue struct {
	Path      string
	Row       int // of the features, counted through all sets in the order in which they were given
	Kind      Kind
	Score     float64 // how certain it is, in [0, 1]
	Label     string  // of the image; "" if it has none
	Suggested string  // the class that fits better, of Label
	Other     string  // path of the other image, of Duplicate and Leak; what is wrong in words for others

	row, other int // in Report.Images; other is −1 without one
}

// Image returns the place of the issue's image in Report.Images.
func (i Issue) Image() int { return i.row }

// OtherImage returns the place of the other image, −1 if there is none.
func (i Issue) OtherImage() int { return i.other }

func sortIssues(all []Issue) {
	slices.SortStableFunc(all, func(a, b Issue) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(slices.Index(Kinds, a.Kind), slices.Index(Kinds, b.Kind)), cmp.Compare(a.Row, b.Row))
	})
}

var columns = []string{"path", "row", "kind", "score", "label", "suggested", "other"}

// WriteIssues writes issues as CSV, whole or not at all. A cell that a spreadsheet
// would run begins with an apostrophe, which ReadIssues takes away.
func WriteIssues(file string, issues []Issue) error {
	return atomicfile.Write(file, func(w io.Writer) error {
		out := csv.NewWriter(w)
		errs := []error{out.Write(columns)}
		for _, i := range issues {
			errs = append(errs, out.Write([]string{
				harmless(i.Path), strconv.Itoa(i.Row), string(i.Kind), strconv.FormatFloat(i.Score, 'f', 6, 64),
				harmless(i.Label), harmless(i.Suggested), harmless(i.Other),
			}))
		}
		out.Flush()
		return errors.Join(append(errs, out.Error())...)
	})
}

const runs = "=+-@\t\r'" // first characters of cells that a spreadsheet would run, and the apostrophe itself

func harmless(cell string) string {
	if cell != "" && strings.ContainsRune(runs, rune(cell[0])) {
		return "'" + cell
	}
	return cell
}

// ReadIssues reads a file of WriteIssues from which a person may have deleted
// lines.
func ReadIssues(file string) ([]Issue, error) {
	data, err := regular.ReadFile(file, regular.Page)
	if err != nil {
		return nil, err
	}
	return ParseIssues(file, data)
}

// ParseIssues parses the content of a file of WriteIssues; name is for errors.
func ParseIssues(name string, data []byte) ([]Issue, error) {
	in := csv.NewReader(strings.NewReader(strings.TrimPrefix(string(data), "\ufeff")))
	lines, err := in.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(lines) == 0 || !slices.Equal(lines[0], columns) {
		return nil, fmt.Errorf("%s: its first line is not %s", name, strings.Join(columns, ","))
	}
	var all []Issue
	for at, cells := range lines[1:] {
		for i := range cells {
			if rest, ok := strings.CutPrefix(cells[i], "'"); ok && rest != "" && strings.ContainsRune(runs, rune(rest[0])) {
				cells[i] = rest
			}
		}
		row, err := strconv.Atoi(cells[1])
		if err != nil || row < 0 {
			return nil, fmt.Errorf("%s: line %d: row %q is not a number of a row", name, at+2, cells[1])
		}
		score, err := strconv.ParseFloat(cells[3], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: score %q is not a number", name, at+2, cells[3])
		}
		kind := Kind(cells[2])
		if !slices.Contains(Kinds, kind) {
			return nil, fmt.Errorf("%s: line %d: kind %q is unknown", name, at+2, cells[2])
		}
		all = append(all, Issue{Path: cells[0], Row: row, Kind: kind, Score: score, Label: cells[4], Suggested: cells[5], Other: cells[6], row: row, other: -1})
	}
	return all, nil
}
