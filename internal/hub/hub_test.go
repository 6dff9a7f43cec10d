package hub_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/hub"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// published serves an export whose weights lie in a file beside the graph, with a second
// graph that is not wanted.
func published(t *testing.T) (*testenv.Hub, *hub.Hub) {
	t.Helper()
	root := t.TempDir()
	repo := filepath.Join(root, "onnx-community", "small")
	if err := os.CopyFS(repo, os.DirFS(filepath.Join(testenv.Root(t), "extractor", "testdata", "exports", "external"))); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"README.md": "A model.", "onnx/model_fp16.onnx": "another graph", "onnx/deep/model_fp16.onnx_data": "weights of it", "pytorch_model.bin": strings.Repeat("x", 5000)} {
		file := filepath.Join(repo, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o777), os.WriteFile(file, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	server := testenv.NewHub(t, root)
	return server, &hub.Hub{Endpoint: server.URL, Cache: t.TempDir(), Wait: time.Nanosecond}
}

func name(t *testing.T, text string) hub.Name {
	t.Helper()
	n, err := hub.ParseName(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func fetch(t *testing.T, h *hub.Hub, text string) (graph string, files []string, err error) {
	t.Helper()
	r, err := h.List(t.Context(), name(t, text))
	if err != nil {
		return "", nil, err
	}
	graph, fetched, err := h.Fetch(t.Context(), r)
	for _, f := range fetched {
		files = append(files, f.Path)
	}
	return graph, files, err
}

func TestNames(t *testing.T) {
	for text, want := range map[string]hub.Name{
		"a/b": {"a/b", "main", ""}, "a/b@v1:onnx/m.onnx": {"a/b", "v1", "onnx/m.onnx"}, "a-1/b.c:m.onnx": {"a-1/b.c", "main", "m.onnx"}, "a/b@refs/pr/1": {"a/b", "refs/pr/1", ""},
	} {
		if got, err := hub.ParseName(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "a", "a/b/c", "../b", "a/..", "a/b@../x", "a/b:../x", "a/b:/x", "a--b/c", "a/b c", "/a/b", "a/b@/x"} {
		if got, err := hub.ParseName(bad); err == nil {
			t.Errorf("%s is taken for %+v", bad, got)
		}
	}
}

// TestFetch: one graph with its weights, and the layout that the hub's tools share.
func TestFetch(t *testing.T) {
	server, h := published(t)
	graph, files, err := fetch(t, h, "onnx-community/small")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	if want := []string{"README.md", "onnx/model.onnx", "onnx/model.onnx_data", "preprocessor_config.json"}; !slices.Equal(files, want) {
		t.Errorf("fetched %q, want %q", files, want)
	}
	folder := filepath.Join(h.Cache, "models--onnx-community--small")
	if ref, err := os.ReadFile(filepath.Join(folder, "refs", "main")); err != nil || string(ref) != testenv.HubCommit {
		t.Errorf("refs/main has %q, %v", ref, err)
	}
	if want := filepath.Join(folder, "snapshots", testenv.HubCommit, "onnx", "model.onnx"); graph != want {
		t.Errorf("the graph is %s, want %s", graph, want)
	}
	blobs, err := os.ReadDir(filepath.Join(folder, "blobs"))
	if err != nil || len(blobs) != 4 {
		t.Errorf("%d blobs, %v", len(blobs), err)
	}
	if got, err := h.Find(name(t, "onnx-community/small:model.onnx")); err != nil || got != graph {
		t.Errorf("found %s, %v", got, err)
	}
	if repos, _ := h.Cached(); !slices.Equal(repos, []string{"onnx-community/small"}) {
		t.Errorf("cached are %q", repos)
	}
	server.Asked = nil
	if _, _, err := fetch(t, h, "onnx-community/small@"+testenv.HubCommit); err != nil || len(server.Asked) > 0 {
		t.Errorf("the second time %q are asked for, %v", server.Asked, err)
	}
}

// TestCutOff: downloads go on where they ended, within a run and after it.
func TestCutOff(t *testing.T) {
	for _, tt := range []struct {
		what     string
		cuts     int
		cut      int
		noRanges bool
		fails    string
	}{
		{"three times", 3, 300, false, ""},
		{"always, and nothing comes", 100, 0, false, "the same command continues it"},
		{"and the hub knows no ranges", 1, 700, true, ""},
	} {
		t.Run(tt.what, func(t *testing.T) {
			server, h := published(t)
			server.Cut, server.Cuts, server.NoRanges = tt.cut, tt.cuts, tt.noRanges
			_, _, err := fetch(t, h, "onnx-community/small")
			if tt.fails == "" && err != nil || tt.fails != "" && (err == nil || !strings.Contains(err.Error(), tt.fails)) {
				t.Fatalf("%v", err)
			}
			server.Cuts = 0
			if _, _, err := fetch(t, h, "onnx-community/small"); err != nil {
				t.Error(err)
			}
			ranges := slices.ContainsFunc(server.Asked, func(line string) bool { return strings.Contains(line, "bytes=") })
			if ranges != (tt.cut > 0) {
				t.Errorf("asked for %q", server.Asked)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	server, h := published(t)
	for text, says := range map[string]string{
		"onnx-community/none": "set HF_TOKEN", "onnx-community/small@v2": "Invalid rev id", "onnx-community/small:other.onnx": "it has onnx/model.onnx, onnx/model_fp16.onnx",
	} {
		if _, _, err := fetch(t, h, text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := h.Find(name(t, "onnx-community/small")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("found before it is fetched: %v", err)
	}
	server.Damaged = true
	if _, _, err := fetch(t, h, "onnx-community/small"); !errors.Is(err, hub.ErrDamaged) {
		t.Errorf("damaged: %v", err)
	}
	server.Damaged = false
	if _, _, err := fetch(t, h, "onnx-community/small"); err != nil {
		t.Errorf("after that: %v", err)
	}
	server.Token = "secret"
	if _, _, err := fetch(t, h, "onnx-community/small"); err == nil || !strings.Contains(err.Error(), "Access to this model is restricted") {
		t.Errorf("without a token: %v", err)
	}
	h.Token, h.Cache = "secret", t.TempDir()
	if _, _, err := fetch(t, h, "onnx-community/small:model.onnx"); err != nil {
		t.Errorf("with the token: %v", err)
	}
}

func TestFromEnvironment(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"HF_TOKEN", "HF_HUB_CACHE", "HF_TOKEN_PATH", "HF_ENDPOINT", "XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
	t.Setenv("HF_HOME", home)
	if err := os.WriteFile(filepath.Join(home, "token"), []byte("stored\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := hub.FromEnvironment()
	if err != nil || h.Cache != filepath.Join(home, "hub") || h.Token != "stored" || !strings.HasPrefix(h.Endpoint, "https://") {
		t.Errorf("%+v, %v", h, err)
	}
	t.Setenv("HF_TOKEN", "given")
	t.Setenv("HF_HUB_CACHE", "cache")
	t.Setenv("HF_ENDPOINT", "http://mirror/")
	if h, err = hub.FromEnvironment(); err != nil || h.Cache != "cache" || h.Token != "given" || h.Endpoint != "http://mirror" {
		t.Errorf("%+v, %v", h, err)
	}
}

// witness has the hub's own client download the files from the same server into another
// cache, and then find, without the server, those in ours.
const witness = `
import json, os, sys
sys.path.insert(0, sys.argv[1])
from huggingface_hub import hf_hub_download, snapshot_download
theirs, ours, files = sys.argv[2], sys.argv[3], sys.argv[4:]
snapshot_download("onnx-community/small", allow_patterns=files, cache_dir=theirs)
print(json.dumps([hf_hub_download("onnx-community/small", f, cache_dir=ours, local_files_only=True) for f in files]))
`

// TestWitness: huggingface_hub from PyPI makes the same cache, and reads ours.
func TestWitness(t *testing.T) {
	packages := filepath.Join(testenv.Root(t), ".setup", "triton")
	if _, err := os.Stat(filepath.Join(packages, "huggingface_hub")); err != nil {
		testenv.Missing(t, "huggingface_hub", "run `make setup`", err)
	}
	server, h := published(t)
	graph, files, err := fetch(t, h, "onnx-community/small")
	if err != nil {
		t.Fatal(err)
	}
	theirs := t.TempDir()
	t.Setenv("HF_ENDPOINT", server.URL)
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
	found := testenv.Python(t, witness, append([]string{packages, theirs, h.Cache}, files...)...)
	if !strings.Contains(found, filepath.ToSlash(graph)) {
		t.Errorf("it finds %s, and not %s", found, graph)
	}
	tree := func(cache string) (list []string) {
		root := filepath.Join(cache, "models--onnx-community--small")
		for _, part := range []string{"blobs", "refs", "snapshots"} {
			err := filepath.WalkDir(filepath.Join(root, part), func(file string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() {
					return err
				}
				line, _ := filepath.Rel(root, file)
				if link, err := os.Readlink(file); err == nil {
					line += " -> " + link
				}
				text, err := os.ReadFile(file)
				list = append(list, line+"\n"+string(text))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return list
	}
	if a, b := tree(h.Cache), tree(theirs); !slices.Equal(a, b) || len(a) != 9 {
		t.Errorf("the caches differ: %d files here, %d there", len(a), len(b))
	}
}
