//go:build unix

package features

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
)

// foreign makes a feature set of n rows without features.json.
func foreign(t *testing.T, n int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	writeArray(t, filepath.Join(dir, featuresFile), make([]float32, 2*n), n, 2)
	return dir
}

// Files that never end, and pipes that nobody writes to, are errors.
func TestSpecialFiles(t *testing.T) {
	for _, name := range []string{featuresFile, labelsFile, logitsFile, metaFile, imagesFile, errorsFile, weightFile} {
		for _, kind := range []string{"pipe", "/dev/zero"} {
			t.Run(name+" "+filepath.Base(kind), func(t *testing.T) {
				dir := foreign(t, 3)
				path := filepath.Join(dir, name)
				os.Remove(path)
				var err error
				if kind == "pipe" {
					err = syscall.Mkfifo(path, 0o666)
				} else {
					err = os.Symlink(kind, path)
				}
				if err != nil {
					t.Skip(err)
				}
				s, err := Open(t.Context(), dir)
				if err == nil {
					defer s.Close()
					_, imagesErr := s.Images()
					_, failuresErr := s.Errors()
					_, _, classifierErr := s.Classifier()
					err = errors.Join(imagesErr, failuresErr, classifierErr)
				}
				if !errors.Is(err, disk.ErrKind) {
					t.Errorf("%v", err)
				}
			})
		}
	}
}

// The metadata of a set take no more memory than its rows justify.
func TestBounds(t *testing.T) {
	for _, test := range []struct {
		name string
		n    int
		make func(dir string) error
		ok   bool
	}{
		{"a label far above the rest", 60, func(dir string) error {
			labels := make([]int64, 60)
			labels[59] = 1<<20 - 1
			writeArray(t, filepath.Join(dir, labelsFile), labels, 60)
			return nil
		}, false},
		{"one of many classes", 60, func(dir string) error {
			labels := make([]int64, 60)
			labels[59] = 21842
			writeArray(t, filepath.Join(dir, labelsFile), labels, 60)
			return nil
		}, true},
		{"a sparse file of labels", 60, func(dir string) error {
			path := filepath.Join(dir, labelsFile)
			const n = 1 << 38
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			if _, err := npy.NewWriter[int64](f, n); err != nil {
				return err
			}
			info, err := f.Stat()
			if err == nil {
				err = f.Truncate(info.Size() + 8*n)
			}
			return errors.Join(err, f.Close())
		}, false},
		{"endless images", 3, func(dir string) error {
			f, err := os.Create(filepath.Join(dir, imagesFile))
			if err != nil {
				return err
			}
			for i := range 1000 {
				if _, err := f.WriteString(`{"path": "` + strconv.Itoa(i) + "\"}\n"); err != nil {
					return err
				}
			}
			_, err = f.WriteString("{") // is never reached
			return errors.Join(err, f.Close())
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := foreign(t, test.n)
			if err := test.make(dir); err != nil {
				t.Skip(err)
			}
			s, err := Open(t.Context(), dir)
			if err == nil {
				_, err = s.Images()
				err = errors.Join(err, s.Close())
			}
			if (err == nil) != test.ok || err != nil && !errors.Is(err, ErrDamaged) {
				t.Errorf("%v", err)
			}
		})
	}
}
