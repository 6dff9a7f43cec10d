//go:build unix

package command

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestServe: the program answers what detect prints, remembers it, and ends with code 0
// when it is told to, its socket from systemd or its own.
func TestServe(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	file, db := filepath.Join(dir, "new", "0.png"), filepath.Join(dir, "store.db")
	picture(t, file, 0, 100)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out, _ := call(t, 0, "detect", "--detector", w.detector, "--json", "--quiet", file)
	var want, got map[string]any
	if err := json.Unmarshal([]byte(out), &want); err != nil {
		t.Fatal(err)
	}
	ask := func(url string) {
		response, err := http.Post(url+"/v1/detect", "image/png", bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err != nil || got["stored"] != true || got["detector"] != "main" {
			t.Fatalf("%s, %v", text, err)
		}
		for _, name := range []string{"class", "confidence", "score", "ood", "p_value"} {
			if got[name] != want[name] {
				t.Errorf("%s: %v, want %v", name, got[name], want[name])
			}
		}
	}
	end := func(cmd *exec.Cmd) {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("it ended with %v", err)
		}
	}

	cmd := process(t, "serve", "--detector", "main="+w.detector, "--store", db, "--keep", "all", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
	cmd.Stderr = nil
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(log)
	url := ""
	for url == "" && lines.Scan() {
		if m := regexp.MustCompile(`msg=listening address=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			url = "http://" + m[1]
		}
	}
	go io.Copy(io.Discard, log)
	ask(url)
	call(t, 0, "health", "--address", strings.TrimPrefix(url, "http://"))
	end(cmd)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	url = "http://" + l.Addr().String()
	program := process(t, "serve", "--detector", "main="+w.detector, "--store", db, "--quiet")
	cmd = exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" "$@"`)
	cmd.Args = append(cmd.Args, program.Args...)
	cmd.Env, cmd.ExtraFiles = program.Env, []*os.File{socket}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	socket.Close()
	ask(url) // which waits until the program takes the connection
	end(cmd)
	call(t, 0, "audit", db)
	if kept, err := filepath.Glob(filepath.Join(db+".images", "*", "*")); err != nil || len(kept) != 1 {
		t.Errorf("kept are %v, %v", kept, err)
	}
}

func TestServeRefuses(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		args []string
		says string
	}{
		{[]string{"--listen", ":0"}, "--token-file: "},
		{[]string{"--listen", "nowhere:x"}, "listen"},
		{[]string{"--token-file", filepath.Join(w.dir, "none")}, "--token-file: "},
		{[]string{"--shadow", "other=" + w.detector}, "--shadow: "},
		{[]string{"--detector", "world=" + w.detector}, "--detector: "}, // which has this name by its folder
		{[]string{"--tls-cert", w.detector}, "--tls-cert: "},
		{[]string{"--waiting", "-1"}, "--waiting: "},
		{[]string{"--store", w.dir}, "store"},
	} {
		args := append([]string{"serve", "--detector", w.detector}, tt.args...)
		if !strings.Contains(strings.Join(args, " "), "--listen") {
			args = append(args, "--listen", "127.0.0.1:0")
		}
		fails(t, tt.says, args...)
	}
	for _, args := range [][]string{
		{"serve"}, {"serve", "--detector", w.detector, "x"}, {"serve", "--detector", w.detector, "--keep", "all"}, {"serve", "--detector", w.detector, "--shadow", w.detector},
		{"serve", "--detector", w.detector, "--keep", "some"}, {"serve", "--detector", w.detector, "--max-pixels", "-1"}, {"serve", "--detector", "/"},
	} {
		call(t, usage, args...)
	}
}

// TestServeSecondSignal: the first signal lets a request that has begun end, the second
// ends the program at once.
func TestServeSecondSignal(t *testing.T) {
	w := newWorld(t)
	cmd := process(t, "serve", "--detector", w.detector, "--listen", "127.0.0.1:0", "--drain", "1m", "--read-timeout", "1m")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(log)
	until := func(pattern string) string {
		t.Helper()
		for lines.Scan() {
			if m := regexp.MustCompile(pattern).FindStringSubmatch(lines.Text()); m != nil {
				return m[1]
			}
		}
		t.Fatalf("the log has no %s", pattern)
		return ""
	}
	address := until(`msg=listening address=(\S+)`)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The answer 100 shows that the request has begun.
	fmt.Fprint(conn, "POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n")
	if answer, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(answer, "100 Continue") {
		t.Fatalf("%q, %v", answer, err)
	}
	signal := func() {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	signal()
	until(`msg="(ending)`)
	ended := make(chan error, 1)
	go func() {
		_, _ = io.Copy(io.Discard, log)
		ended <- cmd.Wait()
	}()
	select {
	case err := <-ended:
		t.Fatalf("it did not wait for the request that has begun: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	signal()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it ended with code 0")
		}
	case <-time.After(20 * time.Second): // --drain and --read-timeout are longer
		_ = cmd.Process.Kill()
		t.Error("the second signal did not end it")
	}
}
