package serve

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	goimage "image"
	"image/png"
	"io"
	"log/slog"
	"math"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/access"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
)

// world is a service that runs, with one detector named main.
type world struct {
	*Server
	url, file string
}

func start(t *testing.T, change func(*Options)) *world {
	t.Helper()
	w := &world{file: servetest.Detector(t, 1)}
	opts := Options{Detectors: Detectors{Detectors: []Named{{Name: "main", File: w.file}}}, Version: "test"}
	if change != nil {
		change(&opts)
	}
	var err error
	if w.Server, err = New(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(w.Handler())
	w.url = server.URL
	t.Cleanup(func() {
		server.Close()
		w.Close()
	})
	return w
}

// ask sends a request and returns the status, the headers and the body.
func ask(t *testing.T, method, url string, header map[string]string, body io.Reader) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}

// verdicts asks pipeline.Judge.
func (w *world) verdicts(t *testing.T, images ...[]byte) []pipeline.Verdict {
	t.Helper()
	judge, err := pipeline.OpenJudge(t.Context(), w.file, extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer judge.Close()
	var all []pipeline.Verdict
	for _, data := range images {
		v, err := judge.Image(t.Context(), pipeline.Encoded(data))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

type result struct {
	ID, Path, Detector, Class string
	Confidence, Score         float64
	OOD                       bool
	PValue                    float64 `json:"p_value"`
	Stored                    *bool
	Error                     string
}

func decode(t *testing.T, text string, to any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), to); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func (r result) agrees(v pipeline.Verdict) bool {
	return r.Class == v.Class && r.Confidence == v.Confidence && r.Score == v.Score && r.OOD == v.OOD && r.PValue == v.PValue
}

func TestDetect(t *testing.T) {
	w := start(t, nil)
	images := [][]byte{servetest.Image(0, 100), servetest.Image(1, 101)}
	want := w.verdicts(t, images...)
	status, header, text := ask(t, "POST", w.url+"/v1/detect?name=%3Cscript%3E.png", map[string]string{"X-Request-Id": "mine-7"}, bytes.NewReader(images[0]))
	var one result
	decode(t, text, &one)
	if status != 200 || !one.agrees(want[0]) || one.ID == "" || one.Path != "<script>.png" || one.Detector != "main" || one.Stored != nil {
		t.Errorf("%d %s, want %+v", status, text, want[0])
	}
	if header.Get("X-Request-Id") != "mine-7" || header.Get("Content-Type") != "application/json" || !strings.HasPrefix(header.Get("Content-Security-Policy"), "default-src 'none'") || strings.Contains(text, "<") {
		t.Errorf("%v\n%s", header, text)
	}

	// A form with two images and one that is broken.
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	for i, data := range [][]byte{images[0], []byte("no image"), images[1]} {
		part, err := parts.CreateFormFile("file", fmt.Sprintf("%d.png", i))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = part.Write(data)
	}
	parts.Close()
	status, _, text = ask(t, "POST", w.url+"/v1/detect?detector=main", map[string]string{"Content-Type": parts.FormDataContentType()}, &form)
	var all struct{ Results []result }
	decode(t, text, &all)
	if r := all.Results; status != 200 || len(r) != 3 || !r[0].agrees(want[0]) || !r[2].agrees(want[1]) || r[1].Error == "" || r[1].Path != "1.png" || r[0].ID == r[2].ID {
		t.Errorf("%d %s", status, text)
	}
}

// TestStatus: each way in which a request can fail has its status, and says why.
func TestStatus(t *testing.T) {
	w := start(t, func(o *Options) { o.MaxBody, o.MaxImages, o.Detectors.Backbone.MaxPixels = 4096, 2, 12 })
	image := servetest.Image(0, 1)
	var large bytes.Buffer
	if err := png.Encode(&large, goimage.NewGray(goimage.Rect(0, 0, 13, 1))); err != nil {
		t.Fatal(err)
	}
	form := func(n int) (string, io.Reader) {
		var b bytes.Buffer
		parts := multipart.NewWriter(&b)
		for range n {
			part, _ := parts.CreateFormFile("x", "y")
			_, _ = part.Write([]byte("broken"))
		}
		parts.Close()
		return parts.FormDataContentType(), &b
	}
	none, noBody := form(0)
	three, threeBody := form(3)
	two, twoBody := form(2)
	features := `{"inputs":[{"name":"features","datatype":"FP32","shape":[1,36],"data":[` + strings.Repeat("1,", 35) + `1]}]}`
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte(features))
	z.Close()
	var bomb bytes.Buffer
	z = gzip.NewWriter(&bomb)
	_, _ = z.Write(make([]byte, 1<<20))
	z.Close()
	for _, tt := range []struct {
		method, path string
		header       map[string]string
		body         io.Reader
		status       int
		says         string
	}{
		{"POST", "/v1/detect", nil, strings.NewReader("no image"), 422, "unsupported image format"},
		{"POST", "/v1/detect", nil, bytes.NewReader(image[:60]), 422, "cannot read PNG"},
		{"POST", "/v1/detect", nil, &large, 422, "PNG of 13×1 pixels is above the limit of 12"},
		{"POST", "/v1/detect", nil, nil, 400, "no image"},
		{"POST", "/v1/detect", nil, bytes.NewReader(make([]byte, 5000)), 413, "more than 4096 bytes"},
		{"POST", "/v1/detect", nil, io.MultiReader(bytes.NewReader(make([]byte, 5000))), 413, "more than 4096 bytes"}, // of a length that is not told
		{"POST", "/v1/detect?detector=other", nil, bytes.NewReader(image), 404, `no detector \"other\"`},
		{"POST", "/v1/detect", map[string]string{"Content-Type": "multipart/form-data"}, bytes.NewReader(image), 400, "form"},
		{"POST", "/v1/detect", map[string]string{"Content-Type": "multipart/form-data; boundary=x"}, bytes.NewReader(image), 400, "could not be read"},
		{"POST", "/v1/detect", map[string]string{"Content-Type": none}, noBody, 400, ""},
		{"POST", "/v1/detect", map[string]string{"Content-Type": two}, twoBody, 422, "unsupported image format"},
		{"POST", "/v1/detect", map[string]string{"Content-Type": three}, threeBody, 413, "may have 2 images"},
		{"GET", "/v1/detect", nil, nil, 405, ""},
		{"GET", "/nothing", nil, nil, 404, ""},
		{"POST", "/v1/detect", map[string]string{"Host": "evil.example"}, bytes.NewReader(image), 421, "host name"},
		{"POST", "/v1/detect", map[string]string{"Origin": "https://evil.example"}, bytes.NewReader(image), 403, "another site"},
		{"POST", "/v1/detect", map[string]string{"Sec-Fetch-Site": "cross-site"}, bytes.NewReader(image), 403, "another site"},
		{"GET", "/healthz", nil, nil, 200, "live"},
		{"GET", "/readyz", nil, nil, 200, "ready"},
		{"GET", "/v2/health/live", nil, nil, 200, "live"},
		{"GET", "/v2/health/ready", nil, nil, 200, "ready"},
		{"GET", "/v2", nil, nil, 200, "binary_tensor_data"},
		{"GET", "/v2/models/main", nil, nil, 200, `{"name":"features","datatype":"FP32","shape":[-1,36]}`},
		{"GET", "/v2/models/other", nil, nil, 404, ""},
		{"GET", "/v2/models/main/ready", nil, nil, 200, ""},
		{"GET", "/v2/models/main/versions/0/ready", nil, nil, 404, "not \\\"0\\\""},
		{"GET", "/v2/models/main/config", nil, nil, 200, "TYPE_STRING"},
		{"POST", "/v2/repository/index", nil, nil, 200, "READY"},
		{"POST", "/v2/models/main/infer", nil, strings.NewReader("{"), 400, "Open Inference Protocol"},
		{"POST", "/v2/models/main/infer", nil, strings.NewReader("{}"), 400, "0 inputs"},
		{"POST", "/v2/models/main/infer", nil, strings.NewReader(strings.Replace(features, "features", "other", 1)), 400, `input \"other\"`},
		{"POST", "/v2/models/main/infer", nil, strings.NewReader(strings.Replace(features, "[1,1,", "[1,1e20,", 1)), 400, "value 1 of the features is 1e+20"},
		{"POST", "/v2/models/main/infer", nil, strings.NewReader(strings.Replace(features, "[1,36]", "[36,1]", 1)), 400, "the detector reads"},
		{"POST", "/v2/models/main/infer", nil, strings.NewReader(features), 200, `"datatype":"FP64"`},
		{"POST", "/v2/models/main/infer", map[string]string{"Content-Encoding": "gzip"}, &packed, 200, `"datatype":"FP64"`},
		{"POST", "/v2/models/main/infer", map[string]string{"Content-Encoding": "gzip"}, &bomb, 413, "more than 4096 bytes"},
		{"POST", "/v2/models/main/infer", map[string]string{"Content-Encoding": "gzip"}, strings.NewReader("no"), 400, ""},
		{"POST", "/v2/models/main/infer", map[string]string{"Content-Encoding": "br"}, strings.NewReader("no"), 415, "gzip and deflate"},
		{"POST", "/v2/models/main/infer", nil, strings.NewReader(`{"inputs":[{"name":"image","datatype":"BYTES","shape":[1],"data":["AAAA"]}]}`), 422, "image 0 of 1"},
		{"POST", "/v2/models/main/infer", nil, strings.NewReader(`{"inputs":[{"name":"image","datatype":"BYTES","shape":[3],"data":["","",""]}]}`), 413, "3 images"},
		{"POST", "/v2/models/main/infer", nil, strings.NewReader(strings.Replace(features, `{"inputs"`, `{"outputs":[{"name":"x"}],"inputs"`, 1)), 400, `no output`},
	} {
		status, header, text := ask(t, tt.method, w.url+tt.path, tt.header, tt.body)
		if status != tt.status || !strings.Contains(text, tt.says) {
			t.Errorf("%s %s %v: %d %s, want %d %q", tt.method, tt.path, tt.header, status, text, tt.status, tt.says)
		}
		if strings.Contains(text, filepath.Dir(w.file)) {
			t.Errorf("%s: the answer names a path: %s", tt.path, text)
		}
		if header.Get("X-Request-Id") == "" || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", tt.path, header)
		}
	}
	// Headers that are too large.
	if status, _, _ := ask(t, "GET", w.url+"/healthz", map[string]string{"X": strings.Repeat("x", 2<<20)}, nil); status != 431 {
		t.Errorf("huge headers: %d", status)
	}
}

// TestInfer: images as a tensor of bytes get the verdicts of detect, as JSON and binary,
// and a broken one among them spoils no other.
func TestInfer(t *testing.T) {
	w := start(t, nil)
	image := servetest.Image(1, 100)
	want := w.verdicts(t, image)[0]
	bytesOf := func(b []byte) string {
		return string([]byte{byte(len(b)), byte(len(b) >> 8), 0, 0}) + string(b)
	}
	tail := bytesOf(image) + bytesOf([]byte("broken"))
	head := fmt.Sprintf(`{"id":"7","inputs":[{"name":"image","datatype":"BYTES","shape":[2,1],"parameters":{"binary_data_size":%d}}]}`, len(tail))
	status, _, text := ask(t, "POST", w.url+"/v2/models/main/infer", map[string]string{"Inference-Header-Content-Length": fmt.Sprint(len(head))}, strings.NewReader(head+tail))
	var got struct {
		Model   string `json:"model_name"`
		ID      string
		Outputs []struct {
			Name string
			Data []any
		}
	}
	decode(t, text, &got)
	values := map[string][]any{}
	for _, o := range got.Outputs {
		values[o.Name] = o.Data
	}
	delete(values, "id")
	errors := values["error"]
	delete(values, "error")
	if status != 200 || got.ID != "7" || got.Model != "main" || !reflect.DeepEqual(values, map[string][]any{
		"class": {want.Class, ""}, "label": {float64(want.Label), -1.0}, "confidence": {want.Confidence, 0.0},
		"score": {want.Score, 0.0}, "ood": {want.OOD, true}, "p_value": {want.PValue, 0.0},
	}) || errors[0] != "" || errors[1] == "" {
		t.Errorf("%d %s, want %+v", status, text, want)
	}
	// Who does not ask for the errors is refused.
	head = strings.Replace(head, `{"id"`, `{"outputs":[{"name":"class","parameters":{"binary_data":true}}],"id"`, 1)
	headers := map[string]string{"Inference-Header-Content-Length": fmt.Sprint(len(head))}
	if status, _, text = ask(t, "POST", w.url+"/v2/models/main/infer", headers, strings.NewReader(head+tail)); status != 422 || !strings.Contains(text, "image 1 of 2") {
		t.Errorf("%d %s", status, text)
	}
	head = strings.Replace(head, fmt.Sprint(len(tail)), fmt.Sprint(2*len(bytesOf(image))), 1)
	headers["Inference-Header-Content-Length"] = fmt.Sprint(len(head))
	status, header, text := ask(t, "POST", w.url+"/v2/models/main/infer", headers, strings.NewReader(head+bytesOf(image)+bytesOf(image)))
	if n := len(text) - 2*(4+len(want.Class)); status != 200 || header.Get("Inference-Header-Content-Length") != fmt.Sprint(n) || text[n:] != strings.Repeat(bytesOf([]byte(want.Class)), 2) {
		t.Errorf("%d %v %q", status, header, text)
	}
}

// TestLimits: beyond what may wait, requests are refused and told when to come again;
// equal images are judged once; and nothing is lost of those that wait.
func TestLimits(t *testing.T) {
	w := start(t, func(o *Options) { o.Running, o.Waiting, o.PerClient = 1, 2, -1 })
	image := servetest.Image(0, 1)
	// The one that runs is this test.
	end, err := w.places.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			if status, _, text := ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(image)); status != 200 {
				t.Errorf("%d %s", status, text)
			}
		})
	}
	for {
		if _, waiting := w.places.counts(); waiting == 2 { // of three, and one is counted as running
			break
		}
		time.Sleep(time.Millisecond)
	}
	status, header, text := ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(image))
	if status != 429 || header.Get("Retry-After") == "" {
		t.Errorf("%d %v %s", status, header, text)
	}
	if status, _, _ := ask(t, "GET", w.url+"/readyz", nil, nil); status != 200 {
		t.Errorf("ready: %d", status)
	}
	end()
	all.Wait()
	if _, _, text = ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(image)); !strings.Contains(text, "class") {
		t.Errorf("afterwards: %s", text)
	}
	if w.places.in != 0 || w.places.bytes != 0 {
		t.Errorf("%d images and %d bytes are still in", w.places.in, w.places.bytes)
	}
}

// TestClients: one address has a bound of its own, of images and of other requests.
func TestClients(t *testing.T) {
	w := start(t, func(o *Options) { o.PerClient, o.Running = 1, 1 })
	end, err := w.places.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		if status, _, text := ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(servetest.Image(0, 1))); status != 200 {
			t.Errorf("the first: %d %s", status, text)
		}
	})
	for w.placesIn() == 0 {
		time.Sleep(time.Millisecond)
	}
	if status, _, text := ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(servetest.Image(0, 2))); status != 429 {
		t.Errorf("%d %s", status, text)
	}
	if !w.clients.Enter("127.0.0.1") {
		t.Fatal("images count among other requests")
	}
	if status, _, text := ask(t, "GET", w.url+"/v1/shadows", nil, nil); status != 429 {
		t.Errorf("%d %s", status, text)
	}
	if status, _, _ := ask(t, "GET", w.url+"/healthz", nil, nil); status != 200 {
		t.Errorf("health: %d", status)
	}
	w.clients.Leave("127.0.0.1")
	end()
	all.Wait()
	if status, _, _ := ask(t, "GET", w.url+"/v1/shadows", nil, nil); status != 200 {
		t.Errorf("afterwards: %d", status)
	}
}

// TestSlowBodies: who has sent a part of an image takes no place from others.
func TestSlowBodies(t *testing.T) {
	w := start(t, func(o *Options) { o.Running, o.Waiting, o.PerClient = 1, 2, 2 })
	var slow []*io.PipeWriter
	var all sync.WaitGroup
	for range 20 {
		body, more := io.Pipe()
		slow = append(slow, more)
		all.Go(func() {
			if status, _, text := ask(t, "POST", w.url+"/v1/detect", nil, body); status != 422 && status != 429 {
				t.Errorf("a slow one: %d %s", status, text)
			}
		})
		if _, err := more.Write([]byte("xy")); err != nil {
			t.Fatal(err)
		}
	}
	for read := int64(0); read < 20; { // all have begun
		w.places.mu.Lock()
		read = w.places.bytes / (16 << 10)
		w.places.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	if status, _, text := ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(servetest.Image(0, 1))); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	for _, more := range slow {
		more.Close()
	}
	all.Wait()
}

// TestCutShort: a body that ends early is the client's fault, and no warning.
func TestCutShort(t *testing.T) {
	var text logged
	_, address := attacked(t, func(o *Options) {
		o.Log = slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	if got := raw(t, address, "POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc"); fmt.Sprint(got) != "[400]" || text.String() != "" {
		t.Errorf("%v, log %s", got, text.String())
	}
}

// logged is what a log says.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestUnknown: errors of addresses and methods have the form of all errors.
func TestUnknown(t *testing.T) {
	w := start(t, nil)
	for _, tt := range []struct {
		method, path string
		status       int
		allow        string
	}{{"GET", "/v1/nothing", 404, ""}, {"GET", "/v1/detect", 405, "POST"}, {"DELETE", "/healthz", 405, "GET, HEAD"}} {
		status, header, text := ask(t, tt.method, w.url+tt.path, nil, nil)
		var said struct {
			Error   string
			Request string `json:"request_id"`
		}
		decode(t, text, &said)
		if status != tt.status || said.Error == "" || said.Request == "" || header.Get("Allow") != tt.allow {
			t.Errorf("%s %s: %d %v %s", tt.method, tt.path, status, header, text)
		}
	}
}

// TestRoles: each request needs the role that its route has, and no other one lets it in.
func TestRoles(t *testing.T) {
	roles := []access.Role{access.Judge, access.Read, access.Review, access.Operate}
	file := filepath.Join(t.TempDir(), "tokens")
	lines := ""
	for _, role := range roles {
		lines += fmt.Sprintf("0123456789abcdef-%s %s %s\n", role, role, role)
	}
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	w, _ := remembering(t, func(o *Options) { o.TokenFile = file })
	seen := map[access.Role]int{}
	for _, r := range w.routes() {
		seen[r.role]++
		method, path, _ := strings.Cut(r.pattern, " ")
		path = strings.NewReplacer("{$}", "", "{name}", "none", "{id}", "none", "{hash}", "none", "{row}", "0", "{version}", "none").Replace(path)
		if method == "POST" && r.role == "" && !r.open && path != "/v2/repository/index" {
			t.Errorf("%s changes something and needs no role", r.pattern)
		}
		for _, role := range roles {
			if r.stream != nil {
				continue // which never ends
			}
			may := r.open || r.role == "" || r.role == role || role == access.Operate || role == access.Review && r.role == access.Read
			status, _, text := ask(t, method, w.url+path, map[string]string{"Authorization": "Bearer 0123456789abcdef-" + string(role)}, nil)
			if (status == 403) == may || status == 401 {
				t.Errorf("%s as %s: %d %s", r.pattern, role, status, text)
			}
		}
	}
	for _, role := range roles {
		if seen[role] == 0 {
			t.Errorf("no route needs %s", role)
		}
	}
}

// TestTokens: without a token of the file only health and the description are told.
func TestTokens(t *testing.T) {
	const first, second = "0123456789abcdef-first", "0123456789abcdef-second"
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("# ours\n"+first+"\n\n"+second+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := start(t, func(o *Options) { o.TokenFile = file })
	for _, r := range w.routes() {
		method, path, _ := strings.Cut(r.pattern, " ")
		path = strings.NewReplacer("{name}", "main", "{version}", "0", "{id}", "0", "{hash}", "0", "{$}", "").Replace(path)
		status, header, text := ask(t, method, w.url+path, nil, nil)
		if needed := status == 401 && header.Get("WWW-Authenticate") == "Bearer"; needed == r.open {
			t.Errorf("%s without a token: %d %s", r.pattern, status, text)
		}
	}
	for authorization, want := range map[string]int{
		"Bearer " + first: 200, "bearer " + second: 200, "Bearer " + first + "x": 401, "Bearer ": 401, first: 401, "Basic " + first: 401, "Bearer # ours": 401, "": 401,
	} {
		if status, _, _ := ask(t, "GET", w.url+"/v1/shadows", map[string]string{"Authorization": authorization}, nil); status != want {
			t.Errorf("%q: %d", authorization, status)
		}
	}
	metrics := httptest.NewServer(w.MetricsHandler())
	defer metrics.Close()
	if status, _, _ := ask(t, "GET", metrics.URL+"/metrics", nil, nil); status != 401 {
		t.Errorf("metrics: %d", status)
	}
	if status, _, text := ask(t, "GET", metrics.URL+"/metrics", map[string]string{"Authorization": "Bearer " + first}, nil); status != 200 || !strings.Contains(text, `mlrbfn_detector_info{detector="main"`) {
		t.Errorf("metrics: %d", status)
	}
}

// TestLoad: a detector is replaced on request, or refused without a path in the answer.
func TestLoad(t *testing.T) {
	w := start(t, nil)
	version := func() string {
		main := w.detectors.Use("")
		defer main.Release()
		return main.Version()
	}
	before := version()
	data, err := os.ReadFile(servetest.Detector(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.file, data[:len(data)/2], 0o666); err != nil {
		t.Fatal(err)
	}
	status, _, text := ask(t, "POST", w.url+"/v2/repository/models/main/load", nil, nil)
	if status != 400 || strings.Contains(text, filepath.Dir(w.file)) || version() != before {
		t.Errorf("%d %s", status, text)
	}
	if err := os.WriteFile(w.file, data, 0o666); err != nil {
		t.Fatal(err)
	}
	if status, _, text = ask(t, "POST", w.url+"/v2/repository/models/main/load", nil, nil); status != 200 || version() == before {
		t.Errorf("%d %s", status, text)
	}
	if status, _, _ = ask(t, "POST", w.url+"/v2/repository/models/other/load", nil, nil); status != 404 {
		t.Error(status)
	}
}

// TestShadow: where a detector and its shadow disagree is counted and listed.
func TestShadow(t *testing.T) {
	w := start(t, func(o *Options) {
		o.Detectors.Shadows = []Named{{Name: "main", File: "shadow"}}
		o.Detectors.Load = func(file string) (*pipeline.Detector, error) {
			d, err := pipeline.LoadDetector(strings.TrimSuffix(file, ".flags-all"))
			if err == nil && strings.HasSuffix(file, ".flags-all") {
				d.SetThreshold(1e9)
			}
			return d, err
		}
		file := o.Detectors.Detectors[0].File
		o.Detectors.Shadows[0].File = file + ".flags-all"
		if err := os.Link(file, file+".flags-all"); err != nil {
			t.Fatal(err)
		}
	})
	want := 0
	for i := range 10 {
		status, _, text := ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(servetest.Image(0, uint64(i))))
		var r result
		if decode(t, text, &r); status != 200 {
			t.Fatal(text)
		}
		if !r.OOD {
			want++
		}
	}
	w.judge.flights.Wait()
	_, _, text := ask(t, "GET", w.url+"/v1/shadows", nil, nil)
	var got struct {
		Disagreements []struct{ Detector, Shadow struct{ OOD bool } }
	}
	decode(t, text, &got)
	if want == 0 || len(got.Disagreements) != want || got.Disagreements[0].Detector.OOD || !got.Disagreements[0].Shadow.OOD {
		t.Errorf("%s, want %d", text, want)
	}
}

// TestShadowWaits: a shadow waits for a place of its own, and whoever asked has the answer
// before.
func TestShadowWaits(t *testing.T) {
	w := start(t, func(o *Options) {
		o.Detectors.Shadows = []Named{{Name: "main", File: servetest.Detector(t, 2)}}
	})
	// The only place is this test's, then the request's, then again this test's.
	w.places.slots = 1
	end, err := w.places.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan int)
	go func() {
		status, _, _ := ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(servetest.Image(0, 1)))
		answered <- status
	}()
	waiting(w, 1)
	again := make(chan func())
	go func() {
		end, _ := w.places.run(t.Context())
		again <- end
	}()
	waiting(w, 2)
	end()
	end = <-again
	if status := <-answered; status != 200 {
		t.Fatal(status)
	}
	waiting(w, 1) // the shadow
	end()
	w.judge.flights.Wait()
}

// waiting returns when so many images wait for their turn.
func waiting(w *world, n int) {
	for now := -1; now != n; time.Sleep(time.Millisecond) {
		w.places.mu.Lock()
		now = len(w.places.turns)
		w.places.mu.Unlock()
	}
}

// TestTurns: turns go round among clients, small images of a client come before its large
// ones, images that take long never have all places, and all together no more memory than
// there is.
func TestTurns(t *testing.T) {
	const large = 100
	p := newPlaces(2, 1000, 0, 2*large)
	begun := make(chan string)
	ends := map[string]func(){}
	var mu sync.Mutex
	n := 0
	begin := func(client, name string, cost preprocess.Cost) {
		ctx := context.WithValue(t.Context(), caller{}, who{address: client})
		n++
		go func() {
			end, err := p.decode(ctx, cost)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			ends[name] = end
			mu.Unlock()
			begun <- name
		}()
		for in := 0; in < n; time.Sleep(time.Millisecond) {
			p.mu.Lock()
			in = len(p.turns) + p.running
			p.mu.Unlock()
		}
	}
	end := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		n--
		ends[name]()
	}
	next := func(want string) {
		t.Helper()
		if got := <-begun; got != want {
			t.Fatalf("%s has its turn, want %s", got, want)
		}
	}
	slow := preprocess.Cost{Bytes: large, Time: time.Hour}
	for i := range 30 {
		begin("attacker", fmt.Sprint("hostile ", i), slow)
	}
	next("hostile 0")
	// Another place is free for what is quick, of whichever client.
	begin("attacker", "quick", preprocess.Cost{Bytes: 1})
	next("quick")
	begin("attacker", "quick 2", preprocess.Cost{Bytes: 1})
	begin("camera", "honest", slow)
	end("hostile 0")
	next("honest") // the attacker has had more
	end("honest")
	next("quick 2") // and this is due before its large ones
	end("quick")
	next("hostile 1")
	end("hostile 1")
	next("hostile 2")
	// Memory: of these no second one fits.
	begin("camera", "huge", preprocess.Cost{Bytes: 10 * large})
	end("quick 2")
	begin("camera", "small", preprocess.Cost{Bytes: large})
	next("small")
	end("small")
	end("hostile 2")
	next("huge")
	end("huge")
	for i := 3; i < 30; i++ {
		next(fmt.Sprint("hostile ", i))
		end(fmt.Sprint("hostile ", i))
	}
	if p.running != 0 || p.decoded != 0 || len(p.work) != 0 || p.slow != 0 {
		t.Errorf("%+v", p)
	}
}

// TestServeEnds: at the end requests that have begun are answered, and no goroutine
// stays.
func TestServeEnds(t *testing.T) {
	file := servetest.Detector(t, 1)
	before := runtime.NumGoroutine()
	s, err := New(t.Context(), Options{Detectors: Detectors{Detectors: []Named{{Name: "main", File: file}}}})
	if err != nil {
		t.Fatal(err)
	}
	var listeners []net.Listener
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, listeners[:1], listeners[1]) }()
	url := "http://" + listeners[0].Addr().String()
	body, more := io.Pipe()
	answered := make(chan int, 1)
	client := &http.Client{Transport: &http.Transport{}}
	go func() {
		response, err := client.Post(url+"/v1/detect", "image/png", body)
		if err != nil {
			t.Error(err)
			answered <- 0
			return
		}
		response.Body.Close()
		answered <- response.StatusCode
	}()
	image := servetest.Image(0, 5)
	_, _ = more.Write(image[:10])
	for begun := false; !begun; time.Sleep(time.Millisecond) {
		s.places.mu.Lock()
		begun = s.places.bytes > 0
		s.places.mu.Unlock()
	}
	cancel()
	for !s.draining.Load() {
		time.Sleep(time.Millisecond)
	}
	_, _ = more.Write(image[10:])
	more.Close()
	if status := <-answered; status != 200 {
		t.Errorf("the request that had begun: %d", status)
	}
	client.CloseIdleConnections()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	s.Close()
	for range 1000 { // connections end a moment later
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(time.Millisecond)
	}
	stacks := make([]byte, 1<<20)
	t.Errorf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
}

func (s *Server) placesIn() int {
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	return s.places.in
}

// TestSlowClient: who does not send in time gets an answer and blocks nobody.
func TestSlowClient(t *testing.T) {
	s, err := New(t.Context(), Options{
		Detectors:   Detectors{Detectors: []Named{{Name: "main", File: servetest.Detector(t, 1)}}},
		ReadTimeout: 50 * time.Millisecond, Running: 1, Waiting: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	address, stop := listening(t, s)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
	text, _ := io.ReadAll(conn)
	if !strings.Contains(string(text), "408 Request Timeout") {
		t.Errorf("%s", text)
	}
	conn.Close()
	if conn, err = net.Dial("tcp", address); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "POST /v1/detect HTTP/1.1\r\nHost: local")
	_ = conn.SetReadDeadline(time.Now().Add(headerTimeout / 2))
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("headers that do not end: %v", err)
	}
	conn.Close()
	if err := stop(); err != nil || s.placesIn() != 0 {
		t.Error(err, s.placesIn())
	}
}

// listening has a service listen on a port of this machine, until it is stopped.
func listening(t *testing.T, s *Server) (address string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, []net.Listener{l}, nil) }()
	return l.Addr().String(), func() error { cancel(); return <-ended }
}

// TestOpenToAll: an address that other machines reach needs tokens.
func TestOpenToAll(t *testing.T) {
	w := start(t, nil)
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	err = w.Serve(t.Context(), []net.Listener{l}, nil)
	if e, ok := errors.AsType[*options.Error](err); !ok || e.Option != "TokenFile" || !errors.Is(err, access.ErrOpenToAll) {
		t.Error(err)
	}
}

// TestOpenAPI: the description has each route, and no other.
func TestOpenAPI(t *testing.T) {
	w := start(t, nil)
	_, _, text := ask(t, "GET", w.url+"/openapi.json", nil, nil)
	var described struct {
		Paths map[string]map[string]json.RawMessage
	}
	decode(t, text, &described)
	var got, want []string
	for path, methods := range described.Paths {
		for method := range methods {
			if method != "parameters" {
				got = append(got, strings.ToUpper(method)+" "+path)
			}
		}
	}
	for _, r := range w.routes() {
		if !r.page {
			want = append(want, r.pattern)
		}
	}
	// Where no token is needed it asks for none.
	if !bytes.Contains(openapi, needsToken) || strings.Contains(text, string(needsToken)) {
		t.Error("the description says the wrong thing of tokens")
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("described are\n%s\nand offered\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestOpenAPIIsValid: it is what a validator takes for a description.
func TestOpenAPIIsValid(t *testing.T) {
	if err := exec.Command("python3", "-c", "import openapi_spec_validator").Run(); err != nil {
		t.Skip("Python has no openapi_spec_validator")
	}
	if text, err := exec.Command("python3", "-m", "openapi_spec_validator", "openapi.json").CombinedOutput(); err != nil {
		t.Errorf("%s", text)
	}
}

// TestNumber: JSON has no infinities.
func TestNumber(t *testing.T) {
	if b, err := json.Marshal([]number{1.5, number(math.Inf(-1))}); err != nil || string(b) != "[1.5,null]" {
		t.Error(string(b), err)
	}
}

// TestPage: the page and what it needs are there for everybody, and nothing of it is
// run by another site's leave.
func TestPage(t *testing.T) {
	w := start(t, nil)
	for path, says := range map[string]string{"/": "/page.js", "/page.js": "use strict", "/page.css": "#flagged", "/style.css": "body{"} {
		status, header, text := ask(t, "GET", w.url+path, nil, nil)
		if status != 200 || !strings.Contains(text, says) || !strings.Contains(header.Get("Content-Security-Policy"), "script-src 'self'") {
			t.Errorf("%s: %d %v", path, status, header)
		}
	}
	if _, _, text := ask(t, "GET", w.url+"/page.js", nil, nil); strings.Contains(text, "innerHTML") {
		t.Error("names could become markup")
	}
}

// TestNobodyWaitsForLargeImages: a small image is answered while large ones of others wait for
// their turn, and not together with them.
func TestNobodyWaitsForLargeImages(t *testing.T) {
	w := start(t, func(o *Options) { o.Running = 2 })
	ctx := context.WithValue(t.Context(), caller{}, who{address: "test"})
	end, err := w.places.decode(ctx, preprocess.Cost{Time: time.Hour}) // the place of images that take long
	if err != nil {
		t.Fatal(err)
	}
	large := []byte("\x89PNG\r\n\x1a\n")
	large = append(large, chunk("IHDR", []byte{0, 0, 27, 88, 0, 0, 27, 88, 16, 6, 0, 0, 0})...)
	large = append(large, chunk("IDAT", nil)...)
	var all sync.WaitGroup
	for i := range 5 {
		all.Go(func() {
			if status, _, text := ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(append(bytes.Clone(large), byte(i)))); status != 422 {
				t.Errorf("a large one: %d %s", status, text)
			}
		})
	}
	waiting(w, 5)
	if status, _, text := ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(servetest.Image(0, 1))); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	end()
	all.Wait()
}

// TestBytesOfClients: the bytes that are read are bounded by the memory, and one client
// cannot have all of them.
func TestBytesOfClients(t *testing.T) {
	p := newPlaces(1, 9, 5, 400)
	for _, tt := range []struct {
		client string
		bytes  int64
		want   error
	}{{"a", 60, nil}, {"a", 50, errBusyClient}, {"a", 40, nil}, {"b", 90, nil}, {"c", 20, errBusy}, {"c", 10, nil}} {
		if err := p.enter(tt.client, 0, tt.bytes); err != tt.want {
			t.Errorf("%s, %d bytes: %v, want %v", tt.client, tt.bytes, err, tt.want)
		}
	}
	p.leave("a", 0, 100)
	if p.bytes != 100 || len(p.of) != 2 {
		t.Errorf("%d bytes of %d clients", p.bytes, len(p.of))
	}
}
