package serve

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/access"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/serve/internal/learn"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// Handler answers requests; see the routes below.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	routes := s.routes()
	for _, r := range routes {
		if r.stream == nil {
			r.stream = s.answering(r.answer)
		}
		mux.HandleFunc(r.pattern, r.stream)
	}
	return s.observed(s.guarded(mux, routes))
}

// route binds a pattern of [http.ServeMux] to its handler.
type route struct {
	pattern string
	open    bool        // no token is needed
	role    access.Role // that a token needs; "" is any
	body    bool        // has images, and counts for its client when they were read
	page    bool        // part of the page, which /openapi.json leaves out
	answer  question    // or
	stream  http.HandlerFunc
}

// routes binds requests to those who answer them, each of which knows what it needs.
func (s *Server) routes() []route {
	did := acted{log: s.log}
	if s.opts.Store != nil {
		did.store = s.opts.Store
	}
	hook := &webhookRequests{webhook: s.webhook}
	learning := &learnRequests{detectors: s.detectors, log: s.log, acted: did}
	if s.learner != nil {
		learning.jobs, learning.learned = s.learner, s.learner
	}
	reviews := &reviewRequests{
		store: s.opts.Store, detectors: s.detectors, judge: s.judge, memory: s.memory, learned: learning.learned, log: s.log,
		together: make(chan struct{}, 1),
	}
	memory := &memoryRequests{store: s.opts.Store, memory: s.memory, detectors: s.detectors, reasons: reviews.reasonsOf}
	drift := &driftRequests{alpha: s.opts.Alpha, watch: s.drift, counts: s.opts.Store, detectors: s.detectors, acted: did}
	models := &modelRequests{acted: did, judged: &s.judge.judged, detectors: s.detectors, draining: &s.draining, version: s.opts.Version}
	judge := &judgeRequests{
		detectors: s.detectors, judge: s.judge, explain: s.explain, metrics: s.metrics,
		stores: s.opts.Store != nil, maxBody: s.opts.MaxBody, maxImages: s.opts.MaxImages,
	}
	page := &pageRequests{
		store: s.opts.Store, memory: s.memory, watch: s.drift, detectors: s.detectors, alpha: s.opts.Alpha, token: s.tokens != nil, log: s.log,
		version: s.opts.Version, queue: s.memory.queue, broken: s.folders.count, hook: s.webhook,
	}
	return append(page.routes(), []route{
		{pattern: "POST /v1/detect", role: access.Judge, body: true, answer: judge.detect},
		{pattern: "GET /v1/shadows", role: access.Read, answer: s.judge.shadows.answer},
		{pattern: "GET /v1/verdicts", role: access.Read, answer: memory.ask(memory.list)},
		{pattern: "GET /v1/verdicts/{id}", role: access.Read, answer: memory.ask(memory.get)},
		{pattern: "GET /v1/counts", role: access.Read, answer: memory.ask(memory.count)},
		{pattern: "POST /v1/reviews", role: access.Review, answer: memory.ask(memory.review)},
		{pattern: "GET /v1/head", role: access.Read, answer: memory.ask(memory.head)},
		{pattern: "GET /v1/images/{hash}", role: access.Read, answer: memory.image},
		{pattern: "GET /v1/queue", role: access.Read, answer: memory.ask(reviews.queue)},
		{pattern: "GET /v1/discover", role: access.Read, answer: memory.ask(reviews.discover)},
		{pattern: "GET /v1/detectors/{name}/images/{row}", role: access.Read, answer: reviews.trainingImage},
		{pattern: "GET /v1/detectors/{name}/thresholds", role: access.Read, answer: reviews.thresholds},
		{pattern: "GET /v1/events", role: access.Read, stream: s.listenToEvents},
		{pattern: "GET /v1/webhook", role: access.Read, answer: hook.refused},
		{pattern: "POST /v1/webhook/again", role: access.Operate, answer: hook.again},
		{pattern: "GET /v1/broken", role: access.Read, answer: s.folders.listBroken},
		{pattern: "GET /v1/drift", role: access.Read, answer: drift.list},
		{pattern: "GET /v1/drift/course", role: access.Read, answer: memory.ask(drift.course)},
		{pattern: "POST /v1/drift/reset", role: access.Operate, answer: drift.reset},
		{pattern: "POST /v1/drift/acknowledge", role: access.Operate, answer: drift.acknowledge},
		{pattern: "GET /v1/learn", role: access.Read, answer: learning.of(learning.whatToLearn)},
		{pattern: "POST /v1/learn", role: access.Operate, answer: learning.of(learning.startLearning)},
		{pattern: "GET /v1/jobs", role: access.Read, answer: learning.ask(learning.listJobs)},
		{pattern: "GET /v1/jobs/{id}", role: access.Read, answer: learning.ask(learning.getJob)},
		{pattern: "POST /v1/jobs/{id}/cancel", role: access.Operate, answer: learning.ask(learning.cancelJob)},
		{pattern: "GET /v1/detectors/{name}", role: access.Read, answer: learning.of(learning.describe)},
		{pattern: "POST /v1/detectors/{name}/activate", role: access.Operate, answer: learning.of(learning.activate)},
		{pattern: "GET /v1/detectors/{name}/calibration", role: access.Read, answer: learning.of(learning.getCalibration)},
		{pattern: "POST /v1/detectors/{name}/calibration", role: access.Operate, answer: learning.of(learning.trim)},
		{pattern: "GET /v2", open: true, answer: models.server},
		{pattern: "GET /v2/health/live", open: true, answer: models.live},
		{pattern: "GET /v2/health/ready", open: true, answer: models.serves},
		{pattern: "GET /v2/models/{name}", answer: models.metadata},
		{pattern: "GET /v2/models/{name}/ready", answer: models.ready},
		{pattern: "GET /v2/models/{name}/config", answer: models.config},
		{pattern: "GET /v2/models/{name}/stats", answer: models.statistics},
		{pattern: "GET /v2/models/{name}/versions/{version}/stats", answer: models.statistics},
		{pattern: "POST /v2/repository/models/{name}/unload", role: access.Operate, answer: models.unload},
		{pattern: "POST /v2/models/{name}/infer", role: access.Judge, body: true, answer: judge.infer},
		{pattern: "GET /v2/models/{name}/versions/{version}", answer: models.metadata},
		{pattern: "GET /v2/models/{name}/versions/{version}/ready", answer: models.ready},
		{pattern: "GET /v2/models/{name}/versions/{version}/config", answer: models.config},
		{pattern: "POST /v2/models/{name}/versions/{version}/infer", role: access.Judge, body: true, answer: judge.infer},
		{pattern: "POST /v2/repository/index", answer: models.index},
		{pattern: "POST /v2/repository/models/{name}/load", role: access.Operate, answer: models.load},
		{pattern: "GET /healthz", open: true, answer: models.live},
		{pattern: "GET /readyz", open: true, answer: models.serves},
		{pattern: "GET /openapi.json", open: true, answer: describe(s.tokens != nil)},
	}...)
}

// requestID is a key of contexts.
type requestID struct{}

// idPattern matches the ids that a client may give a request.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

// observed gives each request an id and counts, times and logs it. A panic is status 500
// of one request.
func (s *Server) observed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		id := r.Header.Get("X-Request-Id")
		if !idPattern.MatchString(id) {
			id = rand.Text()
		}
		r = r.WithContext(context.WithValue(r.Context(), requestID{}, id))
		r.RemoteAddr = s.proxies.Client(r)
		rec := &recorder{ResponseWriter: w}
		h := w.Header()
		h.Set("X-Request-Id", id)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		if s.cert != nil {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		defer func() {
			p := recover()
			if p != nil && p != http.ErrAbortHandler {
				s.log.Error("a request failed with a panic", "request", id, "panic", p, "stack", string(debug.Stack()))
				if rec.status == 0 {
					s.fail(rec, r, http.StatusInternalServerError, "an error of this program; its log has more")
				}
			}
			rec.status = cmp.Or(rec.status, http.StatusOK)
			took := time.Since(start)
			s.metrics.request(r.Pattern, rec.status, took)
			level := slog.LevelInfo
			switch {
			case rec.status >= 500:
				level = slog.LevelWarn
			case s.opts.Quiet || strings.HasSuffix(r.Pattern, "/live") || strings.HasSuffix(r.Pattern, "/ready") || strings.HasSuffix(r.Pattern, "z"):
				level = slog.LevelDebug
			}
			s.log.Log(r.Context(), level, "request", "request", id, "client", r.RemoteAddr, "method", r.Method, "path", r.URL.Path, "status", rec.status, "ms", float64(took.Microseconds())/1000)
			if p == http.ErrAbortHandler {
				panic(p)
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

// recorder notes the status of a response.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.status = cmp.Or(r.status, http.StatusOK)
	return r.ResponseWriter.Write(b)
}

// Unwrap is for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// guarded refuses requests of who may not use the service, or too much of it.
func (s *Server) guarded(mux *http.ServeMux, routes []route) http.Handler {
	known := map[string]route{}
	for _, r := range routes {
		known[r.pattern] = r
	}
	foreign := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler, pattern := mux.Handler(r)
		route := known[pattern]
		bearer, ok := s.bearer(r)
		spare, _ := r.Context().Value(spareConn{}).(bool)
		if spare || s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		switch {
		case !access.OwnHost(r, s.opts.Hosts):
			s.fail(w, r, http.StatusMisdirectedRequest, "this service is not called by that host name")
			return
		case foreign.Check(r) != nil:
			s.fail(w, r, http.StatusForbidden, "a page of another site may not do this")
			return
		case !route.open && spare:
			s.busy(w, r, fmt.Sprintf("more than %d connections from one address", s.opts.PerClientConns))
			return
		case !route.open && !ok:
			s.needToken(w, r)
			return
		case !route.open && !bearer.May(route.role):
			s.fail(w, r, http.StatusForbidden, fmt.Sprintf("the token of %s has not the role %s", bearer.Name, route.role))
			return
		case pattern == "":
			s.unknown(w, r, handler)
			return
		}
		asks := who{bearer, r.RemoteAddr}
		r = r.WithContext(context.WithValue(r.Context(), caller{}, asks))
		if !route.open && !route.body {
			if client := clientOf(r.Context()); !s.clients.Enter(client) {
				s.failed(w, r, errBusyClient)
				return
			} else {
				defer s.clients.Leave(client)
			}
		}
		mux.ServeHTTP(w, r)
	})
}

// bearer is who bears the token of a request; ok where it is one, or none is needed.
func (s *Server) bearer(r *http.Request) (b access.Bearer, ok bool) {
	if s.tokens == nil {
		return b, true
	}
	return s.tokens.Bearer(r)
}

// needToken refuses a request without a token.
func (s *Server) needToken(w http.ResponseWriter, r *http.Request) {
	s.wrong.slow(r.Context(), access.ClientOf(r.RemoteAddr))
	w.Header().Set("WWW-Authenticate", "Bearer")
	s.fail(w, r, http.StatusUnauthorized, "a token is needed: Authorization: Bearer TOKEN")
}

// spareConn is a key of contexts: whether a connection is beyond what its client may have.
type spareConn struct{}

// unknown answers a request that no route is for: with status 404 or 405, or by leading to
// the path as it should be written.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	to := &discarded{header: http.Header{}}
	switch handler.ServeHTTP(to, r); to.status {
	case http.StatusMethodNotAllowed:
		w.Header().Set("Allow", to.header.Get("Allow"))
		s.fail(w, r, to.status, "here is "+to.header.Get("Allow")+", and not "+r.Method)
	case http.StatusNotFound:
		s.fail(w, r, to.status, "there is nothing at this address")
	default:
		handler.ServeHTTP(w, r)
	}
}

// discarded is a response of which only the status and the header matter.
type discarded struct {
	header http.Header
	status int
}

func (d *discarded) Header() http.Header         { return d.header }
func (d *discarded) Write(b []byte) (int, error) { return len(b), nil }
func (d *discarded) WriteHeader(status int)      { d.status = cmp.Or(d.status, status) }

// wrongTokens makes who guesses tokens wait, each client by itself, and says that he does.
type wrongTokens struct {
	log  *slog.Logger
	mu   sync.Mutex
	next map[string]time.Time // when the next answer is due
	told time.Time
	n    int // since then
}

// A wrong token is answered so long after the one before, and at most so late.
const (
	wrongEvery  = 200 * time.Millisecond
	wrongLatest = 5 * time.Second
)

func (w *wrongTokens) slow(ctx context.Context, client string) {
	now := time.Now()
	w.mu.Lock()
	maps.DeleteFunc(w.next, func(_ string, at time.Time) bool { return at.Before(now) })
	if w.next == nil {
		w.next = map[string]time.Time{}
	}
	due := w.next[client]
	if due.IsZero() {
		due = now
	}
	w.next[client] = due.Add(wrongEvery)
	if w.n++; now.Sub(w.told) > time.Minute {
		w.log.Warn("requests came without a token that is known", "client", client, "requests", w.n)
		w.told, w.n = now, 0
	}
	w.mu.Unlock()
	_ = wait(ctx, min(due.Sub(now), wrongLatest)) // whoever leaves waits no more
}

// responder answers requests by values and errors.
type responder struct {
	log     *slog.Logger
	timeout time.Duration // of a request
	reading time.Duration // of its body
	places  *places
	metrics *metrics
}

// fail answers with an error.
func (s *responder) fail(w http.ResponseWriter, r *http.Request, status int, text string) {
	writeJSON(w, status, struct {
		Error   string `json:"error"`
		Request string `json:"request_id"`
	}{text, idOf(r.Context())})
}

// idOf is the id of a request.
func idOf(ctx context.Context) string {
	id, _ := ctx.Value(requestID{}).(string)
	return id
}

// busy refuses a request that came when there was too much to do.
func (s *responder) busy(w http.ResponseWriter, r *http.Request, text string) {
	s.metrics.refused.Inc()
	w.Header().Set("Retry-After", strconv.Itoa(s.places.retryAfter()))
	s.fail(w, r, http.StatusTooManyRequests, text)
}

// Errors of requests.
var (
	errBusy       = errors.New("too many images are waiting")
	errBusyClient = errors.New("too many requests at once of one client")
)

// statusError is an error of a request that knows its status.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

func refuse(status int, format string, args ...any) error {
	return &statusError{status, fmt.Sprintf(format, args...)}
}

// question is a request that is answered with a value in JSON, or a [file], or an error.
type question func(ctx context.Context, r *http.Request) (any, error)

// withStatus is an answer whose status is not 200.
type withStatus struct {
	status int
	value  any
}

// file is an answer that is no JSON.
type file struct {
	kind   string // its media type
	data   []byte
	header map[string]string // further ones
}

// upload is the body of a request. It must come at a least rate. When all of it was read,
// the time for reading it, which would end even a request that is worked on, counts no more.
type upload struct {
	io.ReadCloser
	control *http.ResponseController
	most    time.Time // by when all of it must have come
	begun   time.Time
	bytes   int64
}

// A body of which so many bytes a second do not come, after a while, comes too slowly.
const (
	leastRate  = 4 << 10
	rateBegins = 5 * time.Second
)

func (u *upload) Read(p []byte) (int, error) {
	due := u.begun.Add(rateBegins + time.Duration(float64(u.bytes)/leastRate*float64(time.Second)))
	if due.After(u.most) {
		due = u.most
	}
	_ = u.control.SetReadDeadline(due) // a test's response has none
	n, err := u.ReadCloser.Read(p)
	if u.bytes += int64(n); err == io.EOF {
		_ = u.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// answering answers requests by what do returns within the time of a request.
func (s *responder) answering(do question) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), s.timeout)
		defer cancel()
		now := time.Now()
		r.Body = &upload{ReadCloser: r.Body, control: http.NewResponseController(w), most: now.Add(s.reading), begun: now}
		value, err := do(ctx, r)
		if err != nil {
			s.failed(w, r, err)
			return
		}
		switch v := value.(type) {
		case file:
			for name, value := range v.header {
				w.Header().Set(name, value)
			}
			w.Header().Set("Content-Type", v.kind)
			w.Header().Set("Content-Length", strconv.Itoa(len(v.data)))
			_, _ = w.Write(v.data) // whoever has left gets no answer
		case withStatus:
			writeJSON(w, v.status, v.value)
		default:
			writeJSON(w, http.StatusOK, v)
		}
	}
}

// stored marks an error of the store, which is not the client's.
type stored struct{ error }

func (e stored) Unwrap() error { return e.error }

// asked marks err as one of the store; nil stays nil.
func asked(err error) error {
	if err == nil {
		return nil
	}
	return stored{err}
}

// failed answers with the error of a request.
func (s *responder) failed(w http.ResponseWriter, r *http.Request, err error) {
	var tooLarge *http.MaxBytesError
	var known *statusError
	var ofStore stored
	switch {
	case errors.Is(err, errBusy), errors.Is(err, errBusyClient):
		s.busy(w, r, err.Error())
	case errors.As(err, &known):
		s.fail(w, r, known.status, known.text)
	case errors.As(err, &tooLarge):
		s.fail(w, r, http.StatusRequestEntityTooLarge, fmt.Sprintf("the request has more than %d bytes", tooLarge.Limit))
	case errors.Is(err, errInfer):
		s.fail(w, r, http.StatusBadRequest, err.Error())
	case errors.Is(err, learn.ErrNoJob), errors.Is(err, learn.ErrNoResult):
		s.fail(w, r, http.StatusNotFound, err.Error())
	case errors.Is(err, learn.ErrBusy):
		s.fail(w, r, http.StatusConflict, err.Error())
	case errors.Is(err, store.ErrNotFound):
		s.fail(w, r, http.StatusNotFound, "there is no verdict with this id")
	case errors.As(err, &ofStore):
		s.log.Error("the store cannot be asked", "request", idOf(r.Context()), "error", err)
		s.fail(w, r, http.StatusServiceUnavailable, "the store cannot be asked now")
	default:
		status, text := s.explain(r.Context(), err)
		s.fail(w, r, status, text)
	}
}

// explain returns the status and the text for the error of an image. What is not the
// image's fault is logged and not told: it may name files of this machine.
func (s *responder) explain(ctx context.Context, err error) (status int, text string) {
	if bad, ok := errors.AsType[*pool.ImageError](err); ok {
		text = bad.Error()
		if option, ok := errors.AsType[*options.Error](bad.Err); ok {
			text = strings.Replace(text, option.Error(), option.Err.Error(), 1)
		}
		return http.StatusUnprocessableEntity, strings.ToValidUTF8(text, "\ufffd")
	}
	switch {
	case errors.Is(err, pool.ErrNoImages):
		return http.StatusUnprocessableEntity, err.Error()
	case errors.Is(err, context.Canceled):
		return http.StatusBadRequest, "the client left before it was answered"
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable, "it took too long"
	}
	s.log.Error("a request failed", "request", idOf(ctx), "error", err)
	return http.StatusInternalServerError, "an error of this program; its log has more"
}

// number is a float64 that is null in JSON if it is infinite or NaN.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	if f := float64(n); math.IsInf(f, 0) || math.IsNaN(f) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// writeJSON answers with a value.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // the types here always work
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // whoever has left gets no answer
}

// openapi describes what is offered; a test compares it with the routes.
//
//go:embed openapi.json
var openapi []byte

// needsToken is what the description says where a token is needed.
var needsToken = []byte(`"security": [
  {
   "token": []
  }
 ],`)

// describe answers GET /openapi.json.
func describe(token bool) question {
	text := openapi
	if !token {
		text = bytes.Replace(text, needsToken, nil, 1)
	}
	return func(context.Context, *http.Request) (any, error) {
		return file{kind: "application/json", data: text}, nil
	}
}
