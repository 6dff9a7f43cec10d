// Detect says for images which class they are of, how sure that is, and whether
// they are of any class that the detector was trained on.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"mlrbfn/internal/cli"
	"mlrbfn/internal/pathtext"
	"mlrbfn/pipeline"
)

func main() { cli.Main("detect", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var opts pipeline.DetectOptions
	f := cli.Flags("detect", "--detector DETECTOR [flags] PATH…",
		`Judges images, and all images in folders: class, confidence, and whether the image
is out of distribution (OOD). The p-value is the chance that an image like the
training images scores as low. The PATH - takes further paths from standard
input, a line each, and judges them as they come.`, stdout)
	detector := f.String("detector", "", "the file `DETECTOR` that train wrote")
	f.StringVar(&opts.Model, "model", "", "`DIR` of the detector's backbone (default: where it was at training)")
	format := f.String("format", "table", "what is printed for each image: `table|jsonl|csv`")
	asJSON := f.Bool("json", false, "the same as --format jsonl")
	threshold := f.Float64("threshold", 0, "`score` below which an image is OOD (default: the detector's)")
	null := f.BoolP("null", "0", false, "paths on standard input end with a NUL byte, as find -print0 writes them")
	moveOOD := f.String("move-ood", "", "move OOD images into the folder `DIR`, never over another file")
	copyOOD := f.String("copy-ood", "", "copy OOD images into the folder `DIR`, never over another file")
	failOnOOD := f.Bool("fail-on-ood", false, "exit with code 4 if an image is OOD")
	images := cli.AddRunFlags(f, &opts.Run, &opts.Backbone)
	quiet := f.Bool("quiet", false, "show neither progress nor the summary")
	if err := cli.Parse(f, args, "detector"); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return cli.Usagef("name an image or a folder of images to look at")
	}
	if *asJSON {
		*format = "jsonl"
	}
	show, err := newPrinter(*format, *moveOOD+*copyOOD != "", stdout)
	if err != nil {
		return err
	}
	if err := images.Check(); err != nil {
		return err
	}
	switch opts.SetAside = *moveOOD; {
	case *moveOOD != "" && *copyOOD != "":
		return cli.Usagef("--move-ood and --copy-ood exclude each other")
	case *copyOOD != "":
		opts.SetAside, opts.Copy = *copyOOD, true
	}
	if opts.Detector, err = pipeline.LoadDetector(*detector); err != nil {
		return err
	}
	switch {
	case f.Changed("threshold"):
		if math.IsNaN(*threshold) {
			return cli.Usagef("--threshold must be a number")
		}
		opts.Detector.Threshold = *threshold
	case math.IsInf(opts.Detector.Threshold, -1):
		fmt.Fprintln(stderr, "detect: warning: the detector has no threshold (too few calibration images): nothing is flagged; --threshold sets one")
	}
	if err := images.LoadRuntime(); err != nil {
		return err
	}
	for _, arg := range f.Args() {
		if arg != "-" {
			opts.Paths = append(opts.Paths, arg)
		} else if opts.More == nil {
			opts.More = readPaths(os.Stdin, *null)
		}
	}
	progress := cli.NewProgress(stderr, "images", *quiet || cli.IsTerminal(stdout))
	opts.Run.Progress = func(done, _, total int) { progress.Update(done, total, "") }
	stats, err := pipeline.Detect(ctx, opts, func(j pipeline.Judgement) error {
		if j.SetAsideErr != nil && !*quiet {
			fmt.Fprintf(stderr, "detect: warning: %v\n", j.SetAsideErr)
		}
		j.SetAside = filepath.ToSlash(j.SetAside)
		return show(j)
	})
	progress.Close()
	if err != nil {
		return err
	}
	if !*quiet {
		fmt.Fprintf(stderr, "%d images: %d in distribution, %d out of distribution, %d unreadable\n",
			stats.Images, stats.Images-stats.OOD-stats.Failed, stats.OOD, stats.Failed)
		if opts.SetAside != "" {
			fmt.Fprintf(stderr, "%d images set aside in %s, %d could not be\n", stats.OOD-stats.Kept, opts.SetAside, stats.Kept)
		}
	}
	switch {
	case *failOnOOD && stats.OOD > 0:
		return fmt.Errorf("%w: %d", cli.ErrOOD, stats.OOD)
	case stats.Failed > 0:
		return fmt.Errorf("%w: %d", cli.ErrPartial, stats.Failed)
	case stats.Kept > 0:
		return fmt.Errorf("%w: %d", cli.ErrKept, stats.Kept)
	}
	return nil
}

// maxPath bounds the length of a path on standard input, in bytes.
const maxPath = 1 << 20

// readPaths returns what gives the paths that r has, as [pipeline.DetectOptions]
// wants it: a line each, or null-terminated.
func readPaths(r io.Reader, null bool) func(context.Context) ([]string, error) {
	const most = 1024 // paths at a time
	var failed error
	paths := make(chan string, most)
	go func() { // ends with r, or else with the program
		defer close(paths)
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, maxPath)
		if null {
			lines.Split(splitNull)
		}
		for lines.Scan() {
			if lines.Text() != "" {
				paths <- lines.Text()
			}
		}
		if failed = lines.Err(); errors.Is(failed, bufio.ErrTooLong) {
			failed = fmt.Errorf("a path of more than %d bytes; --null takes paths that end with a NUL byte", maxPath)
		}
	}()
	return func(ctx context.Context) ([]string, error) {
		var some []string
		for {
			var path string
			var ok bool
			if some == nil {
				select {
				case path, ok = <-paths:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			} else {
				select {
				case path, ok = <-paths:
				default:
					return some, nil
				}
			}
			switch {
			case ok:
				some = append(some, path)
			case some != nil:
				return some, nil
			case failed != nil:
				return nil, fmt.Errorf("paths on standard input: %w", failed)
			default:
				return nil, io.EOF
			}
			if len(some) == most {
				return some, nil
			}
		}
	}
}

// splitNull is a [bufio.SplitFunc] for what ends with a NUL byte.
func splitNull(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if at := bytes.IndexByte(data, 0); at >= 0 {
		return at + 1, data[:at], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// newPrinter returns a function that prints judgements in a format, with the
// places where images were set aside if they are.
func newPrinter(format string, aside bool, w io.Writer) (func(pipeline.Judgement) error, error) {
	switch format {
	case "table":
		header := false
		return func(j pipeline.Judgement) error {
			if !header {
				header = true
				if _, err := fmt.Fprintf(w, "%-7s  %-20s  %10s  %9s  %8s  %s\n", "verdict", "class", "confidence", "score", "p-value", "path"); err != nil {
					return err
				}
			}
			if j.Err != nil {
				_, err := fmt.Fprintf(w, "%-7s  %-20s  %10s  %9s  %8s  %s: %v\n", "error", "", "", "", "", cli.Printable(j.Path), j.Err)
				return err
			}
			verdict := "in"
			if j.OOD {
				verdict = "OOD"
			}
			_, err := fmt.Fprintf(w, "%-7s  %-20s  %10.4f  %9.4f  %8.4f  %s\n", verdict, cli.Printable(j.Class), j.Confidence, j.Score, j.PValue, cli.Printable(j.Path))
			return err
		}, nil
	case "jsonl":
		out := json.NewEncoder(w)
		out.SetEscapeHTML(false)
		return func(j pipeline.Judgement) error {
			if j.Err != nil {
				return out.Encode(struct {
					Path      string `json:"path"`
					PathBytes []byte `json:"path_bytes,omitempty"`
					Error     string `json:"error"`
				}{pathtext.Encode(j.Path), pathtext.Bytes(j.Path), j.Err.Error()})
			}
			return out.Encode(struct {
				Path       string  `json:"path"`
				PathBytes  []byte  `json:"path_bytes,omitempty"`
				Class      string  `json:"class"`
				Confidence float64 `json:"confidence"`
				Score      float64 `json:"score"`
				OOD        bool    `json:"ood"`
				PValue     float64 `json:"p_value"`
				SetAside   string  `json:"set_aside,omitempty"`
				AsideBytes []byte  `json:"set_aside_bytes,omitempty"`
				Error      string  `json:"set_aside_error,omitempty"`
			}{pathtext.Encode(j.Path), pathtext.Bytes(j.Path), j.Class, j.Confidence, j.Score, j.OOD, j.PValue,
				pathtext.Encode(j.SetAside), pathtext.Bytes(j.SetAside), text(j.SetAsideErr)})
		}, nil
	case "csv":
		out := csv.NewWriter(w)
		row := func(cells ...string) error {
			if err := out.Write(cells); err != nil {
				return err
			}
			out.Flush()
			return out.Error()
		}
		header := false
		return func(j pipeline.Judgement) error {
			if !header {
				header = true
				names := []string{"path", "class", "confidence", "score", "ood", "p_value", "error"}
				if aside {
					names = append(names, "set_aside")
				}
				if err := row(names...); err != nil {
					return err
				}
			}
			cells := []string{j.Path, "", "", "", "", "", text(errors.Join(j.Err, j.SetAsideErr))}
			if j.Err == nil {
				number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
				copy(cells[1:], []string{j.Class, number(j.Confidence), number(j.Score), strconv.FormatBool(j.OOD), number(j.PValue)})
			}
			if aside {
				cells = append(cells, j.SetAside)
			}
			return row(cells...)
		}, nil
	}
	return nil, cli.Usagef("--format %s: it is table, jsonl or csv", format)
}

// text returns what an error says, "" for none, in UTF-8.
func text(err error) string {
	if err == nil {
		return ""
	}
	return strings.ToValidUTF8(err.Error(), "\ufffd")
}
