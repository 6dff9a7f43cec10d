package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"time"
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
