package images

import (
	"fmt"
	"image"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
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
