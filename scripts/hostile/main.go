// Command hostile attacks a service with images that are made to take as much time or memory
// as they can, and prints what an innocent client has to wait and how much memory the service
// takes:
//
//	go build -o bin/mlrbfn ./cmd/mlrbfn && bin/mlrbfn demo --out demo
//	(cd scripts && go run ./hostile -detector ../demo/detector.safetensors)
//
// The service has two workers and so much memory, by a control group where one can be made (it
// is killed if it takes more), else by ulimit -v, which also counts what is only reserved. Of
// each kind of image some are in flight all the time, from one address; the innocent client has
// another one, or the same with -same.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	goimage "image"
	gopng "image/png"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	program := flag.String("mlrbfn", "../bin/mlrbfn", "the program")
	detector := flag.String("detector", "", "a detector")
	workers := flag.Int("workers", 2, "images that the service judges at once")
	kinds := flag.String("kinds", "", "only kinds of images whose names begin so")
	inFlight := flag.Int("in-flight", 30, "hostile images at once")
	each := flag.Duration("time", 15*time.Second, "for each kind")
	limit := flag.Int64("memory", 2<<30, "bytes of memory")
	same := flag.Bool("same", false, "the innocent client has the address of the hostile one")
	flag.Parse()
	if err := run(*program, *detector, *kinds, *workers, *inFlight, *each, *limit, *same); err != nil {
		log.Fatal(err)
	}
}

// client sends from an address of this machine.
func client(from string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 100}, Timeout: time.Minute}
}

func post(c *http.Client, url string, data []byte) (int, error) {
	response, err := c.Post(url+"/v1/detect", "application/octet-stream", bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// limited runs a program, $3, with a limit of memory, $1, in the control group $2.
const limited = `if mkdir -p "$2" && [ -e "$2/memory.max" ]; then echo "$1" >"$2/memory.max"
elif [ -e "$2/memory.limit_in_bytes" ]; then echo "$1" >"$2/memory.limit_in_bytes"
else echo "no control group: ulimit -v" >&2; ulimit -v $(($1 >> 10)); exec "$3" "${@:4}"; fi
echo $$ >"$2/cgroup.procs" && exec "$3" "${@:4}"`

func run(program, detector, kinds string, workers, inFlight int, each time.Duration, limit int64, same bool) (err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := l.Addr().String()
	l.Close()
	group := "/sys/fs/cgroup/mlrbfn-hostile"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil { // version 1
		group = "/sys/fs/cgroup/memory/mlrbfn-hostile"
	}
	command := func(words ...string) *exec.Cmd {
		c := exec.Command("bash", slices.Concat([]string{"-c", limited, "hostile", strconv.FormatInt(limit, 10), group, program}, words, []string{"--workers", strconv.Itoa(workers), "--quiet"})...)
		c.Stderr = os.Stderr
		return c
	}
	if err := folder(command("detect", "--detector", detector)); err != nil {
		return err
	}
	service := command("serve", "--detector", "main="+detector, "--listen", address)
	if err := service.Start(); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, service.Process.Signal(syscall.SIGTERM), service.Wait())
		_ = os.Remove(group) // there may be none
	}()
	url, innocent := "http://"+address, client("127.0.0.1")
	attacker := client(map[bool]string{false: "127.0.0.2", true: "127.0.0.1"}[same])
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		response, err := innocent.Get(url + "/readyz")
		if err == nil {
			response.Body.Close()
			break
		}
		if time.Since(begun) > time.Minute {
			return err
		}
	}
	var small bytes.Buffer
	if err := gopng.Encode(&small, goimage.NewNRGBA(goimage.Rect(0, 0, 300, 200))); err != nil {
		return err
	}
	fmt.Printf("%-40s %10s %25s %8s %8s %8s  %s\n", "hostile images", "bytes", "answers", "p50 s", "p99 s", "n", "peak MiB")
	for _, hostile := range append([]image{{"none", nil}}, images()...) {
		if !strings.HasPrefix(hostile.name, kinds) {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), each)
		var mu sync.Mutex
		statuses := map[int]int{}
		var next atomic.Int64
		var all sync.WaitGroup
		for range inFlight {
			if hostile.data == nil {
				continue
			}
			all.Go(func() {
				for ctx.Err() == nil {
					status, err := post(attacker, url, strconv.AppendInt(bytes.Clone(hostile.data), next.Add(1), 10)) // as equal ones are decoded once
					if err != nil {
						status = -1
					}
					mu.Lock()
					statuses[status]++
					mu.Unlock()
					if status == http.StatusTooManyRequests {
						time.Sleep(100 * time.Millisecond)
					}
				}
			})
		}
		var took []time.Duration
		for ctx.Err() == nil {
			start := time.Now()
			// A byte beyond the image makes it another one, which is not answered with its like.
			status, err := post(innocent, url, strconv.AppendInt(bytes.Clone(small.Bytes()), int64(len(took)), 10))
			if err != nil || status != http.StatusOK {
				cancel()
				return errors.Join(err, fmt.Errorf("an innocent image: status %d", status))
			}
			took = append(took, time.Since(start))
			time.Sleep(20 * time.Millisecond)
		}
		cancel()
		all.Wait()
		slices.Sort(took)
		peak, err := peakOf(service.Process.Pid)
		if err != nil {
			return err
		}
		var answers []string
		for _, status := range slices.Sorted(maps.Keys(statuses)) {
			answers = append(answers, fmt.Sprintf("%d×%d", statuses[status], status))
		}
		fmt.Printf("%-40s %10d %25s %8.3f %8.3f %8d  %d\n", hostile.name, len(hostile.data), cmp.Or(strings.Join(answers, " "), "–"),
			took[len(took)/2].Seconds(), took[min(len(took)-1, len(took)*99/100)].Seconds(), len(took), peak>>20)
	}
	for _, crowd := range []struct {
		name string
		n    int
		says string
	}{
		{"slow bodies", 1000, "POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nxy"},
		{"idle connections", 5000, ""},
	} {
		if err := crowded(crowd.name, crowd.n, crowd.says, address, each); err != nil {
			return err
		}
	}
	return nil
}

// folder has a command judge a folder with eight of each kind of image, and prints how much
// memory it takes.
func folder(detect *exec.Cmd) error {
	dir, err := os.MkdirTemp("", "hostile")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for i, one := range images() {
		for n := range 8 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d-%d.png", i, n)), strconv.AppendInt(bytes.Clone(one.data), int64(n), 10), 0o600); err != nil {
				return err
			}
		}
	}
	detect.Args = append(detect.Args, dir)
	start := time.Now()
	if err := detect.Run(); err != nil && detect.ProcessState.ExitCode() != 3 { // as some are refused
		return fmt.Errorf("detect: %w", err)
	}
	fmt.Printf("detect of a folder with 8 of each kind: %.0f s, peak %d MiB\n", time.Since(start).Seconds(), detect.ProcessState.SysUsage().(*syscall.Rusage).Maxrss>>10)
	return nil
}

// crowded opens connections that say something and no more, and asks for the health of the
// service from the same address all the while, each time by a new connection.
func crowded(name string, n int, says, address string, long time.Duration) error {
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			conn.Close()
		}
	}()
	for range n {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		if open = append(open, conn); says != "" {
			_, _ = io.WriteString(conn, says) // one that was ended already takes nothing
		}
	}
	health := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	var took []time.Duration
	failed := 0
	for begun := time.Now(); time.Since(begun) < long; time.Sleep(50 * time.Millisecond) {
		start := time.Now()
		response, err := health.Get("http://" + address + "/healthz")
		if err != nil {
			failed++
			continue
		}
		response.Body.Close()
		took = append(took, time.Since(start))
	}
	if slices.Sort(took); len(took) == 0 {
		return fmt.Errorf("%d %s: health never answers", n, name)
	}
	fmt.Printf("%d %s: health answers %d of %d times, p99 %.3f s\n", n, name, len(took), len(took)+failed, took[len(took)*99/100].Seconds())
	return nil
}

// peakOf is the most memory that a process has had.
func peakOf(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("/proc does not say how much memory a process has had")
}
