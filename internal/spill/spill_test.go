package spill

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"
)

// fill writes row i of a matrix as d times i, from several goroutines.
func fill(t *testing.T, m *Matrix, n int) {
	t.Helper()
	var group errgroup.Group
	for i := range n {
		group.Go(func() error { return m.Write(i, slices.Repeat([]float32{float32(i)}, m.D)) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := m.Done(); err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, m *Matrix, n int) {
	t.Helper()
	row := make([]float32, m.D)
	for i := range n {
		if err := m.Read(row, i); err != nil {
			t.Fatal(err)
		}
		want := slices.Repeat([]float32{float32(i)}, m.D)
		if !slices.Equal(row, want) || !slices.Equal(m.X[i*m.D:(i+1)*m.D], want) {
			t.Fatalf("row %d is read as %v and lies as %v", i, row, m.X[i*m.D:(i+1)*m.D])
		}
	}
}

// TestMatrixInMemoryWhileThereIsRoom: 100 rows of 4 values take 1,600 bytes.
func TestMatrixInMemoryWhileThereIsRoom(t *testing.T) {
	s := New(2000, t.TempDir(), 1)
	first, err := s.Matrix(100, 4)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, first, 100)
	check(t, first, 100)
	if first.Window() != 0 {
		t.Errorf("a matrix that fits has a window of %d rows", first.Window())
	}
	second, err := s.Matrix(100, 4)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, second, 100)
	check(t, second, 100)
	second.Need(90, 110) // beyond its end
	if second.Window() != 62 {
		t.Errorf("a window of %d rows where half of 2000 bytes hold 62", second.Window())
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	third, err := s.Matrix(100, 4)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, third, 100)
	if third.Window() != 0 {
		t.Error("the memory of a matrix that was closed is not used again")
	}
	for _, m := range []*Matrix{second, third, third} {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	dir := t.TempDir()
	s := New(1, dir, 1)
	written, err := s.Matrix(3, 4)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, written, 3)
	half, err := s.Matrix(3, 4)
	if err != nil {
		t.Fatal(err)
	}
	if err := half.Write(0, make([]float32, 4)); err != nil {
		t.Fatal(err)
	}
	if half.Done() == nil {
		t.Error("a matrix of which two rows are missing is taken for done")
	}
	for _, m := range []*Matrix{written, half} {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	if _, err := New(1, dir+"/nothing", 1).Matrix(3, 4); err == nil {
		t.Error("a file is made in a folder that is not there")
	}
}

func TestNilSpaceKeepsAllInMemory(t *testing.T) {
	var s *Space
	m, err := s.Matrix(5, 2)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, m, 5)
	check(t, m, 5)
	if m.Window() != 0 || m.Close() != nil || s.Close() != nil {
		t.Error("a matrix of no Space is not simply in memory")
	}
}

func TestDefaultIsOfThisMachine(t *testing.T) {
	if n := Default(); n < 1<<20 || n > 1<<50 {
		t.Errorf("half of the memory is %d bytes", n)
	}
}
