package serve

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/access"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
)

// Handler answers requests; see the routes below.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.routes() {
		mux.HandleFunc(r.pattern, r.answer)
	}
	return s.observed(s.guarded(mux))
}

// route binds a pattern of [http.ServeMux] to its handler.
type route struct {
	pattern string
	open    bool // no token is needed
	page    bool // part of the page, which /openapi.json leaves out
	answer  http.HandlerFunc
}

func (s *Server) routes() []route {
	return slices.Concat(s.pageRoutes(), s.learnRoutes(), s.reviewRoutes(), []route{
		{pattern: "POST /v1/detect", answer: s.detect},
		{pattern: "GET /v1/shadows", answer: s.listShadows},
		{pattern: "GET /v1/verdicts", answer: s.remembering(s.listVerdicts)},
		{pattern: "GET /v1/verdicts/{id}", answer: s.remembering(s.getVerdict)},
		{pattern: "GET /v1/counts", answer: s.remembering(s.counts)},
		{pattern: "POST /v1/reviews", answer: s.remembering(s.addReviews)},
		{pattern: "GET /v1/images/{hash}", answer: s.image},
		{pattern: "GET /v1/events", answer: s.listenToEvents},
		{pattern: "GET /v1/broken", answer: s.listBroken},
		{pattern: "GET /v1/drift", answer: s.listDrift},
		{pattern: "GET /v1/drift/course", answer: s.remembering(s.driftCourse)},
		{pattern: "POST /v1/drift/reset", answer: s.resetDrift},
		{pattern: "GET /v2", open: true, answer: s.serverMetadata},
		{pattern: "GET /v2/health/live", open: true, answer: s.live},
		{pattern: "GET /v2/health/ready", open: true, answer: s.ready},
		{pattern: "GET /v2/models/{name}", answer: s.modelMetadata},
		{pattern: "GET /v2/models/{name}/ready", answer: s.modelReady},
		{pattern: "GET /v2/models/{name}/config", answer: s.modelConfig},
		{pattern: "POST /v2/models/{name}/infer", answer: s.infer},
		{pattern: "GET /v2/models/{name}/versions/{version}", answer: s.modelMetadata},
		{pattern: "GET /v2/models/{name}/versions/{version}/ready", answer: s.modelReady},
		{pattern: "GET /v2/models/{name}/versions/{version}/config", answer: s.modelConfig},
		{pattern: "POST /v2/models/{name}/versions/{version}/infer", answer: s.infer},
		{pattern: "POST /v2/repository/index", answer: s.repositoryIndex},
		{pattern: "POST /v2/repository/models/{name}/load", answer: s.load},
		{pattern: "GET /healthz", open: true, answer: s.live},
		{pattern: "GET /readyz", open: true, answer: s.ready},
		{pattern: "GET /openapi.json", open: true, answer: s.openAPI},
	})
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
			if rec.status == 0 {
				rec.status = http.StatusOK
			}
			took := time.Since(start)
			s.metrics.request(r.Pattern, rec.status, took)
			level := slog.LevelInfo
			switch {
			case rec.status >= 500:
				level = slog.LevelWarn
			case strings.HasSuffix(r.Pattern, "/live") || strings.HasSuffix(r.Pattern, "/ready") || strings.HasSuffix(r.Pattern, "z"):
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
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// guarded refuses requests of who may not use the service, or too much of it.
func (s *Server) guarded(mux *http.ServeMux) http.Handler {
	open := map[string]bool{}
	for _, r := range s.routes() {
		open[r.pattern] = r.open
	}
	foreign := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := mux.Handler(r)
		switch {
		case !access.OwnHost(r, s.opts.Hosts):
			s.fail(w, r, http.StatusMisdirectedRequest, "this service is not called by that host name")
			return
		case foreign.Check(r) != nil:
			s.fail(w, r, http.StatusForbidden, "a page of another site may not do this")
			return
		case !open[pattern] && s.tokens != nil && !s.tokens.Allow(r):
			w.Header().Set("WWW-Authenticate", "Bearer")
			s.fail(w, r, http.StatusUnauthorized, "a token is needed: Authorization: Bearer TOKEN")
			return
		}
		if !open[pattern] {
			if !s.clients.Enter(r.RemoteAddr) {
				s.busy(w, r, fmt.Sprintf("more than %d requests at once from one address", s.opts.PerClient))
				return
			}
			defer s.clients.Leave(r.RemoteAddr)
		}
		mux.ServeHTTP(w, r)
	})
}

// failure is the body of an answer that is an error.
type failure struct {
	Error   string `json:"error"`
	Request string `json:"request_id"`
}

// fail answers with an error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, status int, text string) {
	id, _ := r.Context().Value(requestID{}).(string)
	writeJSON(w, status, failure{text, id})
}

// busy refuses a request that came when there was too much to do.
func (s *Server) busy(w http.ResponseWriter, r *http.Request, text string) {
	s.metrics.refused.Inc()
	w.Header().Set("Retry-After", strconv.Itoa(s.places.retryAfter()))
	s.fail(w, r, http.StatusTooManyRequests, text)
}

// Errors of requests.
var errBusy = errors.New("too many images are waiting")

// statusError is an error of a request that knows its status.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

func refuse(status int, format string, args ...any) error {
	return &statusError{status, fmt.Sprintf(format, args...)}
}

// failed answers with the error of a request.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, err error) {
	var tooLarge *http.MaxBytesError
	var known *statusError
	switch {
	case errors.Is(err, errBusy):
		s.busy(w, r, err.Error())
	case errors.As(err, &known):
		s.fail(w, r, known.status, known.text)
	case errors.As(err, &tooLarge):
		s.fail(w, r, http.StatusRequestEntityTooLarge, fmt.Sprintf("the request has more than %d bytes", tooLarge.Limit))
	case errors.Is(err, errInfer):
		s.fail(w, r, http.StatusBadRequest, err.Error())
	default:
		status, text := s.explain(r.Context(), err)
		s.fail(w, r, status, text)
	}
}

// explain returns the status and the text for the error of an image. What is not the
// image's fault is logged and not told: it may name files of this machine.
func (s *Server) explain(ctx context.Context, err error) (status int, text string) {
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
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return http.StatusServiceUnavailable, "it took too long"
	}
	id, _ := ctx.Value(requestID{}).(string)
	s.log.Error("a request failed", "request", id, "error", err)
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
