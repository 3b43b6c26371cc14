// SPDX-License-Identifier: Apache-2.0

package hubtest

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Owner is the account of every token.
const Owner = "me"

// Contents are those of a repository's newest commit, nil if there is no such repository.
func (s *Server) Contents(name string) map[string]string {
	s.store.RLock()
	defer s.store.RUnlock()
	at := s.repos[name]
	if at == nil {
		return nil
	}
	files := map[string]string{}
	for file, data := range at.files {
		files[file] = string(data)
	}
	return files
}

// Branches are those of a repository, with its tags, and Private says whether it is hidden.
func (s *Server) Branches(name string) (branches []string, private bool) {
	s.store.RLock()
	defer s.store.RUnlock()
	return slices.Clone(s.repos[name].revisions), s.private[name]
}

// take answers the requests of an upload.
func (s *Server) take(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	s.store.Lock()
	defer s.store.Unlock()
	where := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	name, lfs := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/"), ".git/info/lfs/objects/batch")
	switch {
	case r.URL.Path == "/api/validate-yaml": // huggingface_hub has READMEs checked
		reply(w, map[string]any{})
	case r.URL.Path == "/api/repos/create":
		s.create(w, text)
	case lfs:
		if !strings.HasPrefix(name, "datasets/") {
			name = "models/" + name
		}
		s.batch(w, s.repos[name], text)
	case where[0] == "complete":
		s.complete(w, r, text)
	case where[0] == "verify":
		s.verify(w, text)
	case len(where) == 6 && where[0] == "api":
		name := strings.Join(where[1:4], "/")
		at := s.repos[name]
		if at == nil {
			Refuse(w, http.StatusNotFound, "RepoNotFound", "Repository not found")
			return
		}
		branch, _ := url.PathUnescape(where[5]) // what is wrong is not found
		switch where[4] {
		case "branch":
			s.branch(w, at, branch)
		case "preupload":
			s.preupload(w, at, branch, text)
		case "commit":
			s.commit(w, at, name, branch, text)
		default:
			Refuse(w, http.StatusNotFound, "", "")
		}
	default:
		Refuse(w, http.StatusNotFound, "", "")
	}
}

func (s *Server) create(w http.ResponseWriter, text []byte) {
	var in struct{ Name, Organization, Type, Visibility string }
	if json.Unmarshal(text, &in) != nil || in.Name == "" {
		Refuse(w, http.StatusBadRequest, "", "Invalid name")
		return
	}
	name := in.Name
	if in.Organization == "" {
		in.Organization = Owner
	}
	name = in.Organization + "/" + name
	page, key := s.URL+"/"+name, "models/"+name
	if in.Type == "dataset" {
		page, key = s.URL+"/datasets/"+name, "datasets/"+name
	}
	if s.repos[key] != nil {
		w.Header().Set("X-Error-Message", "You already created this model repo")
		w.WriteHeader(http.StatusConflict)
		reply(w, map[string]any{"error": "You already created this model repo", "url": page})
		return
	}
	at := &repo{revisions: []string{"main"}, files: map[string][]byte{}}
	at.files[".gitattributes"] = []byte("*.safetensors filter=lfs\n")
	at.name()
	s.repos[key], s.private[key] = at, in.Visibility == "private"
	reply(w, map[string]any{"url": page, "name": name, "id": "0"})
}

func (s *Server) branch(w http.ResponseWriter, at *repo, branch string) {
	if slices.Contains(at.revisions, branch) {
		Refuse(w, http.StatusConflict, "", "Reference already exists")
		return
	}
	at.revisions = append(at.revisions, branch)
	w.WriteHeader(http.StatusOK)
}

func (s *Server) preupload(w http.ResponseWriter, at *repo, branch string, text []byte) {
	var in struct {
		Files []struct {
			Path   string
			Sample []byte
			Size   int64
		}
		GitIgnore *string
	}
	if err := json.Unmarshal(text, &in); err != nil {
		Refuse(w, http.StatusBadRequest, "", err.Error())
		return
	}
	if !slices.Contains(at.revisions, branch) {
		Refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+branch)
		return
	}
	files := []map[string]any{}
	for _, f := range in.Files {
		if int64(len(f.Sample)) != min(f.Size, 512) {
			Refuse(w, http.StatusBadRequest, "", "a sample of "+strconv.Itoa(len(f.Sample))+" bytes")
			return
		}
		one := map[string]any{"path": f.Path, "uploadMode": "regular",
			"shouldIgnore": ignored(at, in.GitIgnore, f.Path)}
		if f.Size >= large {
			one["uploadMode"] = "lfs"
		}
		if data, ok := at.files[f.Path]; ok {
			one["oid"] = Hash(data)
		}
		files = append(files, one)
	}
	reply(w, map[string]any{"files": files})
}

// ignored reports whether the .gitignore that is sent, or else the repository's, has exactly this path.
func ignored(at *repo, sent *string, path string) bool {
	text := string(at.files[".gitignore"])
	if sent != nil {
		text = *sent
	}
	return slices.Contains(strings.Split(text, "\n"), path)
}

func (s *Server) batch(w http.ResponseWriter, at *repo, text []byte) {
	var in struct {
		Operation string
		Objects   []struct {
			OID  string
			Size int
		}
	}
	if at == nil || json.Unmarshal(text, &in) != nil || in.Operation != "upload" {
		Refuse(w, http.StatusNotFound, "RepoNotFound", "Repository not found")
		return
	}
	objects := []map[string]any{}
	for _, o := range in.Objects {
		one := map[string]any{"oid": o.OID, "size": o.Size}
		if _, ok := s.objects[o.OID]; !ok {
			header, href := map[string]string{}, s.Files+"/upload/"+o.OID+"?Signature=sIgNaTuRe"
			if s.PartSize > 0 && o.Size > s.PartSize {
				header["chunk_size"] = strconv.Itoa(s.PartSize)
				for i := range (o.Size-1)/s.PartSize + 1 {
					header["0000"+strconv.Itoa(i+1)] = href + "&part=" + strconv.Itoa(i+1)
				}
				href = s.URL + "/complete/" + o.OID + "?Signature=sIgNaTuRe"
			}
			one["actions"] = map[string]any{"upload": map[string]any{"href": href, "header": header},
				"verify": map[string]any{"href": s.URL + "/verify/" + o.OID}}
		}
		objects = append(objects, one)
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	reply(w, map[string]any{"transfer": "basic", "objects": objects})
}

// put keeps a file, or a part of one.
func (s *Server) put(w http.ResponseWriter, r *http.Request) {
	oid, ok := strings.CutPrefix(r.URL.Path, "/upload/")
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	if !ok || r.URL.Query().Get("Signature") != "sIgNaTuRe" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	s.store.Lock()
	defer s.store.Unlock()
	if part := r.URL.Query().Get("part"); part != "" {
		s.parts[oid+"/"+part] = data
		w.Header().Set("ETag", `"`+Hash(data)+`"`)
		return
	}
	if Hash(data) != oid {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.objects[oid] = data
}

func (s *Server) complete(w http.ResponseWriter, r *http.Request, text []byte) {
	var in struct {
		OID   string
		Parts []struct {
			PartNumber int
			ETag       string
		}
	}
	if err := json.Unmarshal(text, &in); err != nil || !strings.HasSuffix(r.URL.Path, in.OID) {
		Refuse(w, http.StatusBadRequest, "", "no parts")
		return
	}
	var data []byte
	for i, p := range in.Parts {
		one := s.parts[in.OID+"/"+strconv.Itoa(p.PartNumber)]
		if p.PartNumber != i+1 || p.ETag != `"`+Hash(one)+`"` {
			Refuse(w, http.StatusBadRequest, "", "part "+strconv.Itoa(p.PartNumber))
			return
		}
		data = append(data, one...)
	}
	if Hash(data) != in.OID {
		Refuse(w, http.StatusBadRequest, "", "wrong hash")
		return
	}
	s.objects[in.OID] = data
}

func (s *Server) verify(w http.ResponseWriter, text []byte) {
	var in struct {
		OID  string
		Size int
	}
	if json.Unmarshal(text, &in) != nil || s.objects[in.OID] == nil || len(s.objects[in.OID]) != in.Size {
		Refuse(w, http.StatusNotFound, "", "no such object")
		return
	}
}

func (s *Server) commit(w http.ResponseWriter, at *repo, name, branch string, text []byte) {
	files, summary := maps.Clone(at.files), ""
	for l := range bytes.Lines(text) {
		var in struct {
			Key   string
			Value struct {
				Summary, Path, Encoding, OID string
				Content                      []byte
			}
		}
		if err := json.Unmarshal(l, &in); err != nil {
			Refuse(w, http.StatusBadRequest, "", err.Error())
			return
		}
		switch v := in.Value; in.Key {
		case "header":
			summary = v.Summary
		case "file":
			files[v.Path] = v.Content
		case "lfsFile":
			data, ok := s.objects[v.OID]
			if !ok {
				Refuse(w, http.StatusBadRequest, "", "no object "+v.OID)
				return
			}
			files[v.Path] = data
		default:
			Refuse(w, http.StatusBadRequest, "", "key "+in.Key)
			return
		}
	}
	if summary == "" || !slices.Contains(at.revisions, branch) {
		Refuse(w, http.StatusBadRequest, "", "no summary")
		return
	}
	at.files = files
	at.name()
	reply(w, map[string]any{"success": true, "commitOid": at.commit, "hookOutput": "",
		"commitUrl": s.URL + "/" + name + "/commit/" + at.commit})
}
