package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"mlrbfn/extractor"
	"mlrbfn/serve"
	"mlrbfn/serve/detectors"
)

// serving compares a service with what detect reaches on a folder of the same
// photographs, and measures how long its answers take when it is idle and at 70% of
// that rate. Everything runs on this machine, the clients too.
type serving struct {
	model, program  *string
	images, clients *int
}

func benchServe(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	s := &serving{
		model:   f.String("model", filepath.Join("models", "efficientnet-lite0"), "`folder` of the model"),
		images:  f.Int("images", 1000, "images that are judged for each number"),
		clients: f.Int("clients", 32, "clients at once"),
		program: addProgram(f),
	}
	return s.measure
}

func (s *serving) measure(ctx context.Context, dir string) error {
	files, err := photographs(filepath.Join(dir, "photographs"))
	if err != nil {
		return err
	}
	program, err := build(*s.program, dir)
	if err != nil {
		return err
	}
	model, err := extractor.OpenModel(*s.model, extractor.ModelOptions{})
	if err != nil {
		return err
	}
	detector, err := madeUpDetector(ctx, dir, model.Dim())
	err = errors.Join(err, model.Close())
	if err != nil {
		return err
	}
	folder, err := repeat(files, filepath.Join(dir, "folder"), *s.images)
	if err != nil {
		return err
	}
	var photos [][]byte
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		photos = append(photos, data)
	}
	server, err := serve.New(ctx, serve.Options{
		Detectors: detectors.Options{Detectors: []detectors.Named{{Name: "main", File: detector}}, Model: *s.model}, PerClient: -1, PerClientConns: -1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	defer server.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(running, []net.Listener{l}, nil) }()
	defer func() {
		stop()
		<-ended
	}()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: *s.clients}}
	defer client.CloseIdleConnections()
	var serial atomic.Int64
	ask := func(photo []byte) (int, error) {
		// Bytes after the end of a JPEG change nothing but its hash: no two are equal.
		body := fmt.Appendf(bytes.Clone(photo), "%d", serial.Add(1))
		response, err := client.Post("http://"+l.Addr().String()+"/v1/detect", "image/jpeg", bytes.NewReader(body))
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, response.Body)
		return response.StatusCode, errors.Join(err, response.Body.Close())
	}
	good := func(photo []byte) error {
		status, err := ask(photo)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	}
	for _, photo := range photos {
		if err := good(photo); err != nil {
			return err
		}
	}

	// Idle: one after the other.
	log.Print("idle")
	idle := times{}
	for i := range *s.images / 4 {
		start := time.Now()
		if err := good(photos[i%len(photos)]); err != nil {
			return err
		}
		idle.add(time.Since(start))
	}
	// As fast as the clients can.
	log.Printf("%d clients", *s.clients)
	rate, err := s.flood(photos, good)
	if err != nil {
		return err
	}
	log.Print("detect on a folder")
	start := time.Now()
	cmd := exec.CommandContext(ctx, program, "detect", "--detector", detector, "--model", *s.model, "--json", "--quiet", folder)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("detect: %w: %.500s", err, out)
	}
	detect := float64(*s.images) / time.Since(start).Seconds()
	// At 70% of it, at even intervals.
	log.Print("70% load")
	var loaded times
	var group sync.WaitGroup
	var failures atomic.Int64
	tick := time.NewTicker(time.Duration(float64(time.Second) / (0.7 * rate)))
	for i := range *s.images {
		<-tick.C
		group.Go(func() {
			start := time.Now()
			if good(photos[i%len(photos)]) != nil {
				failures.Add(1)
			}
			loaded.add(time.Since(start))
		})
	}
	tick.Stop()
	group.Wait()
	// Beyond what may wait.
	log.Print("more than may wait")
	var statuses sync.Map
	for i := range 4 * serve.DefaultWaiting {
		group.Go(func() {
			status, err := ask(photos[i%len(photos)])
			if err != nil {
				log.Print(err)
				status = 0
			}
			count, _ := statuses.LoadOrStore(status, new(atomic.Int64))
			count.(*atomic.Int64).Add(1)
		})
	}
	group.Wait()

	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%d clients, images/s\t%.1f\t%.2f× of detect\t\n", *s.clients, rate, rate/detect)
	fmt.Fprintf(w, "detect on a folder, images/s (its start included)\t%.1f\t\t\n", detect)
	fmt.Fprintf(w, "idle, ms\tp50 %.1f\tp99 %.1f\t\n", idle.quantile(0.5), idle.quantile(0.99))
	fmt.Fprintf(w, "at 70%% load, ms\tp50 %.1f\tp99 %.1f\t%.2f× of p50, %d failed\n", loaded.quantile(0.5), loaded.quantile(0.99), loaded.quantile(0.99)/loaded.quantile(0.5), failures.Load())
	fmt.Fprintf(w, "%d requests at once, by status (0: no answer)\t", 4*serve.DefaultWaiting)
	statuses.Range(func(status, count any) bool {
		fmt.Fprintf(w, "%d: %d  ", status, count.(*atomic.Int64).Load())
		return true
	})
	fmt.Fprintln(w, "\t\t")
	return w.Flush()
}

// flood lets all clients ask one after the other, and returns the images a second.
func (s *serving) flood(photos [][]byte, ask func([]byte) error) (float64, error) {
	var next atomic.Int64
	var mu sync.Mutex
	var failed error
	var group sync.WaitGroup
	start := time.Now()
	for range *s.clients {
		group.Go(func() {
			for i := next.Add(1); i <= int64(*s.images); i = next.Add(1) {
				if err := ask(photos[int(i)%len(photos)]); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	return float64(*s.images) / time.Since(start).Seconds(), failed
}

// times are how long answers took.
type times struct {
	mu  sync.Mutex
	all []time.Duration
}

func (t *times) add(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, d)
}

// quantile is in milliseconds.
func (t *times) quantile(q float64) float64 {
	slices.Sort(t.all)
	return t.all[min(len(t.all)-1, int(q*float64(len(t.all))))].Seconds() * 1000
}
