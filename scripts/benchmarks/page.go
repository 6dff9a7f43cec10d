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
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// paging measures detect --report of many small images: time, memory, and the sizes
// of the pages.
type paging struct {
	program, images, folder *string

	file string // the program
	dir  string
}

func benchPage(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	b := &paging{
		program: addProgram(f),
		images:  f.String("images", "100000,1000000", "how many `images` are judged, in whole thousands, with commas between the numbers"),
		folder:  f.String("folder", "", "`folder` to work in, which needs about 5 KiB an image (default: the system's for temporary files)"),
	}
	return b.measure
}

// Of the images to judge, each tenth is of none of the classes.
const (
	pageClasses = 10
	pageSide    = 8 // pixels of an image
	eachOther   = 10
)

func (b *paging) measure(_ context.Context, dir string) (err error) {
	if b.file, err = build(*b.program, dir); err != nil {
		return err
	}
	var counts []int
	for text := range strings.SplitSeq(*b.images, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		counts = append(counts, n)
	}
	if b.dir, err = os.MkdirTemp(*b.folder, "page"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	start := time.Now()
	if err := errors.Join(
		drawClasses(filepath.Join(b.dir, "train"), 500*pageClasses, 500, false),
		drawClasses(filepath.Join(b.dir, "new"), slices.Max(counts), perFolder, true)); err != nil {
		return err
	}
	fmt.Printf("images of %d×%d pixels made in %.0f s; %d processors\n", pageSide, pageSide, time.Since(start).Seconds(), runtime.GOMAXPROCS(0))
	features, detector := filepath.Join(b.dir, "features"), filepath.Join(b.dir, "detector.safetensors")
	for _, args := range [][]string{
		{"extract", "--quiet", "--model", "pixels", "--images", filepath.Join(b.dir, "train"), "--out", features},
		{"train", "--quiet", "--features", features, "--out", detector},
	} {
		if _, err := run(exec.Command(b.file, args...), nil); err != nil {
			return err
		}
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "images\t\ts\tCPU s\tMiB\tpages\tof them all, MiB\tthe largest, MiB\t")
	for _, n := range counts {
		page := filepath.Join(b.dir, "report", strconv.Itoa(n)+".html")
		for _, more := range [][]string{nil, {"--report", page}} {
			if err := b.detect(table, n, append([]string{"detect", "--quiet", "--detector", detector, "--format", "csv"}, more...)); err != nil {
				return err
			}
		}
	}
	return table.Flush()
}

// detect judges n images and prints what that took.
func (b *paging) detect(table *tabwriter.Writer, n int, args []string) error {
	page := ""
	if i := slices.Index(args, "--report"); i > 0 {
		page = args[i+1]
	}
	for from := 0; from < n; from += perFolder {
		args = append(args, folderOf(filepath.Join(b.dir, "new"), from/perFolder))
	}
	r, err := run(exec.Command(b.file, args...), nil)
	if err != nil {
		return fmt.Errorf("detect: %w", err)
	}
	took, cpu, most := r.wall.Seconds(), r.cpu.Seconds(), r.anonymous>>20
	if page == "" {
		fmt.Fprintf(table, "%d\tdetect\t%.1f\t%.1f\t%d\t\t\t\t\n", n, took, cpu, most)
		return table.Flush()
	}
	pages, sum, largest, err := pageSizes(page)
	if err != nil {
		return err
	}
	const mib = 1 << 20
	fmt.Fprintf(table, "%d\t--report\t%.1f\t%.1f\t%d\t%d\t%.1f\t%.1f\t\n", n, took, cpu, most, pages, float64(sum)/mib, float64(largest)/mib)
	return table.Flush()
}

// pageSizes returns the number of pages of a report, their bytes, and those of the
// largest one.
func pageSizes(page string) (pages int, sum, largest int64, err error) {
	add := func(path string) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		pages, sum, largest = pages+1, sum+info.Size(), max(largest, info.Size())
		return nil
	}
	if err := add(page); err != nil {
		return 0, 0, 0, err
	}
	later, err := filepath.Glob(strings.TrimSuffix(page, ".html") + "-pictures/*")
	if err != nil {
		return 0, 0, 0, err
	}
	for _, path := range later {
		if err := add(path); err != nil {
			return 0, 0, 0, err
		}
	}
	return pages, sum, largest, nil
}

func folderOf(dir string, number int) string {
	return filepath.Join(dir, fmt.Sprintf("folder%05d", number))
}

// drawClasses makes n images, so many in each folder. Those of a class have noise
// about one picture. With mixed each folder has images of all classes, and of others.
func drawClasses(dir string, n, each int, mixed bool) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	pictures := make([][]byte, 2*pageClasses) // of the classes and of as many others
	rng := rand.New(rand.NewPCG(5, 6))
	for c := range pictures {
		pictures[c] = make([]byte, 3*pageSide*pageSide)
		for p := range pictures[c] {
			pictures[c][p] = byte(64 + rng.IntN(128))
		}
	}
	seed := rng.Uint64()
	return parallel.Ranges(context.Background(), n, each, func() func(from, to int) error {
		img := image.NewNRGBA(image.Rect(0, 0, pageSide, pageSide))
		encoder := png.Encoder{CompressionLevel: png.NoCompression, BufferPool: &pool{}}
		return func(from, to int) error {
			folder := folderOf(dir, from/each)
			if err := os.Mkdir(folder, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			rng := rand.New(rand.NewPCG(seed, uint64(2*from)+uint64(n&1)))
			var b bytes.Buffer
			for i := from; i < to; i++ {
				class := from / each
				if mixed {
					class = i % pageClasses
					if i/pageClasses%eachOther == 0 {
						class += pageClasses
					}
				}
				for p := range pageSide * pageSide {
					value := func(channel int) uint8 {
						return uint8(max(0, min(255, float64(pictures[class][3*p+channel])+24*rng.NormFloat64())))
					}
					img.SetNRGBA(p%pageSide, p/pageSide, color.NRGBA{value(0), value(1), value(2), 255})
				}
				b.Reset()
				if err := encoder.Encode(&b, img); err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%07d.png", i)), b.Bytes(), 0o666); err != nil {
					return err
				}
			}
			return nil
		}
	})
}
