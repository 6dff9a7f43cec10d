package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"slices"
)

// line is a line of the audit trail as it lies in the database.
type line struct {
	seq     int64
	verdict *Verdict // or
	review  *Review
	hash    []byte
}

func (l *line) id() string {
	if l.verdict != nil {
		return l.verdict.ID
	}
	return l.review.ID
}

// linesAtATime is how many lines Verify reads at a time. No reading lasts long, so that
// SQLite can go on emptying its log.
const linesAtATime = 4096

func (d *db) Verify(ctx context.Context, known ...Head) (Head, error) {
	head, highest, err := d.ends(ctx)
	if err != nil {
		return head, err
	}
	expected := make(map[int64]string, len(known))
	for _, k := range known {
		if other, ok := expected[k.Seq]; ok && other != k.Hash {
			return head, fmt.Errorf("two different heads %d are given: one of them belongs to another store", k.Seq)
		}
		expected[k.Seq] = k.Hash
	}
	base, last, err := d.begins(ctx)
	if err != nil {
		return head, err
	}
	var lines lineHash
	check := func(seq int64) error {
		if want, ok := expected[seq]; ok && want != hex.EncodeToString(last[:]) && seq > 0 {
			return &BrokenError{Seq: seq, What: "it, or a line before it, is not the one that was noted as the head " + Head{seq, want}.String()}
		}
		return nil
	}
	for _, k := range known {
		if k.Seq > 0 && k.Seq < base.Seq {
			return head, &BrokenError{Seq: k.Seq, What: "it went with all lines up to " + base.String() + ", and nothing is left to prove it by"}
		}
	}
	if err := check(base.Seq); err != nil {
		return head, err
	}
	for next := base.Seq + 1; next <= head.Seq; {
		until := min(next+linesAtATime-1, head.Seq)
		block, err := d.lines(ctx, next, until)
		if err != nil {
			return head, err
		}
		for i := range block {
			l := &block[i]
			if l.seq > next {
				break // a line is missing
			}
			if l.seq < next {
				return head, &BrokenError{Seq: l.seq, ID: l.id(), What: "there are two lines of that number"}
			}
			sum := lines.of(last, l)
			if string(sum[:]) != string(l.hash) {
				return head, &BrokenError{Seq: l.seq, ID: l.id(), What: "it was altered, or a line before it was: its hash is another"}
			}
			last = sum
			if err := check(next); err != nil {
				return head, err
			}
			next++
		}
		if next <= until {
			return head, &BrokenError{Seq: next, What: "it is missing"}
		}
	}
	if head.Hash != hex.EncodeToString(last[:]) {
		return head, &BrokenError{Seq: head.Seq, What: "it is not the line that the head names"}
	}
	if highest > head.Seq {
		return head, &BrokenError{Seq: head.Seq + 1, What: "it comes after the last line that the head names"}
	}
	for _, k := range known {
		if k.Seq > head.Seq {
			return head, &BrokenError{Seq: head.Seq + 1, What: fmt.Sprintf("it is missing: the trail had %d lines when its head was noted", k.Seq)}
		}
	}
	return head, nil
}

func (l *lineHash) of(previous hash, at *line) hash {
	if at.verdict != nil {
		return l.ofVerdict(previous, at.seq, at.verdict)
	}
	return l.ofReview(previous, at.seq, at.review)
}

// lines returns the lines from one number to another, ascending.
func (d *db) lines(ctx context.Context, from, until int64) ([]line, error) {
	var all []line
	if err := query(ctx, d.read, func(row *sql.Rows) error {
		l := line{verdict: &Verdict{}}
		err := row.Scan(append(fieldsOf(&l.seq, l.verdict), &l.hash)...)
		all = append(all, l)
		return err
	}, `SELECT `+columns+`, hash FROM verdicts WHERE seq >= $1 AND seq <= $2`, from, until); err != nil {
		return nil, err
	}
	if err := query(ctx, d.read, func(row *sql.Rows) error {
		l := line{review: &Review{}}
		err := row.Scan(&l.seq, &l.review.ID, instant{&l.review.Time}, &l.review.By, &l.review.Decision, &l.review.Class, &l.hash)
		all = append(all, l)
		return err
	}, `SELECT seq, id, time, reviewer, decision, class, hash FROM reviews WHERE seq >= $1 AND seq <= $2`, from, until); err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b line) int { return cmp.Compare(a.seq, b.seq) })
	return all, nil
}
