package images

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// IsIDX tells whether the file at path is an idx file of images, which [List]
// takes in the place of a folder.
func IsIDX(path string) bool {
	return !preprocess.IsImage(path, nil) && IsIDXImages(path)
}

// findIDX returns the only idx file of images in a folder, "" where there is
// none; several are an error.
func findIDX(folder string) (string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return "", err
	}
	var found []string
	for _, entry := range entries {
		if IsIDX(filepath.Join(folder, entry.Name())) {
			found = append(found, entry.Name())
		}
	}
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		return filepath.Join(folder, found[0]), nil
	}
	return "", fmt.Errorf("images: %s holds %d idx files of images, %s; name one of them", folder, len(found), strings.Join(found, ", "))
}

// listIDX lists the images of an idx file, in their order.
func listIDX(file string) (*Listing, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	images, err := OpenIDX(file)
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	if images.N == 0 {
		return nil, fmt.Errorf("%w in %s", ErrNoImages, file)
	}
	var labels, classes []byte
	if beside := IDXLabelsOf(file); beside != "" {
		if labels, err = OpenIDXLabels(beside); err != nil {
			return nil, fmt.Errorf("labels: %w", err)
		}
		if len(labels) != images.N {
			return nil, fmt.Errorf("labels: %s has %d for the %d images of %s", beside, len(labels), images.N, file)
		}
		classes = slices.Clone(labels)
		slices.Sort(classes)
		classes = slices.Compact(classes)
	}
	l := &Listing{Root: filepath.Dir(file), Grey: true}
	for _, class := range classes {
		l.Classes = append(l.Classes, strconv.Itoa(int(class)))
	}
	for i := range images.N {
		label := -1
		if labels != nil {
			label, _ = slices.BinarySearch(classes, labels[i])
		}
		l.Items = append(l.Items, Item{
			Path: filepath.Base(file) + "#" + strconv.Itoa(i), File: file, Label: label,
			Bytes: int64(images.Rows) * int64(images.Cols), MTime: info.ModTime().UnixNano(),
			idx: images, number: int32(i),
		})
	}
	return l, nil
}

// fromIDX returns an image of an idx file.
func fromIDX(images *IDX, number int) *image.NRGBA {
	img := image.NewNRGBA(image.Rect(0, 0, images.Cols, images.Rows))
	for i, v := range images.At(number) {
		pixel := img.Pix[4*i : 4*i+4 : 4*i+4]
		pixel[0], pixel[1], pixel[2], pixel[3] = v, v, v, 255
	}
	return img
}

// ErrFormat is wrapped by the error of a file of another format, or one that is
// truncated or too long.
var ErrIDX = errors.New("malformed idx file")

// MaxBytes bounds the values of a file: MNIST has 47 million.
const MaxIDXBytes = 1 << 30

// MaxImages bounds the images of a file, each of which takes memory of its own
// besides its pixels: the largest in use has 8.1 million.
const MaxIDXImages = 1 << 23

// The magics of the two kinds of files.
const (
	imagesMagic = "\x00\x00\x08\x03"
	labelsMagic = "\x00\x00\x08\x01"
)

// An IDX holds the images of an idx file, the format of MNIST and similar data sets: grey
// images (idx3-ubyte) and their labels (idx1-ubyte), plain or gzipped under any
// name.
//
// A file is the magic 00 00 08 D, where 08 stands for bytes and D is the number
// of dimensions, then D big-endian uint32 sizes, then the values (Y. LeCun,
// "The MNIST database of handwritten digits").
type IDX struct {
	N, Rows, Cols int
	Pixels        []byte // [N, Rows, Cols], 0 is black
}

// At returns the pixels of image i, row by row.
func (m *IDX) At(i int) []byte {
	size := m.Rows * m.Cols
	return m.Pixels[i*size : (i+1)*size : (i+1)*size]
}

// ReadImages reads a file of images. It allocates memory for the values that it
// reads, whatever size the header states.
func ReadIDX(r io.Reader) (*IDX, error) {
	sizes, values, err := read(r, imagesMagic)
	if err != nil {
		return nil, err
	}
	return &IDX{sizes[0], sizes[1], sizes[2], values}, nil
}

// ReadLabels reads a file of labels.
func ReadIDXLabels(r io.Reader) ([]byte, error) {
	_, values, err := read(r, labelsMagic)
	return values, err
}

// OpenImages reads the file of images at path. Errors name it.
func OpenIDX(path string) (*IDX, error) { return open(path, ReadIDX) }

// OpenLabels reads the file of labels at path. Errors name it.
func OpenIDXLabels(path string) ([]byte, error) { return open(path, ReadIDXLabels) }

func open[T any](path string, read func(io.Reader) (T, error)) (v T, err error) {
	f, err := disk.Open(path, 2*MaxIDXBytes)
	if err != nil {
		return v, err
	}
	defer f.Close()
	if v, err = read(f); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return v, err
}

// IsImages reports whether the regular file at path is an idx file of images, by
// its name or its first bytes.
func IsIDXImages(path string) bool {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return false
	}
	name := strings.TrimSuffix(filepath.Base(path), ".gz")
	if strings.HasSuffix(name, "idx3-ubyte") {
		return true
	}
	magic, err := open(path, func(r io.Reader) (string, error) {
		r, err := plain(r)
		if err != nil {
			return "", err
		}
		head := make([]byte, len(imagesMagic))
		_, err = io.ReadFull(r, head)
		return string(head), err
	})
	return err == nil && magic == imagesMagic
}

// LabelsOf returns the file of labels in the same folder as a file of images, by
// the names that such files have: train-images-idx3-ubyte.gz and
// train-labels-idx1-ubyte.gz, with a dot for the second hyphen or without .gz. It
// is "" if there is none.
func IDXLabelsOf(images string) string {
	dir, name := filepath.Split(images)
	name = strings.TrimSuffix(name, ".gz")
	at := strings.LastIndex(name, "images")
	if at < 0 {
		return ""
	}
	name = name[:at] + "labels" + strings.Replace(name[at+len("images"):], "idx3", "idx1", 1)
	names := []string{name, name + ".gz"}
	if strings.HasSuffix(images, ".gz") {
		names[0], names[1] = names[1], names[0]
	}
	for _, name := range names {
		if info, err := os.Stat(dir + name); err == nil && info.Mode().IsRegular() {
			return dir + name
		}
	}
	return ""
}

// plain returns a reader of the contents of r, which it inflates if they are gzipped.
func plain(r io.Reader) (io.Reader, error) {
	buffered := bufio.NewReader(r)
	if head, err := buffered.Peek(2); err != nil || string(head) != "\x1f\x8b" {
		return buffered, nil // the caller finds out if it is too short
	}
	inflated, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIDX, err)
	}
	return inflated, nil
}

// read reads a file with the given magic.
func read(r io.Reader, magic string) (sizes []int, values []byte, err error) {
	if r, err = plain(r); err != nil {
		return nil, nil, err
	}
	dimensions := int(magic[3])
	head := make([]byte, 4+4*dimensions)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, nil, fmt.Errorf("%w: its header: %w", ErrIDX, short(err))
	}
	if got := string(head[:4]); got != magic {
		return nil, nil, fmt.Errorf("%w: it begins with %x, want %x (%d dimensions of bytes)", ErrIDX, got, magic, dimensions)
	}
	total := int64(1)
	for i := range dimensions {
		size := int64(binary.BigEndian.Uint32(head[4+4*i:]))
		if i > 0 && size == 0 {
			return nil, nil, fmt.Errorf("%w: its images have no pixels", ErrIDX)
		}
		if i == 0 && size > MaxIDXImages {
			return nil, nil, fmt.Errorf("%w: its header promises %d images or labels, more than %d", ErrIDX, size, MaxIDXImages)
		}
		sizes = append(sizes, int(size))
		if total *= size; total > MaxIDXBytes { // each size is below 2³², so this cannot overflow
			return nil, nil, fmt.Errorf("%w: its header promises %v values, more than %d in all", ErrIDX, sizes, MaxIDXBytes)
		}
	}
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(r, total+1)) // to the end, where gzip has its checksum
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("%w: after %d of %d bytes: %w", ErrIDX, min(n, total), total, short(err))
	case n < total:
		return nil, nil, fmt.Errorf("%w: its header promises %d bytes and it has %d", ErrIDX, total, n)
	case n > total:
		return nil, nil, fmt.Errorf("%w: it has more than the %d bytes that its header promises", ErrIDX, total)
	}
	return sizes, b.Bytes(), nil
}

// short replaces io.EOF and io.ErrUnexpectedEOF by a clear text.
func short(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return errors.New("the file is cut short")
	}
	return err
}
