package access

import (
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// recheck is how long a file is trusted to be what it was.
const recheck = time.Second

// reread is a value that is read from files, and again when they change. Where that fails,
// the old value stays unless changed replaces it.
type reread[T any] struct {
	files   []string
	read    func() (T, error)
	changed func(err error) // is told after reading again

	mu      sync.Mutex
	checked time.Time
	stamp   string
	now     T
}

// open reads the value for the first time.
func (r *reread[T]) open() (err error) {
	r.checked, r.stamp = time.Now(), disk.Stamp(r.files...)
	r.now, err = r.read()
	return err
}

// get returns the value that the files have.
func (r *reread[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.checked) < recheck {
		return r.now
	}
	r.checked = time.Now()
	if stamp := disk.Stamp(r.files...); stamp != r.stamp {
		r.stamp = stamp
		next, err := r.read()
		if err == nil {
			r.now = next
		}
		r.changed(err)
	}
	return r.now
}
