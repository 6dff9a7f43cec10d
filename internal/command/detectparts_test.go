package command

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/mlrbfn/mlrbfn/internal/columns"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// TestDetectParts: the parts hold the verdicts that detect prints, whatever interrupts
// their making, and a summary that show adds up.
func TestDetectParts(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	images, out := filepath.Join(dir, "images"), filepath.Join(dir, "out")
	for i := range 12 {
		picture(t, filepath.Join(images, fmt.Sprintf("%d.png", i)), i%3, uint64(300+i))
	}
	write(t, filepath.Join(images, "broken.png"), "no image")
	part := func(i int) string { return filepath.Join(out, fmt.Sprintf("part-%05d-of-00002", i)) }
	detect := func(code, i int, more ...string) string {
		t.Helper()
		_, said := call(t, code, append([]string{"detect", "--detector", w.detector, "--out", out, "--shard", fmt.Sprintf("%d/2", i), images}, more...)...)
		return said
	}
	codes := map[int]int{}
	printed, _ := call(t, 3, "detect", "--detector", w.detector, "--json", images)
	want := map[string]bool{}
	for line := range strings.Lines(printed) {
		want[line] = true
	}
	var got []string
	for i := 1; i <= 2; i++ {
		_, _, err := try(t, strings.NewReader(""), "detect", "--detector", w.detector, "--out", out, "--shard", fmt.Sprintf("%d/2", i), images)
		codes[i] = exitCode(err)
		text, err := os.ReadFile(part(i) + ".jsonl")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if !want[line] {
				t.Errorf("the part has %s", line)
			}
			got = append(got, line)
		}
	}
	if len(got) != 13 || codes[1]+codes[2] != 3 {
		t.Errorf("%d lines, exit codes %v", len(got), codes)
	}
	// As if it were killed after any line, or within one.
	whole, err := os.ReadFile(part(1) + ".jsonl")
	if err != nil {
		t.Fatal(err)
	}
	record, err := os.ReadFile(part(1) + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var said pipeline.VerdictRecord
	if err := json.Unmarshal(record, &said); err != nil {
		t.Fatal(err)
	}
	said.Work.Detector = "" // which is for people
	work, err := json.Marshal(said.Work)
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []int{0, 1, len(whole) / 2, len(whole) - 1, len(whole)} {
		for _, name := range []string{".json", ".jsonl"} {
			if err := os.Remove(part(1) + name); err != nil {
				t.Fatal(err)
			}
		}
		write(t, filepath.Join(part(1)+".partial", "work.json"), string(work))
		write(t, filepath.Join(part(1)+".partial", "lines.jsonl"), string(whole[:cut]))
		detect(codes[1], 1)
		again, err := os.ReadFile(part(1) + ".jsonl")
		if err != nil || string(again) != string(whole) {
			t.Errorf("after %d bytes: %v, it ends with\n%s\nwant\n%s", cut, err, again, whole)
		}
	}
	// A finished part is kept, and one of another threshold is not replaced unasked.
	before, err := os.Stat(part(1) + ".json")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	detect(codes[1], 1)
	if after, err := os.Stat(part(1) + ".json"); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("a finished part was written again: %v", err)
	}
	fails(t, "judged by another detector", "detect", "--detector", w.detector, "--out", out, "--shard", "1/2", "--threshold", "0", images)
	fails(t, "has parts of 2", "detect", "--detector", w.detector, "--out", out, "--shard", "1/3", images)
	refused(t, "go with --out", "detect", "--detector", w.detector, "--shard", "1/3", images)
	refused(t, "does not go with --out", "detect", "--detector", w.detector, "--out", out, "--labels", images)
	text, _ := call(t, 0, "show", "--json", out)
	shown := lines(t, text)[0]
	summary := shown["summary"].(map[string]any)
	if shown["finished"] != 2. || shown["done"] != 13. || shown["total"] != 13. || summary["failed"] != 1. || summary["images"] != 13. {
		t.Errorf("%v", shown)
	}
	text, _ = call(t, 0, "show", out)
	if !strings.Contains(text, "2 of 2 shards finished, 13 of 13 images") || !strings.Contains(text, "1 unreadable") {
		t.Error(text)
	}
	call(t, 3, "detect", "--detector", w.detector, "--out", filepath.Join(dir, "table"), "--format", "parquet", images)
	// In tables what could not be read is OOD, so that no filter for what is not lets it pass.
	rows, err := parquet.ReadFile[struct {
		Path  string   `parquet:"path"`
		Score *float64 `parquet:"score,optional"`
		OOD   *bool    `parquet:"ood,optional"`
		Error *string  `parquet:"error,optional"`
	}](filepath.Join(dir, "table", "part-00001-of-00001.parquet"))
	if err != nil || len(rows) != 13 {
		t.Fatalf("%d rows: %v", len(rows), err)
	}
	for _, r := range rows {
		broken := strings.HasSuffix(r.Path, "broken.png")
		if r.OOD == nil || broken && !*r.OOD || broken != (r.Error != nil) || broken != (r.Score == nil) {
			t.Errorf("%+v", r)
		}
	}
	table, _ := call(t, 3, "detect", "--detector", w.detector, "--format", "csv", filepath.Join(images, "broken.png"))
	if !strings.Contains(table, "broken.png,,,,true,,") {
		t.Error(table)
	}
	// A list gives the same verdicts, in its paths' order.
	write(t, filepath.Join(dir, "list.txt"), strings.Join([]string{"images/3.png", "images/broken.png", "images/7.png"}, "\n"))
	call(t, 3, "detect", "--detector", w.detector, "--out", filepath.Join(dir, "listed"), filepath.Join(dir, "list.txt"))
	listed, err := os.ReadFile(filepath.Join(dir, "listed", "part-00001-of-00001.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(listed), "\n") != 3 {
		t.Errorf("%s", listed)
	}
	for line := range strings.Lines(string(listed)) {
		if !want[line] {
			t.Errorf("the list's part has %s", line)
		}
	}
	// An image in a folder that a list names is judged again when its time is another.
	write(t, filepath.Join(dir, "folders.txt"), "images\n")
	listing := func() string {
		t.Helper()
		call(t, 3, "detect", "--detector", w.detector, "--out", filepath.Join(dir, "folders"), filepath.Join(dir, "folders.txt"))
		text, err := os.ReadFile(filepath.Join(dir, "folders", "part-00001-of-00001.json"))
		if err != nil {
			t.Fatal(err)
		}
		var r pipeline.VerdictRecord
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatal(err)
		}
		return r.Work.Listing
	}
	first := listing()
	if listing() != first {
		t.Error("a listing is another without a change")
	}
	if err := os.Chtimes(filepath.Join(images, "3.png"), time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	if listing() == first {
		t.Error("an image was edited in its folder, and its verdict was kept")
	}
}

// tarOfPictures writes a tar of pictures, one of which is none.
func tarOfPictures(t *testing.T, path string, first, n int) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := first; i < first+n; i++ {
		file := filepath.Join(t.TempDir(), "picture.png")
		if picture(t, file, i%3, uint64(500+i)); i == first+2 {
			write(t, file, "no image")
		}
		data, err := os.ReadFile(file)
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%d.png", i), Mode: 0o644, Size: int64(len(data))})
		}
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, path, b.String())
}

// TestDetectPartsOfTars: parts of tars hold the verdicts that detect prints, wherever a
// run was killed, also those on a tar that is cut off and on one that is not there. A part
// is made again when a tar that was missing is there.
func TestDetectPartsOfTars(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	for i := range 4 {
		tarOfPictures(t, filepath.Join(dir, fmt.Sprintf("%d.tar", i)), 5*i, 5)
	}
	if err := os.Truncate(filepath.Join(dir, "2.tar"), 2700); err != nil {
		t.Fatal(err)
	}
	tars, out := filepath.Join(dir, "{0..4}.tar"), filepath.Join(dir, "out")
	part := filepath.Join(out, "part-00001-of-00001")
	want, _ := call(t, 3, "detect", "--detector", w.detector, "--json", tars)
	detect := func() string {
		t.Helper()
		call(t, 3, "detect", "--detector", w.detector, "--out", out, tars)
		text, err := os.ReadFile(part + ".jsonl")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if got := detect(); got != want || strings.Count(got, "\n") != 17 {
		t.Fatalf("the part has\n%s\nwant\n%s", got, want)
	}
	text, err := os.ReadFile(part + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var record pipeline.VerdictRecord
	if err := json.Unmarshal(text, &record); err != nil {
		t.Fatal(err)
	}
	if len(record.Unread) != 1 || filepath.Base(record.Unread[0]) != "4.tar" || record.Failed != 5 {
		t.Errorf("%+v", record)
	}
	record.Work.Detector = ""
	work, err := json.Marshal(record.Work)
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []int{0, 1, len(want) / 4, len(want) / 2, 2 * len(want) / 3, len(want) - 1, len(want)} {
		if err := os.RemoveAll(out); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(part+".partial", "work.json"), string(work))
		write(t, filepath.Join(part+".partial", "lines.jsonl"), want[:cut])
		if got := detect(); got != want {
			t.Errorf("after %d bytes it ends with\n%s\nwant\n%s", cut, got, want)
		}
	}
	// While a tar is missing a finished part is kept: 0.tar could not be read. When it is there
	// the part is made again.
	first := filepath.Join(dir, "0.tar")
	info, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	spoil := func(content string) {
		t.Helper()
		write(t, first, content)
		if err := os.Chtimes(first, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
	}
	spoil(string(make([]byte, len(good))))
	if detect() != want {
		t.Error("a part was made again while the tar that it lacks is missing")
	}
	spoil(string(good))
	tarOfPictures(t, filepath.Join(dir, "4.tar"), 20, 5)
	want, _ = call(t, 3, "detect", "--detector", w.detector, "--json", tars)
	if detect() != want {
		t.Error("the part lacks the tar that was missing before")
	}
	// So it is in the middle of a part of the other format.
	table := func() string {
		t.Helper()
		call(t, 3, "detect", "--detector", w.detector, "--out", filepath.Join(dir, "table"), "--format", "parquet", "--thumbnails", tars)
		text, err := os.ReadFile(filepath.Join(dir, "table", "part-00001-of-00001.parquet"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	whole := table()
	if err := os.RemoveAll(filepath.Join(dir, "table")); err != nil {
		t.Fatal(err)
	}
	hidden := filepath.Join(dir, "3.hidden")
	if err := os.Rename(filepath.Join(dir, "3.tar"), hidden); err != nil {
		t.Fatal(err)
	}
	if table() == whole {
		t.Error("a tar that is not there makes no difference")
	}
	if err := os.Rename(hidden, filepath.Join(dir, "3.tar")); err != nil {
		t.Fatal(err)
	}
	if table() != whole {
		t.Error("the table is not that of one run when the tar is there again")
	}
	// Each tar is in one of the shards.
	lines := 0
	for i := range 2 {
		call(t, 3, "detect", "--detector", w.detector, "--out", filepath.Join(dir, "two"), "--shard", fmt.Sprintf("%d/2", i+1), tars)
		text, err := os.ReadFile(filepath.Join(dir, "two", fmt.Sprintf("part-%05d-of-00002.jsonl", i+1)))
		if err != nil {
			t.Fatal(err)
		}
		lines += strings.Count(string(text), "\n")
	}
	if lines != strings.Count(want, "\n") {
		t.Errorf("%d lines in two shards, want %d", lines, strings.Count(want, "\n"))
	}
}

// TestThumbnails: Parquet of verdicts and of features has the same pictures of images in tars
// and of files, in the rows of those that could be read, and verdicts have a place on the map.
func TestThumbnails(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	tarOfPictures(t, filepath.Join(dir, "0.tar"), 0, 5)
	tarOfPictures(t, filepath.Join(dir, "1.tar"), 5, 5)
	for i := range 10 {
		picture(t, filepath.Join(dir, "files", fmt.Sprintf("%d.png", i)), i%3, uint64(i))
	}
	write(t, filepath.Join(dir, "files", "broken.png"), "no image")
	type row struct {
		Path  string           `parquet:"path"`
		Image *columns.Picture `parquet:"image,optional"`
		X     *float64         `parquet:"x,optional"`
	}
	pictures := func(file string, placed bool) map[string]string {
		t.Helper()
		rows, err := parquet.ReadFile[row](file)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, r := range rows {
			if broken := slices.Contains([]string{"broken.png", "0.tar#2.png", "1.tar#7.png"}, path.Base(r.Path)); (r.Image == nil) != broken || (r.X == nil) != (broken || !placed) {
				t.Errorf("%s: %+v", file, r)
			}
			if r.Image != nil {
				all[path.Base(r.Path)] = string(r.Image.Bytes)
			}
		}
		return all
	}
	for images, n := range map[string]int{"{0..1}.tar": 8, "files": 10} {
		from, set, out := filepath.Join(dir, images), filepath.Join(dir, "set-"+images), filepath.Join(dir, "out-"+images)
		call(t, partial, "extract", "--model", "pixels", "--size", "8", "--images", from, "--out", set)
		call(t, 0, "convert", "--thumbnails", "--out", set+"-converted", set)
		call(t, partial, "detect", "--detector", w.detector, "--out", out, "--format", "parquet", "--thumbnails", from)
		got, want := pictures(filepath.Join(set+"-converted", "features.parquet"), false), pictures(filepath.Join(out, "part-00001-of-00001.parquet"), true)
		if len(want) != n || len(got) != n {
			t.Errorf("%s: %d and %d pictures", images, len(want), len(got))
		}
		for name, picture := range want {
			if got[name] != picture {
				t.Errorf("%s: the pictures of %s differ", images, name)
			}
		}
	}
	// Pictures of images that are gone are missing, and nothing else; so is the map of sets.
	if err := os.Rename(filepath.Join(dir, "files", "1.png"), filepath.Join(dir, "files", "2.png")); err != nil {
		t.Fatal(err)
	}
	call(t, 0, "convert", "--thumbnails", "--out", filepath.Join(dir, "again"), filepath.Join(dir, "set-files"))
	rows, err := parquet.ReadFile[row](filepath.Join(dir, "again", "features.parquet"))
	for i, r := range rows {
		if (r.Image == nil) != (i == 1 || i == 2) {
			t.Errorf("%s: %v", r.Path, r.Image)
		}
	}
	if err != nil || len(rows) != 10 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	refused(t, "--thumbnails", "detect", "--detector", w.detector, "--thumbnails", dir)
	refused(t, "--thumbnails", "convert", "--thumbnails", "--out", filepath.Join(dir, "x"), filepath.Join(dir, "again", "features.parquet"))
}

// TestShowFolder: show says which shards are missing, and which does not move.
func TestShowFolder(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "set")
	for _, i := range []int{1, 3} {
		call(t, 0, "extract", "--model", "pixels", "--size", "8", "--images", w.images, "--out", out, "--parts", "--shard", fmt.Sprintf("%d/4", i))
	}
	// What a killed run leaves.
	left := filepath.Join(out, "part-00002-of-00004")
	write(t, filepath.Join(left+".partial", "lock"), "")
	write(t, left+".progress", `{"total":30,"known":0,"done":10,"failed":{"cut short":2},"began":"2026-01-02T03:04:05Z","moved":"2026-01-02T03:04:25Z","host":"worker7"}`)
	text, _ := call(t, 0, "show", out)
	for _, says := range []string{"2 of 4 shards finished", "shard 2/4 has not moved since", "worker7", "2 × cut short: 2 in shard 2/4", "not begun", "0.5", "missing are 2/4, 4/4"} {
		if !strings.Contains(text, says) {
			t.Errorf("it does not say %q:\n%s", says, text)
		}
	}
	for _, i := range []int{2, 4} {
		call(t, 0, "extract", "--model", "pixels", "--size", "8", "--images", w.images, "--out", out, "--parts", "--shard", fmt.Sprintf("%d/4", i))
	}
	text, _ = call(t, 0, "show", "--json", out)
	if shown := lines(t, text)[0]; shown["done"] != 120. || shown["finished"] != 4. || shown["seconds_left"] != 0. || shown["unfinished"] != nil {
		t.Errorf("%v", shown)
	}
	text, _ = call(t, 0, "show", w.features)
	if !strings.Contains(text, "120 of 120 images") {
		t.Error(text)
	}
	refused(t, "is a folder", "show", out, "--out", filepath.Join(dir, "page.html"))
}
