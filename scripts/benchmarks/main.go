// Benchmarks compares the speed of mlrbfn and other programs, its peers, and prints
// medians and ratios. Run it by scripts/bench, which installs the peers:
//
//	scripts/bench train [--sections steps,seeds,contention,whole,paged]
//	scripts/bench extract [--model DIR] [--memory N]
//	scripts/bench detect [--model DIR]
//	scripts/bench serve [--model DIR] [--clients N]
//	scripts/bench scores [--evaluate FEATURES]
//	scripts/bench growth [--rows N,…] [--dims D,…] [--classes C,…]
//	scripts/bench million [--images N]
//	scripts/bench thousand [--rows N] [--classes N]
//	scripts/bench inspect [--rows N] [--dim N]
//	scripts/bench page [--images N,…]
//	scripts/bench discover [--images N] [--dim N] [--memory N]
//
// The candidates are measured alternately, in several rounds, because other
// programs disturb a machine for minutes at a time. The peers run in the Python
// that MLRBFN_PEERS_PYTHON names; without it only mlrbfn is measured.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/jpeg"
	"io/fs"
	"log"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/disintegration/imaging"
)

// A bench adds its flags and returns the measurement, which may write files to
// dir.
type bench func(f *flag.FlagSet) (measure func(ctx context.Context, dir string) error)

var benches = map[string]bench{"train": benchTrain, "extract": benchExtract, "detect": benchDetect, "scores": benchScores, "million": benchMillion, "serve": benchServe, "thousand": benchThousand, "bounds": benchBounds, "inspect": benchInspect, "page": benchPage, "growth": benchGrowth, "discover": benchDiscover}

func main() {
	log.SetFlags(0)
	if os.Getenv(burnVariable) != "" {
		for {
			burn(1 << 30)
		}
	}
	names := strings.Join(slices.Sorted(maps.Keys(benches)), "|")
	if len(os.Args) < 2 || benches[os.Args[1]] == nil {
		log.Fatalf("usage: scripts/bench [--install] %s [flags]", names)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	name := os.Args[1]
	log.SetPrefix("bench " + name + ": ")
	f := flag.NewFlagSet("scripts/bench "+name, flag.ExitOnError)
	measure := benches[name](f)
	_ = f.Parse(os.Args[2:]) // exits on an error
	if f.NArg() > 0 {
		log.Fatalf("unexpected argument %q", f.Arg(0))
	}
	dir, err := os.MkdirTemp("", "bench")
	if err == nil {
		err = errors.Join(measure(ctx, dir), os.RemoveAll(dir))
	}
	if err != nil {
		log.Fatal(err)
	}
}

func addProgram(f *flag.FlagSet) *string {
	return f.String("program", "", "the program mlrbfn, as a `FILE` (default: build it)")
}

// build builds mlrbfn, unless file names one.
func build(file, dir string) (string, error) {
	if file != "" {
		return filepath.Abs(file)
	}
	file = filepath.Join(dir, "mlrbfn.exe")
	if out, err := exec.Command("go", "build", "-o", file, "./cmd/mlrbfn").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building mlrbfn: %w\n%s", err, out)
	}
	return file, nil
}

// peersPython returns the Python of MLRBFN_PEERS_PYTHON if it has the modules.
// Otherwise it logs why there is no peer.
func peersPython(modules string) string {
	python := os.Getenv("MLRBFN_PEERS_PYTHON")
	if python == "" {
		log.Printf("no peer: set MLRBFN_PEERS_PYTHON to a Python with %s, or use --install", modules)
	} else if _, err := run(exec.Command(python, "-c", "import "+modules), nil); err != nil {
		log.Printf("no peer: %v; use another MLRBFN_PEERS_PYTHON, or --install", err)
		return ""
	}
	return python
}

// shared returns the folder that MLRBFN_SHARED names, or the one beside the
// checkout.
func shared(elem ...string) string {
	dir := os.Getenv("MLRBFN_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "shared")
	}
	return filepath.Join(append([]string{dir}, elem...)...)
}

// photographs copies JPEG photographs to a folder and returns their files: those
// of a folder, of the shared one or, without it, set-up's, cropped to 500×375.
func photographs(to, from string) ([]string, error) {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return nil, err
	}
	var files []string
	err := filepath.WalkDir(cmp.Or(from, shared("data", "images", "imagenet_samples")), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files = append(files, filepath.Join(to, fmt.Sprintf("%04d.jpg", len(files))))
		return os.WriteFile(files[len(files)-1], data, 0o644)
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s has no photographs", from)
	}
	if err == nil || from != "" || !errors.Is(err, fs.ErrNotExist) {
		return files, err
	}
	found, err := filepath.Glob(filepath.Join(".setup", "photos", "*"))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, errors.New("no photographs: run `make setup`, or set MLRBFN_SHARED")
	}
	return crop(found, to)
}

// crop crops images to 500×375, writes them to a folder as JPEG and returns their files.
// What is much smaller is left out.
func crop(images []string, to string) (files []string, err error) {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return nil, err
	}
	for _, path := range images {
		img, err := imaging.Open(path)
		if err != nil || img.Bounds().Dx() < 300 || img.Bounds().Dy() < 225 {
			continue
		}
		file := filepath.Join(to, fmt.Sprintf("%04d.jpg", len(files)))
		if err := writeJPEG(file, imaging.Fill(img, 500, 375, imaging.Center, imaging.CatmullRom)); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	if len(files) == 0 {
		return nil, errors.New("no image is large enough")
	}
	return files, nil
}

func writeJPEG(file string, img image.Image) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(jpeg.Encode(f, img, &jpeg.Options{Quality: 90}), f.Close())
}

// repeat makes a folder of n photographs by linking them again and again.
func repeat(photographs []string, dir string, n int) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for i := range n {
		if err := os.Link(photographs[i%len(photographs)], filepath.Join(dir, fmt.Sprintf("%07d.jpg", i))); err != nil {
			return "", err
		}
	}
	return dir, nil
}
