package extractor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Options says how to open a model and how to run it over images; the zero value is the
// usual way. Where a model is open already, how to run it counts alone.
type Options struct {
	// Output names the output that is the embedding; "" chooses the
	// first there is of image_embeds, pooler_output, features, embedding,
	// last_hidden_state, or the only one that there is.
	Output string
	// Pool says how tokens become one vector: "cls" takes the first, "mean" the
	// mean of those of the image's patches, without the class token and
	// registers; without Output it also selects last_hidden_state. "" is cls for
	// tokens, mean where every token is a patch's.
	Pool string
	// Layers are values of the graph whose pooled values follow the embedding in the
	// features: names of values or of the nodes that compute them, or [AutoLayers] alone
	// for a few ends of the network's blocks. nil takes none.
	Layers []string
	// PatchNodes are values whose patches [Model.FitPatches] fits a model of, as Layers has
	// them. Patches is such a model, by which the patches of each image are described after
	// the layers; PatchNodes do not count then.
	PatchNodes []string
	Patches    *Patches

	// Width and Height are the size that [Pixels] resizes images to, whatever their aspect
	// ratio, with Pillow's default filter (bicubic). Both 0 leave them as they
	// are; all must have one size then.
	Width, Height int
	// Channels of Pixels is "grey", as Pillow's convert("RGB").convert("L") makes images,
	// or "rgb"; "" is grey for an idx file, which has no colours, else RGB.
	Channels string
	// Mean and Std normalise Pixels: (x/255 − Mean)/Std. Each has one value, or one
	// for each channel; nil means 0 and 1.
	Mean, Std []float64

	preprocess.Reading
	// Device is where the model runs, as [CheckDevice] has it; "" is cpu. It may
	// change the last bits of features.
	Device string
	// Provider is the file of an execution provider that is a library of its own,
	// a plug-in of onnxruntime; "" takes those of the onnxruntime library.
	Provider string
	// FastMath has products computed in bfloat16 where [HasFastMath], and else does nothing.
	// It is part of the fingerprint.
	FastMath bool
	// IntraOpThreads is how many threads one run may use; 0 is 1, or more
	// with fewer workers where a long extraction finds that faster.
	IntraOpThreads int
	// OpenTimeout bounds how long opening the model may take, its first run
	// included; 0 is 2 minutes, or one for each 100 MB of a larger model, and at
	// least 20 minutes on devices other than the CPU, which compile it.
	OpenTimeout time.Duration
	// RunTimeout bounds how long a run may take for each of its images; 0 is 100
	// times what a blank image takes, and at least 2 minutes, or 20 on devices
	// other than the CPU. What a graph computes may depend on the image.
	RunTimeout time.Duration
	// AllowDriftedFeatures opens a model for a detector, or for a feature set that there
	// is, though its features differ from theirs so far that verdicts could change.
	AllowDriftedFeatures bool
	// Drifted, where set, is told of features that differ from those of the detector or
	// the feature set by more than rounding.
	Drifted func(text string)
	// Kept, where set, keeps the model open when it is closed, for the next one.
	Kept *Kept

	// How to run it, of which Batch alone can change a feature.

	// Workers is how many images are worked on at once; 0 is one for each
	// processor, or fewer with more threads each where that proves faster.
	Workers int
	// Batch is how many images go through the session at once; 0 is one, or
	// more where that proves faster and bit-identical. A batch that is
	// asked for may change the last bits of features.
	Batch int
	// MaxPixels bounds the size of a decoded image; 0 is preprocess's bound. All that are
	// decoded at once take about [DecodeMemory].
	MaxPixels int64
	// ImageTimeout bounds how long one image may take to decode; 0 is
	// [DefaultImageTimeout]. A decoder that takes longer is left behind, with
	// its memory until it ends.
	ImageTimeout time.Duration
	// NoHash leaves out the hashes of images, for who does not want them.
	NoHash bool
	// Progress is called after every image with the numbers of those done, of those of
	// them that failed, and of all, −1 where that is not known. Calls do not overlap.
	Progress func(done, failed, total int)
	// Chosen is called once, when it is settled how most of the images are
	// worked on. With many of them that is after the first.
	Chosen func(Plan)
}

// ErrOpenTimeout is wrapped by the error of a model that took too long to open.
// onnxruntime may still be at work on it, in threads of its own that end with the
// program.
var ErrOpenTimeout = errors.New("it takes too long to open")

// ErrRunTimeout is wrapped by the error of an image that a model took too long
// for.
var ErrRunTimeout = errors.New("the model takes too long for it")

// errStuck is wrapped by the error of a run that onnxruntime could not stop: it is
// still at work on the run's tensors.
var errStuck = errors.New("onnxruntime does not stop, and is left behind")

// grace is how long a run may take to stop that was told to.
const grace = 2 * time.Second

// openTimeout is the time that a model in these files has, far more than an
// honest one needs.
func (opts Options) openTimeout(files []string) time.Duration {
	if opts.OpenTimeout > 0 {
		return opts.OpenTimeout
	}
	return max(opts.leastTimeout(), time.Duration(sizeOf(files)/1e8)*time.Minute)
}

// sizeOf returns the bytes of some files.
func sizeOf(files []string) (bytes int64) {
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			bytes += info.Size()
		}
	}
	return bytes
}

// leastTimeout is the time that any model has to open and for an image: devices
// compile it.
func (opts Options) leastTimeout() time.Duration {
	if opts.Device != "" && opts.Device != "cpu" {
		return 20 * time.Minute
	}
	if other, err := time.ParseDuration(least); err == nil {
		return other
	}
	return 2 * time.Minute
}

// least is set by the linker where tests run on an emulated processor: another time
// than 2 minutes.
var least string

// A Model is an ONNX graph with its preprocessing, ready to run. Its methods
// may be called from several goroutines; [Model.Close] it when all its runners
// are closed.
type Model struct {
	// Dir is the model's folder, the one that the preprocessing came from,
	// and File the graph in it.
	Dir, File string
	// Spec is the preprocessing.
	Spec *preprocess.Spec
	// SHA256 is the hash of the graph file in hex; where it keeps weights in
	// other files, of the graph followed by those in the order of their names.
	SHA256 string
	// Inputs and Outputs are all that the graph declares.
	Inputs, Outputs []TensorInfo

	session     *ort.DynamicAdvancedSession
	bytes       int64         // of the graph with its weights
	runTimeout  time.Duration // for an image
	input       imageInput
	outputs     []tensor // the embedding, where there are any the logits, and the layers
	logitsAt    int      // of outputs; 0 without any
	pool        pooling
	layers      []layer
	ends        []string    // of the network's blocks, where they were sought
	endShapes   [][]int64   // of their values for an image; nil for what is none
	alone       func() bool // needsToBeAlone, asked once
	quantised   func() bool // looksQuantised, asked once
	kept        *keptRunners
	probed      *keptProbe
	release     func() error // of a model that is kept; nil of others
	options     Options
	why         string
	fingerprint string
	plainprint  string // of the embedding alone
}

// tensor is an output of the graph with the shape that it has for one image.
type tensor struct {
	TensorInfo
	row []int64
}

// graphs are the names that a model's folder is searched for, in order.
var graphs = []string{"model.onnx", "onnx/vision_model.onnx", "onnx/model.onnx"}

// OpenModel opens the model in the folder dir: the first of model.onnx,
// onnx/vision_model.onnx and onnx/model.onnx with the processor's configuration
// beside it, as Hugging Face lays exports out. dir may also be the path of an
// .onnx file; its configuration then lies in the same folder, or above it where
// that folder is called onnx. onnxruntime is loaded if it is not yet.
//
// A blank image is run to learn the sizes of the outputs, so a graph that does
// not fit its configuration fails here. So does one whose tensors for one run
// would not fit into a gigabyte, one whose constants ask for endless loops or
// huge values, and one that is not open after [Options.OpenTimeout]. Tensors
// whose sizes a run computes may take most of the machine's memory; more is
// [ErrRunMemory].
//
// Errors name the graph file. It ends with the context's error once that is cancelled.
func OpenModel(ctx context.Context, dir string, opts Options) (*Model, error) {
	if opts.Kept != nil {
		return opts.Kept.open(ctx, dir, opts)
	}
	if !slices.Contains([]string{"", "cls", "mean"}, opts.Pool) {
		return nil, options.Errorf("Pool", "unknown pooling %q; it is cls or mean", opts.Pool)
	}
	if opts.OpenTimeout < 0 {
		return nil, options.Errorf("OpenTimeout", "%v: it may not be negative", opts.OpenTimeout)
	}
	if opts.RunTimeout < 0 {
		return nil, options.Errorf("RunTimeout", "%v: it may not be negative", opts.RunTimeout)
	}
	file, folders, err := findGraph(dir)
	if err != nil {
		return nil, err
	}
	files, err := graphFiles(file)
	if err != nil {
		return nil, err
	}
	limit := opts.openTimeout(files)
	timed, cancel := context.WithTimeout(ctx, limit)
	type opened struct {
		*Model
		error
	}
	defer cancel()
	opening := parallel.Start(func() opened {
		m, err := openModel(timed, files, folders, opts)
		return opened{m, err}
	})
	finish := func(o opened) (*Model, error) {
		if o.error != nil && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.Is(o.error, context.DeadlineExceeded) {
			return nil, options.Errorf("OpenTimeout", "model %s: %w: more than %v", file, ErrOpenTimeout, limit)
		}
		return o.Model, o.error
	}
	select {
	case <-opening.Done():
		return finish(opening.Wait())
	case <-timed.Done():
	}
	// A run ends soon. Loading, which computes what is constant, cannot be
	// stopped: it is left behind.
	select {
	case <-opening.Done():
		return finish(opening.Wait())
	case <-time.After(grace):
		parallel.Start(func() error {
			if late := opening.Wait(); late.Model != nil {
				return late.Close()
			}
			return nil
		})
		return finish(opened{nil, timed.Err()})
	}
}

// openModel opens the graph in the first of files, whose weights are in the
// others, with the configuration in the first of folders that has one.
func openModel(ctx context.Context, files, folders []string, opts Options) (_ *Model, err error) {
	m := &Model{File: files[0], bytes: sizeOf(files), options: opts, kept: new(keptRunners), probed: new(keptProbe)}
	for _, m.Dir = range folders {
		if m.Spec, err = preprocess.Load(m.Dir); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if err := InitRuntime(""); err != nil {
		return nil, err
	}
	// A large file takes about as long to hash as to load.
	hash, _ := parallel.WithContext(ctx)
	hash.Go(func() (err error) {
		m.SHA256, err = hashFiles(ctx, files)
		return err
	})
	err = m.open(ctx, opts)
	if hashErr := hash.Wait(); hashErr != nil {
		return nil, errors.Join(hashErr, m.Close())
	}
	if err == nil {
		err = m.takeFingerprint()
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", m.File, errors.Join(err, m.Close()))
	}
	return m, nil
}

// findGraph returns the graph file that dir names and the folders where its
// processor's configuration may be, in order.
func findGraph(dir string) (file string, folders []string, err error) {
	dir = ModelPath(dir)
	info, err := os.Stat(dir)
	if err != nil {
		return "", nil, options.Errorf("Model", "%w; it names a folder with model.onnx and its preprocessing, or an .onnx file", err)
	}
	if info.IsDir() {
		for _, name := range graphs {
			file := filepath.Join(dir, filepath.FromSlash(name))
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
				return file, []string{dir}, nil
			}
		}
		switch others := graphsIn(dir); len(others) {
		case 0:
			return "", nil, fmt.Errorf("model folder %s has none of %s; export a model into it or name an .onnx file", dir, strings.Join(graphs, ", "))
		case 1:
			return others[0], []string{dir}, nil
		default:
			return "", nil, options.Errorf("Model", "folder %s has none of %s; choose one of its graphs: %s", dir, strings.Join(graphs, ", "), strings.Join(others, ", "))
		}
	}
	if filepath.Ext(dir) != ".onnx" {
		return "", nil, fmt.Errorf("model %s is neither a folder nor an .onnx file", dir)
	}
	folder, err := filepath.Abs(filepath.Dir(dir))
	if err != nil {
		return "", nil, fmt.Errorf("model %s: %w", dir, err)
	}
	folders = []string{folder}
	if filepath.Base(folder) == "onnx" {
		folders = append(folders, filepath.Dir(folder))
	}
	return dir, folders, nil
}

// graphsIn returns the paths of all ONNX files of a model's folder, in its onnx
// folder too.
func graphsIn(dir string) []string {
	var found []string
	for _, folder := range []string{dir, filepath.Join(dir, "onnx")} {
		for _, entry := range someEntries(folder) {
			file := filepath.Join(folder, entry.Name())
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && filepath.Ext(file) == ".onnx" {
				found = append(found, file)
			}
		}
	}
	return found
}

// visionGraphs returns the graphs beside file, or in the onnx folder beside it,
// that are called after the vision part of a model.
func visionGraphs(file string) []string {
	return slices.DeleteFunc(graphsIn(filepath.Dir(file)), func(other string) bool {
		return other == file || !strings.Contains(filepath.Base(other), "vision")
	})
}

// graphFiles returns the graph file and those that it keeps weights in.
func graphFiles(file string) ([]string, error) {
	files := []string{file}
	weights, err := externalWeights(file)
	if err != nil {
		return nil, err
	}
	for _, name := range weights {
		files = append(files, filepath.Join(filepath.Dir(file), name))
	}
	return files, nil
}

// hashFiles returns the hex SHA-256 of the files, one after another.
func hashFiles(ctx context.Context, files []string) (string, error) {
	h := sha256.New()
	for _, file := range files {
		if err := disk.Copy(ctx, h, file, disk.Weights); err != nil {
			return "", fmt.Errorf("hash model: %w", err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// hashGraph returns the hex SHA-256 of the graph file followed by the files that
// it keeps weights in.
func hashGraph(ctx context.Context, file string) (string, error) {
	files, err := graphFiles(file)
	if err != nil {
		return "", err
	}
	return hashFiles(ctx, files)
}

// HashModel computes [Model.SHA256] of the model in a folder without
// opening it.
func HashModel(ctx context.Context, dir string) (string, error) {
	file, _, err := findGraph(dir)
	if err != nil {
		return "", err
	}
	return hashGraph(ctx, file)
}

// open fills in all that the graph itself says and makes the session.
func (m *Model) open(ctx context.Context, opts Options) error {
	if err := m.inspect(); err != nil {
		return err
	}
	var err error
	if m.input, err = chooseInput(m.Inputs, visionGraphs(m.File)); err != nil {
		return err
	}
	height, width := m.Spec.Height, m.Spec.Width
	if h, w := m.input.height, m.input.width; h >= 0 && h != int64(height) || w >= 0 && w != int64(width) {
		return fmt.Errorf("takes images of %s×%s pixels (height×width), but the preprocessing in %s makes %d×%d; one of the two is another model's", size(h), size(w), m.Dir, height, width)
	}
	embedding, err := chooseOutput(m.Outputs, opts.Output, opts.Pool)
	if err != nil {
		return err
	}
	m.outputs, m.why = []tensor{{TensorInfo: embedding}}, whyOutput(embedding.Name, opts)
	if hasLogits(m.Outputs, embedding.Name) {
		at := slices.IndexFunc(m.Outputs, func(t TensorInfo) bool { return t.Name == logits })
		m.outputs, m.logitsAt = append(m.outputs, tensor{TensorInfo: m.Outputs[at]}), 1
	}
	// CUDA puts its own signal handlers in the place of Go's, so that Ctrl-C
	// would no longer arrive.
	restore := saveSignals()
	defer restore()
	if err := m.chooseLayers(ctx, opts.Layers); err != nil {
		return err
	}
	if err := m.choosePatches(ctx, opts); err != nil {
		return err
	}
	if err = m.newSession(); err == nil {
		err = m.measure(ctx)
	}
	if err == nil {
		err = m.poolLayers(ctx)
	}
	if err != nil {
		if p := opts.Patches; p != nil { // of another graph, perhaps
			_, other := m.placesOf(ctx, p, true)
			err = cmp.Or(other, err)
		}
		return err
	}
	m.pool, err = newPooling(m.outputs[0].row, opts.Pool, m.input.layout, height, width)
	if err != nil {
		return fmt.Errorf("output %s: %w", embedding, err)
	}
	m.alone, m.quantised = sync.OnceValue(m.needsToBeAlone), sync.OnceValue(m.looksQuantised)
	return nil
}

func size(d int64) string {
	if d < 0 {
		return "any"
	}
	return strconv.FormatInt(d, 10)
}

// inspect reads the declarations of inputs and outputs, and refuses a graph that
// is too large. Where the file leaves
// some to be inferred onnxruntime is asked, which the wrapper can do only by
// loading the whole graph a second time.
func (m *Model) inspect() error {
	if err := m.readDeclarations(); err != nil || m.Outputs != nil {
		return err
	}
	options, err := ort.NewSessionOptions()
	if err != nil {
		return err
	}
	defer options.Destroy()
	if err := options.SetGraphOptimizationLevel(ort.GraphOptimizationLevelDisableAll); err != nil {
		return err
	}
	var inputs, outputs []ort.InputOutputInfo
	err = m.bounded(options, func() (err error) {
		inputs, outputs, err = ort.GetInputOutputInfoWithOptions(m.File, options)
		return err
	})
	if err != nil {
		return m.notLoaded(err)
	}
	m.Inputs, m.Outputs = tensorInfos(inputs), tensorInfos(outputs)
	return nil
}

// readDeclarations takes inputs and outputs from the file, if it declares all of
// them in full, and checks what it computes.
func (m *Model) readDeclarations() (err error) {
	data, unmap, err := disk.Map(m.File, disk.Graph)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unmap()) }()
	if err := onnx.Check(data); err != nil {
		return err
	}
	inputs, outputs, ok := onnx.Declarations(data)
	if ok {
		m.Inputs, m.Outputs = declaredInfos(inputs), declaredInfos(outputs)
	}
	return nil
}

// newSession makes the one session that all runners share.
func (m *Model) newSession() error {
	options, err := ort.NewSessionOptions()
	if err != nil {
		return err
	}
	defer options.Destroy()
	// One thread per run and as many runs as cores gives about twice the
	// images per second of one run on all cores.
	if err := errors.Join(
		options.SetIntraOpNumThreads(m.threads()),
		options.SetInterOpNumThreads(1),
		// What goes wrong comes back as an error; it need not be printed too,
		// least of all when a run is cancelled.
		options.SetLogSeverityLevel(ort.LoggingLevelFatal),
	); err != nil {
		return err
	}
	if err := useDevice(options, m.options.Device, m.options.Provider); err != nil {
		return err
	}
	if m.options.FastMath {
		if err := options.AddSessionConfigEntry("mlas.enable_gemm_fastmath_arm64_bfloat16", "1"); err != nil {
			return err
		}
	}
	names := make([]string, len(m.outputs))
	for i, out := range m.outputs {
		names[i] = out.Name
	}
	err = m.bounded(options, func() (err error) {
		m.session, err = m.load([]string{m.input.Name}, names, options)
		return err
	})
	if err != nil {
		return m.notLoaded(err)
	}
	return nil
}

// notLoaded says what to do about a model that onnxruntime cannot load.
func (m *Model) notLoaded(err error) error {
	if path, _ := filepath.Abs(m.File); runtime.GOOS == "windows" && len(path) >= longPath && strings.Contains(err.Error(), "canonical path") {
		return fmt.Errorf("cannot be loaded from a path of %d characters: %w; move it to one of fewer than %d", len(path), err, longPath)
	}
	if text := err.Error(); strings.Contains(text, "Could not find an implementation") || strings.Contains(text, "bfloat16") { // microsoft/onnxruntime#28768
		return fmt.Errorf("cannot be loaded: %w: onnxruntime does not compute it in these types, as it does not in bfloat16 on a CPU; export it in float32 or float16", err)
	}
	return fmt.Errorf("cannot be loaded: %w; fetch or export it again", err)
}

// longPath is how long a path is, with the zero at its end, that not all of Windows
// understands.
const longPath = 260

// measure runs blank images through the session to learn the shape that each
// output has for one image. Memory for outputs is taken here, as onnxruntime
// would take any amount.
func (m *Model) measure(ctx context.Context) error {
	n := m.rows(1)
	shapes := make([][]int64, len(m.outputs))
	for i, out := range m.outputs {
		shapes[i] = []int64{int64(n), 1}
		if len(out.Shape) > 1 {
			shapes[i] = slices.Clone(out.Shape)
			shapes[i][0] = int64(n)
		}
		for d := range shapes[i] {
			shapes[i][d] = max(1, shapes[i][d])
		}
	}
	if len(m.layers) > 0 { // of which nothing is declared
		if free, err := m.runFree(ctx, n); err == nil {
			shapes = free
		}
	}
	// A dimension that is not as declared, or not declared, is learnt from the
	// error that it makes. One run tells of one output, or its rank alone.
	for tries := 4 * len(shapes); ; tries-- {
		for i, shape := range shapes {
			if len(shape) < 2 || shape[0] != int64(n) || slices.Min(shape) < 1 {
				return options.Errorf("Output", "%s has shape %v for %d image(s), but must have a row for each; choose another", m.outputs[i].Name, shape, n)
			}
			m.outputs[i].row = shape[1:]
		}
		start := time.Now()
		err := m.runBlank(ctx, n)
		if err == nil {
			m.runTimeout = cmp.Or(m.options.RunTimeout, max(m.options.leastTimeout(), 100*time.Since(start)/time.Duration(n)))
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		learnt := tries > 0 && !errors.Is(err, onnx.ErrTooLarge) && m.learnShape(shapes, err.Error())
		if !learnt && tries > 0 && !errors.Is(err, onnx.ErrTooLarge) && !tellsShape.MatchString(err.Error()) {
			// Another version may have other words.
			if free, freeErr := m.runFree(ctx, n); freeErr == nil {
				shapes, learnt, tries = free, true, 1
			}
		}
		if !learnt {
			return fmt.Errorf("a run on a blank image failed: %w", err)
		}
	}
}

// runBlank runs n blank images, with outputs of the rows that are assumed.
func (m *Model) runBlank(ctx context.Context, n int) (err error) {
	r, err := m.runnerOf(n, maxRun)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	b, err := r.bind(n)
	if err != nil {
		return err
	}
	_, err = m.run(ctx, b)
	r.stuck = errors.Is(err, errStuck)
	return err
}

// runFree runs n blank images and lets onnxruntime take the memory for outputs,
// which it can for float32 ones.
func (m *Model) runFree(ctx context.Context, n int) (shapes [][]int64, err error) {
	for _, out := range m.outputs {
		if out.Type != "float32" {
			return nil, fmt.Errorf("the dimensions of output %s cannot be determined; export the model with float32 outputs", out)
		}
	}
	input, err := newBuffer(m.input.Type, m.inputRow(), n).value(n)
	if err != nil {
		return nil, err
	}
	b := binding{[]ort.Value{input}, make([]ort.Value, len(m.outputs))}
	if _, err := m.run(ctx, b); errors.Is(err, errStuck) {
		return nil, err
	} else if err != nil {
		// Outputs that the wrapper failed to make are nil pointers in an
		// interface that is not, so none of them is touched here.
		return nil, errors.Join(err, input.Destroy())
	}
	for _, v := range b.outputs {
		shapes = append(shapes, v.GetShape())
	}
	return shapes, b.destroy()
}

// What onnxruntime says of an output tensor of a wrong shape: of a shape that it
// infers from the graph, and of one that only a run shows (in older versions, and
// in 1.31).
var (
	wrongRank  = regexp.MustCompile(`Invalid rank for output: (.*) Got: [0-9]+ Expected: ([0-9]+)`)
	wrongSizes = regexp.MustCompile(`Got invalid dimensions for output: (.*) for the following indices`)
	wrongSize  = regexp.MustCompile(`index: ([0-9]+) Got: -?[0-9]+ Expected: (-?[0-9]+)`)
	tellsShape = regexp.MustCompile(`rank for output|dimensions for output|Requested shape|computed output shape`)
	ranShape   = regexp.MustCompile(`(?:Requested shape:|for output '(.*)' of node .* computed output shape for this run is )\{([0-9,]*)\}`)
)

// learnShape corrects the shape that an error of onnxruntime's is about. It
// tells whether it could.
func (m *Model) learnShape(shapes [][]int64, text string) bool {
	find := func(name string) int {
		at := slices.IndexFunc(m.outputs, func(t tensor) bool { return t.Name == name })
		if name == "" && len(m.outputs) == 1 {
			at = 0
		}
		return at
	}
	if rank := wrongRank.FindStringSubmatch(text); rank != nil {
		at := find(rank[1])
		n, err := strconv.Atoi(rank[2])
		if at < 0 || err != nil || n > 64 || n == len(shapes[at]) {
			return false
		}
		shape := slices.Repeat([]int64{1}, n)
		copy(shape, shapes[at][:1])
		shapes[at] = shape
		return true
	}
	if sizes := wrongSizes.FindStringSubmatch(text); sizes != nil {
		at := find(sizes[1])
		learnt := false
		for _, size := range wrongSize.FindAllStringSubmatch(text, -1) {
			d, err := strconv.Atoi(size[1])
			v, errV := strconv.ParseInt(size[2], 10, 64)
			if at >= 0 && err == nil && errV == nil && d < len(shapes[at]) && shapes[at][d] != v {
				shapes[at][d], learnt = v, true
			}
		}
		return learnt
	}
	ran := ranShape.FindStringSubmatch(text)
	if ran == nil {
		return false
	}
	at := find(ran[1])
	var shape []int64
	for _, text := range strings.Split(ran[2], ",") {
		d, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			d = -1 // beyond any measure; or a number, which has no dimensions
		}
		shape = append(shape, d)
	}
	if at < 0 || slices.Equal(shape, shapes[at]) {
		return false
	}
	shapes[at] = shape
	return true
}

// needsToBeAlone tells whether an image's features change with the others of its
// batch, or a batch of two fails though the graph declares any size. The first
// is so in graphs that are quantised dynamically: one scale serves the whole
// batch, and one bright image spoils the rest.
func (m *Model) needsToBeAlone() bool {
	if data, unmap, err := disk.Map(m.File, disk.Graph); err == nil {
		scaled := bytes.Contains(data, []byte("DynamicQuantize")) // by little, perhaps, for the images below
		if err := unmap(); err != nil || scaled {
			return true
		}
	}
	r, err := m.runnerOf(2, maxRun)
	if err != nil {
		return true // for want of memory; a batch that is asked for says so
	}
	defer r.Close()
	for i := range r.Input(0) {
		v := float32(i%17)/8 - 1
		r.Input(0)[i], r.Input(1)[i] = v, -10*v
	}
	if r.Run(context.Background(), 1) != nil {
		return true
	}
	alone := slices.Clone(r.Features(0))
	return r.Run(context.Background(), 2) != nil || !agree(r.Features(0), alone, false)
}

// quantisedOps begin the names of the operators that 8-bit graphs have.
var quantisedOps = []string{"QLinear", "MatMulInteger", "ConvInteger", "DynamicQuantize", "DequantizeLinear"}

// sevenBits is what scripts/quantise writes into the metadata of graphs whose weights have 7
// bits: sums of two products of theirs fit into 16 bits, so that no processor saturates.
const sevenBits = "no product of 8 bits saturates"

// Quantised tells whether the graph computes in 8 bits somewhere, so that its
// features depend on the processor; see [Products]. Those of weights of 7 bits
// that scripts/quantise made do not on x86-64.
func (m *Model) Quantised() bool { return m.quantised() }

func (m *Model) looksQuantised() bool {
	data, unmap, err := disk.Map(m.File, disk.Graph)
	if err != nil {
		return false
	}
	found := slices.ContainsFunc(quantisedOps, func(op string) bool { return bytes.Contains(data, []byte(op)) })
	found = found && !bytes.Contains(data, []byte(sevenBits))
	return unmap() == nil && found
}

// Batch is how many images a run has where batch are wanted: that many, or the
// number that the graph takes, or 1 where it does not leave the images of a batch
// independent of each other. To learn that, three made-up images are run when
// more than one is first asked for.
func (m *Model) Batch(batch int) int {
	if batch > 1 && m.input.batch < 0 && m.alone() {
		return 1
	}
	return m.rows(batch)
}

// rows is how many rows the input has for n images.
func (m *Model) rows(n int) int {
	if m.input.batch > 0 {
		return int(m.input.batch)
	}
	return n
}

// inputRow returns the shape of one image's input.
func (m *Model) inputRow() []int64 {
	h, w := int64(m.Spec.Height), int64(m.Spec.Width)
	if m.input.layout == preprocess.NHWC {
		return []int64{h, w, 3}
	}
	return []int64{3, h, w}
}

// Dim is the number of features of an image: of the embedding, D, and of the layers after it.
func (m *Model) Dim() int {
	d := m.pool.dim
	return d + features.LayersDim(m.Layers())
}

// LogitsDim is the number of classes of the graph's own classifier, or 0 where
// it has no output called logits apart from the embedding.
func (m *Model) LogitsDim() int {
	if m.logitsAt == 0 {
		return 0
	}
	return int(m.outputs[m.logitsAt].row[0])
}

// Output is the name of the output that is the embedding.
func (m *Model) Output() string { return m.outputs[0].Name }

// FastMath says whether the model was opened with [Options.FastMath].
func (m *Model) FastMath() bool { return m.options.FastMath }

// Why says why that output was chosen.
func (m *Model) Why() string { return m.why }

// Pool says how that output becomes one vector: "cls" or "mean" over tokens or
// space, "" where it is one already.
func (m *Model) Pool() string { return m.pool.name }

// Embedding describes that output as the graph gives it, before pooling; its
// first dimension, of the images, is −1.
func (m *Model) Embedding() TensorInfo {
	out := m.outputs[0]
	return TensorInfo{out.Name, out.Type, append([]int64{-1}, out.row...)}
}

// Layout is the order of the values of an image in [Runner.Input].
func (m *Model) Layout() preprocess.Layout { return m.input.layout }

// Fingerprint is the hex SHA-256 of all that decides what features an image
// gets: a JSON object of the model's hash, output, pooling, preprocessing with
// its version, and how files are read. Features of different fingerprints are
// never mixed.
func (m *Model) Fingerprint() string { return m.fingerprint }

// EmbeddingFingerprint is the Fingerprint of the same model without layers.
func (m *Model) EmbeddingFingerprint() string { return m.plainprint }

func (m *Model) takeFingerprint() (err error) {
	m.plainprint, err = recipe{m.SHA256, m.Output(), m.Pool(), m.pool.skip, m.Spec, m.options.ApplyEXIF, m.options.Scale16, m.options.FastMath, preprocess.Version}.fingerprint()
	m.fingerprint = features.LayersFingerprint(m.plainprint, m.Layers())
	return err
}

// recipe is all that decides what features an image gets.
type recipe struct {
	ModelSHA256 string           `json:"model_sha256"`
	Output      string           `json:"output"`
	Pool        string           `json:"pool"`
	PoolSkip    int              `json:"pool_skip,omitempty"`
	Preprocess  *preprocess.Spec `json:"preprocess"`
	EXIF        bool             `json:"exif"`
	Scale16     bool             `json:"scale_16_bit,omitempty"`
	FastMath    bool             `json:"fast_math,omitempty"`
	Version     int              `json:"preprocess_version"`
}

func (r recipe) fingerprint() (string, error) {
	text, err := json.Marshal(r)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), err
}

func (m *Model) threads() int { return max(1, m.options.IntraOpThreads) }

func (m *Model) freeThreads() bool {
	return m.options.IntraOpThreads == 0 && m.onCPU() && runtime.GOARCH != "arm64" // where sums are split by threads
}

func (m *Model) withThreads(n int) (model, error) {
	other := *m
	other.options.IntraOpThreads, other.kept, other.release = n, new(keptRunners), nil
	return &other, other.newSession()
}

func (m *Model) planned() string {
	return fmt.Sprintf("%s %q %q %d", m.fingerprint, m.options.Device, m.options.Provider, m.options.IntraOpThreads)
}

func (m *Model) onCPU() bool { return m.options.Device == "" || m.options.Device == "cpu" }

// exact tells whether features do not depend on the size of a batch, as a rule so on CPUs.
func (m *Model) exact() bool { return m.onCPU() }

func (m *Model) batchSizes() []int {
	if m.onCPU() {
		return batchSizes
	}
	return deviceBatchSizes
}

// Close frees the session, unless others use it or it is kept for them, or onnxruntime
// could not be stopped and still uses it.
func (m *Model) Close() error {
	if m.session == nil {
		return nil
	}
	session := m.session
	m.session = nil
	if m.release != nil {
		return m.release()
	}
	err := m.kept.close()
	if m.kept.stuck {
		return err
	}
	return errors.Join(err, session.Destroy())
}
