// SPDX-License-Identifier: Apache-2.0

// Package hubtest is a small Hub for tests: the part of its API that downloads and uploads need, with a second server
// for large files, as the real one has, and with faults where a test needs them.
package hubtest

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Server is the Hub, and the server of large files to which it redirects. Both run until the test ends.
type Server struct {
	URL   string
	Files string // the address of the server of large files
	TLS   *http.Transport
	// Token is what requests to the Hub must bear; "": nothing.
	Token string
	// PageSize is how many files a page of a listing has; 0: all.
	PageSize int
	// PartSize is that of an upload's parts, in bytes; 0: files are sent whole.
	PartSize int

	mu       sync.Mutex
	fault    func(w http.ResponseWriter, r *http.Request) bool
	repos    map[string]*repo
	requests []*http.Request

	store   sync.RWMutex // of repos and objects
	objects map[string][]byte
	parts   map[string][]byte
	private map[string]bool
}

// repo is a repository at its newest commit.
type repo struct {
	commit    string
	revisions []string
	files     map[string][]byte
}

// large is the size from which files are stored outside of Git.
const large = 1 << 10

// Variables are those of the environment that hub.FromEnvironment reads.
var Variables = []string{"HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME",
	"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_HUB_OFFLINE",
	"TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_SYMLINKS", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_DISABLE_TELEMETRY",
	"DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_HUB_USER_AGENT_ORIGIN"}

// Environment makes hub.FromEnvironment use a server, with an empty cache and without a token, until the test ends. The
// empty endpoint is for none: offline. What the variables are outside of the test does not count.
func Environment(t testing.TB, endpoint string) {
	for _, name := range Variables {
		t.Setenv(name, "")
	}
	t.Setenv("HF_HOME", t.TempDir())
	if endpoint == "" {
		t.Setenv("HF_HUB_OFFLINE", "1")
	} else {
		t.Setenv("HF_ENDPOINT", endpoint)
	}
}

// New starts the servers.
func New(t testing.TB) *Server { return start(t, httptest.NewServer) }

// NewTLS starts the servers with TLS, whose certificates Server.TLS knows.
func NewTLS(t testing.TB) *Server { return start(t, httptest.NewTLSServer) }

func start(t testing.TB, listen func(http.Handler) *httptest.Server) *Server {
	s := &Server{repos: map[string]*repo{}, objects: map[string][]byte{}, parts: map[string][]byte{},
		private: map[string]bool{}}
	hub, files := listen(s.handler(s.hub)), listen(s.handler(s.file))
	t.Cleanup(hub.Close)
	t.Cleanup(files.Close)
	s.URL, s.Files = hub.URL, files.URL
	s.TLS, _ = hub.Client().Transport.(*http.Transport) // files has the same certificate
	t.Cleanup(s.TLS.CloseIdleConnections)
	return s
}

// Add makes a repository, such as models/org/name, with the branch main and a tag v1, and returns its commit.
func (s *Server) Add(name string, files map[string]string) string {
	r := &repo{revisions: []string{"main", "v1", "refs/pr/1"}, files: map[string][]byte{}}
	for file, text := range files {
		r.files[file] = []byte(text)
	}
	r.name()
	s.store.Lock()
	defer s.store.Unlock()
	s.repos[name] = r
	return r.commit
}

// name gives the commit its name.
func (r *repo) name() {
	h := sha1.New()
	for _, file := range slices.Sorted(maps.Keys(r.files)) {
		fmt.Fprintf(h, "%s %d %s\n", file, len(r.files[file]), r.files[file])
	}
	r.commit = hex.EncodeToString(h.Sum(nil))
}

// Requests are those that came to both servers.
func (s *Server) Requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Forget begins a new list of requests.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

func (s *Server) handler(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Clone(r.Context())) // a fault may change r
		fault := s.fault
		s.mu.Unlock()
		if fault == nil || !fault(w, r) {
			next(w, r)
		}
	}
}

// SetFault sets what answers requests in place of the servers, or returns false; nil is nothing.
func (s *Server) SetFault(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Refuse answers as the Hub does when it refuses.
func Refuse(w http.ResponseWriter, status int, code, message string) {
	if code != "" {
		w.Header().Set("X-Error-Code", code)
	}
	if message != "" {
		w.Header().Set("X-Error-Message", message)
	}
	w.WriteHeader(status)
}

// hub answers as the Hub does.
func (s *Server) hub(w http.ResponseWriter, r *http.Request) {
	signed := strings.HasPrefix(r.URL.Path, "/complete/") && r.URL.Query().Get("Signature") == "sIgNaTuRe"
	if s.Token != "" && !signed && r.Header.Get("Authorization") != "Bearer "+s.Token {
		Refuse(w, http.StatusUnauthorized, "", "Invalid username or password.")
		return
	}
	if r.Method == http.MethodPost {
		s.take(w, r)
		return
	}
	s.store.RLock()
	defer s.store.RUnlock()
	parts := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	for i, p := range parts {
		parts[i], _ = url.PathUnescape(p) // what is wrong is not found
	}
	api := parts[0] == "api"
	if api {
		parts = parts[1:]
	} else if parts[0] != "datasets" {
		parts = append([]string{"models"}, parts...)
	}
	if len(parts) < 5 {
		Refuse(w, http.StatusNotFound, "", "")
		return
	}
	at := s.repos[strings.Join(parts[:3], "/")]
	if at == nil {
		Refuse(w, http.StatusNotFound, "RepoNotFound", "Repository not found")
		return
	}
	if parts[4] != at.commit && !slices.Contains(at.revisions, parts[4]) {
		Refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+parts[4])
		return
	}
	switch w.Header().Set("X-Repo-Commit", at.commit); {
	case api && parts[3] == "revision":
		reply(w, map[string]any{"id": parts[1] + "/" + parts[2], "sha": at.commit, "private": false, "gated": false,
			"downloads": 0, "tags": []string{}, "siblings": []any{}})
	case api && parts[3] == "tree":
		s.tree(w, r, at)
	case parts[3] == "resolve":
		s.resolve(w, r, at, strings.Join(parts[:3], "/"), strings.Join(parts[5:], "/"))
	default:
		Refuse(w, http.StatusNotFound, "", "")
	}
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that is gone misses nothing
}

// tree lists the files of a repository.
func (s *Server) tree(w http.ResponseWriter, r *http.Request, at *repo) {
	names := slices.Sorted(maps.Keys(at.files))
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor")) // the first page has none
	if to := from + s.PageSize; s.PageSize > 0 && to < len(names) {
		q := r.URL.Query()
		q.Set("cursor", strconv.Itoa(to))
		w.Header().Set("Link", "<"+s.URL+r.URL.EscapedPath()+"?"+q.Encode()+`>; rel="next"`)
		names = names[:to]
	}
	var list []any
	if from == 0 {
		list = append(list, map[string]any{"type": "directory", "path": "a", "size": 0, "oid": strings.Repeat("0", 40)})
	}
	for _, name := range names[from:] {
		data := at.files[name]
		e := map[string]any{"type": "file", "path": name, "size": len(data), "oid": Hash(data[:0])}
		if len(data) >= large {
			e["lfs"] = map[string]any{"oid": Hash(data), "size": len(data), "pointerSize": 134}
		} else {
			e["oid"] = Hash(data)
		}
		list = append(list, e)
	}
	reply(w, list)
}

// Hash is what the Hub calls contents by: SHA-256 of large ones, and of others Git's SHA-1.
func Hash(data []byte) string {
	if len(data) >= large {
		sum := sha256.Sum256(data)
		return hex.EncodeToString(sum[:])
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(data))
	h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}

// resolve sends a small file, and redirects for a large one.
func (s *Server) resolve(w http.ResponseWriter, r *http.Request, at *repo, repo, name string) {
	data, ok := at.files[name]
	if !ok {
		Refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	hash := Hash(data)
	if len(data) >= large {
		w.Header().Set("X-Linked-Etag", `"`+hash+`"`)
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(data)))
		w.Header().Set("Location", s.Files+"/"+repo+"/"+name+"?Signature=sIgNaTuRe")
		w.WriteHeader(http.StatusFound)
		return
	}
	w.Header().Set("ETag", `"`+hash+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// file sends a large file.
func (s *Server) file(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		s.put(w, r)
		return
	}
	s.store.RLock()
	defer s.store.RUnlock()
	parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/"), "/", 4)
	if len(parts) < 4 || r.URL.Query().Get("Signature") != "sIgNaTuRe" || s.repos[strings.Join(parts[:3], "/")] == nil {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	data, ok := s.repos[strings.Join(parts[:3], "/")].files[parts[3]]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("ETag", `"of-the-store"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}
