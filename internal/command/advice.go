package command

import (
	"errors"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// flagOf names the flag of each option that the packages below report an error
// of. Commands that name it otherwise are in flagIn.
var flagOf = map[string]string{
	// Of networks and training.
	"Layers": "layers", "Centroids": "centroids", "Projection": "projection", "Norm": "norm", "Recovery": "recovery",
	"Epochs": "epochs", "Batch": "batch", "LR": "lr", "Schedule": "schedule", "Patience": "patience", "Balance": "balance", "Seeds": "seeds",
	"Conditioning": "conditioning", "Shrinkage": "shrinkage", "Dims": "pca-dims",
	"Features": "features", "Validation": "val", "Calibration": "calibration", "GroupBy": "group-by", "PerClass": "per-class", "Score": "scores",
	"TargetTPR": "max-false-alarms", "MaxFalseAlarms": "max-false-alarms",
	"Memory": "memory", "Resume": "resume", "CheckpointEvery": "checkpoint-every",
	// Of images and models.
	"Images": "images", "Sources": "images", "Roots": "images", "Add": "add", "List": "list", "Names": "names", "Shard": "shard", "Force": "force", "DType": "dtype", "Parts": "parts", "Out": "out", "Cache": "cache", "Copies": "cache",
	"Model": "model", "Output": "output", "Pool": "pool", "Width": "size", "Channels": "channels", "Mean": "mean", "Std": "std",
	"Workers": "workers", "Threads": "threads", "IntraOpThreads": "threads", "Device": "device", "Provider": "provider", "OpenTimeout": "open-timeout", "RunTimeout": "run-timeout", "Runtime": "onnxruntime", "AllowDriftedFeatures": "allow-drifted-features",
	"MaxPixels": "max-pixels", "ApplyEXIF": "exif", "ImageTimeout": "image-timeout",
	// Of detectors and comparisons.
	"Exclude": "exclude", "Relabel": "relabel", "Folds": "folds",
	"Detector": "detector", "PublicKey": "public-key", "Threshold": "threshold", "SetAside": "move-ood",
	"ID": "id", "OOD": "near", "Methods": "methods", "Head": "head", "Bootstrap": "bootstrap", "Against": "against", "Depths": "depths", "Steps": "steps", "Hidden": "hidden",
	// Of the service.
	"Detectors": "detector", "Shadows": "shadow", "Running": "workers", "Waiting": "waiting", "Timeout": "timeout", "ReadTimeout": "read-timeout", "Drain": "drain", "Poll": "poll",
	"MaxBody": "max-body", "MaxImages": "max-images", "PerClient": "per-client", "PerClientConns": "per-client-connections", "TrustedProxies": "trusted-proxy", "Folders": "watch", "Webhook": "webhook", "WebhookSecret": "webhook-secret", "WebhookOn": "webhook-on", "WebhookTimeout": "webhook-timeout", "FolderEvery": "watch-every", "FolderSettle": "watch-settle", "Settle": "watch-settle", "TokenFile": "token-file", "CertFile": "tls-cert",
	"Alpha": "alpha", "Store": "store", "Keep": "keep", "MaxBytes": "keep-size", "MaxAge": "keep-age",
	"WithBackbone": "with-backbone", "KeepOutputs": "keep-outputs", "Opset": "opset",
}

// notAFlag are options that no flag sets.
var notAFlag = []string{"Start", "Order", "Class", "Step", "ReadOnly", "Decision", "Scratch", "Checkpoint", "C", "Near"}

// flagIn names the flags of a command that differ from flagOf.
var flagIn = map[string]map[string]string{
	"evaluate": {"Features": "train"},
	"ablate":   {"Features": "train"},
	"train":    {"Head": "network"},
}

// usage says that err, which may name options, is about the command line.
func (c *command) usage(err error) error { return &UsageError{c.advise(err)} }

// runtimeAdvice says how to come by an onnxruntime library.
const runtimeAdvice = "run `make setup` in the checkout, put the library beside the program, or name it with --onnxruntime FILE or $ONNXRUNTIME_SHARED_LIBRARY_PATH"

// modelAdvice says how to come by the default backbone, which `go install` does not bring.
const modelAdvice = ", and the packages of mlrbfn bring this one (`pip install mlrbfn`), as does `make setup` in the checkout"

// advise names the flags of the options that err is about, and says what to do
// about a library that is missing.
func (c *command) advise(err error) error {
	text, changed := "", false
	if _, bad := errors.AsType[*extractor.RuntimeError](err); bad || errors.Is(err, extractor.ErrNoRuntime) {
		return &advice{withoutAdvice(err) + "; " + runtimeAdvice, err}
	}
	for _, e := range all[*options.Error](err) {
		name := flagIn[c.cmd.Name()][e.Option]
		if name == "" {
			name = flagOf[e.Option]
		}
		if name == "" || c.Lookup(name) == nil {
			continue
		}
		if !changed {
			text, changed = err.Error(), true
		}
		sep := ": "
		if beginsWithValue.MatchString(e.Err.Error()) {
			sep = " "
		}
		text = strings.Replace(text, e.Error(), "--"+name+sep+e.Err.Error(), 1)
		if e.Option == "Model" && errors.Is(e, fs.ErrNotExist) && strings.Contains(e.Err.Error(), defaultModel+": ") {
			text += modelAdvice
		}
		if e.Option == "Memory" && strings.Contains(text, " features") {
			text += fewerFeatures
		}
	}
	if !changed && err != nil && c.Lookup("max-pixels") != nil {
		// What is wrong with one image comes as text alone.
		text = inWarnings.Replace(err.Error())
		changed = text != err.Error()
	}
	if !changed {
		if err == nil {
			return nil
		}
		text = err.Error()
	}
	if text = plainPaths(text, err); text == err.Error() {
		return err
	}
	return &advice{text, err}
}

// beginsWithValue matches what an error says of the value of an option: "0.01: …".
var beginsWithValue = regexp.MustCompile(`^[-+.\de]+: `)

// asCommands names the commands in what the packages below say of missing files.
var asCommands = strings.NewReplacer("; an extraction makes ", "; mlrbfn extract makes ", "; training makes ", "; mlrbfn train makes ")

// plainPaths returns text, which err is said in, without the names of system calls,
// and with each path that could not be looked at or opened once: "x.jpg: no such file
// or directory".
func plainPaths(text string, err error) string {
	text = asCommands.Replace(text)
	for _, e := range all[*fs.PathError](err) {
		if !slices.Contains([]string{"stat", "lstat", "open", "openat", "statat"}, e.Op) {
			continue
		}
		plain := e.Path + ": " + e.Err.Error()
		text = strings.ReplaceAll(text, e.Error(), plain)
		text = strings.ReplaceAll(text, e.Path+": "+plain, plain)
	}
	return text
}

// fewerFeatures follows what too many features need.
const fewerFeatures = "; fewer features need less (of pixels, extract --size)"

// inWarnings puts flags in the place of what warnings name without brackets.
var inWarnings = strings.NewReplacer("(Calibration cross:10)", "(--calibration cross:10)", "MaxPixels: ", "--max-pixels: ", "ImageTimeout: ", "--image-timeout: ", "RunTimeout: ", "--run-timeout: ", "ApplyEXIF", "--exif apply", "Train.Balance", "--balance sample", `paper.Presets["mnist"]`, "--preset mnist", ": Memory: ", ": --memory: ")

// bracketed is an option that a warning names: "(Calibration)", "(Train.LR)".
var bracketed = regexp.MustCompile(`\((?:Train\.)?([A-Z]\w*)\)`)

// adviseText names the flags of the options that a warning names.
func (c *command) adviseText(warning string) string {
	text := inWarnings.Replace(warning)
	if strings.Contains(text, ": --memory: ") && strings.Contains(text, " features") {
		text += fewerFeatures
	}
	return bracketed.ReplaceAllStringFunc(text, func(option string) string {
		if name := flagOf[bracketed.FindStringSubmatch(option)[1]]; name != "" && c.Lookup(name) != nil {
			return "(--" + name + ")"
		}
		return option
	})
}

// withoutAdvice is the text of an error about onnxruntime without what it says
// to a program.
func withoutAdvice(err error) string {
	text := err.Error()
	for _, part := range []string{": name it by InitRuntime", "; name another by InitRuntime"} {
		if at := strings.Index(text, part); at >= 0 {
			return text[:at]
		}
	}
	return text
}

// advice is an error in other words.
type advice struct {
	text string
	err  error
}

func (a *advice) Error() string { return a.text }
func (a *advice) Unwrap() error { return a.err }

// all returns all errors of a type that err wraps.
func all[E error](err error) (found []E) {
	for err != nil {
		switch e := err.(type) {
		case E:
			found = append(found, e)
		case interface{ Unwrap() []error }:
			for _, part := range e.Unwrap() {
				found = append(found, all[E](part)...)
			}
			return found
		}
		err = errors.Unwrap(err)
	}
	return found
}
