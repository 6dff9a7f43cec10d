package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// This file remembers verdicts and tells what is remembered.

// sourcePattern matches the names that a client may give the source of its images.
var sourcePattern = regexp.MustCompile(`^[\pL\pN][\pL\pN ._:/-]{0,63}$`)

// sourceOf is the source that a request names, or "http".
func sourceOf(r *http.Request) (string, error) {
	source := r.URL.Query().Get("source")
	switch {
	case source == "":
		return "http", nil
	case !sourcePattern.MatchString(source):
		return "", refuse(http.StatusBadRequest, "a source has up to 64 letters, digits, spaces and . _ : / -")
	}
	return source, nil
}

// memory remembers verdicts, where there is a store, and tells who watches them.
type memory struct {
	queue    *store.Queue  // nil remembers nothing
	images   *store.Images // nil keeps none
	features bool          // those of images are stored too
	drift    *drifts
	events   *hub
	metrics  *metrics
	log      *slog.Logger
}

// remember stores verdicts, keeps their images, and notes whether the verdicts are stored.
// What goes wrong is logged, and never the client's trouble.
func (m *memory) remember(ctx context.Context, d *pool.Loaded, source string, outcomes []outcome) {
	verdicts := make([]store.Verdict, len(outcomes))
	for i := range outcomes {
		verdicts[i] = m.note(d, &outcomes[i], source)
	}
	stored := m.store(ctx, verdicts...)
	for i := range outcomes {
		outcomes[i].stored = stored
		m.tell(d, &outcomes[i], &verdicts[i])
	}
}

// note makes of an outcome what is stored, and keeps its image if it is to be kept.
func (m *memory) note(d *pool.Loaded, o *outcome, source string) store.Verdict {
	m.drift.add(d, source, o.Verdict)
	v := store.Verdict{
		ID: o.id, Time: time.Now(), Source: source, Name: o.name, Image: o.sha256, Detector: d.SHA256, Model: d.Source.Fingerprint,
		Verdict: o.Verdict, Threshold: d.ThresholdOf(o.Label),
	}
	if m.features {
		v.Features = o.features
	}
	if o.data != nil && m.images != nil && m.images.Wants(&v) {
		if err := m.images.Put(v.Image, o.data); err != nil {
			m.metrics.notKept.Inc()
			m.log.Error("an image was not kept", "verdict", v.ID, "error", err)
		}
	}
	return v
}

// store stores verdicts and tells whether it did.
func (m *memory) store(ctx context.Context, verdicts ...store.Verdict) bool {
	if m.queue == nil {
		return false
	}
	defer m.metrics.stage("store", time.Now())
	if err := m.queue.Add(ctx, verdicts...); err != nil {
		m.metrics.notStored.Add(float64(len(verdicts)))
		m.log.Warn("verdicts were not stored", "verdict", verdicts[0].ID, "verdicts", len(verdicts), "error", err)
		return false
	}
	return true
}

// tell tells the page about a flagged image.
func (m *memory) tell(d *pool.Loaded, o *outcome, v *store.Verdict) {
	if o.OOD {
		m.events.publish(event{o.id, v.Time, v.Source, o.name, d.Name, o.sha256, o.Verdict, o.stored, m.has(o.sha256)})
	}
}

// has tells whether an image is kept, and image returns it.
func (m *memory) has(hash string) bool { return m.images != nil && m.images.Has(hash) }

func (m *memory) image(hash string) ([]byte, error) {
	if m.images == nil {
		return nil, errForgets
	}
	return m.images.Get(hash)
}

// errForgets is for who asks a service that remembers nothing.
var errForgets = &statusError{http.StatusNotFound, "this service remembers nothing: it was started without a store"}

// record is a [store.Record] in JSON, which has no infinities.
type record struct {
	store.Record
	Score     number         `json:"score"`
	Threshold number         `json:"threshold"`
	Kept      bool           `json:"kept"` // whether /v1/images has its image
	Reviews   []store.Review `json:"reviews,omitempty"`

	*detector.Explanation // with ?explain=1, where the features are known
}

func (m *memory) record(r store.Record) record {
	return record{Record: r, Score: number(r.Score), Threshold: number(r.Threshold), Kept: m.has(r.Image)}
}

// reads returns what reads the value of a query into a field, and says what it must be where it
// is not.
func reads[T any](to *T, must string, parse func(text string) (T, bool)) func(string) error {
	return func(text string) error {
		v, ok := parse(text)
		if !ok {
			return errors.New(must)
		}
		*to = v
		return nil
	}
}

// query reads the query of a request for verdicts or counts.
func query(r *http.Request) (q store.Query, err error) {
	when := func(text string) (time.Time, bool) {
		t, err := time.Parse(time.RFC3339, text)
		return t, err == nil
	}
	word := func(text string) (string, bool) { return text, true }
	yes := func(text string) (*bool, bool) {
		v, err := strconv.ParseBool(text)
		return &v, err == nil
	}
	seq := func(text string) (int64, bool) {
		n, err := strconv.ParseInt(text, 10, 64)
		return n, err == nil && n >= 0
	}
	orders := []string{"newest", "oldest", "strangest"}
	order := func(text string) (store.Order, bool) {
		at := slices.Index(orders, text)
		return store.Order(at), at >= 0
	}
	limit := func(text string) (int, bool) {
		n, err := strconv.Atoi(text)
		return n, err == nil && n >= 1 && n <= 1000
	}
	const aTime, aTruth, aSeq = "a time is written like 2026-11-22T10:00:00Z", "it is true or false", "it is the seq of a verdict"
	fields := map[string]func(string) error{
		"from": reads(&q.From, aTime, when), "to": reads(&q.To, aTime, when),
		"source": reads(&q.Source, "", word), "class": reads(&q.Class, "", word), "detector": reads(&q.Detector, "", word), "image": reads(&q.Image, "", word),
		"ood": reads(&q.OOD, aTruth, yes), "reviewed": reads(&q.Reviewed, aTruth, yes),
		"after": reads(&q.AfterSeq, aSeq, seq), "until": reads(&q.UntilSeq, aSeq, seq),
		"order": reads(&q.Order, "it is "+strings.Join(orders, ", "), order),
		"limit": reads(&q.Limit, "it is a number from 1 to 1000", limit),
		"step":  func(string) error { return nil }, // see stepOf
	}
	values := r.URL.Query()
	for name := range values {
		text, read := values.Get(name), fields[name]
		switch {
		case text == "": // as if it were not there
		case read == nil:
			return q, refuse(http.StatusBadRequest, "nobody knows %q", name)
		default:
			if err := read(text); err != nil {
				return q, refuse(http.StatusBadRequest, "%s=%s: %v", name, text, err)
			}
		}
	}
	return q, nil
}

// verdicts is what requests ask of the store, and keeper of the images beside it.
type (
	verdicts interface {
		List(context.Context, store.Query) ([]store.Record, error)
		Get(ctx context.Context, id string) (store.Record, error)
		Reviews(ctx context.Context, id string) ([]store.Review, error)
		Review(context.Context, []store.Review) error
		Head(context.Context) (store.Head, error)
		counter
	}
	counter interface {
		Count(ctx context.Context, q store.Query, step time.Duration) ([]store.Count, error)
	}
	keeper interface {
		record(store.Record) record
		image(hash string) ([]byte, error)
	}
)

// memoryRequests are the requests about what is remembered.
type memoryRequests struct {
	store     verdicts // nil remembers nothing
	memory    keeper
	detectors detectors
	reasons   func(context.Context, *store.Record) *detector.Explanation
}

// ask is a question that needs the store.
func (m *memoryRequests) ask(do question) question {
	if m.store == nil {
		return func(context.Context, *http.Request) (any, error) { return nil, errForgets }
	}
	return do
}

// list answers GET /v1/verdicts.
func (m *memoryRequests) list(ctx context.Context, r *http.Request) (any, error) {
	q, err := query(r)
	if err != nil {
		return nil, err
	}
	all, err := m.store.List(ctx, q)
	records := lists.Map(all, m.memory.record)
	return map[string]any{"verdicts": records}, asked(err)
}

// get answers GET /v1/verdicts/ID.
func (m *memoryRequests) get(ctx context.Context, r *http.Request) (any, error) {
	why, err := explains(r)
	if err != nil {
		return nil, err
	}
	v, err := m.store.Get(ctx, r.PathValue("id"))
	if err != nil {
		return nil, asked(err)
	}
	answer := m.memory.record(v)
	if answer.Reviews, err = m.store.Reviews(ctx, v.ID); err == nil && why {
		answer.Explanation = m.reasons(ctx, &v)
	}
	return answer, asked(err)
}

// stepOf is the step of time that a request asks for; usual without.
func stepOf(r *http.Request, usual time.Duration) (time.Duration, error) {
	text := r.URL.Query().Get("step")
	if text == "" {
		return usual, nil
	}
	step, err := time.ParseDuration(text)
	if err != nil || step < time.Second {
		return 0, refuse(http.StatusBadRequest, "step=%s: it is a time of 1s or more, such as 1h", text)
	}
	return step, nil
}

// count answers GET /v1/counts: verdicts by source, class and spans of time.
func (m *memoryRequests) count(ctx context.Context, r *http.Request) (any, error) {
	q, err := query(r)
	if err != nil {
		return nil, err
	}
	step, err := stepOf(r, 0)
	if err != nil {
		return nil, err
	}
	if step > 0 && (q.From.IsZero() || time.Since(q.From) > 10_000*step) {
		return nil, refuse(http.StatusBadRequest, "step=%s: from must be at most 10000 steps ago", r.URL.Query().Get("step"))
	}
	all, err := m.store.Count(ctx, q, step)
	if all == nil {
		all = []store.Count{}
	}
	return map[string]any{"counts": all}, asked(err)
}

// statement is what a client says about a verdict: its class (label), that it is of a class
// that the detector does not know (new), or one of fine, junk and undo (verdict).
type statement struct {
	ID      string `json:"id"`
	Label   string `json:"label"`
	New     string `json:"new"`
	Verdict string `json:"verdict"`
	By      string `json:"by"`
}

// maxReviews bounds the reviews of one request.
const maxReviews = 1000

// review answers POST /v1/reviews. Either all of them are stored or none.
func (m *memoryRequests) review(ctx context.Context, r *http.Request) (any, error) {
	var said []statement
	text := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 1<<20))
	text.DisallowUnknownFields()
	if err := text.Decode(&said); err != nil {
		if err = readError(err); !errors.As(err, new(*http.MaxBytesError)) {
			err = refuse(http.StatusBadRequest, `reviews are a list of {"id", "label" | "new" | "verdict"}`)
		}
		return nil, err
	}
	if len(said) == 0 || len(said) > maxReviews {
		return nil, refuse(http.StatusBadRequest, "%d reviews; a request has 1 to %d", len(said), maxReviews)
	}
	classes := classesOf(m.detectors)
	var reviews []store.Review
	now, by := time.Now(), byOf(ctx)
	for i, one := range said {
		v := store.Review{ID: one.ID, Time: now, By: cmp.Or(by, nameOf(one.By))}
		known := slices.Contains(classes, one.New)
		switch {
		case one.Label != "" && one.New == "" && one.Verdict == "":
			v.Decision, v.Class = store.IsClass, one.Label
			if !slices.Contains(classes, one.Label) {
				return nil, refuse(http.StatusBadRequest, "review %d: no detector knows the class %q; a new one is said by \"new\"", i, one.Label)
			}
		case one.New != "" && !known && len(one.New) <= maxName && one.Label == "" && one.Verdict == "":
			v.Decision, v.Class = store.IsNew, nameOf(one.New)
		case one.Label == "" && one.New == "" && slices.Contains([]string{"fine", "junk", "undo"}, one.Verdict):
			v.Decision = store.Decision(one.Verdict)
		default:
			return nil, refuse(http.StatusBadRequest, `review %d: it has one of "label" (a class), "new" (a name that no class has) and "verdict" (fine, junk or undo)`, i)
		}
		reviews = append(reviews, v)
	}
	return map[string]int{"stored": len(reviews)}, asked(m.store.Review(ctx, reviews))
}

// byOf is the name of the token of a request; "" without.
func byOf(ctx context.Context) string {
	w, _ := ctx.Value(caller{}).(who)
	return w.Name
}

// acted makes lines of the audit trail of what people do with a service.
type acted struct {
	store verdicts // nil remembers nothing
	log   *slog.Logger
}

// did notes what who asks did, with what.
func (a acted) did(ctx context.Context, what, with string) error {
	by := byOf(ctx)
	a.log.Info("somebody did something", "request", idOf(ctx), "what", what, "with", with, "by", by)
	if a.store == nil {
		return nil
	}
	return asked(a.store.Review(ctx, []store.Review{{ID: what, Decision: store.Acted, Class: with, By: by, Time: time.Now()}}))
}

// head answers GET /v1/head: the last line of the audit trail, to be noted elsewhere.
func (m *memoryRequests) head(ctx context.Context, _ *http.Request) (any, error) {
	head, err := m.store.Head(ctx)
	return map[string]any{"head": head.String(), "lines": head.Seq}, asked(err)
}

// classesOf are those of all detectors.
func classesOf(open detectors) []string {
	var all []string
	for _, name := range open.Names() {
		d := open.Use(name)
		all = append(all, d.Classes...)
		d.Release()
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// image answers GET /v1/images/HASH: an image that was kept. It is shown as an image or
// saved, and never run.
func (m *memoryRequests) image(_ context.Context, r *http.Request) (any, error) {
	data, err := m.memory.image(r.PathValue("hash"))
	if errors.Is(err, store.ErrNotFound) {
		return nil, refuse(http.StatusNotFound, "this image is not kept")
	}
	if err != nil {
		return nil, asked(err)
	}
	kind := http.DetectContentType(data)
	if !slices.Contains([]string{"image/jpeg", "image/png", "image/gif", "image/webp", "image/bmp"}, kind) {
		kind = "application/octet-stream"
	}
	return file{kind, data, map[string]string{"Content-Security-Policy": "sandbox; default-src 'none'", "Content-Disposition": "attachment"}}, nil
}
