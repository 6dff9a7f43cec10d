package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// service is the program, serving.
type service struct {
	*exec.Cmd
	address string
	metrics string // the Unix socket of its metrics
}

// startService starts it on some processors, and returns when it answers.
func startService(ctx context.Context, cpus, program string, args ...string) (*service, error) {
	cmd := pinned(ctx, cpus, nil, append([]string{program, "serve", "--listen", "127.0.0.1:0", "--per-client", "-1", "--per-client-connections", "-1", "--log", "json"}, args...)...)
	text, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	s := &service{Cmd: cmd}
	var said []string
	for lines := bufio.NewScanner(text); s.address == "" && lines.Scan(); {
		said = append(said, lines.Text())
		var line struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
			s.address = "http://" + line.Address
		}
	}
	if s.address == "" {
		return nil, errors.Join(cmd.Wait(), errors.New(strings.Join(said, "\n")))
	}
	go io.Copy(io.Discard, text)
	return s, nil
}

// stop ends it in order.
func (s *service) stop() {
	_ = s.Process.Signal(os.Interrupt)
	_ = s.Wait() // what it says was seen by its answers
}

// processTime is the processor time of its threads so far, 0 where the system does not
// tell as Linux does.
func (s *service) processTime() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.Process.Pid))
	if err != nil {
		return 0
	}
	const user, system, tick = 11, 12, 10 * time.Millisecond // fields after the name, which is in ()
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	a, errA := strconv.Atoi(fields[user])
	b, errB := strconv.Atoi(fields[system])
	if errA != nil || errB != nil {
		return 0
	}
	return time.Duration(a+b) * tick
}

// endure sends requests to the program and prints what it takes from time to time. It
// stores the verdicts, the features of the newest and the newest flagged images.
func (s *serving) endure(ctx context.Context, dir string) error {
	program, err := build(*s.program, dir)
	if err != nil {
		return err
	}
	photos, detector, err := tiny(ctx, dir)
	if err != nil {
		return err
	}
	kept, metrics := filepath.Join(dir, "store.db.images"), filepath.Join(dir, "metrics")
	server, err := startService(ctx, *s.cpus, program, "--detector", detector, "--store", filepath.Join(dir, "store.db"),
		"--keep-size", "0.001", "--metrics-listen", "unix:"+metrics)
	if err != nil {
		return err
	}
	defer server.stop()
	server.metrics = metrics
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: *s.clients}}
	var next, stored, refused, failed atomic.Int64
	w := tabwriter.NewWriter(os.Stdout, 10, 0, 2, ' ', 0)
	fmt.Fprintln(w, "requests\tresident\theap\tgoroutines\tthreads\tfiles\tstore\timages kept\tstored\trefused (429)\tfailed\tper second\tprocessor ms each\tload")
	began := time.Now()
	report := func(n int64) {
		m := server.gauges()
		const mib = 1 << 20
		fmt.Fprintf(w, "%d\t%.1f MiB\t%.1f MiB\t%.0f\t%.0f\t%.0f\t%.0f MiB\t%s\t%d\t%d\t%d\t%.0f\t%.2f\t%s\n", n,
			m["process_resident_memory_bytes"]/mib, m["go_memstats_heap_inuse_bytes"]/mib, m["go_goroutines"], m["go_threads"], m["process_open_fds"],
			float64(sizeOf(filepath.Join(dir, "store.db"))+sizeOf(filepath.Join(dir, "store.db-wal")))/mib, countOf(kept),
			stored.Load(), refused.Load(), failed.Load(), float64(n)/time.Since(began).Seconds(), server.processTime().Seconds()*1000/float64(n), loadAverage())
		_ = w.Flush()
	}
	every := max(int64(*s.soak)/10, 1)
	var group sync.WaitGroup
	for range *s.clients {
		group.Go(func() {
			for i := next.Add(1); i <= int64(*s.soak) && ctx.Err() == nil; i = next.Add(1) {
				body := fmt.Appendf(bytes.Clone(photos[i%int64(len(photos))]), "%d", i)
				response, err := client.Post(server.address+"/v1/detect", "image/png", bytes.NewReader(body))
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

// tiny makes tiny images of two classes and a detector of their pixels. Two of a hundred
// images are of neither class.
func tiny(ctx context.Context, dir string) (photos [][]byte, detector string, err error) {
	images, features := filepath.Join(dir, "images"), filepath.Join(dir, "pixels")
	for i := range 200 {
		img := image.NewGray(image.Rect(0, 0, 8, 8))
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		for at := range img.Pix {
			img.Pix[at] = uint8(rng.IntN(120) + 100*(i%2))
		}
		var b bytes.Buffer
		class := filepath.Join(images, []string{"dark", "light"}[i%2])
		if err := errors.Join(png.Encode(&b, img), os.MkdirAll(class, 0o777), os.WriteFile(filepath.Join(class, fmt.Sprintf("%d.png", i)), b.Bytes(), 0o666)); err != nil {
			return nil, "", err
		}
		photos = append(photos, b.Bytes())
	}
	for i := range 4 {
		img := image.NewGray(image.Rect(0, 0, 8, 8))
		for at := range img.Pix {
			img.Pix[at] = uint8(255 * (at >> i % 2))
		}
		var b bytes.Buffer
		if err := png.Encode(&b, img); err != nil {
			return nil, "", err
		}
		photos = append(photos, b.Bytes())
	}
	if _, err := pipeline.Extract(ctx, pipeline.ExtractOptions{Model: extractor.PixelsName, Images: images, Out: features, Options: extractor.Options{Width: 8, Height: 8}}); err != nil {
		return nil, "", err
	}
	d, _, err := pipeline.Train(ctx, pipeline.TrainOptions{Features: []string{features}})
	if err != nil {
		return nil, "", err
	}
	detector = filepath.Join(dir, "detector.safetensors")
	return photos, detector, d.Save(detector)
}

// gauges are the numbers of /metrics, with their labels if they have any; none if they
// cannot be read.
func (s *service) gauges() map[string]float64 {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.metrics)
	}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Get("http://localhost/metrics")
	if err != nil {
		log.Print(err)
		return nil
	}
	defer response.Body.Close()
	values := map[string]float64{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if name, text, ok := strings.Cut(lines.Text(), " "); ok && name != "#" {
			if v, err := strconv.ParseFloat(text, 64); err == nil {
				values[name] = v
			}
		}
	}
	return values
}

func sizeOf(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// countOf counts the files of a folder and their bytes.
func countOf(dir string) string {
	files, size := 0, int64(0)
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files++
			size += sizeOf(path)
		}
		return nil // some are removed meanwhile
	})
	return fmt.Sprintf("%d, %.1f MiB", files, float64(size)/(1<<20))
}
