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

// answerOf makes the answer for an image, and its status.
func (s *Server) answerOf(ctx context.Context, d *pool.Loaded, o outcome) (answer, int) {
	a := answer{ID: o.id, Path: o.name, Detector: d.Name}
	if o.err != nil {
		var status int
		status, a.Error = s.explain(ctx, o.err)
		return a, status
	}
	a.Verdict = &o.Verdict
	if s.opts.Store != nil {
		a.Stored = &o.stored
	}
	a.Explanation = o.reasons
	return a, http.StatusOK
}

// detect answers POST /v1/detect: the body is an image, or a form (multipart/form-data)
// with several. One image is answered with an object, a form with {"results": […]} in
// its order.
func (s *Server) detect(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.Timeout)
	defer cancel()
	source, err := sourceOf(r)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	why, err := explains(r)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	main, shadow, err := s.use(r.URL.Query().Get("detector"))
	if err != nil {
		s.failed(w, r, err)
		return
	}
	defer main.Release()
	defer shadow.Release()
	seats := seats{places: s.places}
	defer seats.leave()
	start := time.Now()
	pictures, several, err := s.pictures(w, r, &seats)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	s.metrics.stage("read", start)
	s.wasRead(w)
	outcomes := s.all(ctx, main, shadow, source, pictures)
	if why {
		s.addReasons(ctx, main, outcomes)
	}
	if !several {
		a, status := s.answerOf(ctx, main, outcomes[0])
		if status != http.StatusOK {
			s.fail(w, r, status, a.Error)
			return
		}
		writeJSON(w, status, a)
		return
	}
	var answers struct {
		Results []answer `json:"results"`
	}
	worst, good := 0, false
	for _, o := range outcomes {
		a, status := s.answerOf(ctx, main, o)
		answers.Results = append(answers.Results, a)
		worst, good = max(worst, status), good || status == http.StatusOK
	}
	if good {
		worst = http.StatusOK
	}
	writeJSON(w, worst, answers)
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

// used returns the detector with a name, and its shadow.
func used(d detectors, name string) (main, shadow *pool.Loaded, err error) {
	if main, shadow = d.Use(name); main == nil {
		return nil, nil, refuse(http.StatusNotFound, "there is no detector %q", name)
	}
	return main, shadow, nil
}

func (s *Server) use(name string) (main, shadow *pool.Loaded, err error) {
	return used(s.detectors, name)
}

// seats are the places that one request has, and the memory for its body.
type seats struct {
	places *places
	n      int
	bytes  int64
}

func (t *seats) take(n int) error {
	if !t.places.enter(n) {
		return errBusy
	}
	t.n += n
	return nil
}

// grow takes memory.
func (t *seats) grow(bytes int) error {
	if !t.places.grow(int64(bytes)) {
		return errBusy
	}
	t.bytes += int64(bytes)
	return nil
}

func (t *seats) leave() { t.places.leave(t.n, t.bytes) }

// body bounds and returns the body of a request. A request that says that it is too
// large is refused before it is read.
func (s *Server) body(w http.ResponseWriter, r *http.Request) (io.Reader, error) {
	if r.ContentLength > s.opts.MaxBody {
		return nil, &http.MaxBytesError{Limit: s.opts.MaxBody}
	}
	return http.MaxBytesReader(w, r.Body, s.opts.MaxBody), nil
}

// readAll reads what a client sends, of so many bytes or −1 if that is not known. What
// goes wrong there is the client's fault.
func readAll(r io.Reader, size int64, seats *seats) ([]byte, error) {
	const first, most = 16 << 10, 1 << 20 // bytes to begin with; a client may claim anything
	if size < 0 {
		size = first
	}
	var data []byte
	for want := min(int(size)+1, most); ; want = cap(data) {
		if err := seats.grow(want); err != nil {
			return nil, err
		}
		data = append(make([]byte, 0, len(data)+want), data...)
		n, err := io.ReadFull(r, data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return data, nil
		}
		if err != nil {
			return nil, readError(err)
		}
	}
}

// wasRead says that a request is read. The time for reading it would end it otherwise,
// even while it is worked on.
func (s *Server) wasRead(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // a test's response has none
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

// pictures reads the images of a request, and takes places for them: the first before
// anything is read, so that what waits takes bounded memory.
func (s *Server) pictures(w http.ResponseWriter, r *http.Request, seats *seats) (all []picture, several bool, err error) {
	if err := seats.take(1); err != nil {
		return nil, false, err
	}
	body, err := s.body(w, r)
	if err != nil {
		return nil, false, err
	}
	r.Body = io.NopCloser(body)
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != "multipart/form-data" {
		data, err := readAll(body, r.ContentLength, seats)
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
		if len(all) == s.opts.MaxImages {
			return nil, true, refuse(http.StatusRequestEntityTooLarge, "a request may have %d images", s.opts.MaxImages)
		}
		if len(all) > 0 {
			if err := seats.take(1); err != nil {
				return nil, true, err
			}
		}
		data, err := readAll(part, -1, seats)
		if err != nil {
			return nil, true, err
		}
		name := part.FileName()
		if name == "" {
			name = part.FormName()
		}
		all = append(all, picture{name: nameOf(name), data: data})
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
