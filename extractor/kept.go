package extractor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Kept keeps models open that are closed, for who opens them again in the same way, and
// shares those that are open. Opening a model takes longer than an image, and costs memory
// that onnxruntime does not give back. The zero value is empty.
//
// At most two models stay open that nobody uses, each for a minute.
type Kept struct {
	mu     sync.Mutex
	models []*keptModel // those that were used last come last
}

type keptModel struct {
	*Model
	key   string
	users int
	since time.Time // nobody uses it
}

const (
	mostKept = 2
	keptFor  = time.Minute
)

// Close closes the models that nobody uses.
func (k *Kept) Close() error { return k.closeIdle(0, 0) }

// open is OpenModel.
func (k *Kept) open(ctx context.Context, dir string, opts Options) (*Model, error) {
	opts.Kept, opts.Drifted = nil, nil
	// How it is run is said anew for each run.
	opts.Workers, opts.Batch, opts.MaxPixels, opts.ImageTimeout, opts.NoHash, opts.Progress, opts.Chosen = 0, 0, 0, 0, false, nil, nil
	key, err := keyOf(dir, opts)
	if err != nil { // which opening says better
		return OpenModel(ctx, dir, opts)
	}
	k.mu.Lock()
	at := slices.IndexFunc(k.models, func(m *keptModel) bool { return m.key == key && !m.kept.isStuck() })
	if at >= 0 {
		defer k.mu.Unlock()
		return k.use(k.models[at]), nil
	}
	k.mu.Unlock()
	model, err := OpenModel(ctx, dir, opts)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.models = append(k.models, &keptModel{Model: model, key: key})
	return k.use(k.models[len(k.models)-1]), nil
}

// use returns a model for one user, who closes it.
func (k *Kept) use(m *keptModel) *Model {
	m.users++
	own := *m.Model
	own.release = func() error {
		k.mu.Lock()
		m.users--
		m.since = time.Now()
		at := slices.Index(k.models, m)
		k.models = append(slices.Delete(k.models, at, at+1), m)
		k.mu.Unlock()
		time.AfterFunc(keptFor, func() { _ = k.closeIdle(mostKept, keptFor) })
		return k.closeIdle(mostKept, keptFor)
	}
	return &own
}

// closeIdle closes models that nobody uses: all but the last of them, and what was not used
// for a time.
func (k *Kept) closeIdle(most int, unused time.Duration) (err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	idle := 0
	for i, m := range slices.Backward(k.models) {
		if m.users > 0 {
			continue
		}
		if idle++; idle > most || time.Since(m.since) >= unused {
			k.models = slices.Delete(k.models, i, i+1)
			err = errors.Join(err, m.Close())
		}
	}
	return err
}

// keyOf names a model, as its files are now, and how it is opened.
func keyOf(dir string, opts Options) (string, error) {
	file, folders, err := findGraph(dir)
	if err != nil {
		return "", err
	}
	key := fmt.Sprintf("%+v", opts)
	for _, folder := range append([]string{filepath.Dir(file)}, folders...) {
		whole, err := filepath.Abs(folder)
		if err != nil {
			return "", err
		}
		entries, err := os.ReadDir(folder)
		if err != nil {
			return "", err
		}
		key += "\n" + whole
		for _, entry := range entries {
			if info, err := os.Stat(filepath.Join(folder, entry.Name())); err == nil && info.Mode().IsRegular() {
				key += fmt.Sprintf("\n%q %d %d", info.Name(), info.Size(), info.ModTime().UnixNano())
			}
		}
	}
	return file + "\n" + key, nil
}
