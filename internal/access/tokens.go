// Package access decides who may use a service: tokens and certificates from files
// that may change while it runs, and how much one client may take of it.
package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Tokens are the tokens of a file, one a line, any of which lets a request in. While a
// token is replaced the file has both. Lines that are empty or begin with # are none.
type Tokens struct{ reread[[][sha256.Size]byte] }

const (
	minToken  = 16      // characters
	maxSecret = 1 << 20 // bytes of a file
)

// OpenTokens reads a file of tokens.
func OpenTokens(file string, log *slog.Logger) (*Tokens, error) {
	t := &Tokens{reread[[][sha256.Size]byte]{files: []string{file}}}
	t.read = func() ([][sha256.Size]byte, error) {
		return Secrets(file, "token", func(line string) (hash [sha256.Size]byte, err error) {
			if len(line) < minToken || strings.ContainsAny(line, " \t") {
				return hash, fmt.Errorf("it is no token, which has at least %d characters and no space", minToken)
			}
			return sha256.Sum256([]byte(line)), nil
		})
	}
	t.changed = func(err error) {
		if err != nil {
			t.now = nil
			log.Error("the tokens cannot be read: no request is let in", "error", err)
		} else {
			log.Info("the tokens were read again", "tokens", len(t.now))
		}
	}
	return t, t.open()
}

// Secrets returns what parse makes of the lines of a file, but for those that are empty or
// begin with #. A file that has none is an error, and so is a line that parse refuses;
// what says what they are.
func Secrets[T any](file, what string, parse func(line string) (T, error)) (all []T, err error) {
	text, err := disk.ReadFile(file, maxSecret)
	if err != nil {
		return nil, err
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		one, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", file, number, err)
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no %s", file, what)
	}
	return all, nil
}

// Allow tells whether a request has one of the tokens: Authorization: Bearer TOKEN.
// How long it takes does not depend on the token. While the file cannot be read, or is
// wrong, no request has one.
func (t *Tokens) Allow(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(strings.TrimSpace(token)))
	found := 0
	for _, hash := range t.get() {
		found |= subtle.ConstantTimeCompare(got[:], hash[:])
	}
	return found == 1 && strings.EqualFold(scheme, "bearer")
}
