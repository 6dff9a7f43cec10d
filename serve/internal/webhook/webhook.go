// Package webhook tells another program about verdicts and alarms: it sends each as a
// CloudEvent over HTTP until the other has taken it.
//
// # What is sent
//
// CloudEvents 1.0 in structured mode: one event is the body of one POST request, as
// application/cloudevents+json. The attribute id is that of the verdict or of the alarm,
// source is "/mlrbfn/" and the source of the images, type is mlrbfn.verdict or
// mlrbfn.drift, and data is what Options gives.
//
// Requests are signed as Standard Webhooks 1.0 has it: the headers webhook-id and
// webhook-timestamp (seconds since 1970), and in webhook-signature, for each secret, "v1,"
// and the base64 of the HMAC-SHA256 of "ID.TIMESTAMP.BODY". A receiver checks one of them
// and that the time is not long ago.
//
// # What is promised
//
// Every verdict that is stored from the first start on is sent at least once, in the order
// of storing, one after the other: an answer other than 2xx, or none, has the same event
// sent again, after a pause that grows to MaxPause. One that is refused Tries times is set
// aside, so that it does not block others; one that is not answered is tried for ever. An
// answer of 410 ends it all. What was taken is in the
// store, which outlives restarts, and replicas share it: one of them sends at a time, and
// another goes on when it is gone. An event may come twice where a program ended, or a
// connection broke, before its answer was noted; its id is the same. Alarms of drift are
// sent before verdicts that wait.
//
// Nothing is sent anywhere but to the address, which the operator names: redirects are not
// followed, and answers are not shown to anybody.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/access"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// What may be sent.
const (
	OnOOD   = "ood"   // verdicts on flagged images, and alarms of drift
	OnAll   = "all"   // all verdicts, and alarms
	OnDrift = "drift" // alarms alone
)

// Options says what is sent, where to, and how it is signed.
type Options struct {
	URL        string // http or https
	SecretFile string // secrets, one a line, of 16 characters or more; as whsec_BASE64, or taken as they are
	On         string // OnOOD, OnAll or OnDrift; "" is OnOOD
	Store      store.Store
	// Data is the data of the event of a verdict; nil is the record.
	Data func(store.Record) any
	// Alarms returns the alarms of drift that are raised now; nil is none.
	Alarms func(ctx context.Context) ([]Alarm, error)
	// Sent is called after each attempt; nil is not.
	Sent func(err error)
	Log  *slog.Logger // nil logs nothing

	Tries    int           // after which an event that is answered otherwise than by 2xx is set aside; 0 is 12
	Timeout  time.Duration // of one attempt; 0 is 10 s
	MaxPause time.Duration // between two attempts; 0 is 5 min
	Every    time.Duration // how often the store is asked for news; 0 is 1 s
}

// Alarm is one alarm of drift that is raised.
type Alarm struct {
	Key    string // tells it from others, as long as it is raised
	Source string // of the images
	Data   any    // of the event
}

// state is what the store remembers of one webhook.
type state struct {
	Seq    int64            `json:"seq"` // of the last verdict that was taken or needs not be sent
	Alarms map[string]alarm `json:"alarms,omitempty"`

	// The replica that sends, and how often it said that it still does.
	Sender string `json:"sender"`
	Beat   int64  `json:"beat"`
}

// alarm is one that is raised, or was and is still to be sent.
type alarm struct {
	ID   string `json:"id"`
	Sent bool   `json:"sent,omitempty"`
	// Event is the body of the request, until it was sent.
	Event json.RawMessage `json:"event,omitempty"`
}

// Webhook sends. Run does.
type Webhook struct {
	opts   Options
	key    string // of the state in the store
	me     string
	client *http.Client

	seen     state     // as the store had it last
	since    time.Time // when seen.Beat changed last
	said     time.Time // when this replica last said that it sends
	looked   time.Time // when it last looked for alarms
	failures int       // in a row
	told     time.Time // when the log was last told of them
	behind   atomic.Int64
	trying   string // the id of the event that was refused last
	tries    int    // how often
	gone     bool   // the receiver answered 410: it wants no more
}

const (
	alarmsEach = 2 * time.Second // how often alarms are looked for
	pageSize   = 100             // verdicts that are read at a time
	reminder   = time.Minute     // how often the log says that nothing can be sent
)

// New checks the options.
func New(opts Options) (*Webhook, error) {
	u, err := url.Parse(opts.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, options.Errorf("Webhook", "it is an address that begins with http:// or https://") // which may have a password
	}
	opts.On = cmp.Or(opts.On, OnOOD)
	if !slices.Contains([]string{OnOOD, OnAll, OnDrift}, opts.On) {
		return nil, options.Errorf("WebhookOn", "%q is none of ood, all and drift", opts.On)
	}
	if opts.Store == nil {
		return nil, options.Errorf("Webhook", "it needs a store, which remembers what was sent")
	}
	if opts.SecretFile == "" {
		return nil, options.Errorf("WebhookSecret", "it needs a secret to sign what is sent")
	}
	if _, err := secrets(opts.SecretFile); err != nil {
		return nil, options.Errorf("WebhookSecret", "%w", err)
	}
	opts.Tries = cmp.Or(opts.Tries, 12)
	opts.Timeout, opts.MaxPause, opts.Every = cmp.Or(opts.Timeout, 10*time.Second), cmp.Or(opts.MaxPause, 5*time.Minute), cmp.Or(opts.Every, time.Second)
	if opts.Data == nil {
		opts.Data = func(r store.Record) any { return r }
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	sum := sha256.Sum256([]byte(opts.URL))
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = 64 << 10
	return &Webhook{
		opts: opts, key: "webhook/" + hex.EncodeToString(sum[:8]), me: store.NewID(),
		client: &http.Client{Transport: transport, Timeout: opts.Timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// Begin notes in the store where a new webhook begins: behind the last line that there is.
func (w *Webhook) Begin(ctx context.Context) error { return w.update(ctx, func(*state) {}) }

// Behind returns how many lines of the audit trail are not looked at yet.
func (w *Webhook) Behind() int64 { return w.behind.Load() }

// Run sends until ctx is cancelled.
func (w *Webhook) Run(ctx context.Context) {
	defer w.client.CloseIdleConnections()
	for ctx.Err() == nil {
		pause := w.opts.Every
		more, err := w.turn(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case w.gone:
			w.opts.Log.Error("the webhook answers that it is gone (410): nothing is sent any more until the service starts again")
			return
		case err != nil:
			w.failures++
			pause = w.pause(err)
			if time.Since(w.told) > reminder {
				w.told = time.Now()
				w.opts.Log.Error("the webhook takes nothing, what is to be sent waits in the store", "error", err, "attempts", w.failures)
			}
		case more && w.failures > 0:
			w.opts.Log.Warn("the webhook takes events again", "after_attempts", w.failures)
			w.failures, w.told = 0, time.Time{}
		}
		if err == nil && more {
			continue
		}
		for until := time.Now().Add(pause); ctx.Err() == nil && time.Now().Before(until); {
			select {
			case <-ctx.Done():
			case <-time.After(min(time.Until(until), w.beat())):
			}
			if w.seen.Sender == w.me {
				_, _ = w.claim(ctx) // the next turn says what is wrong
			}
		}
	}
}

// pause is the time before the next attempt: twice as long each time, give or take a
// quarter, or what the receiver asks for.
func (w *Webhook) pause(err error) time.Duration {
	pause := min(time.Second<<min(w.failures-1, 20), w.opts.MaxPause)
	if status, ok := errors.AsType[*statusError](err); ok && status.after > 0 {
		pause = min(max(pause, status.after), w.opts.MaxPause)
	}
	return time.Duration(float64(pause) * (0.75 + rand.Float64()/2))
}

// turn sends some of what waits, if it is this replica's part, and tells whether anything
// was sent.
func (w *Webhook) turn(ctx context.Context) (more bool, err error) {
	mine, err := w.claim(ctx)
	if err != nil || !mine {
		return false, err
	}
	if more, err = w.sendAlarms(ctx); err != nil || more || w.opts.On == OnDrift {
		return more, err
	}
	return w.sendVerdicts(ctx)
}

// update changes the state, if this replica is the one that sends or change makes it so.
func (w *Webhook) update(ctx context.Context, change func(s *state)) error {
	ctx, cancel := context.WithTimeout(ctx, w.opts.Timeout)
	defer cancel()
	head, err := w.opts.Store.Head(ctx)
	if err != nil {
		return err
	}
	return w.opts.Store.UpdateState(ctx, w.key, func(old []byte) ([]byte, error) {
		s := state{Seq: head.Seq} // a webhook that is new is not sent the past
		if len(old) > 0 {
			s = state{}
			if err := json.Unmarshal(old, &s); err != nil {
				return nil, fmt.Errorf("the state of the webhook: %w", err)
			}
		}
		if w.seen.Sender != s.Sender || w.seen.Beat != s.Beat {
			w.since = time.Now()
		}
		if change(&s); w.opts.On == OnDrift && s.Sender == w.me {
			s.Seq = head.Seq // no verdict is to be sent
		}
		w.seen = s
		return json.Marshal(s)
	})
}

// beat is how often the sender says that it sends. One that has said nothing for three of
// them and the time of an attempt is gone.
func (w *Webhook) beat() time.Duration { return w.opts.Timeout / 5 }

// claim tells whether this replica is the one that sends: it was, or the one that did has
// said nothing for a while.
func (w *Webhook) claim(ctx context.Context) (mine bool, err error) {
	if time.Since(w.said) < w.beat() && w.seen.Sender == w.me {
		return true, nil
	}
	err = w.update(ctx, func(s *state) {
		if s.Sender == "" || s.Sender != w.me && time.Since(w.since) > w.opts.Timeout+3*w.beat() {
			s.Sender = w.me
		}
		if mine = s.Sender == w.me; mine {
			s.Beat++
		}
	})
	if err == nil && mine {
		w.said = time.Now()
	}
	return mine, err
}

// note changes the state unless another replica sends by now, which is an error.
func (w *Webhook) note(ctx context.Context, change func(s *state)) error {
	mine := false
	err := w.update(context.WithoutCancel(ctx), func(s *state) {
		if mine = s.Sender == w.me; mine {
			s.Beat++
			change(s)
		}
	})
	if err == nil && !mine {
		err = errors.New("another replica sends by now")
	}
	return err
}

// Leave, after Run, lets another replica send at once.
func (w *Webhook) Leave(ctx context.Context) error {
	if w.seen.Sender != w.me {
		return nil
	}
	return w.note(ctx, func(s *state) { s.Sender = "" })
}

// sendAlarms sends the alarms that were not.
func (w *Webhook) sendAlarms(ctx context.Context) (more bool, err error) {
	if w.opts.Alarms == nil || time.Since(w.looked) < min(alarmsEach, 2*w.opts.Every) {
		return false, nil
	}
	raised, err := w.opts.Alarms(ctx)
	if err != nil {
		return false, err
	}
	fresh := map[string]alarm{}
	for _, a := range raised {
		id := store.NewID()
		body, err := event(id, "mlrbfn.drift", a.Source, "", time.Now(), a.Data)
		if err != nil {
			return false, err
		}
		fresh[a.Key] = alarm{ID: id, Event: body}
	}
	// Those that are known stay while they are raised or to be sent. The ids of others are
	// in the store before they are sent, so that they stay, too.
	merge := func(known map[string]alarm) map[string]alarm {
		all := maps.Clone(fresh)
		for key, a := range known {
			if _, still := fresh[key]; still || !a.Sent {
				all[key] = a
			}
		}
		return all
	}
	if !maps.EqualFunc(merge(w.seen.Alarms), w.seen.Alarms, func(a, b alarm) bool { return a.ID == b.ID }) {
		if err := w.note(ctx, func(s *state) { s.Alarms = merge(s.Alarms) }); err != nil {
			return false, err
		}
	}
	for key, a := range w.seen.Alarms {
		if a.Sent {
			continue
		}
		if err := w.offer(ctx, a.ID, a.Event); err != nil {
			return false, err
		}
		more = true
		if err := w.note(ctx, func(s *state) { s.Alarms[key] = alarm{ID: a.ID, Sent: true} }); err != nil {
			return false, err
		}
	}
	w.looked = time.Now()
	return more, nil
}

// sendVerdicts sends some of the verdicts that wait.
func (w *Webhook) sendVerdicts(ctx context.Context) (more bool, err error) {
	head, err := w.opts.Store.Head(ctx)
	if err != nil {
		return false, err
	}
	w.behind.Store(head.Seq - w.seen.Seq)
	if head.Seq <= w.seen.Seq {
		return false, nil
	}
	q := store.Query{AfterSeq: w.seen.Seq, UntilSeq: head.Seq, Order: store.Oldest, Limit: pageSize}
	if w.opts.On == OnOOD {
		yes := true
		q.OOD = &yes
	}
	list, err := w.opts.Store.List(ctx, q)
	if err != nil {
		return false, err
	}
	for _, r := range list {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		body, err := event(r.ID, "mlrbfn.verdict", r.Source, r.Name, r.Time, w.opts.Data(r))
		if err == nil {
			err = w.offer(ctx, r.ID, body)
		}
		if err == nil {
			err = w.note(ctx, func(s *state) { s.Seq = r.Seq })
		}
		if err != nil {
			return false, err
		}
		w.behind.Store(head.Seq - r.Seq)
	}
	if len(list) < pageSize {
		if err := w.note(ctx, func(s *state) { s.Seq = head.Seq }); err != nil {
			return false, err
		}
		w.behind.Store(0)
	}
	return len(list) > 0, nil
}

// event makes the body of a request.
func event(id, kind, source, subject string, at time.Time, data any) ([]byte, error) {
	return json.Marshal(struct {
		Version string    `json:"specversion"`
		ID      string    `json:"id"`
		Source  string    `json:"source"`
		Type    string    `json:"type"`
		Subject string    `json:"subject,omitempty"`
		Time    time.Time `json:"time"`
		Kind    string    `json:"datacontenttype"`
		Data    any       `json:"data"`
	}{"1.0", id, "/mlrbfn/" + url.PathEscape(source), kind, subject, at.UTC(), "application/json", data})
}

// statusError is an answer that is not 2xx.
type statusError struct {
	status int
	after  time.Duration
}

func (e *statusError) Error() string { return fmt.Sprintf("the answer has status %d", e.status) }

// offer sends an event, or sets it aside once it was refused too often: an answer that is
// about the event, and not that there is too much to do or a gateway without its service.
func (w *Webhook) offer(ctx context.Context, id string, body []byte) error {
	err := w.send(ctx, id, body)
	status, answered := errors.AsType[*statusError](err)
	switch {
	case !answered:
		return err
	case status.status == http.StatusGone:
		w.gone = true
		return err
	case slices.Contains([]int{http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, status.status):
		return err
	}
	if w.trying != id {
		w.trying, w.tries = id, 0
	}
	if w.tries++; w.tries < w.opts.Tries {
		return err
	}
	value, failed := json.Marshal(Refused{id, status.status, time.Now().UTC(), body})
	if failed == nil {
		failed = w.opts.Store.SetState(context.WithoutCancel(ctx), w.refusedKey(id), value)
	}
	if failed != nil {
		return errors.Join(err, failed)
	}
	w.opts.Log.Error("the webhook refuses an event, which is set aside", "id", id, "status", status.status, "attempts", w.tries)
	return nil
}

// Refused is an event that was set aside.
type Refused struct {
	ID     string          `json:"id"`
	Status int             `json:"status"` // of the last answer
	Time   time.Time       `json:"time"`
	Event  json.RawMessage `json:"event"`
}

func (w *Webhook) refusedKey(id string) string { return "refused-" + w.key + "/" + id }

// Refused returns the events that were set aside, the first first.
func (w *Webhook) Refused(ctx context.Context) (all []Refused, err error) {
	values, err := w.opts.Store.States(ctx, w.refusedKey(""))
	if err != nil {
		return nil, err
	}
	for _, value := range values {
		if len(value) == 0 {
			continue // it was sent
		}
		var r Refused
		if err := json.Unmarshal(value, &r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Refused) int { return a.Time.Compare(b.Time) })
	return all, nil
}

// Again sends the events that were set aside again, each once, and returns how many were taken
// and how many were not. A line of the audit trail says who did it.
func (w *Webhook) Again(ctx context.Context, by string) (taken, refused int, err error) {
	if _, err := w.opts.Store.State(ctx, w.key); err != nil {
		return 0, 0, fmt.Errorf("a webhook of this address: %w", err)
	}
	all, err := w.Refused(ctx)
	for _, r := range all {
		if err = cmp.Or(err, ctx.Err()); err != nil {
			break
		}
		if w.send(ctx, r.ID, r.Event) != nil {
			refused++
			continue
		}
		taken++
		err = w.opts.Store.SetState(ctx, w.refusedKey(r.ID), nil)
	}
	if taken+refused > 0 {
		line := store.Review{ID: "webhook/again", Decision: store.Acted, Class: fmt.Sprintf("%d taken, %d refused", taken, refused), By: by}
		err = errors.Join(err, w.opts.Store.Review(context.WithoutCancel(ctx), []store.Review{line}))
	}
	return taken, refused, err
}

// send sends one event. Where the service ends meanwhile, the answer is awaited and noted,
// so that the event does not come again.
func (w *Webhook) send(ctx context.Context, id string, body []byte) (err error) {
	ctx = context.WithoutCancel(ctx)
	defer func() {
		if w.opts.Sent != nil {
			w.opts.Sent(err)
		}
	}()
	keys, err := secrets(w.opts.SecretFile)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.opts.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("the address cannot be used") // it may have a password
	}
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	r.Header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	r.Header.Set("User-Agent", "mlrbfn")
	r.Header.Set("webhook-id", id)
	r.Header.Set("webhook-timestamp", stamp)
	signatures := lists.Map(keys, func(key []byte) string { return Signature(key, id, stamp, body) })
	r.Header.Set("webhook-signature", strings.Join(signatures, " "))
	response, err := w.client.Do(r)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // without the address
		}
		return err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)) // so that the connection is used again
	if response.StatusCode/100 != 2 {
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return &statusError{response.StatusCode, time.Duration(min(max(seconds, 0), 1e6)) * time.Second}
	}
	return nil
}

// Signature is what the header webhook-signature has for a secret.
func Signature(secret []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// secrets reads the secrets of a file, so that they may be replaced while the service runs.
func secrets(file string) (keys [][]byte, err error) {
	return access.Secrets(file, "secret", func(line string) (key []byte, err error) {
		key = []byte(line)
		if coded, ok := strings.CutPrefix(line, "whsec_"); ok {
			if key, err = base64.StdEncoding.DecodeString(coded); err != nil {
				return nil, errors.New("after whsec_ comes base64")
			}
		}
		if len(key) < 16 {
			return nil, errors.New("a secret has at least 16 characters")
		}
		return key, nil
	})
}
