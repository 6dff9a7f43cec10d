package testenv

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// HubCommit is the commit that a [Hub] has of each repository.
const HubCommit = "0123456789abcdef0123456789abcdef01234567"

// A Hub answers as the public API of the Hugging Face hub does, for the repositories that
// are folders of one: the listings of a model's files, and resolve/, which sends large
// files to another host.
type Hub struct {
	URL string
	// Token, if set, is needed for all.
	Token string
	// Cut is after how many bytes of a large file the connection ends, 0 for never. Cuts is
	// how often.
	Cut, Cuts int
	// Damaged large files have another last byte than the listing says.
	Damaged bool
	// NoRanges has ranges ignored: each file is sent from its beginning.
	NoRanges bool
	// Asked lists the requests for files: "GET path" and the range.
	Asked []string

	root  string
	files *httptest.Server // the other host
}

// largeHere is the size from which files are large ones, which have a SHA-256.
const largeHere = 1024

// NewHub starts a hub for the repositories root/OWNER/NAME.
func NewHub(tb testing.TB, root string) *Hub {
	h := &Hub{root: root}
	h.files = httptest.NewServer(http.HandlerFunc(h.large))
	server := httptest.NewServer(http.HandlerFunc(h.answer))
	h.URL = server.URL
	tb.Cleanup(func() { server.Close(); h.files.Close() })
	return h
}

// sums are git's hash of a file, and its SHA-256 if it is large.
func sums(data []byte) (blob, sha string) {
	blob = fmt.Sprintf("%x", sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(data)), data...)))
	if len(data) >= largeHere {
		sha = fmt.Sprintf("%x", sha256.Sum256(data))
	}
	return blob, sha
}

func (h *Hub) refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("X-Error-Code", code)
	w.Header().Set("X-Error-Message", message)
	http.Error(w, message, status)
}

func (h *Hub) answer(w http.ResponseWriter, r *http.Request) {
	if h.Token != "" && r.Header.Get("Authorization") != "Bearer "+h.Token {
		h.refuse(w, http.StatusUnauthorized, "GatedRepo", "Access to this model is restricted")
		return
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, "/api/models/"); ok {
		parts := strings.SplitN(rest, "/", 4) // owner, name, revision or tree, REVISION
		if len(parts) == 2 {
			parts = append(parts, "revision", "main")
		}
		h.list(w, r, filepath.Join(h.root, parts[0], parts[1]), parts)
		return
	}
	parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/"), "/", 5) // owner, name, resolve, revision, path
	if len(parts) < 5 || parts[2] != "resolve" {
		h.refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	data, err := os.ReadFile(filepath.Join(h.root, parts[0], parts[1], filepath.FromSlash(parts[4])))
	if err != nil {
		h.refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	blob, sha := sums(data)
	w.Header().Set("X-Repo-Commit", HubCommit)
	w.Header().Set("ETag", `"`+blob+`"`)
	if sha == "" {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		return
	}
	w.Header().Set("X-Linked-Etag", `"`+sha+`"`)
	w.Header().Set("X-Linked-Size", fmt.Sprint(len(data)))
	other := strings.Replace(h.files.URL, "127.0.0.1", "localhost", 1) // which a token is not for
	http.Redirect(w, r, other+"/"+parts[0]+"/"+parts[1]+"/"+parts[4], http.StatusFound)
}

// list answers with what is known of a repository, or with the tree of its files.
func (h *Hub) list(w http.ResponseWriter, r *http.Request, dir string, parts []string) {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		h.refuse(w, http.StatusUnauthorized, "RepoNotFound", "Repository not found")
		return
	}
	if len(parts) < 4 || parts[3] != "main" && parts[3] != HubCommit {
		h.refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+parts[len(parts)-1])
		return
	}
	var siblings, tree []map[string]any
	_ = filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		rest, _ := filepath.Rel(dir, file)
		name := filepath.ToSlash(rest)
		blob, sha := sums(data)
		sibling := map[string]any{"rfilename": name}
		leaf := map[string]any{"type": "file", "path": name, "oid": blob, "size": len(data)}
		if sha != "" {
			leaf["lfs"] = map[string]any{"oid": sha, "size": len(data), "pointerSize": 130}
		}
		if r.URL.Query().Get("blobs") != "" {
			sibling["size"], sibling["blobId"] = len(data), blob
			if sha != "" {
				sibling["lfs"] = map[string]any{"sha256": sha, "size": len(data), "pointerSize": 130}
			}
		}
		siblings, tree = append(siblings, sibling), append(tree, leaf)
		return nil
	})
	var answer any = tree
	if parts[2] == "revision" {
		answer = map[string]any{
			"_id": "0", "id": parts[0] + "/" + parts[1], "modelId": parts[0] + "/" + parts[1], "sha": HubCommit, "private": false, "gated": false, "disabled": false,
			"downloads": 1, "likes": 1, "tags": []string{"onnx", "license:apache-2.0"}, "cardData": map[string]any{"license": "apache-2.0"}, "siblings": siblings,
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// large sends a large file, as the other host does.
func (h *Hub) large(w http.ResponseWriter, r *http.Request) {
	h.Asked = append(h.Asked, r.Method+" "+r.URL.Path+" "+r.Header.Get("Range"))
	data, err := os.ReadFile(filepath.Join(h.root, filepath.FromSlash(r.URL.Path)))
	if err != nil || r.Header.Get("Authorization") != "" {
		http.Error(w, "no such file, or a token that is not for this host", http.StatusForbidden)
		return
	}
	if h.Damaged {
		data[len(data)-1]++
	}
	if h.NoRanges {
		r.Header.Del("Range")
	}
	if r.Method == http.MethodGet && h.Cuts > 0 {
		h.Cuts--
		w = &cutWriter{w, h.Cut}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// cutWriter ends the connection after so many bytes.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(p []byte) (int, error) {
	if len(p) > c.left {
		_, _ = c.ResponseWriter.Write(p[:c.left])
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}
