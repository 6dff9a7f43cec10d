package extractor

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/spill"
)

// ErrNoRuntime is wrapped by errors of [FindRuntime] and [InitRuntime] when there is no
// onnxruntime library anywhere they look.
var ErrNoRuntime = errors.New("no onnxruntime library found")

// RuntimeError says why an onnxruntime library cannot be used.
type RuntimeError struct {
	File string
	Err  error // such as "is too old for this program"
}

func (e *RuntimeError) Error() string {
	return fmt.Sprintf("onnxruntime library %s %v; name another by InitRuntime or the environment variable %s", e.File, e.Err, runtimeEnv)
}

func (e *RuntimeError) Unwrap() error { return e.Err }

// runtimeEnv is the environment variable that names the library; it is the one
// that the tests of the Go wrapper read.
const runtimeEnv = "ONNXRUNTIME_SHARED_LIBRARY_PATH"

// telemetryEnv is the environment variable by which onnxruntime sends no usage data.
const telemetryEnv = "ORT_DISABLE_TELEMETRY"

// FindRuntime returns the path of the onnxruntime shared library: explicit if
// not empty; else what ONNXRUNTIME_SHARED_LIBRARY_PATH names; else what set-up put
// into .setup/onnxruntime of the checkout, searched upward from the working directory
// and from the executable's folder; else the newest beside the executable, in lib
// there, in ../lib/mlrbfn if the program is in a folder bin, or in Python's package
// onnxruntime if pip installed the program; else the newest in the system's library
// folders.
//
// A library that was asked for by name and is not there is an error: another
// one is never taken in its place. Without any the error wraps [ErrNoRuntime].
func FindRuntime(explicit string) (string, error) {
	if explicit != "" {
		path, err := namedRuntime(explicit)
		if err != nil {
			err = &options.Error{Option: "Runtime", Err: err}
		}
		return path, err
	}
	if path := os.Getenv(runtimeEnv); path != "" {
		path, err := namedRuntime(path)
		if err != nil {
			err = fmt.Errorf("%s: %w", runtimeEnv, err)
		}
		return path, err
	}
	return searchRuntime(startFolders(), append(besideProgram(programFolder()), systemFolders()...))
}

// startFolders are the working directory and the folder of the executable.
func startFolders() []string {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		starts = append(starts, filepath.Dir(exe))
	}
	return starts
}

// upward returns each of the folders and all above it.
func upward(starts []string) []string {
	var folders []string
	for _, dir := range starts {
		for {
			folders = append(folders, dir)
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return folders
}

// namedRuntime checks a path that was given.
func namedRuntime(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w; it must name the onnxruntime library file", err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a file; it must name the onnxruntime library file itself", path)
	}
	// Without a slash the dynamic linker would search its own folders instead.
	return filepath.Abs(path)
}

// searchRuntime looks in .setup/onnxruntime of every folder from each start
// upward, then in the system's folders.
func searchRuntime(starts, system []string) (string, error) {
	var folders []string
	for _, dir := range upward(starts) {
		folders = append(folders, filepath.Join(dir, ".setup", "onnxruntime"))
	}
	for _, folder := range append(folders, system...) {
		if path := newestRuntime(folder, runtime.GOOS); path != "" {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: name it by InitRuntime or the environment variable %s, or install it where the system looks for libraries", ErrNoRuntime, runtimeEnv)
}

var runtimeNames = map[string]*regexp.Regexp{
	"windows": regexp.MustCompile(`^onnxruntime\.dll$`),
	"darwin":  regexp.MustCompile(`^libonnxruntime(\.[0-9.]*[0-9])?\.dylib$`),
	"":        regexp.MustCompile(`^libonnxruntime\.so(\.[0-9.]*[0-9])?$`),
}

// newestRuntime returns the library of the highest version in folder, named as
// goos names it, or "". A name without a version counts as the lowest: it is a
// link to one of the others where there are any.
func newestRuntime(folder, goos string) string {
	pattern := runtimeNames[goos]
	if pattern == nil {
		pattern = runtimeNames[""]
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return ""
	}
	var best string
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		if !pattern.MatchString(entry.Name()) || best != "" && compareVersions(entry.Name(), filepath.Base(best)) <= 0 {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			best = path
		}
	}
	return best
}

var number = regexp.MustCompile(`[0-9]+`)

// compareVersions compares the numbers in two file names one after another.
func compareVersions(a, b string) int {
	return slices.CompareFunc(number.FindAllString(a, -1), number.FindAllString(b, -1), func(x, y string) int {
		m, _ := strconv.Atoi(x)
		n, _ := strconv.Atoi(y)
		return cmp.Compare(m, n)
	})
}

// systemFolders lists where the system keeps shared libraries: the dynamic
// linker's own variables and configuration, then the usual places. Windows has
// none here: the onnxruntime.dll of its system folder is the system's own.
func systemFolders() []string {
	var folders []string
	switch runtime.GOOS {
	case "windows":
		return nil
	case "darwin":
		folders = append(filepath.SplitList(os.Getenv("DYLD_LIBRARY_PATH")),
			"/opt/homebrew/lib", "/opt/homebrew/opt/onnxruntime/lib")
	default:
		folders = filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
		configs, _ := filepath.Glob("/etc/ld.so.conf.d/*.conf")
		for _, config := range configs {
			folders = append(folders, linkerFolders(config)...)
		}
		folders = append(folders, "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
	}
	return append(folders, "/usr/local/lib", "/usr/lib", "/opt/onnxruntime/lib", "/usr/local/onnxruntime/lib")
}

// linkerFolders reads the absolute paths out of one ld.so.conf file.
func linkerFolders(config string) []string {
	text, _ := os.ReadFile(config)
	var folders []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); filepath.IsAbs(line) {
			folders = append(folders, line)
		}
	}
	return folders
}

// loaded is the library that the process has loaded: onnxruntime's environment
// is one per process, and the wrapper does not guard it.
var loaded struct {
	sync.Mutex
	path      string
	providers []string // files of plug-ins
}

// InitRuntime loads the onnxruntime library that [FindRuntime] finds and makes
// its environment, once per process; it may be called from several goroutines
// and again. After a failure it may be tried anew. Naming another library once
// one is loaded is an error. [OpenModel] calls InitRuntime("") itself.
func InitRuntime(explicit string) error {
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.path != "" && explicit == "" {
		return nil
	}
	path, err := FindRuntime(explicit)
	if err != nil {
		return err
	}
	if loaded.path != "" {
		if path != loaded.path {
			return fmt.Errorf("onnxruntime is loaded from %s already; %s would need another process", loaded.path, path)
		}
		return nil
	}
	if err := checkLibrary(path); err != nil {
		return &RuntimeError{path, err}
	}
	// The packages of onnxruntime for Linux send usage data to its makers too, and keep
	// a device's number and a database in the user's cache, as soon as there is an
	// environment. Whoever wants that sets the variable to 0.
	if _, set := os.LookupEnv(telemetryEnv); !set {
		if err := os.Setenv(telemetryEnv, "1"); err != nil {
			return err
		}
	}
	ort.SetSharedLibraryPath(path)
	if err := ort.InitializeEnvironment(ort.WithLogLevelFatal()); err != nil {
		// The wrapper's only sign of a library that lacks its API version.
		if strings.Contains(err.Error(), "Error setting ORT API base: 2") {
			return &RuntimeError{path, errors.New("is too old for this program")}
		}
		return &RuntimeError{path, fmt.Errorf("cannot be loaded: %w", err)}
	}
	if os.Getenv(telemetryEnv) != "0" {
		// A library without any answers that there is nothing to turn off.
		_ = ort.DisableTelemetry()
	}
	loaded.path = path
	return nil
}

// apiVersion is the minor version of the oldest library that has the API that
// the wrapper asks for.
const apiVersion = 29

// versioned matches the name that a library of Linux has with its version.
var versioned = regexp.MustCompile(`\.so\.1\.([0-9]+)\.[0-9]+$`)

// checkLibrary refuses what the dynamic loader would end the process for, a file
// that was cut short, and what onnxruntime would print lines of its own about, a
// library whose name says that it is too old.
func checkLibrary(path string) (err error) {
	if runtime.GOOS != "linux" {
		return nil
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if m := versioned.FindStringSubmatch(path); m != nil {
		if minor, err := strconv.Atoi(m[1]); err == nil && minor < apiVersion {
			return fmt.Errorf("is too old for this program, which needs 1.%d or newer", apiVersion)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	library, err := elf.Open(path)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("was cut short") // the last part is looked at first
	}
	if err != nil {
		return fmt.Errorf("is not a shared library: %w", err)
	}
	defer func() { err = errors.Join(err, library.Close()) }()
	for _, part := range library.Progs {
		if part.Off+part.Filesz > uint64(info.Size()) {
			return errors.New("was cut short")
		}
	}
	return nil
}

// RuntimeVersion returns the version of the loaded onnxruntime library, such as
// "1.31.1", or "" before [InitRuntime].
func RuntimeVersion() string {
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.path == "" {
		return ""
	}
	return ort.GetVersion()
}

// ErrRunMemory is wrapped by the error of a model whose runs want more memory for
// tensors than a session may have, without the weights: three quarters of the
// machine's or the control group's, or half of what the process may map.
var ErrRunMemory = errors.New("its tensors take too much memory")

// runMemory returns how many bytes the tensors of a session's runs may take in all.
var runMemory = sync.OnceValue(func() int64 { return min(spill.Default()/2*3, mostMapped()/2) })

// foldMemory returns how many bytes onnxruntime may give to a tensor that it computes
// from constants while it loads a graph of so many bytes: more than its weights take as
// float32, and at most the default of onnxruntime.
func foldMemory(graph int64) int64 { return min(max(64<<20, 8*graph), 1<<30) }

// refused matches the errors of onnxruntime about an arena that is full, and about
// memory that the system does not give.
var refused = regexp.MustCompile(`Available memory of [0-9]+ is smaller than requested bytes|Failed to allocate memory for requested buffer|std::bad_alloc`)

// arenas counts the sessions that are being made. onnxruntime gives a session the
// arena that is registered meanwhile. The session keeps it, so that it is freed with
// the session.
var arenas struct {
	sync.Mutex
	making int
}

// bounded has a session made that takes memory for tensors from an arena of limited
// size. Sessions that are made at the same time share one.
func (m *Model) bounded(options *ort.SessionOptions, make func() error) (err error) {
	if err := errors.Join(
		options.AddSessionConfigEntry("session.use_env_allocators", "1"),
		options.AddSessionConfigEntry("optimization.constant_folding_max_output_size_in_bytes", strconv.FormatInt(foldMemory(m.bytes), 10)),
	); err != nil {
		return err
	}
	memory, err := ort.GetMemoryInfo()
	if err != nil {
		return err
	}
	arenas.Lock()
	if arenas.making == 0 {
		var limits *ort.ArenaCfg
		if limits, err = ort.NewArenaCfg(int(runMemory()), -1, -1, -1); err == nil {
			err = ort.CreateAndRegisterAllocator(memory, limits)
			limits.Destroy()
		}
	}
	if err == nil {
		arenas.making++
	}
	arenas.Unlock()
	if err != nil {
		return err
	}
	defer func() {
		arenas.Lock()
		defer arenas.Unlock()
		if arenas.making--; arenas.making == 0 {
			err = errors.Join(err, ort.UnregisterAllocator(memory))
		}
	}()
	return make()
}

// What [Products] returns.
const (
	ExactProducts      = "exact"
	SaturatingProducts = "saturating"
	UnknownProducts    = "unknown" // the library does not say
)

// Products says what the loaded onnxruntime makes of products of 8-bit numbers
// on this machine's processor. On x86-64 with AVX2 and without VNNI sums of two
// of them are cut off at 16 bits, so that a quantised model has other features
// there than elsewhere. The answer is that of a small graph which is run once.
func Products() string { return products() }

var products = sync.OnceValue(func() string {
	if err := InitRuntime(""); err != nil {
		return UnknownProducts
	}
	sum, err := sumOfProducts()
	switch {
	case err != nil:
		return UnknownProducts
	case sum == productsLength*255*127:
		return ExactProducts
	case sum == productsLength/2*math.MaxInt16:
		return SaturatingProducts
	default:
		return UnknownProducts
	}
})

// productsLength is the number of products that are added up, and the size of
// the matrices otherwise: what every kernel takes.
const productsLength = 16

// sumOfProducts multiplies the largest numbers by the largest weights.
func sumOfProducts() (sum int32, err error) {
	const n = productsLength
	g, err := onnx.New(13, "mlrbfn", "")
	if err != nil {
		return 0, err
	}
	g.Output("sum", g.Op("MatMulInteger", g.Input("x", onnx.Uint8, n, n), g.Input("w", onnx.Int8, n, n)), onnx.Int32, n, n)
	var graph bytes.Buffer
	if err := g.Write(&graph); err != nil {
		return 0, err
	}
	x, xErr := ort.NewTensor(ort.NewShape(n, n), bytes.Repeat([]byte{255}, n*n))
	w, wErr := ort.NewTensor(ort.NewShape(n, n), slices.Repeat([]int8{127}, n*n))
	out, err := ort.NewEmptyTensor[int32](ort.NewShape(n, n))
	if err := errors.Join(xErr, wErr, err); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, x.Destroy(), w.Destroy(), out.Destroy()) }()
	session, err := ort.NewDynamicAdvancedSessionWithONNXData(graph.Bytes(), []string{"x", "w"}, []string{"sum"}, nil)
	if err != nil {
		return 0, err
	}
	err = session.Run([]ort.Value{x, w}, []ort.Value{out})
	return out.GetData()[0], errors.Join(err, session.Destroy())
}
