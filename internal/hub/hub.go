// Package hub fetches models that were published on the Hugging Face hub, as its public API
// offers them, into the cache that the hub's own tools share: files once in blobs/ by their
// hash, and a folder of links to them for each commit. See "Hub Local Cache" in the hub's
// documentation. Nothing is fetched unless [Hub.Fetch] is called.
package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// defaultEndpoint is where the hub is unless HF_ENDPOINT says otherwise.
const defaultEndpoint = "https://huggingface.co"

// Hub is a hub and the cache of what was fetched from it.
type Hub struct {
	// Endpoint is the address that paths of the API are added to.
	Endpoint string
	// Token is sent to the endpoint, and to no other host; "" for none.
	Token string
	// Cache is the folder of repositories.
	Cache string
	// Progress, unless nil, is told how far a file is, in bytes.
	Progress func(file string, done, total int64)
	// Wait is how long to wait before a download that was cut off goes on without having
	// got anything, times the number of such attempts; 0 means a second.
	Wait time.Duration
}

// FromEnvironment returns the hub that the environment variables of the hub's own tools
// name: HF_ENDPOINT, HF_TOKEN or the token that their login stored, HF_HUB_CACHE, HF_HOME
// and XDG_CACHE_HOME.
func FromEnvironment() (*Hub, error) {
	home := os.Getenv("HF_HOME")
	if home == "" {
		cache := os.Getenv("XDG_CACHE_HOME")
		if cache == "" {
			user, err := os.UserHomeDir()
			if err != nil {
				return nil, fmt.Errorf("hub: no folder for its cache: %w; set HF_HOME", err)
			}
			cache = filepath.Join(user, ".cache")
		}
		home = filepath.Join(cache, "huggingface")
	}
	h := &Hub{
		Endpoint: strings.TrimRight(cmp.Or(os.Getenv("HF_ENDPOINT"), defaultEndpoint), "/"),
		Token:    strings.TrimSpace(os.Getenv("HF_TOKEN")),
		Cache:    cmp.Or(os.Getenv("HF_HUB_CACHE"), filepath.Join(home, "hub")),
	}
	if h.Token == "" {
		if text, err := disk.ReadFile(cmp.Or(os.Getenv("HF_TOKEN_PATH"), filepath.Join(home, "token")), disk.Config); err == nil {
			h.Token = strings.TrimSpace(string(text))
		}
	}
	return h, nil
}

// Name names a repository, a revision of it ("main" unless given) and perhaps a graph in it.
type Name struct{ Repo, Revision, File string }

var repository = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// ParseName reads REPO[@REVISION][:FILE].
func ParseName(text string) (Name, error) {
	rest, file, _ := strings.Cut(text, ":")
	repo, revision, _ := strings.Cut(rest, "@")
	n := Name{repo, cmp.Or(revision, "main"), file}
	if !repository.MatchString(repo) || strings.Contains(repo, "--") || strings.Contains(repo, "..") {
		return n, fmt.Errorf("%q is not the name of a repository, such as onnx-community/dinov2-small", repo)
	}
	if !filepath.IsLocal(filepath.FromSlash(n.Revision)) || file != "" && !filepath.IsLocal(filepath.FromSlash(file)) {
		return n, fmt.Errorf("%q is not REPO[@REVISION][:FILE]", text)
	}
	return n, nil
}

// File is a file of a repository.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"` // of large files
	blob   string // git's SHA-1 of others
}

// hash is the name of the file in blobs/.
func (f File) hash() string { return cmp.Or(f.SHA256, f.blob) }

// Repo is a commit of a repository.
type Repo struct {
	Name    Name   `json:"-"`
	Repo    string `json:"repo"`
	Commit  string `json:"commit"`
	License string `json:"license,omitempty"`
	Files   []File `json:"-"`
}

// mostListing bounds the bytes of a listing.
const mostListing = 64 << 20

var hexadecimal = regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)

// List asks the hub for the files of a repository.
func (h *Hub) List(ctx context.Context, name Name) (*Repo, error) {
	address := h.Endpoint + "/api/models/" + name.Repo + "/revision/" + url.PathEscape(name.Revision) + "?blobs=true"
	answer, err := h.get(ctx, address, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name.Repo, err)
	}
	defer answer.Body.Close()
	var listing struct {
		SHA      string   `json:"sha"`
		Tags     []string `json:"tags"`
		CardData struct {
			License any `json:"license"`
		} `json:"cardData"`
		Siblings []struct {
			Name string `json:"rfilename"`
			Size int64  `json:"size"`
			Blob string `json:"blobId"`
			LFS  *struct {
				Size   int64  `json:"size"`
				SHA256 string `json:"sha256"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, mostListing)).Decode(&listing); err != nil {
		return nil, fmt.Errorf("%s: the listing of files: %w", name.Repo, err)
	}
	if len(listing.SHA) != 40 || !hexadecimal.MatchString(listing.SHA) {
		return nil, fmt.Errorf("%s: the hub names no commit", name.Repo)
	}
	r := &Repo{Name: name, Repo: name.Repo, Commit: listing.SHA}
	for _, tag := range listing.Tags {
		if license, ok := strings.CutPrefix(tag, "license:"); ok {
			r.License = license
		}
	}
	if license, ok := listing.CardData.License.(string); ok {
		r.License = license
	}
	for _, s := range listing.Siblings {
		f := File{Path: s.Name, Size: s.Size, blob: s.Blob}
		if s.LFS != nil {
			f.Size, f.SHA256 = s.LFS.Size, s.LFS.SHA256
		}
		if filepath.IsLocal(filepath.FromSlash(f.Path)) && hexadecimal.MatchString(f.hash()) && f.Size >= 0 {
			r.Files = append(r.Files, f)
		}
	}
	return r, nil
}

// graphs are the names of graphs of images that are taken without being named, in the order
// of the extractor.
var graphs = []string{"model.onnx", "onnx/vision_model.onnx", "onnx/model.onnx"}

// Graph returns the graph that the name names, or else the one that is usually meant.
func (r *Repo) Graph() (File, error) {
	var found []File
	for _, f := range r.Files {
		switch {
		case path.Ext(f.Path) != ".onnx":
		case f.Path == r.Name.File:
			return f, nil
		case r.Name.File == "" || path.Base(f.Path) == r.Name.File:
			found = append(found, f)
		}
	}
	if r.Name.File == "" {
		for _, usual := range graphs {
			if at := slices.IndexFunc(found, func(f File) bool { return f.Path == usual }); at >= 0 {
				return found[at], nil
			}
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	var names []string
	for _, f := range r.Files {
		if path.Ext(f.Path) == ".onnx" {
			names = append(names, f.Path)
		}
	}
	switch {
	case len(names) == 0:
		return File{}, fmt.Errorf("%s has no ONNX graph: look for an export of the model, as onnx-community has them", r.Repo)
	case r.Name.File != "":
		return File{}, fmt.Errorf("%s has no graph %s; it has %s", r.Repo, r.Name.File, strings.Join(names, ", "))
	}
	return File{}, fmt.Errorf("%s has several graphs; name one of them, as in %s:%s; it has %s", r.Repo, r.Repo, names[0], strings.Join(names, ", "))
}

// configurations are the files that say how images are prepared, and what may be done with
// the model.
var configurations = []string{"preprocessor_config.json", "processor_config.json", "config.json", "open_clip_config.json", "preprocess_cfg.json", "LICENSE", "LICENSE.md", "LICENSE.txt", "README.md"}

// Configuration returns the files that go with any graph.
func (r *Repo) Configuration() (files []File) {
	for _, f := range r.Files {
		if slices.Contains(configurations, f.Path) {
			files = append(files, f)
		}
	}
	return files
}

// File returns the file with a path.
func (r *Repo) File(path string) (File, error) {
	if at := slices.IndexFunc(r.Files, func(f File) bool { return f.Path == path }); at >= 0 {
		return r.Files[at], nil
	}
	return File{}, fmt.Errorf("%s has no %s: %w", r.Repo, path, fs.ErrNotExist)
}

// get asks for what is at an address, from a byte on.
func (h *Hub) get(ctx context.Context, address string, from int64) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	if h.Token != "" {
		request.Header.Set("Authorization", "Bearer "+h.Token) // which the client sends to no other host
	}
	if from > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	// A file is not what it is when it is packed: its bytes are counted and hashed.
	request.Header.Set("Accept-Encoding", "identity")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, &cutOff{err}
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	answer.Body.Close()
	said := answer.Status
	if text := answer.Header.Get("X-Error-Message"); text != "" {
		said += ": " + text
	}
	switch code := answer.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		err = fmt.Errorf("the hub says %s: there is no such model, or it is for people who agreed to its terms: do so on its page, and set HF_TOKEN", said)
	case code == http.StatusNotFound:
		err = fmt.Errorf("the hub says %s: %w", said, fs.ErrNotExist)
	case code == http.StatusTooManyRequests, code >= 500:
		err = &cutOff{fmt.Errorf("the hub says %s", said)}
	default:
		err = fmt.Errorf("the hub says %s", said)
	}
	return nil, err
}

// cutOff is an error after which another attempt may do.
type cutOff struct{ error }

func (e *cutOff) Unwrap() error { return e.error }

// Snapshot returns the folder of a repository's commit in the cache.
func (h *Hub) Snapshot(repo, commit string) string {
	return filepath.Join(h.folder(repo), "snapshots", commit)
}

// folder is that of a repository in the cache.
func (h *Hub) folder(repo string) string {
	return filepath.Join(h.Cache, "models--"+strings.ReplaceAll(repo, "/", "--"))
}

// Find returns where the cache has the graph that a name names, or the folder of the
// commit where it names none. The error wraps fs.ErrNotExist.
func (h *Hub) Find(name Name) (string, error) {
	commit := name.Revision
	if text, err := os.ReadFile(filepath.Join(h.folder(name.Repo), "refs", filepath.FromSlash(name.Revision))); err == nil {
		commit = strings.TrimSpace(string(text))
	}
	if len(commit) != 40 || !hexadecimal.MatchString(commit) {
		return "", fmt.Errorf("%s is not in %s: %w", name.Repo, h.Cache, fs.ErrNotExist)
	}
	found := h.Snapshot(name.Repo, commit)
	for _, file := range []string{name.File, path.Join("onnx", name.File)} {
		place := filepath.Join(found, filepath.FromSlash(file))
		if _, err := os.Stat(place); err == nil {
			return place, nil
		}
	}
	return "", fmt.Errorf("%s is not in %s: %w", path.Join(name.Repo, name.File), found, fs.ErrNotExist)
}

// Cached returns the repositories in the cache whose main revision has a graph, and where.
func (h *Hub) Cached() (repos, folders []string) {
	entries, err := os.ReadDir(h.Cache)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		rest, ok := strings.CutPrefix(entry.Name(), "models--")
		owner, repo, two := strings.Cut(rest, "--")
		if !ok || !two {
			continue
		}
		folder, err := h.Find(Name{Repo: owner + "/" + repo, Revision: "main"})
		if err != nil {
			continue
		}
		for _, pattern := range []string{"*.onnx", "onnx/*.onnx"} {
			if found, _ := fs.Glob(os.DirFS(folder), pattern); len(found) > 0 {
				repos, folders = append(repos, owner+"/"+repo), append(folders, folder)
				break
			}
		}
	}
	return repos, folders
}
