// Package access decides who may use a service: tokens and certificates from files
// that may change while it runs, and how much one client may take of it.
package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Tokens are the tokens of a file, one a line, any of which lets a request in: TOKEN, which
// may do everything, or TOKEN NAME ROLE,… While a token is replaced the file has both. Lines
// that are empty or begin with # are none.
type Tokens struct{ reread[[]known] }

// Bearer is who has a token.
type Bearer struct {
	Name  string // "" for a token without one
	roles []Role // nil may do everything
}

// Role is what a token may do.
type Role string

// The roles. Review has what Read has, and Operate has all.
const (
	Judge   Role = "judge"   // have images judged
	Read    Role = "read"    // see what is remembered
	Review  Role = "review"  // say what images are
	Operate Role = "operate" // learn, choose detectors, reset alarms
)

// May tells whether a bearer has a role. "" is one that everybody has.
func (b Bearer) May(role Role) bool {
	return role == "" || b.roles == nil || slices.Contains(b.roles, role) || slices.Contains(b.roles, Operate) || role == Read && slices.Contains(b.roles, Review)
}

type known struct {
	hash [sha256.Size]byte
	Bearer
}

var bearerName = regexp.MustCompile(`^[\pL\pN][\pL\pN._@-]{0,63}$`)

// parseToken reads a line of a file of tokens.
func parseToken(line string) (k known, err error) {
	fields := strings.Fields(line)
	if len(fields[0]) < minToken {
		return k, fmt.Errorf("it is no token, which has at least %d characters and no space", minToken)
	}
	k.hash = sha256.Sum256([]byte(fields[0]))
	if len(fields) == 1 {
		return k, nil
	}
	if len(fields) != 3 || !bearerName.MatchString(fields[1]) {
		return k, errors.New("a line is a token, or a token, a name and roles with commas between them")
	}
	k.Name = fields[1]
	for role := range strings.SplitSeq(fields[2], ",") {
		if !slices.Contains([]Role{Judge, Read, Review, Operate}, Role(role)) {
			return k, fmt.Errorf("%q is no role: judge, read, review or operate", role)
		}
		k.roles = append(k.roles, Role(role))
	}
	return k, nil
}

const (
	minToken  = 16      // characters
	maxSecret = 1 << 20 // bytes of a file
)

// OpenTokens reads a file of tokens.
func OpenTokens(file string, log *slog.Logger) (*Tokens, error) {
	t := &Tokens{reread[[]known]{files: []string{file}}}
	t.read = func() ([]known, error) { return Secrets(file, "token", parseToken) }
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

// Bearer returns who has the token of a request: Authorization: Bearer TOKEN. How long it
// takes does not depend on the token. While the file cannot be read, or is wrong, nobody has.
func (t *Tokens) Bearer(r *http.Request) (found Bearer, ok bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return found, false
	}
	hash := sha256.Sum256([]byte(strings.TrimSpace(token)))
	for _, k := range t.get() {
		if subtle.ConstantTimeCompare(k.hash[:], hash[:]) == 1 {
			found, ok = k.Bearer, true
		}
	}
	return found, ok
}
