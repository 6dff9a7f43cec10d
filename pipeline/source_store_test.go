package pipeline_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"archive/tar"
	"image"
	"image/png"

	_ "github.com/mlrbfn/mlrbfn/bucket/s3"
	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
	_ "github.com/mlrbfn/mlrbfn/internal/bucket/web"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// store starts an object store with the bucket data, and returns its folder and address.
func store(t *testing.T) (folder, address string) {
	folder, address = testenv.Start(t, "s3")
	reach(t, address)
	return folder, address
}

// reach sends requests to an address from now on.
func reach(t *testing.T, address string) {
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://"+address)
	bucket.SetLimits(bucket.Limits{Pause: 5 * time.Millisecond, Attempts: 12, Stall: 2 * time.Second})
	t.Cleanup(func() { bucket.SetLimits(bucket.Limits{}) })
}

// tars writes tars of small pictures of random noise, and one that is cut off.
func tars(t *testing.T, folder string, n, images int) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for j := range images {
			img := image.NewRGBA(image.Rect(0, 0, 24, 24))
			for k := range img.Pix {
				img.Pix[k] = uint8(r.Uint32())
			}
			var data bytes.Buffer
			if err := png.Encode(&data, img); err != nil {
				t.Fatal(err)
			}
			for _, file := range []struct {
				name string
				data []byte
			}{{fmt.Sprintf("%d-%d.png", i, j), data.Bytes()}, {fmt.Sprintf("%d-%d.cls", i, j), []byte{'0' + byte(j%3)}}} {
				if err := w.WriteHeader(&tar.Header{Name: file.name, Size: int64(len(file.data)), Mode: 0o644, ModTime: time.Unix(1e9, 0)}); err != nil {
					t.Fatal(err)
				}
				if _, err := w.Write(file.data); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		data := b.Bytes()
		if i == 1 {
			data = data[:len(data)/2]
		}
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%02d.tar", i)), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// extract extracts images and returns the bytes of the set's files that say what they are.
func extract(t *testing.T, out string, shard features.Shard, sources ...string) map[string]string {
	t.Helper()
	_, err := pipeline.Extract(t.Context(), pipeline.ExtractOptions{
		Model: extractor.PixelsName, Options: extractor.Options{Width: 4, Height: 4}, Sources: sources, Out: out, Shard: shard,
	})
	if err != nil {
		t.Fatal(err)
	}
	return files(t, out)
}

func files(t *testing.T, set string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range []string{"features.npy", "labels.npy", "images.jsonl", "errors.jsonl"} {
		data, err := os.ReadFile(filepath.Join(set, name))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(data)
	}
	return all
}

func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s: %s differs from that of the disk", what, name)
		}
	}
}

// busy lets some requests fail with 503, and cuts the answers of some.
type busy struct {
	proxy http.Handler

	mu            sync.Mutex
	chance        *rand.Rand
	refused, cuts int
}

func (b *busy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	c := b.chance.Float64()
	if c < 0.25 {
		b.refused++
	} else if c < 0.5 {
		b.cuts++
	}
	b.mu.Unlock()
	switch {
	case c < 0.25:
		http.Error(w, "busy", http.StatusServiceUnavailable)
	case c < 0.5:
		b.proxy.ServeHTTP(&cut{ResponseWriter: w, left: 1000}, r)
	default:
		b.proxy.ServeHTTP(w, r)
	}
}

// cut breaks the connection after some bytes.
type cut struct {
	http.ResponseWriter
	left int
}

func (c *cut) Write(p []byte) (int, error) {
	if len(p) > c.left {
		c.ResponseWriter.Write(p[:c.left])
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}

// TestStore: what comes from a real object store over a bad network is the same, bit by
// bit, as what comes from the disk: nothing is lost, and nothing is there twice.
func TestStore(t *testing.T) {
	folder, address := store(t)
	tars(t, folder, 6, 40)
	want := extract(t, filepath.Join(t.TempDir(), "disk"), features.Shard{}, folder)
	if !strings.Contains(want["errors.jsonl"], "01.tar") || strings.Count(want["images.jsonl"], "\n") != 5*40+20 {
		t.Fatalf("from the disk: %s, %d rows", want["errors.jsonl"], strings.Count(want["images.jsonl"], "\n"))
	}
	t.Run("plain", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "set")
		same(t, "the store", extract(t, out, features.Shard{}, "s3://data"), want)
		before, err := os.Stat(filepath.Join(out, "features.npy"))
		if err != nil {
			t.Fatal(err)
		}
		same(t, "once more", extract(t, out, features.Shard{}, "s3://data"), want)
		if after, err := os.Stat(filepath.Join(out, "features.npy")); err != nil || !os.SameFile(before, after) {
			t.Errorf("a finished set was written again: %v", err)
		}
	})
	t.Run("busy", func(t *testing.T) {
		target, err := url.Parse("http://" + address)
		if err != nil {
			t.Fatal(err)
		}
		proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // which is signed
		}}
		b := &busy{proxy: proxy, chance: rand.New(rand.NewPCG(3, 4))}
		server := httptest.NewServer(b)
		defer server.Close()
		reach(t, strings.TrimPrefix(server.URL, "http://"))
		dir := t.TempDir()
		var shards []string
		for i := range 3 {
			shard := features.Shard{Index: i + 1, Count: 3}
			out := filepath.Join(dir, fmt.Sprint(i))
			extract(t, out, shard, "s3://data/{00..05}.tar")
			shards = append(shards, out)
		}
		if _, err := features.Merge(t.Context(), filepath.Join(dir, "merged"), shards, features.Options{}); err != nil {
			t.Fatal(err)
		}
		same(t, "503s and cut connections", files(t, filepath.Join(dir, "merged")), want)
		if b.refused == 0 || b.cuts == 0 {
			t.Errorf("%d requests were refused and %d cut", b.refused, b.cuts)
		}
	})
	t.Run("toxic", func(t *testing.T) {
		proxy := testenv.StartProxy(t, address)
		// Latency, slow bytes, and connections that end after so many bytes.
		proxy.Add(t, "latency", 1, map[string]int{"latency": 50, "jitter": 20})
		proxy.Add(t, "slicer", 0.5, map[string]int{"average_size": 8192, "delay": 200})
		proxy.Add(t, "limit_data", 0.5, map[string]int{"bytes": 30_000})
		reach(t, proxy.Address)
		same(t, "latency and cut connections", extract(t, filepath.Join(t.TempDir(), "set"), features.Shard{}, "s3://data"), want)
	})
	t.Run("objects", func(t *testing.T) {
		dir, err := bucket.Open(t.Context(), "s3://data/out")
		if err != nil {
			t.Fatal(err)
		}
		large := bytes.Repeat([]byte("0123456789abcdef"), 40<<20/16)
		if err := errors.Join(os.Mkdir(filepath.Join(folder, "out"), 0o777), os.WriteFile(filepath.Join(folder, "out", "large"), large, 0o666), os.WriteFile(filepath.Join(folder, "out", "empty"), nil, 0o666)); err != nil {
			t.Fatal(err)
		}
		if got, _, err := dir.Read(t.Context(), "large", 1<<30); err != nil || !bytes.Equal(got, large) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if _, err := dir.Stat(t.Context(), "absent"); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		if got, o, err := dir.Read(t.Context(), "empty", 1); err != nil || len(got) != 0 || o.Size != 0 {
			t.Errorf("%q, %v, %v", got, o, err)
		}
		if _, _, err := dir.Read(t.Context(), "large", 100); !errors.Is(err, bucket.ErrSize) {
			t.Error(err)
		}
		var names []string
		for o, err := range dir.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, o.Name)
		}
		if strings.Join(names, " ") != "empty large" {
			t.Errorf("%q", names)
		}
	})
}

// TestRowsStayWhenTheStoreFails: a tar is replaced by a longer one, and the store lists it
// but ends each answer that has its bytes. The set that has rows of it stays as it is, and
// the run ends with an error. When the store answers, the new rows are there.
func TestRowsStayWhenTheStoreFails(t *testing.T) {
	folder, address := store(t)
	tars(t, folder, 3, 10)
	out, disk := filepath.Join(t.TempDir(), "set"), filepath.Join(t.TempDir(), "disk")
	before := extract(t, out, features.Shard{}, "s3://data")
	same(t, "at first", before, extract(t, disk, features.Shard{}, folder))
	tars(t, folder, 4, 12) // all are other tars now, and there is one more
	target, err := url.Parse("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // which is signed
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/02.tar") {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	defer server.Close()
	t.Setenv("AWS_ENDPOINT_URL_S3", server.URL)
	bucket.SetLimits(bucket.Limits{Pause: time.Millisecond, Attempts: 3})
	_, err = pipeline.Extract(t.Context(), pipeline.ExtractOptions{
		Model: extractor.PixelsName, Options: extractor.Options{Width: 4, Height: 4}, Sources: []string{"s3://data"}, Out: out,
	})
	if err == nil || !strings.Contains(err.Error(), "02.tar") || !strings.Contains(err.Error(), "Force") {
		t.Errorf("the error is %v", err)
	}
	same(t, "while the store fails", files(t, out), before)
	reach(t, address)
	same(t, "when the store answers", extract(t, out, features.Shard{}, "s3://data"), extract(t, disk, features.Shard{}, folder))
}

// TestLargeImagesOfUnknownSize: images of a list of URLs that are larger than what is set
// aside for them come in order, whatever fits into memory.
func TestLargeImagesOfUnknownSize(t *testing.T) {
	dir := t.TempDir()
	var list strings.Builder
	for i := range 12 {
		img := image.NewRGBA(image.Rect(0, 0, 8, 8))
		img.Pix[0] = uint8(i)
		var data bytes.Buffer
		if err := png.Encode(&data, img); err != nil {
			t.Fatal(err)
		}
		data.Write(make([]byte, i%4*(1<<20))) // which no decoder reads
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d.png", i)), data.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&list, "%02d.png\n", i)
	}
	if err := os.WriteFile(filepath.Join(dir, "list.txt"), []byte(list.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	listing, err := images.ListSources(t.Context(), server.URL+"/list.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, memory := range []int64{0, 8 << 20} {
		stream := listing.Stream(t.Context(), []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, images.StreamOptions{Memory: memory})
		for i := range 12 {
			item, err := stream.Next(t.Context())
			info, statErr := os.Stat(filepath.Join(dir, fmt.Sprintf("%02d.png", i)))
			if err != nil || statErr != nil || int(item.Unit) != i || item.Bytes != info.Size() {
				t.Errorf("%d: unit %d, %d bytes, %v, %v", i, item.Unit, item.Bytes, err, statErr)
			}
		}
		if _, err := stream.Next(t.Context()); err != io.EOF {
			t.Error(err)
		}
		stream.Close()
	}
}

// TestGS: gs:// signs its requests as Google's interface wants them, which the store checks
// like those of s3://.
func TestGS(t *testing.T) {
	folder, _ := testenv.Start(t, "gs")
	bucket.SetLimits(bucket.Limits{}) // and forget the buckets of other tests
	tars(t, folder, 2, 10)
	want := extract(t, filepath.Join(t.TempDir(), "disk"), features.Shard{}, folder)
	same(t, "gs://", extract(t, filepath.Join(t.TempDir(), "set"), features.Shard{}, "gs://data"), want)
}

// TestWeb: tars and lists of URLs on a web server.
func TestWeb(t *testing.T) {
	dir := t.TempDir()
	tars(t, dir, 3, 10)
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	if err := os.WriteFile(filepath.Join(dir, "all.txt"), []byte("00.tar\n"+server.URL+"/01.tar?token=x\n02.tar\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	want := extract(t, filepath.Join(out, "disk"), features.Shard{}, filepath.Join(dir, "0[0-9].tar"))
	same(t, "a range of names", extract(t, filepath.Join(out, "range"), features.Shard{}, server.URL+"/{00..02}.tar"), want)
	same(t, "a list", extract(t, filepath.Join(out, "list"), features.Shard{}, server.URL+"/all.txt"), want)

	// A feature set on a web server.
	sets := httptest.NewServer(http.FileServer(http.Dir(out)))
	defer sets.Close()
	if runtime.GOOS == "linux" {
		far, err := features.Open(t.Context(), sets.URL+"/disk")
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		near, err := features.Open(t.Context(), filepath.Join(out, "disk"))
		if err != nil {
			t.Fatal(err)
		}
		defer near.Close()
		if !slices.Equal(far.Features(), near.Features()) || !slices.Equal(far.Labels(), near.Labels()) {
			t.Error("a set on a web server has other features or labels")
		}
	}

	// A server that sends no parts of files, and breaks connections, some of them at once.
	reach(t, "")
	var asked atomic.Int64
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Range")
		if n := int(asked.Add(1)); n%4 > 0 {
			http.FileServer(http.Dir(dir)).ServeHTTP(&cut{ResponseWriter: w, left: n % 4 * 15_000}, r)
			return
		}
		http.FileServer(http.Dir(dir)).ServeHTTP(w, r)
	}))
	defer plain.Close()
	same(t, "without parts of files", extract(t, filepath.Join(out, "plain"), features.Shard{}, plain.URL+"/{00..02}.tar"), want)
}
