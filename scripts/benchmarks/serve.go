package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/png"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"mlrbfn/extractor"
	"mlrbfn/pipeline"
	"mlrbfn/serve"
	"mlrbfn/serve/detectors"
)

// serving compares a service with what detect reaches on a folder of the same
// photographs, and measures how long its answers take when it is idle, beside those of a
// verdict without a service, and at 70% of that rate. Everything runs on this machine, the
// clients too, and both sides of each ratio by turns. With soak it sends that many
// requests to the program, with a tiny model, and prints how its memory grows.
type serving struct {
	model, program        *string
	images, clients, soak *int
	rounds                *int
}

func benchServe(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	s := &serving{
		model:   f.String("model", filepath.Join("models", "efficientnet-lite0"), "`folder` of the model"),
		images:  f.Int("images", 1000, "images that are judged for each number"),
		clients: f.Int("clients", 32, "clients at once"),
		soak:    f.Int("soak", 0, "instead, send this `NUMBER` of requests and watch the memory"),
		rounds:  addRounds(f, 3),
		program: addProgram(f),
	}
	return s.measure
}

func (s *serving) measure(ctx context.Context, dir string) error {
	if *s.soak > 0 {
		return s.endure(ctx, dir)
	}
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

	// Idle: one after the other, by turns with verdicts without a service.
	log.Print("idle")
	judge, err := pipeline.OpenJudge(ctx, detector, pipeline.JudgeOptions{Model: *s.model})
	if err != nil {
		return err
	}
	defer judge.Close()
	var idle, alone times
	for i := range *s.images / 4 {
		photo := photos[i%len(photos)]
		start := time.Now()
		if _, err := judge.Image(ctx, pipeline.Encoded(photo)); err != nil {
			return err
		}
		alone.add(time.Since(start))
		start = time.Now()
		if err := good(photo); err != nil {
			return err
		}
		idle.add(time.Since(start))
	}
	// As fast as the clients can, by turns with detect. The time that detect takes for one
	// image is its start, and does not count.
	one, err := repeat(files, filepath.Join(dir, "one"), 1)
	if err != nil {
		return err
	}
	onFolder := func(folder string) (time.Duration, error) {
		start := time.Now()
		cmd := exec.CommandContext(ctx, program, "detect", "--detector", detector, "--model", *s.model, "--json", "--quiet", folder)
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("detect: %w: %.500s", err, out)
		}
		return time.Since(start), nil
	}
	var served, detected time.Duration
	for round := range *s.rounds {
		log.Printf("round %d: %d clients, and detect on a folder", round+1, *s.clients)
		took, err := s.flood(photos, good)
		if err != nil {
			return err
		}
		served += took
		begin, err := onFolder(one)
		if err != nil {
			return err
		}
		if took, err = onFolder(folder); err != nil {
			return err
		}
		detected += took - begin
	}
	rate := float64(*s.rounds**s.images) / served.Seconds()
	detect := float64(*s.rounds*(*s.images-1)) / detected.Seconds()
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
	fmt.Fprintf(w, "detect on a folder, images/s (without its start)\t%.1f\t\t\n", detect)
	fmt.Fprintf(w, "a verdict without a service, ms\tp50 %.1f\tp99 %.1f\t\n", alone.quantile(0.5), alone.quantile(0.99))
	fmt.Fprintf(w, "idle, ms\tp50 %.1f\tp99 %.1f\t%.2f× of p50 without a service\n", idle.quantile(0.5), idle.quantile(0.99), idle.quantile(0.5)/alone.quantile(0.5))
	fmt.Fprintf(w, "at 70%% load, ms\tp50 %.1f\tp99 %.1f\t%.2f× of p50, %d failed\n", loaded.quantile(0.5), loaded.quantile(0.99), loaded.quantile(0.99)/loaded.quantile(0.5), failures.Load())
	fmt.Fprintf(w, "%d requests at once, by status (0: no answer)\t", 4*serve.DefaultWaiting)
	statuses.Range(func(status, count any) bool {
		fmt.Fprintf(w, "%d: %d  ", status, count.(*atomic.Int64).Load())
		return true
	})
	fmt.Fprintln(w, "\t\t")
	fmt.Fprintf(w, "load average of the machine (1, 5, 15 minutes)\t%s\t\t\n", loadAverage())
	return w.Flush()
}

// loadAverage is that of the kernel, where it tells.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "not known"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// endure sends requests to the program and prints its memory from time to time.
func (s *serving) endure(ctx context.Context, dir string) error {
	program, err := build(*s.program, dir)
	if err != nil {
		return err
	}
	images, features, detector := filepath.Join(dir, "images"), filepath.Join(dir, "pixels"), filepath.Join(dir, "detector.safetensors")
	var photos [][]byte
	for i := range 200 {
		img := image.NewGray(image.Rect(0, 0, 8, 8))
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		for at := range img.Pix {
			img.Pix[at] = uint8(rng.IntN(120) + 100*(i%2))
		}
		var b bytes.Buffer
		class := filepath.Join(images, []string{"dark", "light"}[i%2])
		if err := errors.Join(png.Encode(&b, img), os.MkdirAll(class, 0o777), os.WriteFile(filepath.Join(class, fmt.Sprintf("%d.png", i)), b.Bytes(), 0o666)); err != nil {
			return err
		}
		photos = append(photos, b.Bytes())
	}
	if _, err := pipeline.Extract(ctx, pipeline.ExtractOptions{Model: extractor.PixelsName, Images: images, Out: features, Pixels: extractor.PixelOptions{Width: 8, Height: 8}}); err != nil {
		return err
	}
	d, _, err := pipeline.Train(ctx, pipeline.TrainOptions{Features: []string{features}})
	if err == nil {
		err = d.Save(detector)
	}
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "serve", "--detector", detector, "--store", filepath.Join(dir, "store.db"), "--keep", "none", "--listen", "127.0.0.1:0", "--per-client", "-1", "--log", "json")
	text, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // what it says was seen by its answers
	}()
	address := ""
	for lines := bufio.NewScanner(text); address == "" && lines.Scan(); {
		var said struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &said) == nil && said.Msg == "listening" {
			address = said.Address
		}
	}
	go io.Copy(io.Discard, text)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: *s.clients}}
	var next, stored, refused, failed atomic.Int64
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "requests\tresident\tstored\trefused (429)\tfailed\tper second\tload")
	began := time.Now()
	report := func(n int64) {
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%.0f\t%s\n", n, resident(cmd.Process.Pid), stored.Load(), refused.Load(), failed.Load(), float64(n)/time.Since(began).Seconds(), loadAverage())
		_ = w.Flush()
	}
	every := max(int64(*s.soak)/20, 1)
	var group sync.WaitGroup
	for range *s.clients {
		group.Go(func() {
			for i := next.Add(1); i <= int64(*s.soak) && ctx.Err() == nil; i = next.Add(1) {
				body := fmt.Appendf(bytes.Clone(photos[i%int64(len(photos))]), "%d", i)
				response, err := client.Post("http://"+address+"/v1/detect", "image/png", bytes.NewReader(body))
				if err == nil {
					var answer struct{ Stored bool }
					err = json.NewDecoder(response.Body).Decode(&answer)
					_, _ = io.Copy(io.Discard, response.Body)
					err = errors.Join(err, response.Body.Close())
					switch {
					case response.StatusCode == http.StatusTooManyRequests:
						refused.Add(1)
					case response.StatusCode != http.StatusOK:
						failed.Add(1)
					case answer.Stored:
						stored.Add(1)
					}
				}
				if err != nil {
					failed.Add(1)
				}
				if i%every == 0 {
					report(i)
				}
			}
		})
	}
	group.Wait()
	return ctx.Err()
}

// flood lets all clients ask one after the other, and returns how long it took.
func (s *serving) flood(photos [][]byte, ask func([]byte) error) (time.Duration, error) {
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
	return time.Since(start), failed
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
