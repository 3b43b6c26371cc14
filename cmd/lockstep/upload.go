// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/internal/quantity"
)

const uploadUsage = `usage: lockstep upload ORG/NAME PATH [PATH_IN_REPO] [FLAGS]

Sends a folder, or a file, to a repository of HuggingFace's Hub in one commit, and creates the
repository if it does not exist. It leaves out unchanged files, and large ones that the Hub already
has, so an interrupted upload continues where it ended. It needs a token that may write, in HF_TOKEN
or by hf auth login.

  lockstep upload me/tuned out/tuned --private --exclude 'checkpoint-*'
  lockstep upload me/chats chats.jsonl --repo_type dataset

`

// uploadFlags are what upload can be asked for.
type uploadFlags struct {
	hub.Upload
	kind string
}

func (f *uploadFlags) flagSet() *pflag.FlagSet {
	fs := pflag.NewFlagSet("upload", pflag.ContinueOnError)
	fs.StringVar(&f.kind, "repo_type", "model", "what the repository holds: model or dataset")
	fs.StringVar(&f.Repo.Revision, "revision", "", "the branch, which is made if there is none (default: main)")
	fs.BoolVar(&f.Private, "private", false, "hide the repository if it is made now")
	fs.StringArrayVar(&f.Include, "include", nil, "send only files that match a pattern, such as '*.json'; repeatable")
	fs.StringArrayVar(&f.Exclude, "exclude", nil, "leave out files that match a pattern; repeatable")
	fs.StringVar(&f.Message, "commit_message", "", "first line of the commit's text")
	fs.StringVar(&f.Description, "commit_description", "", "the rest of the commit's text")
	return fs
}

// kinds are those of repositories by their names in flags.
var kinds = map[string]hub.Kind{"model": hub.Models, "dataset": hub.Datasets}

func (p *program) upload(argv []string) int {
	var f uploadFlags
	fs := f.flagSet()
	if code, done := p.parse(fs, argv, uploadUsage); done {
		return code
	}
	kind, ok := kinds[f.kind]
	switch {
	case fs.NArg() != 2 && fs.NArg() != 3:
		return p.usageError("upload: %s: want ORG/NAME, PATH and perhaps PATH_IN_REPO", quantity.Of(fs.NArg(), "word"))
	case !ok:
		return p.usageError("upload: repo_type %q: want model or dataset", f.kind)
	case !hub.IsName(fs.Arg(0)):
		return p.usageError("upload: %q is not the name of a repository: want ORG/NAME", fs.Arg(0))
	}
	f.Repo.Kind, f.Repo.Name, f.Path, f.To = kind, fs.Arg(0), fs.Arg(1), pathInRepo(fs.Arg(2))
	ctx, stop := signal.NotifyContext(context.Background(), p.endings()...)
	defer stop()
	if err := p.sendUpload(ctx, f.Upload); err != nil {
		return p.failed("upload", err)
	}
	return exitOK
}

// pathInRepo is a path as a user writes it: ./a//b is a/b, and a/ stays a folder.
func pathInRepo(name string) string {
	if slices.Contains(strings.Split(name, "/"), "..") {
		return name // which is refused
	}
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean != "" && strings.HasSuffix(name, "/") {
		clean += "/"
	}
	return clean
}

func (p *program) sendUpload(ctx context.Context, u hub.Upload) error {
	c, err := p.hubClient()
	if err != nil {
		return err
	}
	begin := time.Now()
	made, err := c.Upload(ctx, u)
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted; the Hub keeps the large files that were sent, and the same command continues")
	case err != nil:
		return err
	case made.Files == 0:
		fmt.Fprintf(p.stdout, "%s: nothing has changed\n", made.Repo.Name)
	default:
		fmt.Fprintf(p.stdout, "%s: %s, %s MiB sent in %s\n", made.Repo.Name, quantity.Of(made.Files, "file"),
			mebibytes(made.Bytes), time.Since(begin).Round(100*time.Millisecond))
	}
	fmt.Fprintln(p.stdout, made.URL)
	return nil
}
