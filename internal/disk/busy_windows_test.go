package disk_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// TestWriteWaitsForReaders: a file that another program has open for a moment is replaced
// once it is closed; one that stays open is not, and no temporary file remains.
func TestWriteWaitsForReaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := disk.Write(path, say("old")); err != nil {
		t.Fatal(err)
	}
	for _, closes := range []bool{true, false} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		if closes {
			time.AfterFunc(100*time.Millisecond, func() { closed <- f.Close() })
		}
		err = disk.Write(path, say("new"))
		if !closes {
			closed <- f.Close()
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if (err == nil) != closes {
			t.Errorf("closes: %v, %v", closes, err)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if got, readErr := os.ReadFile(path); string(got) != "new" || readErr != nil || err != nil || len(entries) != 1 {
		t.Errorf("%q, %v, %v, %v", got, readErr, entries, err)
	}
}
