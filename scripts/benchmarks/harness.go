package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

// This file has what all measurements share: turns, medians, processor time, memory,
// programs, and the processors that they run on.

// A contender is one way to do something. measure returns its figures, which are as many
// and in the same order for all contenders of a race.
type contender struct {
	name    string
	measure func() ([]float64, error)
}

// errLeftOut is the error of a contender that cannot take part. The others go on.
var errLeftOut = errors.New("it is left out")

// byTurns measures each contender once in every round, because other programs disturb a
// machine for minutes at a time. It returns the medians of each contender's figures, nil
// for one that was left out. format prints the figures of one measurement.
func byTurns(rounds int, what, format string, contenders []contender) (medians [][]float64, err error) {
	values := make([][][]float64, len(contenders)) // by contender and figure
	for round := range rounds {
		for i, c := range contenders {
			v, err := c.measure()
			if errors.Is(err, errLeftOut) {
				log.Printf("%s, %s: %v", what, c.name, err)
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", what, c.name, err)
			}
			if values[i] == nil {
				values[i] = make([][]float64, len(v))
			}
			shown := make([]any, len(v))
			for k, figure := range v {
				values[i][k] = append(values[i][k], figure)
				shown[k] = figure
			}
			log.Printf("round %d of %d: %s: %s: "+format, append([]any{round + 1, rounds, what, c.name}, shown...)...)
		}
	}
	medians = make([][]float64, len(contenders))
	for i, figures := range values {
		for _, all := range figures {
			medians[i] = append(medians[i], median(all))
		}
	}
	return medians, nil
}

// median returns the median, or 0 without values.
func median(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// usage is wall-clock time and the processor time of all threads of a program. On a
// busy machine, processor time divided by the cores estimates the wall-clock time
// of an idle one.
type usage struct{ wall, cpu time.Duration }

var start = time.Now()

// used is usage since this program's start.
func used() usage { return usage{time.Since(start), processTime()} }

func (u usage) plus(v usage) usage  { return usage{u.wall + v.wall, u.cpu + v.cpu} }
func (u usage) minus(v usage) usage { return usage{u.wall - v.wall, u.cpu - v.cpu} }

// watch returns what do took and the peak of this program's memory without mapped
// files.
func watch(do func() error) (took usage, peak uint64, err error) {
	runtime.GC()
	done := make(chan error)
	start := used()
	go func() { done <- do() }()
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return used().minus(start), peak, err
		case <-tick.C:
			metrics.Read(sample)
			peak = max(peak, sample[0].Value.Uint64()+sample[1].Value.Uint64())
		}
	}
}

// ran is what a program took that has ended.
type ran struct {
	usage
	out       []byte // its standard output
	peak      int64  // bytes of resident memory, 0 if the system does not count like Linux
	anonymous int64  // likewise without mapped files, sampled
}

// run runs a program to its end. Its error holds what it said last on standard error, if
// cmd does not send that elsewhere. each is called from time to time with what the
// program has in anonymous memory; nil is allowed.
func run(cmd *exec.Cmd, each func(anonymous int64) error) (r ran, err error) {
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return r, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			r.wall, r.cpu = time.Since(start), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
			r.out, r.peak = stdout.Bytes(), peak(cmd.ProcessState)
			if err != nil && stderr.Len() > 0 {
				lines := bytes.Split(bytes.TrimSpace(stderr.Bytes()), []byte("\n"))
				err = fmt.Errorf("%w: %s", err, lines[len(lines)-1])
			}
			return r, err
		case <-tick.C:
			now := proc(cmd.Process.Pid, "status", "RssAnon:") << 10
			r.anonymous = max(r.anonymous, now)
			if each != nil {
				if err := each(now); err != nil {
					return r, errors.Join(err, cmd.Process.Kill(), <-done)
				}
			}
		}
	}
}

// pinned is a command that runs on some processors alone, a list as of taskset -c, unless
// it is empty or the system has no taskset. env is added to the environment.
func pinned(ctx context.Context, cpus string, env []string, command ...string) *exec.Cmd {
	if cpus != "" {
		if taskset, err := exec.LookPath("taskset"); err == nil {
			command = append([]string{taskset, "-c", cpus}, command...)
		}
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// withThreads are the environment variables by which Go, OpenMP and OpenBLAS know how many
// threads they may have.
func withThreads(n int) []string {
	var env []string
	for _, name := range []string{"GOMAXPROCS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"} {
		env = append(env, fmt.Sprintf("%s=%d", name, n))
	}
	return env
}

// proc returns a number that /proc says of a process, 0 where there is none.
func proc(pid int, file, name string) (n int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	_, after, _ := strings.Cut(string(text), name)
	_, _ = fmt.Sscan(after, &n)
	return n
}

// profile writes a CPU profile to a file, until stop is called; "" writes none.
func profile(file string) (stop func() error, err error) {
	if file == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

func addRounds(f *flag.FlagSet, usual int) *int {
	return f.Int("rounds", usual, "how often each candidate is measured")
}
