package testenv

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// This file starts a real object store for tests, and a proxy that makes the way to
// it bad. scripts/store installs both; tests are skipped without them.

// installed returns a program that scripts/store installs.
func installed(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join(Root(t), ".setup", "store", "bin", name)
	if _, err := exec.LookPath(file); err != nil { // a program of Linux is none on Windows
		Missing(t, "store", "scripts/store installs it", err)
	}
	return file
}

// freePort returns the address of a port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// run runs a program until the test ends, and waits until it listens.
func run(t *testing.T, address string, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for range 600 {
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s does not listen", name)
}

// Start starts an object store with the bucket data, and returns the folder that has its
// objects and its address. The environment names it from then on. It is in the region
// us-east-1, and for gs:// in auto.
func Start(t *testing.T, scheme string) (folder, address string) {
	t.Helper()
	program := installed(t, "versitygw")
	folder, address = t.TempDir(), freePort(t)
	if err := os.MkdirAll(filepath.Join(folder, "data"), 0o777); err != nil {
		t.Fatal(err)
	}
	// Without a place for metadata (--nometa) it forgets the ETags of the parts of an object,
	// and refuses to put them together (InvalidPart).
	region := map[string]string{"s3": "us-east-1", "gs": "auto"}[scheme]
	run(t, address, []string{"ROOT_ACCESS_KEY=test", "ROOT_SECRET_KEY=testtest"}, program, "--port", address, "--region", region, "--quiet", "posix", "--sidecar", t.TempDir(), folder)
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest", "AWS_REGION": "us-east-1", "AWS_PROFILE": "",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_ENDPOINT_URL_S3": "http://" + address,
		"GS_ACCESS_KEY_ID": "test", "GS_SECRET_ACCESS_KEY": "testtest", "GS_ENDPOINT_URL": "http://" + address,
	} {
		t.Setenv(name, value)
	}
	return filepath.Join(folder, "data"), address
}

// Proxy is on the way to a server.
type Proxy struct {
	Address string
	api     string
}

// StartProxy starts a proxy to an address.
func StartProxy(t *testing.T, upstream string) *Proxy {
	t.Helper()
	program := installed(t, "toxiproxy")
	p := &Proxy{freePort(t), freePort(t)}
	_, port, err := net.SplitHostPort(p.api)
	if err != nil {
		t.Fatal(err)
	}
	run(t, p.api, nil, program, "-host", "127.0.0.1", "-port", port)
	p.post(t, "/proxies", map[string]any{"name": "store", "listen": p.Address, "upstream": upstream, "enabled": true})
	return p
}

// Add makes a share of the connections bad, in a way that toxiproxy knows by its kind:
// latency, slicer, limit_data and so on. What goes to the client suffers.
func (p *Proxy) Add(t *testing.T, kind string, share float64, attributes map[string]int) {
	t.Helper()
	p.post(t, "/proxies/store/toxics", map[string]any{"name": kind, "type": kind, "stream": "downstream", "toxicity": share, "attributes": attributes})
}

func (p *Proxy) post(t *testing.T, path string, what any) {
	t.Helper()
	body, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post("http://"+p.api+path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode >= 300 {
		t.Fatalf("toxiproxy: %s, %v", text, err)
	}
}
