// Demodata turns the downloads of `scripts/setup demo` into the image folders
// of `make demo`:
//
//	train/DIGIT/*.png         200 handwritten digits a class, to learn from
//	new/DIGIT/*.png           50 unseen ones a class
//	new/clothes/*.png         500 pieces of clothing, if they were downloaded
//	new/photos/*              photographs
//
// The same downloads give the same files. If the folders already exist it does
// nothing.
package main

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
)

const (
	side          = 28 // pixels, of digits and clothes
	trainPerDigit = 200
	newPerDigit   = 50
	clothes       = 500

	maxDigitsFile = 16 << 20
	maxClothes    = 100_000
	maxPhoto      = 16 << 20
)

func main() {
	from := flag.String("from", ".setup", "`folder` of the downloads")
	to := flag.String("to", "demo", "`folder` that receives train/ and new/")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*from, *to); err != nil {
		fmt.Fprintln(os.Stderr, "demodata:", err)
		os.Exit(1)
	}
}

// run makes the folders under to atomically.
func run(from, to string) error {
	clothesFile := filepath.Join(from, "clothes", "t10k-images-idx3-ubyte.gz")
	_, err := os.Stat(clothesFile)
	withClothes := err == nil

	// A description of the folders, written last: if it is the wanted one, they are complete.
	stamp := filepath.Join(to, "data.stamp")
	want := fmt.Sprintf("version 2, %d + %d digits a class, clothes: %t\n", trainPerDigit, newPerDigit, withClothes)
	if got, err := os.ReadFile(stamp); err == nil && string(got) == want && isDir(filepath.Join(to, "train")) && isDir(filepath.Join(to, "new")) {
		return nil
	}

	fresh := filepath.Join(to, "data.partial")
	if err := removeAll(stamp, fresh, filepath.Join(to, "train"), filepath.Join(to, "new")); err != nil {
		return err
	}
	for digit := range 10 {
		if err := writeDigits(filepath.Join(from, "digits"), fresh, digit); err != nil {
			return err
		}
	}
	if withClothes {
		if err := writeClothes(clothesFile, filepath.Join(fresh, "new", "clothes")); err != nil {
			return err
		}
	}
	if err := copyPhotos(filepath.Join(from, "photos"), filepath.Join(fresh, "new", "photos")); err != nil {
		return err
	}
	for _, name := range []string{"train", "new"} {
		if err := os.Rename(filepath.Join(fresh, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	if err := os.Remove(fresh); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(want), 0o644)
}

// writeDigits writes the first images of one digit to train/ and the last ones to
// new/. The npm package holds one JSON object per digit, whose key data lists the
// pixels of all its images, as fractions of 255 with three decimals.
func writeDigits(from, to string, digit int) error {
	name := filepath.Join(from, fmt.Sprintf("%d.json", digit))
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var file struct{ Data []float64 }
	if err := json.NewDecoder(io.LimitReader(f, maxDigitsFile)).Decode(&file); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	n := len(file.Data) / (side * side)
	if len(file.Data)%(side*side) != 0 || n < trainPerDigit+newPerDigit {
		return fmt.Errorf("%s: %d values are not the %d or more images expected", name, len(file.Data), trainPerDigit+newPerDigit)
	}
	write := func(i int, path string) error {
		pix := make([]uint8, side*side)
		for j, v := range file.Data[i*side*side : (i+1)*side*side] {
			if !(v >= 0 && v <= 1) {
				return fmt.Errorf("%s: image %d holds the value %v, outside [0, 1]", name, i, v)
			}
			pix[j] = uint8(math.Round(v * 255))
		}
		return writePNG(path, pix)
	}
	for i := range trainPerDigit {
		if err := write(i, filepath.Join(to, "train", fmt.Sprint(digit), fmt.Sprintf("%04d.png", i))); err != nil {
			return err
		}
	}
	for i := n - newPerDigit; i < n; i++ {
		if err := write(i, filepath.Join(to, "new", fmt.Sprint(digit), fmt.Sprintf("%04d.png", i))); err != nil {
			return err
		}
	}
	return nil
}

// writeClothes writes the first images of a gzipped idx file.
func writeClothes(name, to string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	var header struct{ Magic, N, Rows, Cols uint32 }
	if err := binary.Read(z, binary.BigEndian, &header); err != nil {
		return err
	}
	if header.Magic != 0x803 || header.Rows != side || header.Cols != side || header.N < clothes || header.N > maxClothes {
		return fmt.Errorf("not an idx file of %d or more %d×%d images: %+v", clothes, side, side, header)
	}
	for i := range clothes {
		pix := make([]uint8, side*side)
		if _, err := io.ReadFull(z, pix); err != nil {
			return err
		}
		if err := writePNG(filepath.Join(to, fmt.Sprintf("%04d.png", i)), pix); err != nil {
			return err
		}
	}
	return nil
}

// copyPhotos copies the PNG and JPEG files of a folder.
func copyPhotos(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext != ".png" && ext != ".jpg" {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Size() > maxPhoto {
			return fmt.Errorf("%s: %d bytes is more than a photograph should have", filepath.Join(from, e.Name()), info.Size())
		}
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// writePNG writes a grey image of side × side pixels, making its folder.
func writePNG(name string, pix []uint8) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	img := &image.Gray{Pix: pix, Stride: side, Rect: image.Rect(0, 0, side, side)}
	return errors.Join(png.Encode(f, img), f.Close())
}

func removeAll(names ...string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, os.RemoveAll(name))
	}
	return errors.Join(errs...)
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}
