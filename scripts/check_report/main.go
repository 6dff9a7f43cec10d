// Check_report opens a report in headless Chromium, on a desk and on a phone, in
// light and dark mode, with and without JavaScript. It fails if the browser
// reports an error, if the page requests anything else, if it is wider than the
// screen, if sorting a table does not work or if a chart is not drawn. With -out
// it writes screenshots.
//
//	go run ./scripts/check_report -out shots REPORT/report.html
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	out := flag.String("out", "", "folder for screenshots; none are made without it")
	browser := flag.String("browser", "", "the browser; the default is the first of chromium, chromium-browser and google-chrome")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: check_report [-out FOLDER] [-browser FILE] REPORT.html")
		os.Exit(2)
	}
	if err := check(flag.Arg(0), *out, *browser); err != nil {
		fmt.Fprintln(os.Stderr, "check_report:", err)
		os.Exit(1)
	}
}

// views are the sizes and modes in which the page is checked: in a frame, because
// browsers do not open windows narrower than 500 pixels.
var views = []struct {
	name          string
	width, height int
	dark, scripts bool
}{
	{"desk-light", 1280, 8000, false, true},
	{"desk-dark", 1280, 8000, true, true},
	{"desk-without-scripts", 1280, 8000, false, false},
	{"phone-light", 390, 12000, false, true},
	{"phone-dark", 390, 12000, true, true},
}

// probe is added to a copy of the page. It unfolds everything and prints whether
// the page fits, what does not fit, whether a click sorts the first table, and how
// many unfolded charts were not drawn.
const probe = `<script>addEventListener("load", () => {
const undrawn = [...document.querySelectorAll(".chart")].filter((c) => c.checkVisibility() && !(c.querySelector("canvas") && Chart.getChart(c.querySelector("canvas")))).length;
const closed = [...document.querySelectorAll("details:not([open])")];
closed.forEach((d) => d.open = true);
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const past = [...document.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, pre, .hidden, caption") &&
  e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map((e) => e.tagName + "." + e.className);
closed.forEach((d) => d.open = false);
const broken = [...document.images].filter((i) => i.complete && !i.naturalWidth).length;
const table = document.querySelector("table.figures");
table.tHead.rows[1].cells[0].querySelector("button").click();
const column = [...table.tBodies[0].rows].map((r) => r.cells[1].dataset.sort).filter((v) => v !== "").map(Number);
const sorted = column.every((v, i) => i === 0 || v <= column[i - 1]) && table.tHead.rows[1].cells[0].getAttribute("aria-sort") === "descending";
table.tHead.rows[1].cells[0].querySelector("button").click();
table.tHead.rows[1].cells[0].querySelector("button").click();
console.log("PROBE wide " + wide + " past [" + past.slice(0, 5) + "] broken " + broken + " sorted " + sorted + " undrawn " + undrawn);
});</script>`

// visible replaces IntersectionObserver, which a headless browser may not call in
// time: everything that is unfolded counts as visible.
const visible = `<script>window.IntersectionObserver = class {
constructor(seen) { this.seen = seen; }
observe(e) { if (e.checkVisibility()) this.seen([{ isIntersecting: true, target: e }]); }
unobserve() {}
};</script>`

// The only line that the browser must and may print on its console.
const (
	passed    = "PROBE wide 0 past [] broken 0 sorted true undrawn 0"
	forbidden = "Content Security Policy"
)

// noScripts is put before a page whose scripts must not run. (The browser's
// screenshots need scripts of its own, so that they cannot be turned off.)
const noScripts = `<meta http-equiv="Content-Security-Policy" content="script-src 'none'">`

func check(report, out, browser string) error {
	page, err := os.ReadFile(report)
	if err != nil {
		return err
	}
	if browser, err = find(browser); err != nil {
		return err
	}
	room, err := os.MkdirTemp("", "check_report")
	if err != nil {
		return err
	}
	defer os.RemoveAll(room)
	if out == "" {
		out = room
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	var failures []error
	for _, v := range views {
		text, want := strings.Replace(string(page), "<head>", "<head>"+visible, 1)+probe, passed
		if !v.scripts {
			text, want = strings.Replace(text, "<head>", "<head>"+noScripts, 1), forbidden
		}
		if err := os.WriteFile(filepath.Join(room, "page.html"), []byte(text), 0o666); err != nil {
			return err
		}
		frame := fmt.Sprintf(`<!DOCTYPE html><title>frame</title><body style="margin:0"><iframe src="page.html" style="border:0;width:%dpx;height:%dpx"></iframe>`, v.width, v.height)
		file := filepath.Join(room, "frame.html")
		if err := os.WriteFile(file, []byte(frame), 0o666); err != nil {
			return err
		}
		shot := filepath.Join(out, v.name+".png")
		scheme := 1
		if v.dark {
			scheme = 0
		}
		args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=5000",
			"--user-data-dir=" + filepath.Join(room, v.name),
			"--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking", "--disable-component-update", "--no-first-run",
			fmt.Sprintf("--window-size=%d,%d", max(v.width, 500), v.height),
			fmt.Sprintf("--blink-settings=preferredColorScheme=%d", scheme),
			"--screenshot=" + shot,
			(&url.URL{Scheme: "file", Path: file}).String()}
		err := look(browser, args, want)
		if err == nil {
			err = notBlank(shot)
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", v.name, err))
			continue
		}
		fmt.Println(v.name, "ok")
	}
	return errors.Join(failures...)
}

var consoleLine = regexp.MustCompile(`CONSOLE[:(].*`)

// look runs the browser and checks that its console prints the wanted line and nothing else.
func look(browser string, args []string, want string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w\n%s", err, stderr.String())
	}
	lines := consoleLine.FindAllString(stderr.String(), -1)
	if len(lines) == 0 {
		return fmt.Errorf("the page did not say %q", want)
	}
	for _, line := range lines {
		if !strings.Contains(line, want) {
			return errors.New(line)
		}
	}
	return nil
}

// notBlank checks that there is something in the upper part of a screenshot.
func notBlank(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	drawn := 0
	for y := range 800 {
		for x := range 390 {
			if img.At(x, y) != img.At(0, 0) {
				drawn++
			}
		}
	}
	if drawn < 390*800/100 {
		return fmt.Errorf("%s is blank", file)
	}
	return nil
}

func find(browser string) (string, error) {
	if browser != "" {
		return browser, nil
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if file, err := exec.LookPath(name); err == nil {
			return file, nil
		}
	}
	return "", errors.New("no Chromium was found; install Debian's package chromium, or name one with -browser")
}
