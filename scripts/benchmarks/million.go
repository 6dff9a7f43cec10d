package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

const perFolder = 1000

// million measures the extraction of many tiny images: in one run, again without
// changes, and in shards that it merges, with rate and memory.
type million struct {
	program, model, folder *string
	images                 *int

	file string // the program
}

func benchMillion(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	m := &million{
		program: addProgram(f),
		images:  f.Int("images", 1_000_000, "images to make"),
		model:   f.String("model", "pixels", "`folder` of a small model, or the word pixels"),
		folder:  f.String("folder", "", "`folder` to work in, which needs about 5 KiB an image (default: the system's for temporary files)"),
	}
	return m.measure
}

func (m *million) measure(_ context.Context, dir string) (err error) {
	if m.file, err = build(*m.program, dir); err != nil {
		return err
	}
	n, folder := *m.images, ""
	if folder, err = os.MkdirTemp(*m.folder, "million"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	images := filepath.Join(folder, "images")
	start := time.Now()
	if err := draw(images, n); err != nil {
		return err
	}
	fmt.Printf("%d images of 4×4 pixels in folders of %d, made in %.0f s; %d processors\n\n", n, perFolder, time.Since(start).Seconds(), runtime.GOMAXPROCS(0))
	extract := func(out string, more ...string) error {
		args := append([]string{"extract", "--model", *m.model, "--images", images, "--out", filepath.Join(folder, out)}, more...)
		return m.watch(filepath.Join(folder, out), args...)
	}
	merge := []string{"merge", "--out", filepath.Join(folder, "merged")}
	if err := errors.Join(extract("set"), extract("set")); err != nil {
		return err
	}
	for i := 1; i <= 4; i++ {
		name := "shard" + strconv.Itoa(i)
		if err := extract(name, "--shard", strconv.Itoa(i)+"/4"); err != nil {
			return err
		}
		merge = append(merge, filepath.Join(folder, name))
	}
	if err := m.watch("", merge...); err != nil {
		return err
	}
	if out, err := exec.Command("diff", "-rq", filepath.Join(folder, "set"), filepath.Join(folder, "merged")).CombinedOutput(); err != nil {
		return fmt.Errorf("the merged set differs: %w: %s", err, out)
	}
	fmt.Println("the merged set and that of the single run are bit-identical")
	return nil
}

// pool holds the one buffer of an encoder.
type pool struct{ buffer *png.EncoderBuffer }

// Get returns the value.
func (p *pool) Get() *png.EncoderBuffer { return p.buffer }

// Put takes it back.
func (p *pool) Put(b *png.EncoderBuffer) { p.buffer = b }

// draw makes n different images.
func draw(images string, n int) error {
	return parallel.Ranges(context.Background(), n, perFolder, func() func(from, to int) error {
		return func(from, to int) error {
			dir := filepath.Join(images, fmt.Sprintf("class%05d", from/perFolder))
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return err
			}
			img := image.NewNRGBA(image.Rect(0, 0, 4, 4))
			var b bytes.Buffer
			encoder := png.Encoder{CompressionLevel: png.NoCompression, BufferPool: &pool{}}
			for i := from; i < to; i++ {
				for p := range 16 {
					img.Set(p%4, p/4, color.NRGBA{uint8(i >> (p % 8)), uint8(i>>8) + uint8(p), uint8(i >> 16), 255})
				}
				b.Reset()
				if err := encoder.Encode(&b, img); err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%07d.png", i)), b.Bytes(), 0o666); err != nil {
					return err
				}
			}
			return nil
		}
	})
}

// watch runs a program and prints how its memory grew, and for an extraction to out
// the time of the first row.
func (m *million) watch(out string, args ...string) error {
	fmt.Println("mlrbfn", strings.Join(args, " "))
	var firstRow time.Duration
	var grown []string
	start, next := time.Now(), 5*time.Second
	r, err := run(exec.Command(m.file, append(args, "--json")...), func(anonymous int64) error {
		if took := time.Since(start); took >= next {
			next += 5 * time.Second
			grown = append(grown, strconv.FormatInt(anonymous>>20, 10))
		}
		if firstRow > 0 || out == "" {
			return nil
		}
		info, err := os.Stat(filepath.Join(out+".partial", "rows.jsonl"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && info.Size() > 0 {
			firstRow = time.Since(start)
		}
		return err
	})
	fmt.Printf("  %s", r.out)
	if err != nil {
		return fmt.Errorf("mlrbfn %s: %w", args[0], err)
	}
	if firstRow > 0 {
		fmt.Printf("  first row after %.2f s\n", firstRow.Seconds())
	}
	fmt.Printf("  %.1f s, %.0f images/s, %.1f s of processor time; resident memory without mapped files at most %d MiB, every 5 s: %s\n\n",
		r.wall.Seconds(), float64(*m.images)/r.wall.Seconds(), r.cpu.Seconds(), r.anonymous>>20, strings.Join(grown, " "))
	return nil
}
