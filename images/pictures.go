package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
)

// Set is a set of images with features.
type Set struct {
	Name  string
	Group string // of out-of-distribution sets; "" for others
	N     int    // images; 0 if unknown
	// Fingerprint is of the model and preprocessing; "" if unknown.
	Fingerprint string
	// Images tells sets of images apart: the same text means the same images in the
	// same order; "" if unknown.
	Images string
	// Image describes image i; nil shows none of the set's images.
	Image func(i int) Picture
	// Row returns the D features of image i; nil shows no nearest images.
	Row func(i int) []float32
}

// Picture is an image to show.
type Picture struct {
	Path  string // to show
	Label string // the name of its class; "" if unknown
	// Decode reads the image; if it is nil or fails, only Path is shown.
	Decode func() (image.Image, error)
	// Size returns how many bytes its file has, 0 if that is not known; nil as Decode.
	Size func() int64
}

// FeatureSet makes one set of images from feature sets, row after row. These must
// stay open while the report is written. A set without images.jsonl has features
// only.
//
// Roots are folders that the user names. Only images below them are read, even if
// the images were moved there from the root that the set records. Without roots,
// images are read from the recorded root, and only if the set has the SHA-256 of
// their content: a set from another person may name any folder, but can then show
// only images that its author had. A file whose content has changed is never shown,
// and neither links nor ".." lead out of a root.
func FeatureSet(name, group string, roots []string, sets ...*features.Set) (Set, error) {
	s := Set{Name: name, Group: group}
	var images []Picture
	var first []int // rows of the sets before
	picture := Pictures(roots)
	var identities []string
	for _, set := range sets {
		first = append(first, s.N)
		s.N += set.N
		s.Fingerprint = set.Fingerprint
		known, err := set.Images()
		if err != nil {
			return Set{}, fmt.Errorf("images: %w", err)
		}
		labels := set.Labels()
		for i, img := range known {
			at := picture(set, img)
			if labels[i] >= 0 {
				at.Label = set.Classes[labels[i]]
			}
			images = append(images, at)
			identities = append(identities, cmp.Or(img.SHA256, img.Path))
		}
	}
	s.Row = func(i int) []float32 {
		at, exact := slices.BinarySearch(first, i)
		if !exact {
			at--
		}
		return sets[at].Row(i - first[at])
	}
	if len(images) == s.N {
		s.Image = func(i int) Picture { return images[i] }
		s.Images = digest(identities)
	}
	return s, nil
}

// Pictures returns a function that gives the image of an entry of a feature set, by
// the rules of FeatureSet.
func Pictures(roots []string) func(*features.Set, features.Image) Picture {
	files := &files{roots: roots}
	return func(set *features.Set, img features.Image) Picture {
		return Picture{Path: img.Path,
			Decode: func() (image.Image, error) { return files.decode(set.Root, img) },
			Size:   func() int64 { return files.size(set.Root, img) },
		}
	}
}

// Again gives the pictures of a feature set's rows one after another: those of files as
// Pictures does, and those in tars, Parquet files, buckets and on web servers as a stream,
// which is read while they are asked for.
func Again(ctx context.Context, set *features.Set, roots []string) (iter.Seq[Picture], error) {
	known, err := set.Images()
	if err != nil {
		return nil, err
	}
	unit := func(img features.Image) (name, unit string) {
		name = strings.TrimSuffix(set.Root, "/") + "/" + img.Path
		if set.Root == "" {
			name = img.Path
		}
		for end, c := range name + "#" {
			if k, _ := kindOf(name[:end]); c == '#' && k != single {
				return name, name[:end]
			}
		}
		if bucket.IsURL(name) {
			return name, name
		}
		return name, ""
	}
	var units []string
	for _, img := range known {
		if _, unit := unit(img); unit != "" && (len(units) == 0 || units[len(units)-1] != unit) {
			units = append(units, unit)
		}
	}
	listing, place := &Sources{}, map[string]int{}
	if len(units) > 0 {
		if listing, err = ListSources(ctx, units...); err != nil {
			return nil, err
		}
	}
	var all []int
	for i := range listing.Units {
		place[listing.Units[i].Name()], all = i, append(all, i)
	}
	file := Pictures(roots)
	return func(yield func(Picture) bool) {
		in := listing.Stream(ctx, all, StreamOptions{})
		defer in.Close()
		item, err := in.Next(ctx)
		for _, img := range known {
			p := file(set, img)
			if name, unit := unit(img); unit != "" {
				p.Decode = nil
				for ; err == nil && int(item.Unit) <= place[unit] && p.Decode == nil; item, err = in.Next(ctx) {
					if item.File == name {
						p.Decode = item.same(img.SHA256)
					}
				}
			}
			if !yield(p) {
				return
			}
		}
	}, nil
}

// same returns what decodes an item whose content has a hash.
func (item Item) same(hash string) func() (image.Image, error) {
	return func() (image.Image, error) {
		data, err := item.Read(nil)
		if err == nil {
			err = sameContent(data, hash)
		}
		if err != nil {
			return nil, err
		}
		return preprocess.Decode(context.Background(), data, preprocess.DecodeOptions{MaxPixels: maxImagePixels})
	}
}

const (
	maxImageFile   = 1 << 28 // bytes
	maxImagePixels = 1 << 26
	imageTimeout   = 20 * time.Second // to decode an image
)

var errOtherImage = errors.New("the features are of another image")

// files reads images of feature sets.
type files struct {
	roots []string
	idx   struct { // the idx file that was read last
		sync.Mutex
		key    string
		images *IDX
	}
}

// decode reads an image of a set from the first place where it exists.
func (f *files) decode(recorded string, img features.Image) (image.Image, error) {
	name := filepath.FromSlash(img.Path)
	if !filepath.IsLocal(name) {
		return nil, errors.New("its path leads out of the root")
	}
	if len(f.roots) == 0 {
		if img.SHA256 == "" {
			return nil, errors.New("the feature set has no hash of it")
		}
		return f.read(recorded, name, img)
	}
	var errs []error
	for _, root := range f.roots {
		for _, name := range below(root, recorded, name) {
			decoded, err := f.read(root, name, img)
			if err == nil {
				return decoded, nil
			}
			errs = append(errs, err)
		}
	}
	return nil, errors.Join(errs...)
}

// size returns the bytes of the file of an image that decode reads.
func (f *files) size(recorded string, img features.Image) int64 {
	name := filepath.FromSlash(img.Path)
	for _, root := range append(slices.Clone(f.roots), recorded) {
		for _, name := range append(below(root, recorded, name), name) {
			if file, err := openBelow(root, name); err == nil {
				defer file.Close()
				info, err := file.Stat()
				if err != nil {
					return 0
				}
				return info.Size()
			}
		}
	}
	return 0
}

// below lists the places of an image under a root that the user named.
func below(root, recorded, name string) (names []string) {
	if absolute, err := filepath.Abs(root); err == nil {
		if rel, err := filepath.Rel(absolute, recorded); err == nil && filepath.IsLocal(rel) {
			names = append(names, filepath.Join(rel, name))
		}
	}
	return append(names, name)
}

// read decodes the file name below root, or image #NUMBER of an idx file.
func (f *files) read(root, name string, img features.Image) (image.Image, error) {
	if at := strings.LastIndexByte(name, '#'); at > 0 && !preprocess.IsImage(name, nil) {
		if number, err := strconv.Atoi(name[at+1:]); err == nil {
			return f.fromIDX(root, name[:at], number, img)
		}
	}
	file, err := openBelow(root, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxImageFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxImageFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, maxImageFile)
	}
	if err := sameContent(data, img.SHA256); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), imageTimeout)
	defer cancel()
	return preprocess.Decode(ctx, data, preprocess.DecodeOptions{MaxPixels: maxImagePixels})
}

func (f *files) fromIDX(root, name string, number int, img features.Image) (image.Image, error) {
	f.idx.Lock()
	defer f.idx.Unlock()
	if key := filepath.Join(root, name); f.idx.key != key {
		file, err := openBelow(root, name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		images, err := ReadIDX(file)
		if err != nil {
			return nil, err
		}
		f.idx.key, f.idx.images = key, images
	}
	images := f.idx.images
	if number < 0 || number >= images.N {
		return nil, fmt.Errorf("%s has %d images", name, images.N)
	}
	pixels := images.At(number)
	if err := sameContent(pixels, img.SHA256); err != nil {
		return nil, err
	}
	return &image.Gray{Pix: pixels, Stride: images.Cols, Rect: image.Rect(0, 0, images.Cols, images.Rows)}, nil
}

// openBelow opens a regular file below root.
func openBelow(root, name string) (*os.File, error) {
	folder, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	file, err := folder.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // do not wait for the writer of a pipe
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", name), err, file.Close())
	}
	return file, nil
}

// sameContent returns an error if data do not have the hash want; "" accepts any data.
func sameContent(data []byte, want string) error {
	if sum := sha256.Sum256(data); want != "" && hex.EncodeToString(sum[:]) != want {
		return errOtherImage
	}
	return nil
}

// digest tells sets of images apart: the SHA-256 of what identifies each image.
func digest(each []string) string {
	h := sha256.New()
	for _, text := range each {
		fmt.Fprintf(h, "%d:%s", len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil))
}
