package serve

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/serve/internal/webhook"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// openWebhook makes what tells another program of verdicts and alarms, if one is named.
func (s *Server) openWebhook(ctx context.Context) (err error) {
	if s.opts.Webhook == "" {
		return nil
	}
	s.webhook, err = webhook.New(webhook.Options{
		URL: s.opts.Webhook, SecretFile: s.opts.WebhookSecret, On: s.opts.WebhookOn, Store: s.opts.Store, Log: s.log,
		Data:   func(r store.Record) any { return s.memory.record(r) },
		Alarms: s.drift.alarms, Sent: s.metrics.delivered, Timeout: s.opts.WebhookTimeout,
	})
	if err != nil {
		return err
	}
	return s.webhook.Begin(ctx)
}

// ResendRefused sends the events again that the webhook of these options refused, each once,
// and returns how many were taken and how many were not. It needs the store, the address and
// the secret alone; a service may run.
func ResendRefused(ctx context.Context, opts Options, by string) (taken, refused int, err error) {
	hook, err := webhook.New(webhook.Options{URL: opts.Webhook, SecretFile: opts.WebhookSecret, Store: opts.Store, Timeout: opts.WebhookTimeout})
	if err != nil {
		return 0, 0, err
	}
	return hook.Again(ctx, by)
}

// webhookRequests are the requests about what the webhook refused.
type webhookRequests struct {
	webhook *webhook.Webhook // or nil
}

var errNoWebhook = refuse(http.StatusNotFound, "this service has no webhook")

// refused answers GET /v1/webhook: how far it is behind, and what it refused.
func (w *webhookRequests) refused(ctx context.Context, _ *http.Request) (any, error) {
	if w.webhook == nil {
		return nil, errNoWebhook
	}
	all, err := w.webhook.Refused(ctx)
	if all == nil {
		all = []webhook.Refused{}
	}
	return map[string]any{"behind_lines": w.webhook.Behind(), "refused": all}, asked(err)
}

// again answers POST /v1/webhook/again: what it refused is sent again.
func (w *webhookRequests) again(ctx context.Context, _ *http.Request) (any, error) {
	if w.webhook == nil {
		return nil, errNoWebhook
	}
	taken, refused, err := w.webhook.Again(ctx, byOf(ctx))
	return map[string]int{"taken": taken, "refused": refused}, asked(err)
}

// runWebhook sends until ctx is cancelled.
func (s *Server) runWebhook(ctx context.Context) {
	s.webhook.Run(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := s.webhook.Leave(ctx); err != nil {
		s.log.Debug("another replica sends only after a while", "error", err)
	}
}

// alarmData is the data of the event of an alarm.
type alarmData struct {
	Detector           string  `json:"detector"` // SHA-256 of its file, as in verdicts
	Source             string  `json:"source"`
	Class              string  `json:"class,omitempty"`    // "" is all images together
	Flagged            uint64  `json:"flagged,omitempty"`  // of an alarm that more are flagged than
	Promised           float64 `json:"promised,omitempty"` // promised: how many images, and the share
	RaisedAt           uint64  `json:"raised_at"`          // at which image
	LogWealth          float64 `json:"log_wealth"`
	Threshold          float64 `json:"threshold"`
	ChanceWithoutCause float64 `json:"chance_without_cause"`
}

// alarmsOf are those of one state in the store.
type alarmsOf struct {
	sum    [sha256.Size]byte
	alarms []webhook.Alarm
}

// alarms returns those that are raised in the store, by whatever replica.
func (d *drifts) alarms(ctx context.Context) (all []webhook.Alarm, err error) {
	raised := func(to []webhook.Alarm, prefix, key, which string, t test, data alarmData) []webhook.Alarm {
		if t.RaisedAt() == 0 {
			return to
		}
		data.Detector, data.Source, _ = strings.Cut(strings.TrimPrefix(key, prefix), "/")
		data.RaisedAt, data.LogWealth, data.Threshold, data.ChanceWithoutCause = t.RaisedAt(), t.LogWealth(), t.Threshold(), d.alpha
		return append(to, webhook.Alarm{Key: fmt.Sprintf("%s/%s%d", key, which, t.RaisedAt()), Source: data.Source, Data: data})
	}
	values, err := d.store.States(ctx, driftKey)
	if err != nil {
		return nil, err
	}
	last := d.alarmsOf
	d.alarmsOf = make(map[string]alarmsOf, len(values))
	for key, value := range values {
		known, sum := last[key], sha256.Sum256(value)
		if known.sum != sum {
			var w evaluation.DriftWatch
			if err := w.UnmarshalBinary(value); err != nil {
				d.log.Error("the state of a test for drift cannot be read", "key", key, "error", err)
				continue
			}
			known = alarmsOf{sum, raised(nil, driftKey, key, "/", w.All(), alarmData{})}
			for _, class := range w.Classes() {
				known.alarms = raised(known.alarms, driftKey, key, class+"/", w.Class(class), alarmData{Class: class})
			}
		}
		d.alarmsOf[key] = known
		all = append(all, known.alarms...)
	}
	besides, err := d.store.States(ctx, besideKey)
	for key, value := range besides {
		var b beside
		if err := json.Unmarshal(value, &b); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if f := b.Flagged; f != nil {
			all = raised(all, besideKey, key, "", f, alarmData{Flagged: f.Flagged(), Promised: f.Promised()})
		}
	}
	return all, err
}
