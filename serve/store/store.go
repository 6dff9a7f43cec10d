// Package store remembers what a service judged, and what people said about it.
//
// A [Store] keeps every verdict and every review in a database: SQLite in one file,
// or PostgreSQL, which several replicas may share. The lines of verdicts and reviews
// are an audit trail: each has the hash of the line before it, and [Store.Verify]
// proves that none was altered or dropped. A [Queue] adds verdicts in groups, and
// never makes its caller wait for a database that is gone. [Images] keeps the files
// of images beside it.
//
// The package knows nothing of HTTP.
package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// Errors of a store.
var (
	// ErrNotFound says that a store has no verdict of an id, or no value of a key.
	ErrNotFound = errors.New("not in the store")
	// ErrNotStored is wrapped by the errors of [Queue.Add]: the verdict may be lost.
	ErrNotStored = errors.New("not stored")
	// ErrNewer says that a newer version of this program wrote the store.
	ErrNewer = errors.New("the store was written by a newer version of this program")
)

// Verdict is a detector's verdict on one image.
//
// Text is kept as UTF-8 without NUL bytes (anything else is replaced), times to the
// microsecond, and −0 as 0, since databases differ there.
type Verdict struct {
	ID       string    `json:"id"`       // unique; [NewID] makes one
	Time     time.Time `json:"time"`     // when the image was judged
	Source   string    `json:"source"`   // where images come from: a camera, a client, a folder
	Name     string    `json:"name"`     // what the image is called there; may be ""
	Image    string    `json:"image"`    // SHA-256 of the image file, in hexadecimal digits
	Detector string    `json:"detector"` // fingerprint of the detector file
	Model    string    `json:"model"`    // fingerprint of the backbone and its preprocessing

	detector.Verdict         // its Label is not kept
	Threshold        float64 `json:"threshold"` // that the score was compared with

	// Features are those of the image, for learning and for what another detector
	// would say; nil keeps none. They are no part of the audit trail, and [Store.Get]
	// and [Store.List] do not return them: see [Store.Features].
	Features []float32 `json:"-"`
}

// Decision is the kind of a [Review].
type Decision string

// The decisions.
const (
	IsClass Decision = "class" // it is of the class of the review, one that the detector knows
	IsNew   Decision = "new"   // it is of a class of that name, which the detector does not know
	IsFine  Decision = "fine"  // it is of the class that the verdict says, flagged or not
	IsJunk  Decision = "junk"  // it is nothing that one could learn from
	Undo    Decision = "undo"  // the review before counts no more: there is none
	// Acted is no review of a verdict: who operates a service did something. ID says what
	// it was, and Class with what.
	Acted Decision = "acted"
)

// Review is a person's decision on the image of one verdict. The latest of a
// verdict counts; none is ever removed.
type Review struct {
	ID       string    `json:"id"`   // of the verdict
	Time     time.Time `json:"time"` // when it was said; the zero time means now
	By       string    `json:"by"`   // who said it; may be ""
	Decision Decision  `json:"decision"`
	Class    string    `json:"class,omitempty"` // of IsClass and IsNew
}

// Record is a verdict with the review that counts, nil if there is none.
type Record struct {
	Verdict
	Seq    int64   `json:"seq"` // number of the line in the audit trail, ascending in the order of storing
	Review *Review `json:"review,omitempty"`
}

// Order is that of a list.
type Order int

// The orders.
const (
	Newest    Order = iota // last stored first
	Oldest                 // first stored first
	Strangest              // lowest p-value first, and lowest score where they are equal
)

// Query says which verdicts are meant. The zero value of each field leaves nothing
// out.
type Query struct {
	From, To           time.Time // From ≤ time < To
	Source, Class      string
	Detector, Image    string
	OOD, Reviewed      *bool      // Reviewed: whether there is a review that counts
	Decisions          []Decision // of the review that counts
	AfterSeq, UntilSeq int64      // AfterSeq < seq ≤ UntilSeq
	WithFeatures       bool       // only those whose features are kept

	Order Order
	Limit int // how many at most; 0 means 100
	Skip  int // how many of the first to leave out; for Newest and Oldest AfterSeq and UntilSeq are faster
}

// PBins is how many bins of equal width a histogram of p-values has.
const PBins = 20

// Count counts the verdicts of one source and class in one span of time.
type Count struct {
	Start      time.Time  `json:"start"` // of the span; the zero time where there is only one
	Source     string     `json:"source"`
	Class      string     `json:"class"`
	N          int        `json:"n"`
	OOD        int        `json:"ood"`
	MeanPValue float64    `json:"mean_p_value"`
	PValues    [PBins]int `json:"p_values"` // how many p-values lie in each bin of [0, 1]
}

// Head names the last line of an audit trail. Whoever notes it elsewhere can prove
// later that nothing up to that line was altered or dropped.
type Head struct {
	Seq  int64  `json:"seq"`  // how many lines there are
	Hash string `json:"hash"` // of the last line, in hexadecimal digits
}

// Store remembers verdicts, reviews, and small values. Any number of goroutines may
// use one, and several processes may open the same.
type Store interface {
	// Add stores verdicts. When it returns nil, they outlive a crash of the process
	// and of the machine. Otherwise either none or all of them are stored. A verdict
	// whose id is stored already is passed over, so that Add may be tried again.
	Add(ctx context.Context, verdicts []Verdict) error
	// Review stores reviews, as durable as Add. The error wraps ErrNotFound where a
	// verdict is not in the store; then none is stored.
	Review(ctx context.Context, reviews []Review) error

	// Get returns one verdict; the error wraps ErrNotFound if there is none.
	Get(ctx context.Context, id string) (Record, error)
	// Has returns which of these ids verdicts have.
	Has(ctx context.Context, ids []string) (map[string]bool, error)
	// List returns the verdicts that a query means.
	List(ctx context.Context, q Query) ([]Record, error)
	// Count counts the verdicts that a query means, without its order and limit, by
	// source, class and spans of time; step 0 makes one span. Seconds are the
	// shortest.
	Count(ctx context.Context, q Query, step time.Duration) ([]Count, error)
	// Reviews returns all reviews of a verdict, the first first.
	Reviews(ctx context.Context, id string) ([]Review, error)
	// Features returns the features of verdicts by id; those without are missing.
	Features(ctx context.Context, ids []string) (map[string][]float32, error)
	// DropFeatures removes the features of the verdicts without a review that were
	// stored before a line of the audit trail, and returns of how many.
	DropFeatures(ctx context.Context, before int64) (int, error)
	// Prune removes the oldest lines of the audit trail, as far as all of them are of before
	// a time, but for verdicts with a review and for reviews. A line that by adds says up to
	// which head they were, and Verify begins there. It returns how many lines went, not all
	// at once: 0 says that none is left.
	Prune(ctx context.Context, before time.Time, by string) (int, error)
	// Compact gives the place of what was removed back to the disk, which PostgreSQL does by
	// itself.
	Compact(ctx context.Context) error
	// Backup writes a copy of an SQLite store to a file that does not exist yet, while others
	// use the store.
	Backup(ctx context.Context, file string) error

	// State returns the value of a key; the error wraps ErrNotFound if there is none.
	State(ctx context.Context, key string) ([]byte, error)
	// States returns the values of all keys that begin with a prefix.
	States(ctx context.Context, prefix string) (map[string][]byte, error)
	// SetState sets the value of a key, which all replicas see.
	SetState(ctx context.Context, key string, value []byte) error
	// UpdateState replaces the value of a key by what change makes of it (nil if
	// there is none yet), with no other change in between by any replica. change may
	// be called again if the store asks for it, so it must have no other effect.
	UpdateState(ctx context.Context, key string, change func(old []byte) ([]byte, error)) error

	// Head returns the last line of the audit trail.
	Head(ctx context.Context) (Head, error)
	// Verify proves that no line up to the head, which it returns, was altered or
	// dropped, and that the lines of known are as they were when they were the head.
	// A *BrokenError names the first line that is not as it was. See the text on the
	// audit trail for what this proves and what it cannot.
	Verify(ctx context.Context, known ...Head) (Head, error)

	// Ping returns an error while the store cannot be used.
	Ping(ctx context.Context) error
	// Close ends the use of the store.
	Close() error
}

// Value returns the JSON value of a key, the zero one if there is none.
func Value[T any](ctx context.Context, s Store, key string) (v T, err error) {
	data, err := s.State(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return v, nil
	}
	if err == nil && len(data) > 0 {
		err = json.Unmarshal(data, &v)
	}
	return v, err
}

// UpdateValue is [Store.UpdateState] of a JSON value, which is the zero one if there is none.
func UpdateValue[T any](ctx context.Context, s Store, key string, change func(*T) error) error {
	return s.UpdateState(ctx, key, func(old []byte) ([]byte, error) {
		var v T
		if len(old) > 0 {
			if err := json.Unmarshal(old, &v); err != nil {
				return nil, err
			}
		}
		if err := change(&v); err != nil {
			return nil, err
		}
		return json.Marshal(v)
	})
}

// NewID returns an id for a verdict: a UUID of version 7. Those of one process sort by
// time, which keeps the index of a database compact.
func NewID() string { return uuid.Must(uuid.NewV7()).String() } // which never fails
