package command

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// TestAssessment has the shares of a few verdicts that are easily counted.
func TestAssessment(t *testing.T) {
	a := newLabelCheck([]string{"cat", "dog"})
	for _, v := range []struct {
		label, class string
		ood          bool
		score        float64
		times        int
	}{
		{"cat", "cat", false, 1, 7}, {"cat", "cat", true, 1, 1}, {"cat", "dog", false, 1, 2},
		{"dog", "dog", false, 1, 3}, {"dog", "cat", true, 1, 1},
		{"fox", "dog", true, 0, 3}, {"fox", "dog", false, 2, 1},
	} {
		for range v.times {
			a.add(v.label, pipeline.Verdict{Class: v.class, OOD: v.ood, Score: v.score})
		}
	}
	var b strings.Builder
	b.WriteString(a.String())
	got := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"14 images of known classes: right class 78.6% (mean over classes 77.5%), falsely flagged 14.3%",
		"4 images of other classes: caught 75.0%, AUROC 0.750",
		"dog 4 75.0% 25.0% – cat (1) cat 10 80.0% 10.0% – dog (2) fox 4 – 75.0% 0.750 dog (4)",
		"cat dog OOD cat 7 2 1 dog 0 3 1 fox 0 1 3",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not print %q:\n%s", want, b.String())
		}
	}
}

func TestAssessmentOfManyClasses(t *testing.T) {
	var classes []string
	for i := range 30 {
		classes = append(classes, fmt.Sprintf("class %02d", i))
	}
	a := newLabelCheck(classes)
	for i, class := range classes {
		named := class
		if i == 25 {
			named = classes[0]
		}
		a.add(class, pipeline.Verdict{Class: named})
	}
	var b strings.Builder
	b.WriteString(a.String())
	text := b.String()
	if rows := strings.Count(text, "\n"); rows > screenHeight || strings.Contains(text, "confusion") || !strings.Contains(text, "and 10 labels more") {
		t.Errorf("it prints %d lines:\n%s", rows, text)
	}
	// The worst class comes first.
	if i, j := strings.Index(text, "class 25"), strings.Index(text, "class 00  "); i < 0 || i > j && j >= 0 {
		t.Errorf("the worst class is not first:\n%s", text)
	}
}

func TestLabelOf(t *testing.T) {
	for _, tt := range []struct {
		path    string
		folders []string
		want    string
	}{
		{"new/cat/a.png", []string{"new"}, "cat"},
		{"new/cat/deep/a.png", []string{"new/"}, "cat"},
		{"new/a.png", []string{"new"}, ""},
		{"cat/a.png", []string{"."}, "cat"},
		{"/x/cat/a.png", []string{"y", "/x"}, "cat"},
		{"other/cat/a.png", []string{"new"}, ""},
	} {
		if got := labelOf(tt.path, tt.folders); got != tt.want {
			t.Errorf("%s in %s: %q, want %q", tt.path, tt.folders, got, tt.want)
		}
	}
}

// TestDetectLabels judges labelled folders by the detector's threshold and by
// others, and has evaluate do the same on features.
func TestDetectLabels(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	detector := filepath.Join(dir, "d")
	call(t, 0, "train", "--features", w.pixels, "--out", detector, "--epochs", "10", "--calibration", "0.3", "--quiet")
	for i := range 20 {
		picture(t, filepath.Join(dir, "new", "disc", fmt.Sprintf("%d.png", i)), 0, uint64(500+i))
		picture(t, filepath.Join(dir, "new", "square", fmt.Sprintf("%d.png", i)), 1, uint64(500+i))
		picture(t, filepath.Join(dir, "new", "ramp", fmt.Sprintf("%d.png", i)), 2, uint64(500+i))
	}
	images := filepath.Join(dir, "new")
	table, stderr := call(t, 0, "detect", "--detector", detector, "--labels", images)
	for _, want := range []string{"40 images of known classes: right class ", "20 images of other classes: caught ", "confusion matrix"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table does not end with %q:\n%s", want, table)
		}
	}
	if !strings.Contains(stderr, "60 images: ") {
		t.Error(stderr)
	}
	summary := func(text string) string {
		_, text, _ = strings.Cut(text, "40 images of known classes")
		return text
	}
	json, stderr := call(t, 0, "detect", "--detector", detector, "--labels", "--format", "json", images)
	if len(lines(t, json)) != 60 || !strings.HasPrefix(summary(stderr), summary(table)) {
		t.Errorf("with --format json it prints\n%s", stderr)
	}

	// The same images as features.
	for name, class := range map[string]string{"id": "", "ramp": "ramp"} {
		from := filepath.Join(images, class)
		if name == "id" {
			from = filepath.Join(dir, "known")
			for _, class := range []string{"disc", "square"} {
				if err := os.CopyFS(filepath.Join(from, class), os.DirFS(filepath.Join(images, class))); err != nil {
					t.Fatal(err)
				}
			}
		}
		call(t, 0, "extract", "--model", "pixels", "--size", "8", "--images", from, "--out", filepath.Join(dir, name), "--quiet")
	}
	known, _ := call(t, 0, "evaluate", "--detector", detector, "--id", filepath.Join(dir, "id"))
	first := func(text string) string { line, _, _ := strings.Cut(summary(text), "\n"); return line }
	if first(known) != first(table) || strings.Contains(known, "other classes") {
		t.Errorf("evaluate without OOD sets prints\n%s", known)
	}
	all, _ := call(t, 0, "evaluate", "--detector", detector, "--train", w.pixels, "--id", filepath.Join(dir, "id"), "--near", "ramp="+filepath.Join(dir, "ramp"),
		"--methods", "mlrbfn", "--bootstrap", "0", "--out", filepath.Join(dir, "report"), "--quiet")
	if first(all) != first(table) || !strings.Contains(all, "20 images of other classes") || !strings.Contains(all, "near-OOD ramp") {
		t.Errorf("evaluate prints\n%s", all)
	}
	alone, _ := call(t, 0, "evaluate", "--detector", detector, "--id", filepath.Join(dir, "id"), "--near", "ramp="+filepath.Join(dir, "ramp"))
	if summary(alone) != summary(all) {
		t.Errorf("evaluate of a detector alone prints\n%s", alone)
	}
	refused(t, "--near", "evaluate", "--id", filepath.Join(dir, "id"), "--train", w.pixels, "--out", filepath.Join(dir, "report"))
	fails(t, "1280 columns", "evaluate", "--detector", detector, "--id", w.features)

	file := filepath.Join(dir, "id", "features.npy")
	values, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(values[len(values)-4:], math.Float32bits(1e20))
	if err := os.WriteFile(file, values, 0o666); err != nil {
		t.Fatal(err)
	}
	fails(t, "the value 1e+20 is beyond", "evaluate", "--detector", detector, "--id", filepath.Join(dir, "id"))
}

// TestMaxFalseAlarms: a detector whose threshold is set anew flags what one that
// was trained with that share flags.
func TestMaxFalseAlarms(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	train := []string{"train", "--features", w.pixels, "--epochs", "3", "--calibration", "0.4", "--quiet"}
	usual, strict := filepath.Join(dir, "usual"), filepath.Join(dir, "strict")
	call(t, 0, append(train, "--out", usual)...)
	call(t, 0, append(train, "--out", strict, "--max-false-alarms", "0.3")...)
	want, _ := call(t, 0, "detect", "--detector", strict, "--json", "--quiet", w.images)
	got, _ := call(t, 0, "detect", "--detector", usual, "--max-false-alarms", "0.3", "--json", "--quiet", w.images)
	if plain, _ := call(t, 0, "detect", "--detector", usual, "--json", "--quiet", w.images); got != want || got == plain {
		t.Error("the threshold is not that of a detector that was trained with the same share")
	}
	var files [2]string
	for i, args := range [][]string{{"--detector", strict}, {"--detector", usual, "--max-false-alarms", "0.3"}} {
		out := filepath.Join(dir, fmt.Sprint(i, ".onnx"))
		call(t, 0, append([]string{"export", "--out", out}, args...)...)
		files[i] = string(contents(t, out))
	}
	if files[0] != files[1] {
		t.Error("export writes another file")
	}
	fails(t, "(99 would do)", "detect", "--detector", usual, "--max-false-alarms", "0.01", w.images)
	refused(t, "--max-false-alarms 2", "detect", "--detector", usual, "--max-false-alarms", "2", w.images)
	refused(t, "exclude each other", "detect", "--detector", usual, "--max-false-alarms", "0.1", "--threshold", "1", w.images)
}

// TestTrainReplaces: a detector of other classes is not written over.
func TestTrainReplaces(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "made", "for", "it", "d")
	train := func(features string) []string {
		return []string{"train", "--features", features, "--out", out, "--epochs", "1"}
	}
	call(t, 0, train(w.pixels)...)
	before := contents(t, out)
	fails(t, "2 classes, the features have 3: the features lack disc, square, the detector lacks ", append(train(smallFeatures(t, 100)), "--quiet")...)
	if string(contents(t, out)) != string(before) {
		t.Error("it was written over")
	}
	if _, stderr := call(t, 0, append(train(w.pixels), "--seed", "3")...); !strings.Contains(stderr, "will be replaced, which has the same 2 classes") {
		t.Errorf("it says %q", stderr)
	}
	call(t, 0, append(train(smallFeatures(t, 100)), "--force")...)
	write(t, out, "not a detector")
	fails(t, "not a detector", append(train(w.pixels), "--quiet")...)
	// A checkpoint is of this training, or it is refused for itself.
	write(t, out+".checkpoint", "x")
	fails(t, "checkpoint", append(train(w.pixels), "--quiet")...)
}

// TestHostileNames: neither names nor errors send commands to a terminal or to
// a spreadsheet.
func TestHostileNames(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	detector := filepath.Join(dir, "d")
	call(t, 0, "train", "--features", w.pixels, "--out", detector, "--epochs", "3", "--calibration", "0.3", "--quiet")
	t.Chdir(dir)
	picture(t, "=1+1.png", 0, 1)
	write(t, "\u009b31m\u202egnp.png", "none")
	csv, _ := call(t, partial, "detect", "--detector", detector, "--format", "csv", "--quiet", "./=1+1.png", "=1+1.png", "\u009b31m\u202egnp.png")
	if !strings.Contains(csv, "\n'=1+1.png,") || !strings.Contains(csv, "\n./=1+1.png,") {
		t.Errorf("CSV:\n%s", csv)
	}
	csv, _ = call(t, 0, "detect", "--detector", detector, "--format", "csv", "--csv", "raw", "--quiet", "=1+1.png")
	if !strings.Contains(csv, "\n=1+1.png,") {
		t.Errorf("raw CSV:\n%s", csv)
	}
	refused(t, "--csv", "detect", "--detector", detector, "--csv", "raw", "=1+1.png")
	json, _ := call(t, partial, "detect", "--detector", detector, "--json", "--quiet", "\u009b31m\u202egnp.png", "=1+1.png")
	if escape(json) != json || lines(t, json)[0]["path"] != "\u009b31m\u202egnp.png" {
		t.Errorf("JSON:\n%q", json)
	}
	for _, args := range [][]string{
		{"detect", "--detector", "\x1b[2J\u202e"},
		{"detect", "--detector", detector, "\x1b[2J\u202e"},
		{"detect", "--detector", detector, "--move-ood", "\x1b[2J\u202e", "\x1b[2J\u202e.png", "=1+1.png"},
		{"extract", "--model", "pixels", "--images", "\x1b[2J\u202e", "--out", "x"},
		{"train", "--features", "\x1b[2J\u202e", "--out", "x"},
		{"train", "--\x1b[2J\u202e"}, {"\x1b[2J\u202e"}, {"merge", "--out", "x", "\x1b[2J\u202e"},
		{"train", "--seeds", "\x1b[2J\u202e"},
	} {
		stdout, stderr, err := try(t, strings.NewReader(""), args...)
		if all := stdout + stderr; err == nil || escape(all) != all {
			t.Errorf("%q prints %q, %v", args, all, err)
		}
	}
}

// TestNextStep: what helps most comes first.
func TestNextStep(t *testing.T) {
	accuracy, threshold, bound := 0.97, -3.0, 0.1
	low := 0.5
	for _, tt := range []struct {
		result pipeline.TrainResult
		says   string
	}{
		{pipeline.TrainResult{ValAccuracy: &low, Threshold: &threshold, Rows: detector.RowCount{Calibration: 20}}, "50% of the validation images get their class"},
		{pipeline.TrainResult{ValAccuracy: &accuracy, Threshold: &threshold, Rows: detector.RowCount{Calibration: 20}}, "20 calibration images are few"},
		{pipeline.TrainResult{ValAccuracy: &accuracy, Threshold: &threshold, Rows: detector.RowCount{Calibration: 20}, CrossBound: &bound}, "mlrbfn detect --detector 'a b' NEW…"},
		{pipeline.TrainResult{ValAccuracy: &accuracy, Threshold: &threshold, Rows: detector.RowCount{Calibration: 2000}}, "mlrbfn discover"},
		{pipeline.TrainResult{Threshold: &threshold, Rows: detector.RowCount{Calibration: 20}}, "cross:10"},
	} {
		if got := nextStep(&tt.result, "a b"); !strings.Contains(got, tt.says) {
			t.Errorf("%+v: %s", tt.result, got)
		}
	}
}
