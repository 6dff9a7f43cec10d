package serve

import (
	"cmp"
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
)

// answer is the JSON object for one image. Its fields are those of detect --json, and
// the service's own.
type answer struct {
	ID                    string `json:"id"`
	Path                  string `json:"path"` // what the client called the image
	Detector              string `json:"detector"`
	*detector.Verdict            // nil with an error
	Stored                *bool  `json:"stored,omitempty"` // absent where nothing is remembered
	Error                 string `json:"error,omitempty"`
	*detector.Explanation        // with ?explain=1
}

// judging is what requests ask of what judges.
type judging interface {
	all(ctx context.Context, d *pool.Used, source string, pictures []picture) []outcome
	rows(ctx context.Context, d *pool.Loaded, source string, rows []float32) ([]outcome, error)
	addReasons(ctx context.Context, d *pool.Loaded, outcomes []outcome)
	seats(context.Context) *seats
}

// judgeRequests are the requests that have images or features judged.
type judgeRequests struct {
	detectors detectors
	judge     judging
	explain   func(context.Context, error) (status int, text string)
	metrics   *metrics
	stores    bool // verdicts are remembered
	maxBody   int64
	maxImages int
}

// detect answers POST /v1/detect: the body is an image, or a form (multipart/form-data)
// with several. One image is answered with an object, a form with {"results": […]} in
// its order.
func (q *judgeRequests) detect(ctx context.Context, r *http.Request) (any, error) {
	source, err := sourceOf(r)
	if err != nil {
		return nil, err
	}
	why, err := explains(r)
	if err != nil {
		return nil, err
	}
	d, err := used(q.detectors, r.URL.Query().Get("detector"))
	if err != nil {
		return nil, err
	}
	defer d.Release()
	seats := q.judge.seats(ctx)
	defer seats.leave()
	start := time.Now()
	pictures, several, err := q.pictures(r, seats)
	if err != nil {
		return nil, err
	}
	q.metrics.stage("read", start)
	outcomes := q.judge.all(ctx, d, source, pictures)
	if why {
		q.judge.addReasons(ctx, d.Loaded, outcomes)
	}
	answers := make([]answer, len(outcomes))
	worst, good := 0, false
	for i := range outcomes {
		o, a := &outcomes[i], &answers[i]
		*a = answer{ID: o.id, Path: o.name, Detector: d.Name}
		if o.err != nil {
			var status int
			status, a.Error = q.explain(ctx, o.err)
			worst = max(worst, status)
			continue
		}
		good = true
		a.Verdict, a.Explanation = &o.Verdict, o.reasons
		if q.stores {
			a.Stored = &o.stored
		}
	}
	switch {
	case !several && !good:
		return nil, &statusError{worst, answers[0].Error}
	case !several:
		return answers[0], nil
	case good:
		worst = http.StatusOK
	}
	return withStatus{worst, map[string][]answer{"results": answers}}, nil
}

// explains tells whether a request asks why.
func explains(r *http.Request) (bool, error) {
	text := r.URL.Query().Get("explain")
	why, err := strconv.ParseBool(cmp.Or(text, "0"))
	if err != nil {
		return false, refuse(http.StatusBadRequest, "explain is 1 or 0")
	}
	return why, nil
}

// used returns the detector with a name. It must be released.
func used(open detectors, name string) (*pool.Used, error) {
	d := open.Use(name)
	if d == nil {
		return nil, refuse(http.StatusNotFound, "there is no detector %q", name)
	}
	return d, nil
}

// bound bounds the body of a request. One that says that it is too large is refused
// before it is read.
func (q *judgeRequests) bound(r *http.Request) error {
	if r.ContentLength > q.maxBody {
		return &http.MaxBytesError{Limit: q.maxBody}
	}
	r.Body = http.MaxBytesReader(nil, r.Body, q.maxBody)
	return nil
}

// readAll reads what a client sends, of so many bytes or −1 if that is not known. It takes
// memory as the bytes come. What goes wrong there is the client's fault.
func readAll(r io.Reader, size int64, seats *seats) ([]byte, error) {
	const first = 16 << 10 // bytes to begin with; a client may claim anything
	var data []byte
	for {
		if len(data) == cap(data) {
			room := max(first, 2*cap(data))
			if size >= 0 {
				room = min(room, int(size)+1)
			}
			if room <= cap(data) {
				room = 2 * cap(data) // it is more than was said
			}
			if err := seats.take(0, int64(room-cap(data))); err != nil {
				return nil, err
			}
			data = append(make([]byte, 0, room), data...)
		}
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err == io.EOF {
			return data, nil
		}
		if err != nil {
			return nil, readError(err)
		}
	}
}

func readError(err error) error {
	var tooLarge *http.MaxBytesError
	var network net.Error
	switch {
	case errors.As(err, &tooLarge):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return refuse(http.StatusRequestTimeout, "the request came too slowly")
	}
	return refuse(http.StatusBadRequest, "the request could not be read")
}

// pictures reads the images of a request, and takes places for them when they were read: who
// is slow keeps nobody out. What is read takes bounded memory.
func (q *judgeRequests) pictures(r *http.Request, seats *seats) (all []picture, several bool, err error) {
	defer func() {
		if err == nil {
			err = seats.take(len(all), 0)
		}
	}()
	if err := q.bound(r); err != nil {
		return nil, false, err
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != "multipart/form-data" {
		data, err := readAll(r.Body, r.ContentLength, seats)
		if err == nil && len(data) == 0 {
			err = refuse(http.StatusBadRequest, "the request has no image in it")
		}
		return []picture{{name: nameOf(r.URL.Query().Get("name")), data: data}}, false, err
	}
	form, err := r.MultipartReader()
	if err != nil {
		return nil, true, refuse(http.StatusBadRequest, "the form cannot be read: %v", err)
	}
	for {
		part, err := form.NextRawPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, true, readError(err)
		}
		if len(all) == q.maxImages {
			return nil, true, refuse(http.StatusRequestEntityTooLarge, "a request may have %d images", q.maxImages)
		}
		data, err := readAll(part, -1, seats)
		if err != nil {
			return nil, true, err
		}
		all = append(all, picture{name: nameOf(cmp.Or(part.FileName(), part.FormName())), data: data})
	}
	if len(all) == 0 {
		return nil, true, refuse(http.StatusBadRequest, "the request has no image in it")
	}
	return all, true, nil
}

// maxName bounds the name of an image, in bytes.
const maxName = 1024

// nameOf is a name that a client gave, as text that is safe to keep.
func nameOf(name string) string {
	name = strings.ToValidUTF8(strings.ReplaceAll(name, "\x00", "\ufffd"), "\ufffd")
	for len(name) > maxName {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return name
}
