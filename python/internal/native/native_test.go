package native

import (
	"encoding/json"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// bytesOf returns the memory of values.
func bytesOf[T number](values []T) Buffer {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(T(0))))
}

// said is an answer.
type said struct {
	Result   json.RawMessage
	Warnings []string
	Error    string
	Kind     string
}

func ask(t *testing.T, name string, arguments any, buffers ...Buffer) said {
	t.Helper()
	text, err := json.Marshal(arguments)
	if err != nil {
		t.Fatal(err)
	}
	var s said
	if err := json.Unmarshal(Call(1, name, text, buffers), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// clusters returns rows of two classes.
func clusters(n, d int) ([]float32, []int64) {
	rng := rand.New(rand.NewPCG(1, 2))
	x, labels := make([]float32, n*d), make([]int64, n)
	for i := range n {
		labels[i] = int64(i % 2)
		for j := range d {
			x[i*d+j] = float32(rng.NormFloat64()) + 5*float32(labels[i])
		}
	}
	return x, labels
}

func TestDetector(t *testing.T) {
	const n, d = 200, 4
	x, labels := clusters(n, d)
	trained := ask(t, "train", map[string]any{"columns": d, "classes": []string{"a", "b"}, "settings": map[string][]string{"epochs": {"3"}}}, bytesOf(x), bytesOf(labels))
	if trained.Error != "" {
		t.Fatal(trained.Error)
	}
	var made struct {
		Detector int64
		About    string
	}
	if err := json.Unmarshal(trained.Result, &made); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(made.About, "2 classes, 1 head") {
		t.Errorf("it says %q", made.About)
	}
	file := filepath.Join(t.TempDir(), "d.safetensors")
	if s := ask(t, "save", map[string]any{"detector": made.Detector, "file": path(file)}); s.Error != "" {
		t.Fatal(s.Error)
	}
	loaded := ask(t, "load", map[string]any{"file": path(file), "public_key": ""})
	var again int64
	if err := json.Unmarshal(loaded.Result, &again); err != nil {
		t.Fatal(loaded.Error, err)
	}
	var scores [2][]float64
	for i, handle := range []int64{made.Detector, again} {
		given, confidences := make([]int64, n), make([]float64, n)
		scores[i] = make([]float64, n)
		if s := ask(t, "verdicts", map[string]any{"detector": handle}, bytesOf(x), bytesOf(given), bytesOf(confidences), bytesOf(scores[i])); s.Error != "" {
			t.Fatal(s.Error)
		}
		right := 0
		for row, label := range given {
			if label == labels[row] {
				right++
			}
		}
		if right < n*9/10 {
			t.Errorf("%d of %d rows are given their class", right, n)
		}
		if s := ask(t, "close", map[string]any{"detector": handle}); s.Error != "" {
			t.Error(s.Error)
		}
	}
	for row := range n {
		if scores[0][row] != scores[1][row] {
			t.Fatalf("row %d: score %v, and %v from the file", row, scores[0][row], scores[1][row])
		}
	}
	if s := ask(t, "info", map[string]any{"detector": again}); !strings.Contains(s.Error, "there is no detector") {
		t.Errorf("a detector that was closed: %+v", s)
	}
}

func TestErrors(t *testing.T) {
	x, labels := clusters(20, 4)
	in := func(settings map[string][]string) map[string]any {
		return map[string]any{"columns": 4, "classes": []string{"a", "b"}, "settings": settings}
	}
	tests := []struct {
		function  string
		arguments any
		kind      string
		text      string
	}{
		{"nothing", nil, "error", "there is no function"},
		{"train", in(map[string][]string{"max_false_alarms": {"2"}}), "value", "max_false_alarms 2: a share lies between 0 and 1"},
		{"train", in(map[string][]string{"max-false-alarms": {"0.1"}}), "value", "there is no option max-false-alarms"},
		{"train", in(map[string][]string{"seeds": {"x"}}), "value", "seeds"},
		{"train", map[string]any{"column": 4}, "value", "column"},
		{"train", map[string]any{"columns": 3, "classes": []string{"a", "b"}}, "value", "no rows of 3"},
		{"train", map[string]any{"columns": 4, "classes": []string{"a"}}, "value", "label 1 of row 1"},
		{"train", map[string]any{"features": []path{path("none")}}, "missing", "none"},
		{"features", map[string]any{"folder": path(t.TempDir())}, "features", "not a feature set"},
		{"load", map[string]any{"file": path("none"), "public_key": ""}, "missing", "none"},
	}
	for _, test := range tests {
		s := ask(t, test.function, test.arguments, bytesOf(x), bytesOf(labels))
		if s.Kind != test.kind || !strings.Contains(s.Error, test.text) || strings.Contains(s.Error, "--") {
			t.Errorf("%s %v: %s: %s", test.function, test.arguments, s.Kind, s.Error)
		}
	}
}

// A panic is an error, also one of a goroutine that works for the call.
func TestPanicIsAnError(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for name, do := range map[string]func(){
		"panic": func() { panic("oh") },
		"worker": func() {
			parallel.Each(2, 4, func(int) { panic("oh") })
		},
	} {
		functions[name] = func(*call, json.RawMessage, []Buffer) (any, error) { do(); return nil, nil }
		defer delete(functions, name)
		if s := ask(t, name, nil); !strings.Contains(s.Error, "please report it: oh") {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestCancel(t *testing.T) {
	started := make(chan struct{})
	functions["wait"] = func(c *call, _ json.RawMessage, _ []Buffer) (any, error) {
		c.progress("waiting", 1, 2, "")
		close(started)
		<-c.ctx.Done()
		return nil, c.ctx.Err()
	}
	defer delete(functions, "wait")
	answer := make(chan string)
	go func() { answer <- string(Call(7, "wait", []byte("{}"), nil)) }()
	<-started
	if text := string(Progress(7)); !strings.Contains(text, `"what":"waiting"`) {
		t.Errorf("the progress is %s", text)
	}
	if text := string(Call(7, "wait", []byte("{}"), nil)); !strings.Contains(text, "going on") {
		t.Errorf("the same number twice: %s", text)
	}
	Cancel(7)
	Cancel(8) // nobody's
	if text := <-answer; !strings.Contains(text, `"kind":"interrupted"`) {
		t.Errorf("it answers %s", text)
	}
}

func TestBuffers(t *testing.T) {
	values := []float64{1, 2}
	if _, err := view[float64]([]Buffer{bytesOf(values)[:9]}, 0); err == nil {
		t.Error("half a value is taken")
	}
	if _, err := view[float64]([]Buffer{bytesOf(values)[1:9]}, 0); err == nil {
		t.Error("memory that is not aligned is taken")
	}
	if err := fill([]Buffer{bytesOf(values)}, 0, []float64{1}); err == nil {
		t.Error("too much room is taken")
	}
	if err := fill(nil, 0, values); err != nil {
		t.Errorf("a buffer that is left out: %v", err)
	}
}

// A command runs with options in the place of its flags, and names that are nearly right are
// corrected.
func TestCommand(t *testing.T) {
	x, labels := clusters(60, 4)
	room := t.TempDir()
	trained := ask(t, "train", map[string]any{"columns": 4, "classes": []string{"a", "b"}, "settings": map[string][]string{"epochs": {"2"}}}, bytesOf(x), bytesOf(labels))
	var made struct{ Detector int64 }
	if err := json.Unmarshal(trained.Result, &made); err != nil {
		t.Fatal(trained.Error, err)
	}
	file := filepath.Join(room, "d.safetensors")
	if s := ask(t, "save", map[string]any{"detector": made.Detector, "file": path(file)}); s.Error != "" {
		t.Fatal(s.Error)
	}
	show := ask(t, "run", map[string]any{"command": "show", "settings": map[string][]string{"json": {"true"}}, "paths": []path{path(file)}})
	if show.Error != "" || !strings.Contains(string(show.Result), `\"target_tpr\":0.95`) {
		t.Errorf("show: %+v", show)
	}
	drift := map[string][]string{"detector": {file}, "alfa": {"1"}}
	if s := ask(t, "run", map[string]any{"command": "drift", "settings": drift}); s.Kind != "value" || s.Error != "there is no option alfa; did you mean alpha?" {
		t.Errorf("an option that is nearly right: %+v", s)
	}
	if s := ask(t, "options", map[string]any{"command": "show"}); !strings.Contains(string(s.Result), `"name":"public_key","type":"string","value":"KEY|FILE"`) {
		t.Errorf("the options of show: %s", s.Result)
	}
}
