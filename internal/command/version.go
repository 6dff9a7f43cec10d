package command

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/cpu"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/version"
)

var _ = declare("version", 170, "[flags]", "Print the version and what it runs on", "Prints the version, the commit, the onnxruntime library that is found, and the processor's features.", addVersion)

func addVersion(c *command) {
	c.addJSON("print one JSON object")
	c.run = func(_ context.Context, s Streams) error { return c.printVersion(s) }
}

// commit is the commit that the program was built from, if the build recorded it.
func commit() (commit string) {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				commit = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				commit += " and changes"
			}
		}
	}
	return commit
}

// printVersion prints the version and what it runs on.
func (c *command) printVersion(s Streams) error {
	var v struct {
		Version     string   `json:"version"`
		Commit      string   `json:"commit,omitempty"`
		Go          string   `json:"go"`
		Platform    string   `json:"platform"`
		Runtime     string   `json:"onnxruntime,omitempty"`
		RuntimeFile string   `json:"onnxruntime_library,omitempty"`
		Kernels     string   `json:"kernels"`
		Processor   []string `json:"processor"`
	}
	v.Version, v.Commit = version.Version, commit()
	v.Go, v.Platform = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
	v.Kernels, v.Processor = kernels.Set(), processor()
	library := "not found"
	if file, err := extractor.FindRuntime(""); err == nil {
		if err := extractor.InitRuntime(file); err != nil {
			library = err.Error()
		} else {
			v.Runtime, v.RuntimeFile = extractor.RuntimeVersion(), file
			library = v.Runtime + ", " + file
		}
	}
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "mlrbfn\t%s\n", v.Version)
	if v.Commit != "" {
		fmt.Fprintf(t, "commit\t%s\n", v.Commit)
	}
	fmt.Fprintf(t, "built with\t%s for %s\nonnxruntime\t%s\nkernels\t%s\nprocessor\t%s\n", v.Go, v.Platform, library, v.Kernels, strings.Join(v.Processor, " "))
	t.Flush()
	return c.print(s, v, text.String())
}

// processor names those features of the processor that results or speed depend
// on.
func processor() []string {
	names := []string{}
	for _, f := range []struct {
		name string
		has  bool
	}{
		{"sse4.1", cpu.X86.HasSSE41}, {"avx", cpu.X86.HasAVX}, {"avx2", cpu.X86.HasAVX2}, {"fma", cpu.X86.HasFMA},
		{"avx512f", cpu.X86.HasAVX512F}, {"avx512bw", cpu.X86.HasAVX512BW}, {"avx512dq", cpu.X86.HasAVX512DQ}, {"avx512vl", cpu.X86.HasAVX512VL},
		{"avx512vnni", cpu.X86.HasAVX512VNNI}, {"avx_vnni", cpu.X86.HasAVXVNNI}, {"amx_int8", cpu.X86.HasAMXInt8},
		{"asimd", cpu.ARM64.HasASIMD}, {"asimddp", cpu.ARM64.HasASIMDDP}, {"sve", cpu.ARM64.HasSVE},
	} {
		if f.has {
			names = append(names, f.name)
		}
	}
	return names
}

// Version names the version, the commit and what it was built with in a line.
func Version() string {
	commit := commit()
	if commit != "" {
		commit = ", commit " + commit
	}
	return fmt.Sprintf("mlrbfn %s%s, %s %s/%s", version.Version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// CommandLine writes a program and its arguments as one types them into a shell.
func CommandLine(program string, args []string) string {
	words := []string{program}
	for _, a := range args {
		words = append(words, disk.Quote(a))
	}
	return strings.Join(words, " ")
}
