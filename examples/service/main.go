// Service puts a detector into a program's own HTTP service: it keeps the detector with
// its model open, judges each image that is posted, and ends when it is told to.
//
//	service DETECTOR ADDRESS
//	curl --data-binary @photo.jpg http://ADDRESS/judge
//
// `mlrbfn serve` is a service that remembers, and has limits, metrics and a page. Take
// this where you have all that.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: service DETECTOR ADDRESS")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	judge, err := pipeline.OpenJudge(ctx, os.Args[1], extractor.Options{})
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: os.Args[2], Handler: handler(judge), ReadTimeout: 30 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Shutdown(context.Background()) })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	if err := judge.Close(); err != nil {
		log.Fatal(err)
	}
}

// answer is what the service says of an image.
type answer struct {
	Class      string  `json:"class"`
	Confidence float64 `json:"confidence"`
	OOD        bool    `json:"ood"`
	PValue     float64 `json:"p_value"`
}

// maxImage bounds the bytes of an image, and busy the images in work.
const (
	maxImage = 32 << 20
	busy     = 8
)

func handler(judge *pipeline.Judge) http.Handler {
	slots := make(chan struct{}, busy)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /judge", func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			http.Error(w, "too many images at once", http.StatusTooManyRequests)
			return
		}
		verdict, err := judge.Image(r.Context(), pipeline.Reader(http.MaxBytesReader(w, r.Body, maxImage)))
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer{verdict.Class, verdict.Confidence, verdict.OOD, verdict.PValue})
	})
	return mux
}
