// Package browser drives a headless Chromium in tests, as a person would: it clicks,
// presses keys, and looks at the screen in light and dark, on a desk and on a phone.
// It speaks the DevTools protocol over a pair of pipes with nothing but the standard
// library: playwright-core would need Node.js and chromedp several modules, for the few
// calls that are needed here.
package browser

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// timeout bounds each call; a machine that many share is slow.
const timeout = time.Minute

// Browser is a running Chromium.
type Browser struct {
	tb   testing.TB
	in   io.Writer
	mu   sync.Mutex
	next int
	wait map[int]chan reply
	tabs map[string]*Tab
}

type reply struct {
	ID        int             `json:"id"`
	SessionID string          `json:"sessionId"`
	Method    string          `json:"method"`
	Params    json.RawMessage `json:"params"`
	Result    json.RawMessage `json:"result"`
	Error     *struct{ Message string }
}

// Start starts Chromium and ends it with the test. Where there is none, the test is
// skipped. Flags are in the place of --disable-gpu.
func Start(tb testing.TB, flags ...string) *Browser {
	tb.Helper()
	var file string
	err := exec.ErrNotFound
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if file, err = exec.LookPath(name); err == nil {
			break
		}
	}
	if err != nil {
		testenv.Missing(tb, "chromium", "install Debian's package chromium", err)
	}
	fromUs, toBrowser, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	fromBrowser, toUs, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	if len(flags) == 0 {
		flags = []string{"--disable-gpu"}
	}
	cmd := exec.Command(file, append(flags, "--headless", "--no-sandbox", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--remote-debugging-pipe", "--user-data-dir="+tb.TempDir(), "about:blank")...)
	cmd.ExtraFiles = []*os.File{fromUs, toUs} // it reads 3 and writes 4
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	fromUs.Close()
	toUs.Close()
	b := &Browser{tb: tb, in: toBrowser, wait: map[int]chan reply{}, tabs: map[string]*Tab{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.read(fromBrowser)
	}()
	tb.Cleanup(func() {
		_ = b.call("", "Browser.close", nil, nil)
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		toBrowser.Close()
		fromBrowser.Close()
		<-done
		if tb.Failed() && testing.Verbose() {
			tb.Logf("the browser said: %s", said.String())
		}
	})
	return b
}

// read hands what the browser writes to those who wait for it.
func (b *Browser) read(from io.Reader) {
	r := bufio.NewReaderSize(from, 1<<20)
	for {
		line, err := r.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			for id, c := range b.wait {
				delete(b.wait, id)
				close(c)
			}
			b.mu.Unlock()
			return
		}
		var m reply
		if json.Unmarshal(line[:len(line)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		if c := b.wait[m.ID]; m.ID != 0 && c != nil {
			delete(b.wait, m.ID)
			c <- m
		} else if t := b.tabs[m.SessionID]; t != nil {
			t.heard(m)
		}
		b.mu.Unlock()
	}
}

// call calls a method of the protocol.
func (b *Browser) call(session, method string, params map[string]any, result any) error {
	c := make(chan reply, 1)
	b.mu.Lock()
	b.next++
	message := map[string]any{"id": b.next, "method": method}
	if params != nil {
		message["params"] = params
	}
	if session != "" {
		message["sessionId"] = session
	}
	b.wait[b.next] = c
	text, err := json.Marshal(message)
	if err == nil {
		_, err = b.in.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case m, ok := <-c:
		switch {
		case !ok:
			return fmt.Errorf("%s: the browser ended", method)
		case m.Error != nil:
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		case result != nil:
			return json.Unmarshal(m.Result, result)
		}
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("%s: no answer in %v", method, timeout)
	}
}

// Tab is a page that is open. Its methods end the test if anything fails.
type Tab struct {
	*Browser
	tb      testing.TB
	session string
	target  string
	loaded  chan struct{}

	complaints []string // of the page; guarded by Browser.mu
	requests   []string
}

// Open opens an empty tab, which is closed with the test.
func (b *Browser) Open(tb testing.TB) *Tab {
	tb.Helper()
	t := &Tab{Browser: b, tb: tb, loaded: make(chan struct{}, 1)}
	var created struct{ TargetID string }
	var attached struct{ SessionID string }
	err := b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &created)
	if err == nil {
		err = b.call("", "Target.attachToTarget", map[string]any{"targetId": created.TargetID, "flatten": true}, &attached)
	}
	if err != nil {
		tb.Fatal(err)
	}
	t.session, t.target = attached.SessionID, created.TargetID
	b.mu.Lock()
	b.tabs[t.session] = t
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		t.do(domain+".enable", nil, nil)
	}
	t.do("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil)
	tb.Cleanup(func() { _ = b.call("", "Target.closeTarget", map[string]any{"targetId": t.target}, nil) })
	return t
}

// heard notes what the page does.
func (t *Tab) heard(m reply) {
	switch m.Method {
	case "Page.loadEventFired":
		select {
		case t.loaded <- struct{}{}:
		default:
		}
	case "Runtime.exceptionThrown":
		var p struct {
			ExceptionDetails struct {
				Text      string
				Exception struct{ Description string }
			}
		}
		_ = json.Unmarshal(m.Params, &p)
		t.complaints = append(t.complaints, p.ExceptionDetails.Text+" "+p.ExceptionDetails.Exception.Description)
	case "Log.entryAdded":
		var p struct {
			Entry struct{ Level, Text, URL string }
		}
		_ = json.Unmarshal(m.Params, &p)
		if p.Entry.Level == "error" || p.Entry.Level == "warning" {
			t.complaints = append(t.complaints, p.Entry.Text+" "+p.Entry.URL)
		}
	case "Runtime.consoleAPICalled":
		t.complaints = append(t.complaints, "console: "+string(m.Params))
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		_ = json.Unmarshal(m.Params, &p)
		if !strings.HasPrefix(p.Request.URL, "data:") {
			t.requests = append(t.requests, p.Request.URL)
		}
	}
}

func (t *Tab) do(method string, params map[string]any, result any) {
	t.tb.Helper()
	if err := t.call(t.session, method, params, result); err != nil {
		t.tb.Fatal(err)
	}
}

// Complaints returns the errors that the page caused, what it wrote to the console
// and what its policy forbade, and forgets them.
func (t *Tab) Complaints() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.complaints
	t.complaints = nil
	return all
}

// Requests returns what was read besides data URLs, and forgets it.
func (t *Tab) Requests() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.requests
	t.requests = nil
	return all
}

// File returns the URL of a file.
func File(tb testing.TB, file string) string {
	tb.Helper()
	absolute, err := filepath.Abs(file)
	if err != nil {
		tb.Fatal(err)
	}
	return (&url.URL{Scheme: "file", Path: absolute}).String()
}

// Go opens a page and waits until it is loaded.
func (t *Tab) Go(address string) {
	t.tb.Helper()
	select {
	case <-t.loaded:
	default:
	}
	var answer struct{ ErrorText string }
	t.do("Page.navigate", map[string]any{"url": address}, &answer)
	if answer.ErrorText != "" {
		t.tb.Fatalf("%s: %s", address, answer.ErrorText)
	}
	t.WaitLoad()
}

// WaitLoad waits until the page that a click opens is loaded.
func (t *Tab) WaitLoad() {
	t.tb.Helper()
	select {
	case <-t.loaded:
	case <-time.After(timeout):
		t.tb.Fatal("the page was not loaded")
	}
}

// Scripts says whether pages may run scripts.
func (t *Tab) Scripts(on bool) {
	t.tb.Helper()
	t.do("Emulation.setScriptExecutionDisabled", map[string]any{"value": !on}, nil)
}

// Screen is the size of a window and its mode.
type Screen struct {
	Width, Height int
	Phone, Dark   bool
}

// Show sets the screen.
func (t *Tab) Show(s Screen) {
	t.tb.Helper()
	t.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": s.Width, "height": s.Height, "deviceScaleFactor": 1, "mobile": s.Phone}, nil)
	scheme := "light"
	if s.Dark {
		scheme = "dark"
	}
	t.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Eval evaluates an expression of JavaScript, which may be a promise, into result,
// unless that is nil.
func (t *Tab) Eval(expression string, result any) {
	t.tb.Helper()
	if err := t.eval(expression, result); err != nil {
		t.tb.Fatalf("%.200s: %v", expression, err)
	}
}

func (t *Tab) eval(expression string, result any) error {
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	err := t.call(t.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true}, &answer)
	switch {
	case err != nil:
		return err
	case answer.ExceptionDetails != nil:
		return errors.New(answer.ExceptionDetails.Text + " " + answer.ExceptionDetails.Exception.Description)
	case result == nil || len(answer.Result.Value) == 0:
		return nil
	}
	return json.Unmarshal(answer.Result.Value, result)
}

// Text returns the text of the first element that a CSS selector names.
func (t *Tab) Text(selector string) (text string) {
	t.tb.Helper()
	t.Eval("document.querySelector("+quote(selector)+").innerText", &text)
	return text
}

// Count returns how many visible elements a CSS selector names.
func (t *Tab) Count(selector string) (n int) {
	t.tb.Helper()
	t.Eval("[...document.querySelectorAll("+quote(selector)+")].filter((e) => e.checkVisibility()).length", &n)
	return n
}

// Wait waits until an expression is true.
func (t *Tab) Wait(expression string) {
	t.tb.Helper()
	for end := time.Now().Add(timeout); ; {
		var done bool
		err := t.eval("Boolean("+expression+")", &done)
		if done {
			return
		}
		if time.Now().After(end) {
			t.tb.Fatalf("%s does not come true: %v", expression, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func quote(text string) string {
	quoted, _ := json.Marshal(text)
	return string(quoted)
}

// Click clicks the middle of the first visible element that a CSS selector names,
// after scrolling to it. It is an error if something else lies there.
func (t *Tab) Click(selector string) {
	t.tb.Helper()
	var at struct {
		X, Y  float64
		Other string
	}
	t.Eval(`(() => {
  const e = [...document.querySelectorAll(`+quote(selector)+`)].find((e) => e.checkVisibility());
  if (!e) throw new Error("no such element is visible");
  e.scrollIntoView({ block: "center", behavior: "instant" });
  const box = e.getBoundingClientRect();
  const x = box.x + box.width / 2, y = box.y + box.height / 2;
  const hit = document.elementFromPoint(x, y);
  return { x, y, other: hit === e || e.contains(hit) || e.closest("label")?.contains(hit) ? "" : hit ? hit.outerHTML.slice(0, 200) : "nothing" };
})()`, &at)
	if at.Other != "" {
		t.tb.Fatalf("where %s should be clicked lies %s", selector, at.Other)
	}
	for _, kind := range []string{"mouseMoved", "mousePressed", "mouseReleased"} {
		params := map[string]any{"type": kind, "x": at.X, "y": at.Y}
		if kind != "mouseMoved" {
			params["button"], params["clickCount"] = "left", 1
		}
		t.do("Input.dispatchMouseEvent", params, nil)
	}
}

// Choose chooses an option of a select element.
func (t *Tab) Choose(selector, option string) {
	t.tb.Helper()
	t.Eval(`(() => { const s = document.querySelector(`+quote(selector)+`);
  s.value = `+quote(option)+`;
  if (s.value !== `+quote(option)+`) throw new Error("no such option");
  s.dispatchEvent(new Event("input", { bubbles: true })); s.dispatchEvent(new Event("change", { bubbles: true })); })()`, nil)
}

var codes = map[string]int{"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Enter": 13, "Escape": 27, "Home": 36, "End": 35, " ": 32}

// Press presses keys: single characters, or names such as ArrowRight.
func (t *Tab) Press(keys ...string) {
	t.tb.Helper()
	for _, key := range keys {
		down := map[string]any{"type": "keyDown", "key": key, "code": key}
		if len(key) == 1 {
			down["text"] = key
		}
		if key == "Enter" {
			down["text"] = "\r"
		}
		if code := codes[key]; code != 0 {
			down["windowsVirtualKeyCode"] = code
		}
		t.do("Input.dispatchKeyEvent", down, nil)
		delete(down, "text")
		down["type"] = "keyUp"
		t.do("Input.dispatchKeyEvent", down, nil)
	}
}

// Paste pastes the clipboard where the cursor is.
func (t *Tab) Paste() {
	t.tb.Helper()
	t.do("Input.dispatchKeyEvent", map[string]any{"type": "rawKeyDown", "key": "v", "modifiers": 2, "commands": []string{"Paste"}}, nil)
}

// Screenshot writes what the screen shows to a PNG file, the whole page with whole. It
// does so only if go test is to keep such files (-artifacts): it takes long.
func (t *Tab) Screenshot(file string, whole bool) {
	t.tb.Helper()
	if kept := flag.Lookup("test.artifacts"); kept == nil || kept.Value.String() != "true" {
		return
	}
	var shot struct{ Data string }
	t.do("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": whole}, &shot)
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(file, data, 0o666)
	}
	if err != nil {
		t.tb.Fatal(err)
	}
}

// Overflow lists the elements that are wider than the screen, without those in boxes
// that scroll; none if the page fits.
func (t *Tab) Overflow() (wide []string) {
	t.tb.Helper()
	t.Eval(`(() => {
  const width = document.documentElement.clientWidth;
  const wide = [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.closest(".scroll, .hidden, svg") && e.getBoundingClientRect().right > width + 1)
    .map((e) => e.tagName + "." + e.className + " " + e.textContent.slice(0, 40));
  if (document.documentElement.scrollWidth > width) wide.unshift("the page: " + document.documentElement.scrollWidth);
  return wide.slice(0, 5);
})()`, &wide)
	return wide
}

// Violations lists what axe-core finds, by these of its rules; none means all. Set-up brings axe-core into .setup/axe.
func (t *Tab) Violations(rules ...string) (found []string) {
	t.tb.Helper()
	file := filepath.Join(testenv.Root(t.tb), ".setup", "axe", "axe.min.js")
	axe, err := os.ReadFile(file)
	if err != nil {
		testenv.Missing(t.tb, "axe-core", "install npm and run `make setup`", err)
	}
	t.Eval(string(axe)+"; 0", nil)
	only := ""
	if len(rules) > 0 {
		only = `, runOnly: ["` + strings.Join(rules, `", "`) + `"]`
	}
	t.Eval(`axe.run(document, { resultTypes: ["violations"]`+only+` }).then((r) => r.violations.flatMap((v) => v.nodes.slice(0, 3).map((n) => v.id + ": " + v.help + ": " + n.html.slice(0, 200) + " " + n.failureSummary.slice(0, 300))))`, &found)
	return found
}
