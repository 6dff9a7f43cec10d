package training_test

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

var some = []training.Issue{
	{Path: "cat/1.jpg", Row: 3, Kind: training.Label, Score: .75, Label: "cat", Suggested: "dog", OtherRow: -1},
	{Path: "=cmd|' /C calc'!A0.jpg", Row: 4, Kind: training.Duplicate, Score: .5, Label: "-x", Other: "'quoted'.jpg", OtherRow: -1},
	{Path: "a\nb, \"c\".png", Row: 0, Kind: training.Leak, Score: 1, Other: "+test.png", OtherRow: -1},
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "issues.csv")
	if err := training.WriteIssues(file, some); err != nil {
		t.Fatal(err)
	}
	got, err := training.ReadIssues(file)
	if err != nil || !reflect.DeepEqual(got, some) {
		t.Errorf("%+v, %v", got, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cells, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, cell := range slices.Concat(cells...) {
		if cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r") {
			t.Errorf("a spreadsheet would run %q", cell)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	const head = "path,row,kind,score,label,suggested,other\n"
	for name, tt := range map[string]struct{ text, says string }{
		"empty":         {"", "first line"},
		"other columns": {"path,row\na,1\n", "first line"},
		"a row":         {head + "a,x,label,1,,,\n", `line 2: row "x"`},
		"negative":      {head + "a,-1,label,1,,,\n", `line 2: row "-1"`},
		"a kind":        {head + "a,1,odd,1,,,\n", `kind "odd"`},
		"a score":       {head + "a,1,label,much,,,\n", `score "much"`},
		"cut":           {head + "a,1,label\n", "wrong number of fields"},
	} {
		if _, err := training.ParseIssues("issues.csv", []byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "issues.csv") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("path,row,kind,score,label,suggested,other\na,1,label,0.5,cat,dog,\n"))
	f.Add([]byte("\ufeffpath,row,kind,score,label,suggested,other\n'=a,0,leak,1,,,'+b\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := training.ParseIssues("x", data)
		if err != nil {
			return
		}
		file := filepath.Join(t.TempDir(), "x.csv")
		if err := training.WriteIssues(file, all); err != nil {
			t.Fatal(err)
		}
		if again, err := training.ReadIssues(file); err != nil || len(again) != len(all) {
			t.Fatalf("%d issues became %d: %v", len(all), len(again), err)
		}
	})
}

func TestLabels(t *testing.T) {
	t.Parallel()
	dir := pipetest.Clouds(t, 1, 2, []int64{0, 1, 0}, [2]float64{0, 0}, [2]float64{4, 0}, [2]float64{0, 4})
	set, err := features.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	labels := slices.Clone(set.Labels())
	at := func(row int, kind training.IssueKind, suggested string) training.Issue {
		return training.Issue{Row: row, Kind: kind, Suggested: suggested}
	}
	exclude := []training.Issue{at(0, training.Duplicate, ""), at(2, training.Label, "0")}
	relabel := []training.Issue{at(2, training.Label, "0"), at(1, training.Outlier, ""), at(3, training.Label, "0")}
	exclude = append(exclude, at(1, training.Outlier, ""), at(0, training.Label, "1"))
	got, hard, err := training.CorrectedLabels(labels, []string{"0", "1"}, []*features.Set{set}, exclude, relabel)
	want := slices.Clone(labels)
	want[0], want[2], want[3] = -1, 0, 0
	if err != nil || !slices.Equal(got, want) || !slices.Equal(labels, set.Labels()) || len(hard) != 1 || !hard[1] {
		t.Errorf("%v, want %v; hard %v: %v", got, want, hard, err)
	}
	for _, bad := range []training.Issue{at(99, training.Label, "0"), {Row: 0, Path: "absent.png", Kind: training.Label}, at(1, training.Label, "none such")} {
		if _, _, err := training.CorrectedLabels(labels, []string{"0", "1"}, []*features.Set{set}, nil, []training.Issue{bad}); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// TestExcludeAList: images of a plain list of paths are in no part; a path that is not there,
// or that two images have, is refused.
func TestExcludeAList(t *testing.T) {
	t.Parallel()
	dir := pipetest.Clouds(t, 1, 50, pipetest.TwoLabels, pipetest.Two...)
	var images strings.Builder
	for i := range 100 {
		fmt.Fprintf(&images, "{\"path\":\"a/%d, x.png\"}\n", min(i, 98))
	}
	list := filepath.Join(dir, "list.txt")
	write := func(file, text string) {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "images.jsonl"), images.String())
	o := training.Options{Features: []string{dir}, Exclude: list, Train: head.TrainOptions{Epochs: 1}, NoHoldOut: true}
	write(list, "\ufeffa/3, x.png\r\n\na/70, x.png")
	d, result, err := training.Train(t.Context(), o)
	if err != nil || d.Relabelled[3] != -1 || d.Relabelled[70] != -1 || len(d.Relabelled) != 2 || result.Rows.Unlabelled != 2 || !strings.Contains(strings.Join(result.Warnings, ""), "left out of all parts: 2") {
		t.Errorf("%v, %+v, %v", d.Relabelled, result, err)
	}
	for text, says := range map[string]string{"": "first line", "path,row\n": "first line", "a/100, x.png": "no image", "a/98, x.png\n": "2 images"} {
		write(list, text)
		if _, _, err := training.Train(t.Context(), o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
