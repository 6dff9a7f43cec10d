package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/serve"
)

// serving compares a service with what detect reaches on a folder of the same
// photographs, and measures how long its answers take when it is idle, beside those of a
// verdict without a service, and at 70% of that rate. Service and detect are the program,
// on the same processors; the clients are this process. Both sides of each ratio are
// measured by turns. With soak it sends that many requests, with a tiny model, and prints
// how the service's memory grows.
type serving struct {
	model, program, cpus  *string
	photographs           *string
	images, clients, soak *int
	rounds                *int
	sameSize, store       *bool
}

func benchServe(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	s := &serving{
		model:       f.String("model", filepath.Join("models", "efficientnet-lite0"), "`folder` of the model"),
		images:      f.Int("images", 1000, "images that are judged for each number"),
		clients:     f.Int("clients", 32, "clients at once"),
		soak:        f.Int("soak", 0, "instead, send this `NUMBER` of requests and watch the memory"),
		photographs: f.String("photographs", "", "`folder` of images to judge (default: some photographs)"),
		sameSize:    f.Bool("same-size", false, "crop the images to one size, 500×375, and write them as JPEG, so that each takes about as long as any other"),
		store:       f.Bool("store", false, "the service stores its verdicts, and the flagged images, which detect does not"),
		cpus:        f.String("cpus", "", "`LIST` of processors for serve and detect, as of taskset -c; those of the clients are by the taskset that starts this"),
		rounds:      addRounds(f, 3),
		program:     addProgram(f),
	}
	return s.measure
}

func (s *serving) measure(ctx context.Context, dir string) error {
	if *s.soak > 0 {
		return s.endure(ctx, dir)
	}
	files, err := filepath.Glob(filepath.Join(*s.photographs, "*"))
	if *s.photographs == "" {
		files, err = photographs(filepath.Join(dir, "photographs"), "")
	}
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s has no photographs", *s.photographs)
	}
	if err == nil && *s.sameSize {
		files, err = crop(files, filepath.Join(dir, "same-size"))
	}
	if err != nil {
		return err
	}
	program, err := build(*s.program, dir)
	if err != nil {
		return err
	}
	model, err := extractor.OpenModel(ctx, *s.model, extractor.Options{})
	if err != nil {
		return err
	}
	detector, err := madeUpDetector(ctx, dir, *s.model, model)
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
	metrics := filepath.Join(dir, "metrics")
	args := []string{"--detector", detector, "--model", *s.model, "--metrics-listen", "unix:" + metrics}
	if *s.store {
		args = append(args, "--store", filepath.Join(dir, "store.db"))
	}
	server, err := startService(ctx, *s.cpus, program, args...)
	if err != nil {
		return err
	}
	defer server.stop()
	server.metrics = metrics
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: *s.clients}}
	defer client.CloseIdleConnections()
	var serial atomic.Int64
	ask := func(photo []byte) (int, error) {
		// Bytes after the end of a JPEG change nothing but its hash: no two are equal.
		body := fmt.Appendf(bytes.Clone(photo), "%d", serial.Add(1))
		response, err := client.Post(server.address+"/v1/detect", "image/jpeg", bytes.NewReader(body))
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
	d, err := pipeline.LoadDetector(detector)
	if err != nil {
		return err
	}
	judge, err := pipeline.NewJudge(ctx, d, *s.model, extractor.Options{})
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
	n, m := float64(*s.images), float64(*s.images-1)
	figures := func(u usage, n float64) []float64 { return []float64{n / u.wall.Seconds(), 1000 * u.cpu.Seconds() / n} }
	onFolder := func(folder string) (usage, error) {
		r, err := run(pinned(ctx, *s.cpus, nil, program, "detect", "--detector", detector, "--model", *s.model, "--json", "--quiet", folder), nil)
		return r.usage, err
	}
	medians, err := byTurns(*s.rounds, "throughput", "%.1f images/s, %.2f ms of processor", []contender{
		{fmt.Sprintf("%d clients", *s.clients), func() ([]float64, error) {
			before := server.processTime()
			took, err := s.flood(photos, good)
			return figures(usage{took, server.processTime() - before}, n), err
		}},
		{"detect on a folder", func() ([]float64, error) {
			began, err := onFolder(one)
			if err != nil {
				return nil, err
			}
			whole, err := onFolder(folder)
			return figures(whole.minus(began), m), err
		}},
	})
	if err != nil {
		return err
	}
	served, detected := medians[0], medians[1]
	rate := served[0]
	const share = 0.7
	even, random := arrivals(*s.images, share*rate, false), arrivals(*s.images, share*rate, true)
	servers, err := processors(ctx, *s.cpus)
	if err != nil {
		return err
	}
	loads := []struct {
		how   string
		ideal *times
		*responses
	}{
		{"at even intervals", ideal(even, servers, rate), s.load(even, server, photos, good)},
		{"at random times (Poisson)", ideal(random, servers, rate), s.load(random, server, photos, good)},
	}
	// Beyond what may wait.
	log.Print("more than may wait")
	var statuses sync.Map
	var group sync.WaitGroup
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
	ms := func(d time.Duration, n float64) float64 { return d.Seconds() * 1000 / n }
	fmt.Fprintf(w, "%d clients, images/s\t%.1f\t%.3f× of detect\tprocessor ms/image of the service %.2f\t\n", *s.clients, rate, rate/detected[0], served[1])
	fmt.Fprintf(w, "detect on a folder, images/s (without its start)\t%.1f\t\tprocessor ms/image %.2f\t\n", detected[0], detected[1])
	fmt.Fprintf(w, "a verdict without a service, ms\tp50 %.1f\tp99 %.1f\t\t\n", alone.quantile(0.5), alone.quantile(0.99))
	fmt.Fprintf(w, "idle, ms\tp50 %.1f\tp99 %.1f\t%.2f× of p50 without a service\t\n", idle.quantile(0.5), idle.quantile(0.99), idle.quantile(0.5)/alone.quantile(0.5))
	for _, l := range loads {
		fmt.Fprintf(w, "70%% load %s, ms\tp50 %.1f\tp99 %.1f\t%.2f× of p50, %d failed; processor ms/image of the service %.2f\t\n", l.how, l.took.quantile(0.5), l.took.quantile(0.99), l.took.quantile(0.99)/l.took.quantile(0.5), l.failed, ms(l.cpu, float64(*s.images)))
		fmt.Fprintf(w, "of which on average, ms\twaiting %.1f\tfeatures %.1f\tverdict, several at once %.1f\t\n", 1000*l.stages["wait"], 1000*l.stages["features"], 1000*l.stages["verdict"])
		fmt.Fprintf(w, "an ideal queue, ms\tp50 %.1f\tp99 %.1f\t%.2f× of p50 (%d processors, one image each at a time, %.1f ms each)\t\n", l.ideal.quantile(0.5), l.ideal.quantile(0.99), l.ideal.quantile(0.99)/l.ideal.quantile(0.5), servers, 1000*float64(servers)/rate)
	}
	fmt.Fprintf(w, "%d requests at once, by status (0: no answer)\t", 4*serve.DefaultWaiting)
	statuses.Range(func(status, count any) bool {
		fmt.Fprintf(w, "%d: %d  ", status, count.(*atomic.Int64).Load())
		return true
	})
	fmt.Fprintln(w, "\t\t\t")
	fmt.Fprintf(w, "load average of the machine (1, 5, 15 minutes)\t%s\t\t\t\n", loadAverage())
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

// arrivals are when requests are due, at so many per second: at even intervals, or at
// random times that are the same in each run.
func arrivals(n int, rate float64, random bool) []time.Duration {
	rng := rand.New(rand.NewPCG(7, 1))
	due, at := make([]time.Duration, n), 0.0
	for i := range due {
		gap := 1.0
		if random {
			gap = rng.ExpFloat64()
		}
		at += gap / rate
		due[i] = time.Duration(at * float64(time.Second))
	}
	return due
}

// ideal is how long answers take in a queue without any overhead: first come, first
// served, by so many servers that together have this rate and take equally long for each
// request (M/D/c, where the arrivals are random). No service can do better with them.
func ideal(due []time.Duration, servers int, rate float64) *times {
	took := &times{}
	each := time.Duration(float64(servers) / rate * float64(time.Second))
	free := make([]time.Duration, servers) // when each server is
	for _, at := range due {
		slices.Sort(free)
		free[0] = max(at, free[0]) + each
		took.add(free[0] - at)
	}
	return took
}

// processors is how many the service may use.
func processors(ctx context.Context, cpus string) (int, error) {
	if cpus == "" {
		return runtime.NumCPU(), nil
	}
	text, err := pinned(ctx, cpus, nil, "nproc").Output()
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// responses are what came of requests that were sent when they were due, whether or not those
// before were answered.
type responses struct {
	took   *times // from when a request was due
	failed int64
	cpu    time.Duration      // of the service
	stages map[string]float64 // mean seconds of the parts of the work in the service
}

func (s *serving) load(due []time.Duration, server *service, photos [][]byte, ask func([]byte) error) *responses {
	log.Print("70% load")
	l := &responses{took: &times{}, cpu: -server.processTime(), stages: map[string]float64{}}
	before := server.gauges()
	var failures atomic.Int64
	var group sync.WaitGroup
	start := time.Now()
	for i, after := range due {
		at := start.Add(after)
		time.Sleep(time.Until(at))
		group.Go(func() {
			if ask(photos[i%len(photos)]) != nil {
				failures.Add(1)
			}
			l.took.add(time.Since(at))
		})
	}
	group.Wait()
	l.failed = failures.Load()
	l.cpu += server.processTime()
	after := server.gauges()
	for _, stage := range []string{"wait", "features", "verdict"} {
		grown := func(what string) float64 {
			name := fmt.Sprintf("mlrbfn_stage_seconds_%s{stage=%q}", what, stage)
			return after[name] - before[name]
		}
		l.stages[stage] = grown("sum") / grown("count")
	}
	return l
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
