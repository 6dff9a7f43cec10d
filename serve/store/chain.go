package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/options"
)

// The audit trail
//
// Verdicts and reviews are numbered together from 1 on, in the order of storing:
// each is a line of the audit trail. The hash of a line is SHA-256 of the hash of the
// line before (32 zero bytes for the first) followed by
//
//	a verdict: "v" seq id time source name image detector model class
//	           confidence score p_value threshold ood
//	a review:  "r" seq id time by decision class
//
// where seq and time (microseconds since 1970) are 8 bytes, text is its length in 4
// bytes and its UTF-8, numbers are the 8 bytes of a float64 (NaN is 7ff8000000000000),
// ood is one byte, and the most significant byte comes first. The database has the
// fields as they are, each line's hash, and the head: number and hash of the last line.
//
// So whoever alters a field, removes or inserts a line, or cuts lines off at the end,
// by whatever means, is found out by Verify as long as he does not write all later
// hashes and the head anew. Someone who can write the database can do that: no record
// that lies in one place can prove anything against who owns the place. Against him
// a head that is kept elsewhere proves all lines up to it: `mlrbfn audit` prints it and
// takes earlier ones, and a file of them can be signed. Lines since the last head that
// was noted elsewhere are proven against accidents and against whoever does not know
// the chain, not against an owner. Features, images and states are not lines of the
// trail; an image is named by its own hash, which is.

type hash = [sha256.Size]byte

// lineHash collects the fields of a line.
type lineHash struct{ buf []byte }

func (l *lineHash) begin(previous hash, kind byte, seq int64) {
	l.buf = append(append(l.buf[:0], previous[:]...), kind)
	l.int(seq)
}

func (l *lineHash) int(v int64) { l.buf = binary.BigEndian.AppendUint64(l.buf, uint64(v)) }

func (l *lineHash) text(texts ...string) {
	for _, s := range texts {
		l.buf = append(binary.BigEndian.AppendUint32(l.buf, uint32(len(s))), s...)
	}
}

func (l *lineHash) floats(values ...float64) {
	for _, v := range values {
		bits := math.Float64bits(v)
		if v != v {
			bits = 0x7ff8 << 48
		}
		l.buf = binary.BigEndian.AppendUint64(l.buf, bits)
	}
}

// ofVerdict returns the hash of the line with a verdict as it comes from a database.
func (l *lineHash) ofVerdict(previous hash, seq int64, v *Verdict) hash {
	l.begin(previous, 'v', seq)
	l.text(v.ID)
	l.int(v.Time.UnixMicro())
	l.text(v.Source, v.Name, v.Image, v.Detector, v.Model, v.Class)
	l.floats(v.Confidence, v.Score, v.PValue, v.Threshold)
	ood := byte(0)
	if v.OOD {
		ood = 1
	}
	l.buf = append(l.buf, ood)
	return sha256.Sum256(l.buf)
}

// ofReview is ofVerdict of a review.
func (l *lineHash) ofReview(previous hash, seq int64, r *Review) hash {
	l.begin(previous, 'r', seq)
	l.text(r.ID)
	l.int(r.Time.UnixMicro())
	l.text(r.By, string(r.Decision), r.Class)
	return sha256.Sum256(l.buf)
}

// normal returns a verdict as every database gives it back.
func (v Verdict) normal() Verdict {
	for _, s := range []*string{&v.ID, &v.Source, &v.Name, &v.Image, &v.Detector, &v.Model, &v.Class} {
		*s = plain(*s)
	}
	for _, f := range []*float64{&v.Confidence, &v.Score, &v.PValue, &v.Threshold} {
		*f += 0 // −0 becomes 0
	}
	v.Time = micro(v.Time)
	return v
}

func (r Review) normal() Review {
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	r.ID, r.By, r.Class, r.Time = plain(r.ID), plain(r.By), plain(r.Class), micro(r.Time)
	return r
}

// plain replaces what is not UTF-8 and NUL bytes, which PostgreSQL refuses.
func plain(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}

func micro(t time.Time) time.Time { return time.UnixMicro(t.UnixMicro()).UTC() }

// BrokenError names the first line of an audit trail that is not as it was written.
type BrokenError struct {
	Seq  int64  // number of the line
	ID   string // of the verdict that the line is or is about; "" if the line is gone
	What string // what is wrong
}

func (e *BrokenError) Error() string {
	if e.ID != "" {
		return fmt.Sprintf("audit trail: line %d (verdict %s): %s", e.Seq, e.ID, e.What)
	}
	return fmt.Sprintf("audit trail: line %d: %s", e.Seq, e.What)
}

// String is the head in one word, as [ParseHead] reads it.
func (h Head) String() string { return fmt.Sprintf("%d:%s", h.Seq, h.Hash) }

// ParseHead reads what [Head.String] returns.
func ParseHead(text string) (Head, error) {
	var h Head
	seq, sum, ok := strings.Cut(text, ":")
	if ok {
		_, err := fmt.Sscanf(seq, "%d", &h.Seq)
		ok = err == nil && fmt.Sprint(h.Seq) == seq && h.Seq >= 0
	}
	if bytes, err := hex.DecodeString(sum); !ok || err != nil || len(bytes) != sha256.Size {
		return Head{}, fmt.Errorf("%q is no head of an audit trail, which is a number, a colon and 64 hexadecimal digits", text)
	}
	h.Hash = strings.ToLower(sum)
	return h, nil
}

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

// baseKey is the key of the head up to which lines of the audit trail went, and pruned what
// the lines are called that say so.
const (
	baseKey = "trail/base"
	pruned  = "prune"
)

// pruneLines is how many lines go at a time: others wait for it.
const pruneLines = 50_000

func (d *db) Prune(ctx context.Context, before time.Time, by string) (n int, err error) {
	err = d.inTx(ctx, func(tx *sql.Tx) error {
		seq, last, err := d.lockHead(ctx, tx)
		if err != nil {
			return err
		}
		base, err := d.base(ctx, tx)
		if err != nil {
			return err
		}
		until := min(seq, base.Seq+pruneLines)
		for _, table := range []string{"verdicts", "reviews"} {
			var first sql.NullInt64
			if err := tx.QueryRowContext(ctx, `SELECT min(seq) FROM `+table+` WHERE time >= $1 AND seq > $2`, before.UnixMicro(), base.Seq).Scan(&first); err != nil {
				return err
			}
			if first.Valid {
				until = min(until, first.Int64-1)
			}
		}
		if until <= base.Seq {
			return nil
		}
		var sum []byte
		if err := tx.QueryRowContext(ctx, `SELECT hash FROM verdicts WHERE seq = $1 UNION ALL SELECT hash FROM reviews WHERE seq = $1`, until).Scan(&sum); err != nil {
			return err
		}
		for _, statement := range []string{
			`DELETE FROM features WHERE seq > $1 AND seq <= $2 AND NOT EXISTS (SELECT 1 FROM verdicts v JOIN reviews r ON r.id = v.id WHERE v.seq = features.seq)`,
			`DELETE FROM verdicts WHERE seq > $1 AND seq <= $2 AND NOT EXISTS (SELECT 1 FROM reviews r WHERE r.id = verdicts.id)`,
		} {
			if _, err := tx.ExecContext(ctx, statement, base.Seq, until); err != nil {
				return err
			}
		}
		n = int(until - base.Seq)
		base = Head{until, hex.EncodeToString(sum)}
		value, err := json.Marshal(base)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO state (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value`, baseKey, value); err != nil {
			return err
		}
		line := Review{ID: pruned, Time: time.Now(), By: by, Decision: Acted, Class: fmt.Sprintf("%d lines up to %s", n, base)}.normal()
		var lines lineHash
		last = lines.ofReview(last, seq+1, &line)
		if _, err := tx.ExecContext(ctx, `INSERT INTO reviews (seq, id, time, reviewer, decision, class, hash) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			seq+1, line.ID, line.Time.UnixMicro(), line.By, string(line.Decision), line.Class, last[:]); err != nil {
			return err
		}
		return setHead(ctx, tx, seq+1, last)
	})
	return n, err
}

// base is the head up to which lines went; the zero one where none did.
func (d *db) base(ctx context.Context, in queried) (base Head, err error) {
	var value []byte
	err = in.QueryRowContext(ctx, `SELECT value FROM state WHERE key = $1 AND value IS NOT NULL`, baseKey).Scan(&value)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return base, nil
	case err != nil:
		return base, err
	}
	if err := json.Unmarshal(value, &base); err != nil || base.Seq < 1 || len(base.Hash) != 2*len(hash{}) {
		return base, &BrokenError{Seq: 1, What: "what is noted of the lines that went cannot be read"}
	}
	return base, nil
}

// begins returns where the lines begin that there are, and the hash of the line before: a line
// of the trail itself says so where some went.
func (d *db) begins(ctx context.Context) (base Head, last hash, err error) {
	if base, err = d.base(ctx, d.read); err != nil || base.Seq == 0 {
		return base, last, err
	}
	var says string
	err = d.read.QueryRowContext(ctx, `SELECT class FROM reviews WHERE id = $1 AND decision = $2 ORDER BY seq DESC LIMIT 1`, pruned, string(Acted)).Scan(&says)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return base, last, err
	}
	sum, err := hex.DecodeString(base.Hash)
	if copy(last[:], sum); err != nil || !strings.HasSuffix(says, " "+base.String()) {
		return base, last, &BrokenError{Seq: base.Seq, What: "it and the lines before it went, and no line of the trail says so"}
	}
	return base, last, nil
}

func (d *db) Backup(ctx context.Context, file string) error {
	if d.postgres {
		return options.Errorf("Store", "PostgreSQL has its own tools for this: pg_dump and pg_restore")
	}
	if d.readOnly {
		return errReadOnly
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // SQLite takes one that is empty
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if _, err := d.write.ExecContext(ctx, `VACUUM INTO $1`, file); err != nil {
		return errors.Join(fmt.Errorf("backup: %w", err), os.Remove(file))
	}
	return nil
}

func (d *db) Compact(ctx context.Context) error {
	if d.postgres {
		return nil
	}
	if d.readOnly {
		return errReadOnly
	}
	_, err := d.write.ExecContext(ctx, `VACUUM`)
	return err
}
