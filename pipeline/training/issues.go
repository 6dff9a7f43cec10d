package training

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// IssueKind names what may be wrong with an image.
type IssueKind string

const (
	Label     IssueKind = "label"     // its label seems to be another class
	Duplicate IssueKind = "duplicate" // it shows the same as another row, and is the worse of them
	Leak      IssueKind = "leak"      // a test image shows the same
	Outlier   IssueKind = "outlier"   // it is far from every class
	Listed    IssueKind = "listed"    // a person wants it left out; never in issues.csv
)

// IssueKinds lists the kinds that issues.csv has.
var IssueKinds = []IssueKind{Label, Duplicate, Leak, Outlier}

// Issue is a line of the file issues.csv: what an inspection found wrong with images,
// for a person to correct and a training to act on.
type Issue struct {
	Path      string
	Row       int // of the features, counted through all sets in the order in which they were given
	Kind      IssueKind
	Score     float64 // how certain it is, in [0, 1]; see Same
	Label     string  // of the image; "" if it has none
	Suggested string  // the class that fits better, of Label
	Other     string  // path of the other image, of Duplicate and Leak

	// OtherRow is the row of the other image, counted on through the test features; −1
	// without one. It is not part of the file.
	OtherRow int
}

// SurelySame is the score from which on images of Duplicate and Leak are the same, whatever
// their size, compression and side: others are similar.
const SurelySame = .998

// Same reports whether the image and the other are the same, and not only similar.
func (i Issue) Same() bool { return (i.Kind == Duplicate || i.Kind == Leak) && i.Score >= SurelySame }

// SortIssues puts the most certain issues first.
func SortIssues(all []Issue) {
	slices.SortStableFunc(all, func(a, b Issue) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(slices.Index(IssueKinds, a.Kind), slices.Index(IssueKinds, b.Kind)), cmp.Compare(a.Row, b.Row))
	})
}

var columns = []string{"path", "row", "kind", "score", "label", "suggested", "other"}

// WriteIssues writes issues as CSV, whole or not at all. A cell that a spreadsheet
// would run begins with an apostrophe, which Read takes away.
func WriteIssues(file string, issues []Issue) error {
	return disk.Write(file, func(w io.Writer) error { return FormatIssues(w, issues) })
}

// FormatIssues writes what WriteIssues writes to a file.
func FormatIssues(w io.Writer, issues []Issue) error {
	rows := [][]string{columns}
	for _, i := range issues {
		rows = append(rows, []string{
			harmless(i.Path), strconv.Itoa(i.Row), string(i.Kind), strconv.FormatFloat(i.Score, 'f', 6, 64),
			harmless(i.Label), harmless(i.Suggested), harmless(i.Other),
		})
	}
	return csv.NewWriter(w).WriteAll(rows)
}

const runs = "=+-@\t\r'" // first characters of cells that a spreadsheet would run, and the apostrophe itself

func harmless(cell string) string {
	if cell != "" && strings.ContainsRune(runs, rune(cell[0])) {
		return "'" + cell
	}
	return cell
}

// ReadIssues reads a file of Write from which a person may have deleted
// lines.
func ReadIssues(file string) ([]Issue, error) {
	data, err := disk.ReadFile(file, disk.Page)
	if err != nil {
		return nil, err
	}
	return ParseIssues(file, data)
}

// ParseIssues parses the content of a file of Write; name is for errors.
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
		kind := IssueKind(cells[2])
		if !slices.Contains(IssueKinds, kind) {
			return nil, fmt.Errorf("%s: line %d: kind %q is unknown", name, at+2, cells[2])
		}
		all = append(all, Issue{Path: cells[0], Row: row, Kind: kind, Score: score, Label: cells[4], Suggested: cells[5], Other: cells[6], OtherRow: -1})
	}
	return all, nil
}

// ReadExcluded reads a file of Options.Exclude: issues, or a list of paths, one a line.
func ReadExcluded(file string) (all []Issue, err error) {
	data, err := disk.ReadFile(file, disk.Page)
	if err != nil {
		return nil, err
	}
	text := strings.TrimPrefix(string(data), "\ufeff")
	if text == "" || strings.HasPrefix(text, columns[0]+",") {
		return ParseIssues(file, data)
	}
	for line := range strings.Lines(text) {
		if path := strings.TrimRight(line, "\r\n"); path != "" {
			all = append(all, Issue{Path: path, Row: -1, Kind: Listed, OtherRow: -1})
		}
	}
	return all, nil
}

// CorrectedLabels returns copies of the labels of feature sets, in their order, with −1 for the
// rows of exclude that another row or a test image shows, and with the suggested class
// for those of relabel, as far as they are of the kind Label. The other rows of exclude are
// hard: nothing is trained on them, but new images will be as hard, so that they must
// stay among the rows that measure and calibrate. An issue belongs to the row that it names if that has its
// path; where images were added or taken away since, to the only row with its path.
func CorrectedLabels(labels []int64, classes []string, sets []*features.Set, exclude, relabel []Issue) (corrected []int64, hard map[int]bool, err error) {
	paths := make([]string, 0, len(labels))
	rows := map[string][]int{}
	for _, set := range sets {
		images, err := set.Images()
		if err != nil {
			return nil, nil, err
		}
		if len(images) == 0 {
			images = make([]features.Image, set.N)
		}
		for _, img := range images {
			rows[img.Path] = append(rows[img.Path], len(paths))
			paths = append(paths, img.Path)
		}
	}
	find := func(i Issue) (int, error) {
		if i.Row >= 0 && i.Row < len(paths) && paths[i.Row] == i.Path {
			return i.Row, nil
		}
		switch all := rows[i.Path]; {
		case i.Path != "" && len(all) == 1:
			return all[0], nil
		case i.Kind == Listed && len(all) > 1:
			return 0, fmt.Errorf("the features have %d images with the path %q", len(all), i.Path)
		case i.Path == "" || len(all) > 1:
			return 0, fmt.Errorf("row %d (%q) is not that image in these features: inspect them again", i.Row, i.Path)
		}
		return 0, fmt.Errorf("the features have no image %q", i.Path)
	}
	corrected, hard = slices.Clone(labels), map[int]bool{}
	for _, i := range exclude {
		row, err := find(i)
		if err != nil {
			return nil, nil, err
		}
		if i.Kind == Label || i.Kind == Outlier {
			hard[row] = true
		} else {
			corrected[row] = -1
		}
	}
	for _, i := range relabel {
		if i.Kind != Label {
			continue
		}
		row, err := find(i)
		if err != nil {
			return nil, nil, err
		}
		y := slices.Index(classes, i.Suggested)
		if y < 0 {
			return nil, nil, fmt.Errorf("row %d (%q): the suggested class %q is none of the features", i.Row, i.Path, i.Suggested)
		}
		corrected[row] = int64(y) // also where exclude has it
		delete(hard, row)
	}
	for row := range hard {
		if corrected[row] < 0 {
			delete(hard, row)
		}
	}
	return corrected, hard, nil
}

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
	rows := [][]string{reviewColumns}
	for _, i := range list {
		remove := ""
		if i.Remove {
			remove = "x"
		}
		rows = append(rows, []string{harmless(i.Path), strconv.Itoa(i.Row), harmless(i.Label), harmless(i.Class),
			strconv.FormatFloat(i.Score, 'g', 9, 64), strconv.FormatFloat(i.PValue, 'f', 6, 64), remove})
	}
	return csv.NewWriter(w).WriteAll(rows)
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
