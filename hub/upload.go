// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/internal/hubname"
	"github.com/lockstep-ml/lockstep/internal/quantity"
)

const (
	// uploadPatience is how long a server may think about what it got: it checks the hash of large files.
	uploadPatience = 2 * time.Minute
	// askedAtOnce is how many files a request asks about, as huggingface_hub's.
	askedAtOnce = 256
	jsonType    = "application/json"
	// sampleBytes of a file let the Hub tell text from data.
	sampleBytes = 512
	// maxRegular bounds the bytes of files that are in Git itself; the Hub puts none above 10 MiB there.
	maxRegular = 256 << 20
)

// Upload is what Client.Upload sends.
type Upload struct {
	// Repo is the repository, which is created if missing. Its revision is a branch, which is created too. A name
	// without an organisation is one of the token's account.
	Repo Repo
	// Path is a folder, of which all files are sent, or one file.
	Path string
	// To is the folder of the repository that a folder's files go to, "" the top; for one file it is the path there, ""
	// the file's name.
	To string
	// Include has patterns as Client.Snapshot; without any all files are sent. Exclude leaves files out, and so does a
	// .gitignore in the folder. The folders .git and .cache/huggingface are never sent.
	Include, Exclude []string
	// Private hides a repository that is made for the upload.
	Private bool
	// Message is the first line of the commit's text, Description the rest.
	Message, Description string
}

// Commit is the result of an upload.
type Commit struct {
	Repo  Repo   // with its organisation
	ID    string // 40 hex digits
	URL   string // of the commit
	Files int    // that it changes; 0: all were there, and no commit was made
	Bytes int64  // that were sent: large files that the Hub has already are not sent again
}

// Upload sends a folder or a file to a repository, in one commit: all of it is there afterwards, or nothing. Files
// that have not changed are left out, and large ones whose contents the Hub has are not sent again, so that an
// interrupted upload continues where it ended. Files of the repository that the folder lacks stay. The protocol is
// that of huggingface_hub without Xet: preupload, Git LFS in parts, a commit.
func (c *Client) Upload(ctx context.Context, u Upload) (*Commit, error) {
	defer c.idle()
	if err := u.Repo.check(); err != nil {
		return nil, err
	}
	switch {
	case c.Offline:
		return nil, faultf(ErrOffline, "%s cannot be uploaded: HF_HUB_OFFLINE forbids the network", u.Repo)
	case c.Token == "":
		return nil, faultf(ErrUnauthorized, "an upload to %s needs a token that may write to it: want one of "+
			"%s/settings/tokens in HF_TOKEN or by \"hf auth login\"", u.Repo, c.Endpoint)
	}
	files, err := u.files(c.log())
	if err != nil {
		return nil, err
	}
	s := &sending{c: c, Upload: u}
	if err := s.create(ctx); err != nil {
		return nil, err
	}
	if files, err = s.changed(ctx, files); err != nil {
		return nil, err
	}
	if len(files) == 0 {
		id, err := c.find(ctx, s.Repo, 0)
		return &Commit{Repo: s.Repo, ID: id, URL: s.Repo.page(c.Endpoint) + "/commit/" + id}, err
	}
	if err := s.send(ctx, files); err != nil {
		return nil, err
	}
	return s.commit(ctx, files)
}

// sending is an upload that runs.
type sending struct {
	c *Client
	Upload
	bytes int64
}

func (s *sending) question(file string) question {
	return question{repo: s.Repo, revision: s.Repo.revision(), file: file, upload: true}
}

// create makes the repository and the branch, unless they exist.
func (s *sending) create(ctx context.Context) error {
	org, name, ok := strings.Cut(s.Repo.Name, "/")
	in := map[string]any{"name": name, "organization": org, "type": strings.TrimSuffix(string(s.Repo.Kind), "s")}
	if !ok {
		in["name"], in["organization"] = org, nil
	}
	if s.Private {
		in["visibility"] = "private"
	}
	var made struct {
		URL string `json:"url"`
	}
	q := s.question("")
	q.creates = true
	err := s.c.post(ctx, q, s.c.Endpoint+"/api/repos/create", jsonType, in, &made)
	if errors.Is(err, ErrUnauthorized) && ok { // such a token may still write to a repository that exists
		if _, unknown := s.c.find(ctx, Repo{Kind: s.Repo.Kind, Name: s.Repo.Name}, 0); unknown == nil {
			err = nil
		}
	}
	if there, is := errors.AsType[*existing](err); is {
		made.URL, err = there.url, nil
	}
	if err != nil {
		return err
	}
	if !ok {
		if s.Repo.Name, err = s.named(made.URL); err != nil {
			return err
		}
	}
	if s.Repo.revision() == DefaultRevision || hubname.IsCommit(s.Repo.revision()) ||
		strings.HasPrefix(s.Repo.revision(), "refs/") {
		return nil
	}
	err = s.c.post(ctx, q, s.Repo.api(s.c.Endpoint, "branch", s.Repo.revision()), jsonType, struct{}{}, nil)
	if _, is := errors.AsType[*existing](err); is {
		return nil
	}
	return err
}

// named is the full name of the repository whose address the Hub gives.
func (s *sending) named(address string) (string, error) {
	at, err := url.Parse(address)
	name := ""
	if err == nil {
		name = strings.TrimPrefix(strings.TrimPrefix(at.Path, "/"), string(Datasets)+"/")
	}
	if !strings.Contains(name, "/") || !IsName(name) {
		return "", faultf(ErrServer, "%s does not say whose %s is: want its name as org/name", host(s.c.Endpoint),
			s.Repo)
	}
	return name, nil
}

// changed asks the Hub how it stores files, and gives those that differ from what it has.
func (s *sending) changed(ctx context.Context, files []*localFile) ([]*localFile, error) {
	type preupload struct {
		Path   string `json:"path"`
		Sample []byte `json:"sample"` // base64
		Size   int64  `json:"size"`
	}
	byPath := map[string]*localFile{}
	ignore, err := gitIgnore(files)
	if err != nil {
		return nil, err
	}
	for part := range slices.Chunk(files, askedAtOnce) {
		var in struct {
			Files     []preupload `json:"files"`
			GitIgnore string      `json:"gitIgnore,omitempty"`
		}
		in.GitIgnore = ignore
		for _, f := range part {
			sample, err := f.sample()
			if err != nil {
				return nil, err
			}
			byPath[f.to] = f
			in.Files = append(in.Files, preupload{f.to, sample, f.size})
		}
		var out struct {
			Files []struct {
				Path         string `json:"path"`
				UploadMode   string `json:"uploadMode"`
				ShouldIgnore bool   `json:"shouldIgnore"`
				OID          string `json:"oid"`
			} `json:"files"`
		}
		err := s.c.post(ctx, s.question(""), s.Repo.api(s.c.Endpoint, "preupload", s.Repo.revision()),
			jsonType, in, &out)
		if err != nil {
			return nil, err
		}
		for _, one := range out.Files {
			f := byPath[one.Path]
			if f == nil || one.UploadMode != modeRegular && one.UploadMode != modeLFS {
				return nil, faultf(ErrServer, "%s would store %q of %s as %q: want one of the files it was asked "+
					"about, as %s or %s", host(s.c.Endpoint), printable(one.Path), s.Repo, printable(one.UploadMode),
					modeRegular, modeLFS)
			}
			f.mode, f.ignored, f.remote = one.UploadMode, one.ShouldIgnore, one.OID
			if f.size == 0 {
				f.mode = modeRegular
			}
		}
	}
	return s.differing(ctx, files)
}

// differing are the files whose contents the Hub's commit does not have.
func (s *sending) differing(ctx context.Context, files []*localFile) (differing []*localFile, err error) {
	var regular int64
	for _, f := range files {
		switch {
		case f.mode == "":
			return nil, faultf(ErrServer, "%s does not say how it stores %s of %s", host(s.c.Endpoint), f.to, s.Repo)
		case f.ignored:
			s.c.log().Warn("A file is not uploaded: .gitignore names it.", "file", f.to)
			continue
		}
		if err := f.sum(ctx); err != nil {
			return nil, err
		}
		if f.hash == f.remote {
			continue
		}
		if f.mode == modeRegular {
			regular += f.size
		}
		differing = append(differing, f)
	}
	if regular > maxRegular {
		return nil, faultf(ErrServer, "%s expects %s of %s outside of Git LFS: want at most %s", host(s.c.Endpoint),
			bytesText(regular), s.Repo, bytesText(maxRegular))
	}
	return differing, nil
}

// commit makes the commit of files that were sent.
func (s *sending) commit(ctx context.Context, files []*localFile) (*Commit, error) {
	type line struct {
		Key   string `json:"key"`
		Value any    `json:"value"`
	}
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	message := cmp.Or(s.Message, "Upload "+quantity.Of(len(files), "file")+" with Lockstep")
	head := map[string]string{"summary": message, "description": s.Description}
	if err := to.Encode(line{"header", head}); err != nil {
		return nil, fmt.Errorf("hub: the text of the commit: %w", err)
	}
	for _, f := range files {
		l := line{"lfsFile", map[string]any{"path": f.to, "algo": "sha256", "oid": f.hash, "size": f.size}}
		if f.mode == modeRegular {
			contents, err := f.contents()
			if err != nil {
				return nil, err
			}
			l = line{"file", map[string]string{"path": f.to, "encoding": "base64",
				"content": base64.StdEncoding.EncodeToString(contents)}}
			s.bytes += f.size
		}
		if err := to.Encode(l); err != nil {
			return nil, fmt.Errorf("hub: the commit: %w", err)
		}
	}
	var made struct {
		ID  string `json:"commitOid"`
		URL string `json:"commitUrl"`
	}
	q := s.question("")
	q.once = true
	err := s.c.post(ctx, q, s.Repo.api(s.c.Endpoint, "commit", s.Repo.revision()), "application/x-ndjson",
		json.RawMessage(text.Bytes()), &made)
	if err != nil {
		return nil, fmt.Errorf("%w; the Hub keeps the large files that were sent: another try sends the commit alone",
			err)
	}
	if !hubname.IsCommit(made.ID) {
		return nil, faultf(ErrServer, "%s names %q as the commit of %s: want 40 hex digits", host(s.c.Endpoint),
			printable(made.ID), s.Repo)
	}
	return &Commit{Repo: s.Repo, ID: made.ID, URL: s.Repo.page(s.c.Endpoint) + "/commit/" + made.ID,
		Files: len(files), Bytes: s.bytes}, nil
}

// post sends JSON, or what is JSON already, and reads the answer; nil reads nothing.
func (c *Client) post(ctx context.Context, q question, address, kind string, in, out any) error {
	text, ok := in.(json.RawMessage)
	if !ok {
		var err error
		if text, err = json.Marshal(in); err != nil {
			return fmt.Errorf("hub: %w", err)
		}
	}
	m := message{method: http.MethodPost, header: http.Header{"Content-Type": {kind}}, size: int64(len(text)),
		body: func() io.Reader { return bytes.NewReader(text) }, patience: cmp.Or(c.Timeout, uploadPatience)}
	if kind == lfsType {
		m.header.Set("Accept", lfsType)
	}
	return c.retry(ctx, q, func() (bool, error) {
		a, err := c.exchange(ctx, q, address, m)
		if err != nil {
			return false, err
		}
		defer a.Body.Close() // what was read counts
		if out == nil {
			return true, nil
		}
		return false, c.decode(q, a, out)
	})
}
