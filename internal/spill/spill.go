// Package spill stores computed matrices: in memory while they fit, then in
// temporary files. It also limits the memory that mapped large files take.
package spill

import (
	"slices"
	"sync"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Default returns the default memory: half of the machine's, or of the control
// group's if that has less; 2 GiB if neither is known.
func Default() int64 {
	limit, err := memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)()
	if system, systemErr := memlimit.FromSystem(); err == nil && systemErr == nil {
		limit = min(limit, system)
	}
	if err != nil || limit == 0 {
		return 2 << 30
	}
	return int64(limit / 2)
}

// Space stores matrices, for any number of goroutines. A nil Space stores all in
// memory, without a limit.
type Space struct {
	memory int64 // bytes, about, of matrices in memory, and again of what is read from files at a time
	dir    string
	users  int

	mu      sync.Mutex
	left    int64         // of memory
	maps    []Pages       // of files larger than memory
	stop    chan struct{} // ends trim; nil before it begins
	trimmer *parallel.Task[struct{}]
}

// New returns a Space with the given bytes of memory and with files in the folder
// dir; "" means the system's folder for temporary files. The memory for rows read
// from files is divided among the given number of users. Close the Space after use.
func New(memory int64, dir string, users int) *Space {
	return &Space{memory: memory, dir: dir, users: max(users, 1), left: memory}
}

// Pages controls how the system reads the memory map of a file, as *npy.Mapped does. Its
// methods are hints: values are the same without them. Any goroutine may use it.
type Pages interface {
	// Read copies the values from the index from on into dst, without the map. It
	// is better than the map for single rows of a file larger than memory, since
	// the system may read megabytes of a map for one value.
	Read(dst []float32, from int) error
	// Scatter says that values will be read at random places.
	Scatter()
	// Need says that the values from … to−1 will be read soon.
	Need(from, to int)
	// Release frees the memory of the pages that were read so far.
	Release()
}

// Matrix is n rows of d values.
type Matrix struct {
	X []float32 // [n, D]; nil until Done for one in a file
	D int

	space *Space
	temp  *npy.Temp   // while it is being written
	own   *npy.Mapped // of a temporary file; nil for others
	pages Pages       // that contains X; nil in memory
	size  int64
}

// Matrix makes a matrix of zeros to be written row by row, each once.
func (s *Space) Matrix(n, d int) (*Matrix, error) {
	m := &Matrix{D: d, space: s, size: 4 * int64(n) * int64(d)}
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if m.size > s.left {
			var err error
			m.temp, err = npy.CreateTemp(s.dir, n, d)
			return m, err
		}
		s.left -= m.size
	}
	m.X = make([]float32, n*d)
	return m, nil
}

// Write puts rows into their place, the first of them being row at. It may be
// called from several goroutines, for different rows.
func (m *Matrix) Write(at int, rows []float32) error {
	if m.temp != nil {
		return m.temp.Write(at, rows)
	}
	copy(m.X[at*m.D:], rows)
	return nil
}

// Done makes the rows readable when all are written.
func (m *Matrix) Done() error {
	if m.temp == nil {
		return nil
	}
	temp := m.temp
	m.temp = nil
	var err error
	if m.own, err = temp.Map(); err != nil {
		return err
	}
	m.X, m.pages = m.own.Data, m.own
	m.space.watch(m.pages)
	return nil
}

// File returns a Matrix of n rows of d values, which are in mapped files and take no
// memory of the Space: x, or nil where they are not in one. The caller closes the
// files, after the matrix.
func (s *Space) File(x []float32, n, d int, pages Pages) *Matrix {
	m := &Matrix{X: x, D: d}
	if s != nil && 4*int64(n)*int64(d) > s.memory {
		m.space, m.pages = s, pages
		s.watch(pages)
	}
	return m
}

// Window returns how many rows of a matrix that does not fit into memory should be
// processed together, while the next ones are fetched. It is 0 for a matrix in
// memory.
func (m *Matrix) Window() int {
	if m == nil || m.pages == nil {
		return 0
	}
	const both = 2 // the rows that are read, and the next
	return max(1, int(m.space.memory/int64(both*m.space.users*4*m.D)))
}

// Read copies the row at into dst [D].
func (m *Matrix) Read(dst []float32, at int) error {
	if m.pages != nil {
		return m.pages.Read(dst, at*m.D)
	}
	copy(dst, m.X[at*m.D:])
	return nil
}

// Need tells the system that the rows from … to−1 will be read soon.
func (m *Matrix) Need(from, to int) {
	if m != nil && m.pages != nil {
		m.pages.Need(from*m.D, to*m.D)
	}
}

// Close frees the matrix; X must not be read any more.
func (m *Matrix) Close() error {
	if m == nil || m.space == nil {
		return nil
	}
	s := m.space
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	switch {
	case m.temp != nil:
		err = m.temp.Close()
	case m.pages != nil:
		s.maps = slices.DeleteFunc(s.maps, func(other Pages) bool { return other == m.pages })
		if m.own != nil {
			err = m.own.Close()
		}
	case m.X != nil:
		s.left += m.size
	}
	m.X, m.space = nil, nil
	return err
}

// trimEvery is how often the pages read through maps of files are released. A pass
// over a file reads some ten megabytes in between.
const trimEvery = 10 * time.Millisecond

// watch releases the pages of a mapped file from time to time. Otherwise they would
// grow to the whole file and count as the program's memory, although the system
// could reclaim them.
func (s *Space) watch(m Pages) {
	m.Scatter()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maps = append(s.maps, m)
	if s.stop != nil {
		return
	}
	stop := make(chan struct{})
	s.stop = stop
	s.trimmer = parallel.Start(func() (none struct{}) {
		tick := time.NewTicker(trimEvery)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return none
			case <-tick.C:
				s.trim()
			}
		}
	})
}

// trim releases what the files hold in memory.
func (s *Space) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.maps {
		m.Release()
	}
}

// Close stops watching files. Close the matrices first.
func (s *Space) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	stop := s.stop
	s.stop, s.maps = nil, nil
	s.mu.Unlock()
	if stop != nil {
		close(stop)
		s.trimmer.Wait()
	}
	return nil
}
