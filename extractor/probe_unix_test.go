//go:build unix

package extractor

import (
	"syscall"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// BenchmarkProbe: what it costs to run the probe of a model that is open, also in
// processor time, which other programs change less.
func BenchmarkProbe(b *testing.B) {
	if err := InitRuntime(testenv.Runtime(b)); err != nil {
		b.Fatal(err)
	}
	for name, dir := range map[string]func(testing.TB) string{
		"efficientnet-lite0": testenv.Backbone,
		"vit-tiny-p16-int8":  func(tb testing.TB) string { return testenv.Shared(tb, "models", "vit-tiny-p16-int8") },
	} {
		b.Run(name, func(b *testing.B) {
			m, err := OpenModel(b.Context(), dir(b), Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close()
			used := func() float64 {
				var r syscall.Rusage
				if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
					b.Fatal(err)
				}
				return float64(syscall.TimevalToNsec(r.Utime)+syscall.TimevalToNsec(r.Stime)) / 1e6
			}
			before := used()
			for b.Loop() {
				m.probed.probe = nil
				if _, err := m.Probe(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((used()-before)/float64(b.N), "processor-ms/op")
		})
	}
}
