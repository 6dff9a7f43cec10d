package images_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strconv"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
)

// BenchmarkList lists 100,000 count, and reports how many bytes of memory an image takes
// in the listing, and at most while it lists (peak-B/image), with what Go has not collected yet.
func BenchmarkList(b *testing.B) {
	const count, page = 100_000, 1000
	name := func(i int) string { return fmt.Sprintf("n%08d/n%08d_%d.JPEG", i/1000, i/1000, i%1000) }
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.Atoi(r.URL.Query().Get("continuation-token"))
		fmt.Fprint(w, "<ListBucketResult>")
		for i := from; i < from+page; i++ {
			fmt.Fprintf(w, `<Contents><Key>train/%s</Key><Size>109897</Size><LastModified>2026-11-23T05:00:00.000Z</LastModified><ETag>"%032x"</ETag></Contents>`, name(i), i)
		}
		if from+page < count {
			fmt.Fprintf(w, "<IsTruncated>true</IsTruncated><NextContinuationToken>%d</NextContinuationToken>", from+page)
		}
		fmt.Fprint(w, "</ListBucketResult>")
	}))
	defer server.Close()
	for key, value := range map[string]string{"AWS_ENDPOINT_URL_S3": server.URL, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"} {
		b.Setenv(key, value)
	}
	bucket.SetLimits(bucket.Limits{})
	defer bucket.SetLimits(bucket.Limits{})
	list := func(b *testing.B, of string) {
		for b.Loop() {
			before := inUse()
			peak := peakInUse()
			l, err := images.ListSources(b.Context(), of)
			b.ReportMetric(float64(peak()-before)/count, "peak-B/image")
			if err != nil || len(l.Units) != count {
				b.Fatal(len(l.Units), err)
			}
			b.ReportMetric(float64(inUse()-before)/count, "B/image")
			runtime.KeepAlive(l)
		}
	}
	b.Run("bucket", func(b *testing.B) { list(b, "s3://data/train/") })
	b.Run("folder", func(b *testing.B) {
		dir := filepath.Join(b.TempDir(), "imagenet", "train")
		for i := range count {
			file := filepath.Join(dir, name(i))
			if i%1000 == 0 {
				if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
					b.Fatal(err)
				}
			}
			if err := os.WriteFile(file, nil, 0o666); err != nil {
				b.Fatal(err)
			}
		}
		list(b, dir)
	})
}

func inUse() int64 {
	runtime.GC()
	runtime.GC() // also what finalizers held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// peakInUse looks every millisecond at how many bytes of memory are in use, until the function
// that it returns is called, which returns the most.
func peakInUse() func() int64 {
	stop, most := make(chan struct{}), make(chan int64)
	go func() {
		in := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for peak := int64(0); ; {
			metrics.Read(in)
			peak = max(peak, int64(in[0].Value.Uint64()))
			select {
			case <-stop:
				most <- peak
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() int64 {
		close(stop)
		return <-most
	}
}
