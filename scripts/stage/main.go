// Stage lays out what packages of a system install: PREFIX/bin/mlrbfn, the onnxruntime
// library in lib/mlrbfn, the default backbone and the pictures of the demonstration in
// share/mlrbfn, manual pages, completions, licences and the list of components (SBOM).
// The .deb, the container image and the archives of a release are made of it.
//
//	scripts/run stage --into PREFIX [--program FILE] [--debian FILE]
//
// The same sources give the same files: their times are SOURCE_DATE_EPOCH, or that of
// the last commit.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/internal/version"
)

func main() { command.Program("stage", run) }

func run(ctx context.Context, args []string, stdout, _ io.Writer) error {
	f := command.Flags("stage", "--into PREFIX [flags]", "Lays out what packages of a system install.", stdout)
	into := f.String("into", "", "`PREFIX` to write; it is replaced")
	program := f.String("program", "", "`FILE` of a program that was built already (default: build it)")
	debian := f.String("debian", "", "`FILE` that lists Debian's packages beside the program, for the list of components: name, version, architecture")
	if err := command.Parse(f, args, "into"); err != nil {
		return err
	}
	date, err := sourceDate(ctx)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(*into); err != nil {
		return err
	}
	s := &stage{prefix: *into, date: date}
	s.program(ctx, *program)
	s.library()
	s.folder("models/efficientnet-lite0", "share/mlrbfn/models/efficientnet-lite0", "model.onnx", "preprocessor_config.json", "README.md")
	s.folder(".setup/photos", "share/mlrbfn/demo", command.DemoPictures()...)
	s.manPages()
	s.completions(ctx)
	s.documents(ctx, *debian)
	s.times()
	return s.err
}

// sourceDate is the time that files of a build have.
func sourceDate(ctx context.Context) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		out, err := exec.CommandContext(ctx, "git", "log", "-1", "--format=%ct").Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is not set, and git cannot tell the time of the last commit: %w", err)
		}
		text = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// stage writes files below a prefix, until one fails.
type stage struct {
	prefix string
	date   time.Time
	err    error
}

func (s *stage) write(name string, data []byte, mode fs.FileMode) {
	path := filepath.Join(s.prefix, filepath.FromSlash(name))
	if s.err == nil {
		s.err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if s.err == nil {
		s.err = os.WriteFile(path, data, mode)
	}
	if s.err == nil {
		s.err = os.Chmod(path, mode) // whatever the umask
	}
}

func (s *stage) compressed(name string, data []byte) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	s.err = errors.Join(s.err, err)
	s.write(name+".gz", b.Bytes(), 0o644)
}

func (s *stage) copy(from, to string, mode fs.FileMode) {
	if s.err != nil {
		return
	}
	data, err := os.ReadFile(from)
	if s.err = err; err == nil {
		s.write(to, data, mode)
	}
}

func (s *stage) folder(from, to string, names ...string) {
	for _, name := range names {
		s.copy(filepath.Join(from, name), to+"/"+name, 0o644)
	}
}

// program copies the program, or builds it so that its bytes depend on nothing but the
// sources and the compilers.
func (s *stage) program(ctx context.Context, built string) {
	if built != "" {
		s.copy(built, "bin/mlrbfn", 0o755)
		return
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o", filepath.Join(s.prefix, "bin")+"/", "./cmd/mlrbfn")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g0")
	if runtime.GOARCH == "amd64" {
		cmd.Env = append(cmd.Env, "GOAMD64=v1")
	}
	cmd.Stderr = os.Stderr
	s.err = errors.Join(s.err, cmd.Run())
}

// library copies the onnxruntime library that set-up brought.
func (s *stage) library() {
	found, err := filepath.Glob(".setup/onnxruntime/libonnxruntime.so.*")
	if err != nil || len(found) != 1 {
		s.err = errors.Join(s.err, fmt.Errorf(".setup/onnxruntime has %d libraries; run scripts/setup", len(found)))
		return
	}
	s.copy(found[0], "lib/mlrbfn/"+filepath.Base(found[0]), 0o644)
}

func (s *stage) manPages() {
	for name, page := range command.ManPages(s.date) {
		s.compressed("share/man/man1/"+name, []byte(page))
	}
}

func (s *stage) completions(ctx context.Context) {
	for shell, name := range map[string]string{
		"bash": "share/bash-completion/completions/mlrbfn", "zsh": "share/zsh/vendor-completions/_mlrbfn", "fish": "share/fish/vendor_completions.d/mlrbfn.fish",
	} {
		var script, errs bytes.Buffer
		if code := command.Run(ctx, []string{"completion", shell}, command.Streams{In: strings.NewReader(""), Out: &script, Err: &errs}); code != 0 {
			s.err = errors.Join(s.err, fmt.Errorf("completion %s: %s", shell, &errs))
		}
		s.write(name, script.Bytes(), 0o644)
	}
}

// documents writes the licences, the changes of this version and the list of components.
func (s *stage) documents(ctx context.Context, debian string) {
	if s.err != nil {
		return
	}
	const folder = "share/doc/mlrbfn/"
	s.copy("scripts/stage/copyright", folder+"copyright", 0o644)
	changes, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		s.err = err
		return
	}
	s.compressed(folder+"changelog", []byte(changesOf(string(changes), version.Version)))
	parts, err := components(ctx, s.prefix, debian)
	if err != nil {
		s.err = err
		return
	}
	s.compressed(folder+"NOTICES", notices(parts))
	bom, err := bill(parts, s.prefix, s.date)
	if err != nil {
		s.err = err
		return
	}
	s.write(folder+"sbom.cdx.json", bom, 0o644)
}

// changesOf returns the part of CHANGELOG.md about a version, or what is unreleased if
// the page does not have the version yet.
func changesOf(page, version string) string {
	for _, title := range []string{"## " + version, "## Unreleased"} {
		if _, rest, ok := strings.Cut("\n"+page, "\n"+title); ok {
			_, rest, _ = strings.Cut(rest, "\n") // a date may follow the version
			rest, _, _ = strings.Cut(rest, "\n## ")
			return "# mlrbfn " + version + "\n\n" + strings.TrimSpace(rest) + "\n"
		}
	}
	return "# mlrbfn " + version + "\n"
}

// times gives all files and folders the time of the sources.
func (s *stage) times() {
	if s.err != nil {
		return
	}
	s.err = filepath.WalkDir(s.prefix, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o755)
		}
		if err != nil {
			return err
		}
		return os.Chtimes(path, s.date, s.date)
	})
}
