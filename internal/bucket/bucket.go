// Package bucket reads objects of object stores and web servers by their
// URLs: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX and https://HOST/PATH.
//
// A program chooses which kinds of stores it knows by importing their packages:
//
//	import _ "github.com/mlrbfn/mlrbfn/bucket/s3" // s3://, gs://, https:// and http://
//
// [Open] opens a folder, and its methods take names below that. All requests are
// retried with growing pauses when a store is busy or a connection breaks, are cut off
// when no byte comes for a time, and are bounded in number; see [Limits].
package bucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"
)

// An Object is a file of a store.
type Object struct {
	Name     string // below the folder that was asked, with forward slashes
	Size     int64
	Modified time.Time
	ETag     string // changes with the content; "" if the store has none
	// Whole says that the store was asked for a part of it and sends nothing but all: what
	// begins in the middle takes as long as reading from the start.
	Whole bool
}

// A Driver sends requests to one bucket, or to one web server. Each call is one attempt;
// the caller retries. Keys are complete. An error for an object that does not exist wraps
// [fs.ErrNotExist], one for missing rights [fs.ErrPermission]; one that may pass is
// marked by [Temporary].
type Driver interface {
	// List returns a page of the objects whose key starts with prefix, in the order of
	// the keys' bytes, and how the next page is asked for; "" after the last. The
	// first has the page "".
	List(ctx context.Context, prefix, page string) (objects []Object, next string, err error)
	// Get opens the bytes of an object from an offset on, n of them or with −1 all.
	// Where etag is not "" the object must still have that; [ErrChanged] says that
	// it has another. The Object that is returned is that of the whole.
	Get(ctx context.Context, key string, from, n int64, etag string) (io.ReadCloser, Object, error)
}

// Errors to be tested for with errors.Is.
var (
	// ErrChanged says that an object was replaced while it was read.
	ErrChanged = errors.New("the object was replaced while it was read")
	// ErrUnknown says that the program does not know the kind of a URL.
	ErrUnknown = errors.New("not a kind of store that this program knows")
	// ErrNoList says that a kind of store cannot be listed.
	ErrNoList = errors.New("a web server cannot be listed")
	// ErrSize says that an object is larger than its kind may be.
	ErrSize = errors.New("too large")
	// ErrStalled says that a store sent no byte for too long.
	ErrStalled = errors.New("no byte came for too long")
)

// temporary marks errors that may pass.
type temporary struct{ error }

func (t temporary) Unwrap() error { return t.error }

// Temporary marks an error of a [Driver] as one that may pass: the request is sent again.
func Temporary(err error) error { return temporary{err} }

// StatusError returns the error that an HTTP status stands for, nil below 300: one that
// may pass for 408, 429 and from 500 on.
func StatusError(status int, text string) error {
	err := fmt.Errorf("the store says %s", text)
	switch {
	case status < 300:
		return nil
	case status == 404 || status == 410:
		return fmt.Errorf("%w: %w", err, fs.ErrNotExist)
	case status == 401 || status == 403:
		return fmt.Errorf("%w: %w", err, fs.ErrPermission)
	case status == 412 || status == 416:
		return fmt.Errorf("%w: %w", err, ErrChanged)
	case status == 408 || status == 429 || status >= 500:
		return Temporary(err)
	}
	return err
}

// Limits bound the requests to one bucket. The zero value of a field is its default.
type Limits struct {
	Requests int           // in flight at once; 64
	Attempts int           // for a request; 8
	Pause    time.Duration // before the second attempt, and doubled before each other up to 100 times as much; 100 ms
	Stall    time.Duration // without a byte after which a request is cut off; 30 s
}

func (l Limits) orDefault() Limits {
	return Limits{cmp.Or(l.Requests, 64), cmp.Or(l.Attempts, 8), cmp.Or(l.Pause, 100*time.Millisecond), cmp.Or(l.Stall, 30*time.Second)}
}

// A Location is a URL in parts.
type Location struct {
	Scheme string // s3, gs, https or http
	Bucket string // or the host of a web server
	Key    string // without a slash in front
}

func (l Location) String() string { return l.Scheme + "://" + l.Bucket + "/" + l.Key }

// IsURL tells whether a path is the URL of an object or a folder of a store.
func IsURL(path string) bool {
	scheme, _, ok := strings.Cut(path, "://")
	return ok && slices.Contains([]string{"s3", "gs", "https", "http"}, scheme)
}

// Parse is the inverse of [Location.String].
func Parse(url string) (Location, error) {
	scheme, rest, _ := strings.Cut(url, "://")
	host, key, _ := strings.Cut(rest, "/")
	if !IsURL(url) || host == "" {
		return Location{}, fmt.Errorf("%q is not SCHEME://BUCKET/NAME: %w", url, ErrUnknown)
	}
	return Location{scheme, host, key}, nil
}

// kinds are the drivers that were registered, and stores the buckets that were opened.
var (
	mu     sync.Mutex
	kinds  = map[string]func(context.Context, Location) (Driver, error){}
	stores = map[[2]string]*store{}
	limits Limits
)

// Register makes a kind of store known, by the scheme of its URLs.
func Register(scheme string, open func(context.Context, Location) (Driver, error)) {
	mu.Lock()
	defer mu.Unlock()
	kinds[scheme] = open
}

// SetLimits sets the limits for buckets that are opened from now on.
func SetLimits(l Limits) {
	mu.Lock()
	defer mu.Unlock()
	limits, stores = l, map[[2]string]*store{}
}

// A Folder is a bucket, or what in it has a name that starts with a prefix. Its methods
// may be called from several goroutines.
type Folder struct {
	store  *store
	at     Location
	prefix string // "" or ends with a slash
}

// Open opens the folder at a URL. It sends no request for it: objects that do not exist
// are found out when they are read.
func Open(ctx context.Context, url string) (*Folder, error) {
	at, err := Parse(url)
	if err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	id := [2]string{at.Scheme, at.Bucket}
	s := stores[id]
	if s == nil {
		open := kinds[at.Scheme]
		if open == nil {
			return nil, fmt.Errorf("%s: %w", url, ErrUnknown)
		}
		driver, err := open(ctx, at)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", url, err)
		}
		s = newStore(driver, limits)
		stores[id] = s
	}
	if at.Key != "" && !strings.HasSuffix(at.Key, "/") {
		at.Key += "/"
	}
	return &Folder{s, at, at.Key}, nil
}

// OpenObject opens the folder that the object at a URL is in, and returns its name there.
func OpenObject(ctx context.Context, url string) (*Folder, string, error) {
	at, err := Parse(url)
	if err != nil {
		return nil, "", err
	}
	path, _, _ := strings.Cut(at.Key, "?") // a web server's
	slash := strings.LastIndex(path, "/") + 1
	name := at.Key[slash:]
	if path[slash:] == "" {
		return nil, "", fmt.Errorf("%s is a folder and not an object", url)
	}
	at.Key = at.Key[:slash]
	f, err := Open(ctx, at.String())
	return f, name, err
}

// ReadFile reads the object at a URL of up to limit bytes.
func ReadFile(ctx context.Context, url string, limit int64) ([]byte, Object, error) {
	f, name, err := OpenObject(ctx, url)
	if err != nil {
		return nil, Object{}, err
	}
	return f.Read(ctx, name, limit)
}

// String returns the folder's URL, which ends with a slash.
func (f *Folder) String() string { return f.at.String() }

// URL returns the URL of an object in the folder.
func (f *Folder) URL(name string) string { return f.at.String() + name }

// Sub returns a folder in the folder.
func (f *Folder) Sub(name string) *Folder {
	sub := *f
	sub.prefix += strings.TrimSuffix(name, "/") + "/"
	sub.at.Key = sub.prefix
	return &sub
}
