package extractor

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/mlrbfn/mlrbfn/internal/options"
)

// A device is a kind of hardware, or of software for it, that a model can run on.
type device struct {
	name string
	// ids matches what may follow the name and a colon; nil where nothing may.
	ids *regexp.Regexp
	// use adds its execution provider, of the onnxruntime library itself, to a
	// session; id is "" for the default.
	use func(session *ort.SessionOptions, id string) error
	// provider is the name that plug-ins have for it, less ExecutionProvider and
	// in lower case, and plugin what they are told.
	provider string
	plugin   map[string]string
	// needs says what to install where it lacks.
	needs string
}

var ordinal = regexp.MustCompile(`^[0-9]{1,3}$`)

var devices = []device{
	{name: "cpu", provider: "cpu", use: func(*ort.SessionOptions, string) error { return nil }},
	{
		name: "cuda", ids: ordinal, use: useCUDA, provider: "cuda",
		needs: "the GPU build of onnxruntime (package onnxruntime-gpu) beside NVIDIA's driver, CUDA and cuDNN of the version that it was built for",
	},
	{
		name: "tensorrt", ids: ordinal, use: useTensorRT, provider: "tensorrt",
		needs: "the GPU build of onnxruntime (package onnxruntime-gpu) beside NVIDIA's driver, CUDA, cuDNN and TensorRT of the version that it was built for",
	},
	{
		name: "coreml", ids: regexp.MustCompile(`^(ALL|CPUOnly|CPUAndGPU|CPUAndNeuralEngine)$`), provider: "coreml",
		use: func(session *ort.SessionOptions, id string) error {
			return session.AppendExecutionProviderCoreMLV2(settings("MLComputeUnits", id))
		},
		needs: "onnxruntime's build for macOS",
	},
	{
		name: "openvino", ids: regexp.MustCompile(`^([0-9]{1,3}|[A-Z][A-Z0-9.:,]*)$`), provider: "openvino",
		use: func(session *ort.SessionOptions, id string) error {
			return session.AppendExecutionProviderOpenVINO(openVINOSettings(id))
		},
		plugin: openVINOPlugin,
		needs:  "a build of onnxruntime with OpenVINO (package onnxruntime-openvino), or, as the provider, its plug-in (package onnxruntime-ep-openvino)",
	},
	{
		name: "directml", ids: ordinal, provider: "dml",
		use: func(session *ort.SessionOptions, id string) error {
			n, _ := strconv.Atoi(id) // digits, or the default device 0
			return session.AppendExecutionProviderDirectML(n)
		},
		needs: "onnxruntime's DirectML build for Windows (package onnxruntime-directml)",
	},
}

// settings are the options of a provider: one, or none where value is "".
func settings(key, value string) map[string]string {
	if value == "" {
		return nil
	}
	return map[string]string{key: value}
}

// Devices are the names of all devices, whether or not the onnxruntime library
// can use them; all but the first, cpu, need a library built for them.
func Devices() []string {
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = d.name
	}
	return names
}

// CheckDevice tells whether text names a device: one of [Devices] or "" for the
// CPU, and where there can be several a colon and which one: cuda:1, tensorrt:0,
// directml:1, openvino:GPU.1, coreml:CPUAndGPU. It does not look for it.
func CheckDevice(text string) error {
	_, _, err := parseDevice(text)
	return err
}

func parseDevice(text string) (d device, id string, err error) {
	if text == "" {
		return devices[0], "", nil
	}
	name, id, several := strings.Cut(text, ":")
	at := slices.IndexFunc(devices, func(d device) bool { return d.name == name })
	switch {
	case at < 0:
		return device{}, "", fmt.Errorf("unknown device %q; it is one of %s, some with which of several: cuda:1", text, strings.Join(Devices(), ", "))
	case several && devices[at].ids == nil:
		return device{}, "", fmt.Errorf("device %q: there is one %s", text, name)
	case several && !devices[at].ids.MatchString(id):
		return device{}, "", fmt.Errorf("device %q: one of several devices is written as in cuda:1, openvino:GPU.1 or coreml:CPUAndGPU", text)
	}
	return devices[at], id, nil
}

// useDevice adds the execution provider of a device to a session. Onnxruntime
// leaves what that cannot run to the CPU.
func useDevice(session *ort.SessionOptions, text, plugin string) error {
	d, id, err := parseDevice(text)
	if err != nil {
		return err
	}
	if plugin != "" {
		return usePlugin(session, d, id, plugin)
	}
	if err := d.use(session, id); err != nil {
		return options.Errorf("Device", "onnxruntime library %s cannot use %s (%s); here it can use %s. %s needs %s",
			loadedPath(), text, inOneLine(err), strings.Join(usable(), ", "), d.name, d.needs)
	}
	return nil
}

// usable are the devices that the loaded library can use on this machine. There
// is no way to ask but to try.
func usable() []string {
	var names []string
	for _, d := range devices {
		session, err := ort.NewSessionOptions()
		if err != nil {
			continue
		}
		if d.use(session, "") == nil {
			names = append(names, d.name)
		}
		session.Destroy()
	}
	return names
}

// openVINOSettings and openVINOPlugin keep OpenVINO from computing in half
// precision, which it does by default where the hardware is good at it, and so
// features as they are elsewhere. A run has one thread there as it has here.
func openVINOSettings(id string) map[string]string {
	set := map[string]string{"num_of_threads": "1"}
	if id != "" {
		set["device_type"] = id
	}
	if !strings.HasPrefix(id, "NPU") { // which has no other
		set["precision"] = "FP32"
	}
	return set
}

var openVINOPlugin = map[string]string{
	"load_config": `{"CPU": {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}, "GPU": {"INFERENCE_PRECISION_HINT": "f32"}}`,
}

func useCUDA(session *ort.SessionOptions, id string) error {
	cuda, err := ort.NewCUDAProviderOptions()
	if err != nil {
		return err
	}
	defer cuda.Destroy()
	// Multiplying in TF32 would change features in their third digit.
	set := map[string]string{"use_tf32": "0"}
	if id != "" {
		set["device_id"] = id
	}
	if err := cuda.Update(set); err != nil {
		return err
	}
	return session.AppendExecutionProviderCUDA(cuda)
}

// useTensorRT adds CUDA too, for the nodes that TensorRT does not take.
func useTensorRT(session *ort.SessionOptions, id string) error {
	tensorRT, err := ort.NewTensorRTProviderOptions()
	if err != nil {
		return err
	}
	defer tensorRT.Destroy()
	if id != "" {
		if err := tensorRT.Update(settings("device_id", id)); err != nil {
			return err
		}
	}
	if err := session.AppendExecutionProviderTensorRT(tensorRT); err != nil {
		return err
	}
	return useCUDA(session, id)
}

// usePlugin adds the execution provider that a library of its own brings. Such a
// provider lists its hardware in an order of its own, of which id is the place
// and the first is the default.
func usePlugin(session *ort.SessionOptions, d device, id, file string) error {
	place := 0
	if id != "" {
		var err error
		if place, err = strconv.Atoi(id); err != nil {
			return fmt.Errorf("device %s:%s: a device of a plug-in is chosen by its number; %s:0 is the first", d.name, id, d.name)
		}
	}
	if err := registerPlugin(file); err != nil {
		return options.Errorf("Provider", "%s cannot be loaded: %s; it is the plug-in's own library, built for an onnxruntime no newer than %s", file, inOneLine(err), ort.GetVersion())
	}
	all, err := ort.GetEpDevices()
	if err != nil {
		return err
	}
	var brought []ort.EpDevice
	for _, candidate := range all {
		name, ok := strings.CutSuffix(strings.ToLower(candidate.EpName()), "executionprovider")
		if ok && strings.Contains(name, d.provider) {
			brought = append(brought, candidate)
		}
	}
	if place >= len(brought) {
		return options.Errorf("Device", "provider %s has %d devices for %s on this machine, and %s is none of them", file, len(brought), d.name, strings.TrimSuffix(d.name+":"+id, ":"))
	}
	return session.AppendExecutionProviderV2(brought[place:place+1], d.plugin)
}

// registerPlugin makes the providers of a plug-in known to onnxruntime, which
// they stay.
func registerPlugin(file string) error {
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	loaded.Lock()
	defer loaded.Unlock()
	if slices.Contains(loaded.providers, path) {
		return nil
	}
	if err := checkLibrary(path); err != nil {
		return fmt.Errorf("it %w", err)
	}
	if err := ort.RegisterExecutionProviderLibrary("mlrbfn:"+path, path); err != nil {
		return err
	}
	loaded.providers = append(loaded.providers, path)
	return nil
}

func loadedPath() string {
	loaded.Lock()
	defer loaded.Unlock()
	return loaded.path
}

// inOneLine is the text of an error of onnxruntime, some of which have many.
func inOneLine(err error) string {
	return strings.Join(strings.Fields(strings.TrimSuffix(err.Error(), ".")), " ")
}
