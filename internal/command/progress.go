package command

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Progress shows the progress of a command: on a terminal as one line that is
// rewritten, otherwise as lines that become rarer. Several goroutines may use it. A
// nil Progress shows nothing.
type Progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	unit     string
	start    time.Time // of the command
	shown    time.Time
	done     int
	from     time.Time // of the first update; what was done before it has no part in the rate
	before   int       // done at that time
	line     string
	last     string // line that was shown last
	phase    string
	follower Follower
}

// Follower is a writer that would rather be told how far a command is than be written
// lines about it. What names the work; a total below 0 is not known.
type Follower interface {
	Follow(what string, done, total int)
}

// NewProgress returns a Progress that counts units ("images") on w, or nil if
// quiet. For Progress.Phase the unit follows from the phase.
func NewProgress(w io.Writer, unit string, quiet bool) *Progress {
	if quiet {
		return nil
	}
	if p, ok := w.(people); ok { // the bar moves the cursor, and escapes its own text
		w = p.w
	}
	follower, _ := w.(Follower)
	return &Progress{w: w, terminal: IsTerminal(w), unit: unit, start: time.Now(), follower: follower}
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	if p, ok := w.(people); ok {
		w = p.w
	}
	f, ok := w.(*os.File)
	return ok && isTerminal(f)
}

// Update shows that done of total units are done, with a note. A total below 0 is
// not known yet. Rates count from the first call on.
func (p *Progress) Update(done, total int, note string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.follower != nil {
		p.follower.Follow(cmp.Or(p.phase, p.unit), done, total)
		return
	}
	now := time.Now()
	if p.from.IsZero() {
		p.from, p.before = now, done
	}
	// Several goroutines count, and may come here out of turn.
	p.done = max(p.done, done)
	p.line = escape(p.render(p.done, total, note))
	if every := p.every(now.Sub(p.start)); now.Sub(p.shown) >= every && (p.terminal || now.Sub(p.start) >= every) {
		p.shown = now
		p.show()
	}
}

// Count is Update without a note.
func (p *Progress) Count(done, _, total int) { p.Update(done, total, "") }

// every is the time between two lines of a command that runs for so long: an hour
// prints about 20.
func (p *Progress) every(running time.Duration) time.Duration {
	if p.terminal {
		return 100 * time.Millisecond
	}
	return min(max(5*time.Second, running/5), 5*time.Minute)
}

// Say prints a line above the bar.
func (p *Progress) Say(line string) {
	if p == nil || p.follower != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	line = escape(line)
	if p.terminal {
		line = "\r\033[K" + line
	}
	fmt.Fprintln(p.w, line)
	p.last = "" // the bar is shown anew
}

// Phase is Update for work in several phases, each of which counts from 0 and takes
// the line of the one before: folds where the name what has that word or "hold-out" or
// ends in "labels", epochs where it ends in "training", images where it ends in
// "images" or "features", values where it is a choice, else sets.
func (p *Progress) Phase(what string, done, total int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	if what != p.phase {
		p.phase, p.from, p.done, p.line = what, time.Time{}, 0, ""
		switch {
		case strings.HasSuffix(what, "training"):
			p.unit = "epochs"
		case strings.Contains(what, "folds"), strings.Contains(what, "hold-out"), strings.HasSuffix(what, "labels"):
			p.unit = "folds"
		case strings.HasPrefix(what, "choice"):
			p.unit = "values"
		case strings.HasSuffix(what, "images"), strings.HasSuffix(what, "features"):
			p.unit = "images"
		default:
			p.unit = "sets"
		}
	}
	p.mu.Unlock()
	p.Update(done, total, what)
}

// Close shows the last state, if it is worth a line, and ends the bar.
func (p *Progress) Close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finish()
}

// finish ends the line that is being shown.
func (p *Progress) finish() {
	if p.line == "" {
		return
	}
	p.show()
	if p.terminal {
		fmt.Fprintln(p.w)
	}
	p.line = ""
}

func (p *Progress) show() {
	if p.line == p.last {
		return
	}
	p.last = p.line
	if p.terminal {
		// A line that wraps could not be written over.
		line := []rune(p.line)
		if f, ok := p.w.(*os.File); ok {
			if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 1 && len(line) >= width {
				line = line[:width-1]
			}
		}
		fmt.Fprintf(p.w, "\r\033[K%s", string(line))
		return
	}
	fmt.Fprintln(p.w, p.line)
}

func (p *Progress) render(done, total int, note string) string {
	var b strings.Builder
	if p.terminal && total > 0 {
		const width = 24
		full := width * done / total
		fmt.Fprintf(&b, "[%s%s] ", strings.Repeat("█", full), strings.Repeat("·", width-full))
	}
	fmt.Fprintf(&b, "%d", done)
	if total >= 0 {
		fmt.Fprintf(&b, "/%d", total)
	}
	b.WriteString(" " + p.unit)
	if done > p.before {
		rate := float64(done-p.before) / time.Since(p.from).Seconds()
		format := ", %.3g %s/s"
		if rate >= 100 {
			format = ", %.0f %s/s"
		}
		fmt.Fprintf(&b, format, rate, p.unit)
		if total > done {
			left := time.Duration(float64(total-done) / rate * float64(time.Second))
			fmt.Fprintf(&b, ", %s left", left.Round(time.Second))
		}
	}
	if total < 0 {
		b.WriteString(", more are being found")
	}
	if note != "" {
		b.WriteString(", " + note)
	}
	return b.String()
}
