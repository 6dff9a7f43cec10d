// Package access decides who may use a service: tokens and certificates from files
// that may change while it runs, and how much one client may take of it.
package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// recheck is how long a file is trusted to be what it was.
const recheck = time.Second

// Tokens are the tokens of a file, one a line, any of which lets a request in. While a
// token is replaced the file has both. Lines that are empty or begin with # are none.
type Tokens struct {
	file    string
	log     *slog.Logger
	mu      sync.Mutex
	checked time.Time
	stamp   string
	hashes  [][sha256.Size]byte
}

const (
	minToken      = 16      // characters
	maxTokensFile = 1 << 20 // bytes
)

// OpenTokens reads a file of tokens.
func OpenTokens(file string, log *slog.Logger) (*Tokens, error) {
	t := &Tokens{file: file, log: log, checked: time.Now()}
	t.stamp = stampOf(file)
	var err error
	if t.hashes, err = readTokens(file); err != nil {
		return nil, err
	}
	return t, nil
}

func readTokens(file string) (hashes [][sha256.Size]byte, err error) {
	f, err := disk.Open(file, maxTokensFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case len(line) < minToken || strings.ContainsAny(line, " \t"):
			return nil, fmt.Errorf("%s: line %d is no token: it must have at least %d characters and no space", file, i+1, minToken)
		}
		hashes = append(hashes, sha256.Sum256([]byte(line)))
	}
	if len(hashes) == 0 {
		return nil, fmt.Errorf("%s has no token", file)
	}
	return hashes, nil
}

// Allow tells whether a request has one of the tokens: Authorization: Bearer TOKEN.
// How long it takes does not depend on the token. While the file cannot be read, or is
// wrong, no request has one.
func (t *Tokens) Allow(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(strings.TrimSpace(token)))
	found := 0
	for _, hash := range t.now() {
		found |= subtle.ConstantTimeCompare(got[:], hash[:])
	}
	return found == 1 && strings.EqualFold(scheme, "bearer")
}

// now returns the hashes of the tokens that the file has.
func (t *Tokens) now() [][sha256.Size]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.checked) < recheck {
		return t.hashes
	}
	t.checked = time.Now()
	if stamp := stampOf(t.file); stamp != t.stamp {
		t.stamp = stamp
		var err error
		if t.hashes, err = readTokens(t.file); err != nil {
			t.log.Error("the tokens cannot be read: no request is let in", "error", err)
		} else {
			t.log.Info("the tokens were read again", "tokens", len(t.hashes))
		}
	}
	return t.hashes
}

// stampOf tells a file from what it was before.
func stampOf(files ...string) string {
	stamp := ""
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			stamp += "absent;"
			continue
		}
		stamp += fmt.Sprint(info.Size(), info.ModTime().UnixNano(), ";")
	}
	return stamp
}
