package webhook_test

import (
	"context"
	"crypto/hmac"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve/internal/webhook"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// A webhook sends what a service stores; the receiver checks who sent it.
func Example() {
	const secret = "a secret that both know"
	taken := make(chan string)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		want := webhook.Signature([]byte(secret), r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), body)
		if !hmac.Equal([]byte(r.Header.Get("webhook-signature")), []byte(want)) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		var event struct {
			Type string
			Data store.Record
		}
		if err := json.Unmarshal(body, &event); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		taken <- fmt.Sprintf("%s: %s looks like %s, p-value %g", event.Type, event.Data.Name, event.Data.Class, event.Data.PValue)
	}))
	defer receiver.Close()

	dir, err := os.MkdirTemp("", "webhook")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	secrets := filepath.Join(dir, "secrets")
	if err := os.WriteFile(secrets, []byte(secret+"\n"), 0o600); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	db, err := store.Open(ctx, filepath.Join(dir, "verdicts.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	hook, err := webhook.New(webhook.Options{URL: receiver.URL, SecretFile: secrets, Store: db, Every: time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	if err := hook.Begin(ctx); err != nil {
		log.Fatal(err)
	}
	ended := make(chan bool)
	go func() {
		defer close(ended)
		hook.Run(ctx)
	}()
	err = db.Add(ctx, []store.Verdict{
		{ID: store.NewID(), Source: "gate", Name: "0001.jpg", Verdict: detector.Verdict{Class: "cat", PValue: 0.7}},
		{ID: store.NewID(), Source: "gate", Name: "0002.jpg", Verdict: detector.Verdict{Class: "dog", PValue: 0.001, OOD: true}},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-taken)
	cancel()
	<-ended
	// Output:
	// mlrbfn.verdict: 0002.jpg looks like dog, p-value 0.001
}
