// SPDX-License-Identifier: Apache-2.0

// Package downloads has the flags of examples that take models and data sets of HuggingFace's Hub. It is no example
// itself.
package downloads

import (
	"cmp"
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/program"
)

// Arguments say how models are downloaded, by the names of transformers' scripts.
type Arguments struct {
	ModelRevision string `json:"model_revision" usage:"branch, tag or commit of a model of the Hub"`
	CacheDir      string `json:"cache_dir" path:"true" usage:"folder for downloads; empty is huggingface_hub's (HF_HUB_CACHE, HF_HOME)"`
	Token         string `json:"token" usage:"token for the Hub; empty is HF_TOKEN, or that of hf auth login"`
}

// Defaults are those of the scripts.
func Defaults() *Arguments { return &Arguments{ModelRevision: hub.DefaultRevision} }

// Aliases are other names of the flags.
func Aliases() []args.Known {
	return []args.Known{
		{Name: "revision", Type: args.TypeString, Status: args.StatusRenamed, Target: "model_revision"},
		{Name: "dataset_config", Type: args.TypeString, Status: args.StatusRenamed, Target: "dataset_config_name"},
	}
}

// client downloads for a program, which shows how far it is.
func (a *Arguments) client(p *program.Process) (*hub.Client, error) {
	c, err := hub.FromEnvironment()
	if err != nil {
		return nil, err
	}
	c.CacheDir, c.Token = cmp.Or(a.CacheDir, c.CacheDir), cmp.Or(a.Token, c.Token)
	c.Progress = func(name string, bytes int64) hub.Meter { return p.Phase(name, bytes, callbacks.Bytes) }
	return c, nil
}

// Model puts the folder of a model in the place of its name, if it is one of the Hub and no folder is called so. Ranks
// of one host download it once.
func (a *Arguments) Model(ctx context.Context, p *program.Process, nameOrPath *string) error {
	return a.ModelAt(ctx, p, nameOrPath, a.ModelRevision)
}

// ModelAt is Model with another revision.
func (a *Arguments) ModelAt(ctx context.Context, p *program.Process, nameOrPath *string, revision string) error {
	if *nameOrPath == "" {
		return nil
	}
	c, err := a.client(p)
	if err != nil {
		return err
	}
	dir, err := c.Model(ctx, *nameOrPath, revision)
	if err != nil {
		return err
	}
	if name, commit, ok := hub.NameOf(dir); ok && dir != *nameOrPath {
		p.Line("from the Hub", name, "commit "+commit[:12])
	}
	*nameOrPath = dir
	return nil
}

// DataArguments name a data set, by the names of transformers' scripts.
type DataArguments struct {
	DatasetName       string `json:"dataset_name" usage:"data set of the Hub, as org/name, in place of files"`
	DatasetConfigName string `json:"dataset_config_name" usage:"one of the data set's configurations"`
	DatasetRevision   string `json:"dataset_revision" usage:"branch, tag or commit of the data set"`
}

// Check reports all faults at once.
func (d *DataArguments) Check(c *args.Checker) {
	c.Require(d.DatasetName == "" || hub.IsName(d.DatasetName), "dataset_name", d.DatasetName,
		"the name of a data set of the Hub, as org/name")
	if d.DatasetName == "" {
		c.Require(d.DatasetConfigName == "", "dataset_config_name", d.DatasetConfigName, "it left out without "+
			"dataset_name")
		c.Require(d.DatasetRevision == "", "dataset_revision", d.DatasetRevision, "it left out without dataset_name")
		return
	}
	c.Require(!c.Given("train_file"), "dataset_name", d.DatasetName, "it, or train_file")
	c.Require(!c.Given("validation_file"), "dataset_name", d.DatasetName, "it, or validation_file")
}

// Files downloads the files of some splits of the data set. Those that it lacks are empty.
func (a *Arguments) Files(ctx context.Context, p *program.Process, d *DataArguments, extensions []string,
	splits ...string,
) (map[string][]string, error) {
	c, err := a.client(p)
	if err != nil {
		return nil, err
	}
	files, err := c.Dataset(ctx, d.DatasetName, hub.Selection{Revision: d.DatasetRevision, Config: d.DatasetConfigName,
		Splits: splits, Extensions: extensions})
	if err != nil {
		return nil, err
	}
	facts := []string{d.DatasetName}
	for _, split := range splits {
		if n := len(files[split]); n > 0 {
			facts = append(facts, fmt.Sprintf("%s: %s", split, program.Count(n, "file")))
		}
	}
	p.Line("from the Hub", facts...)
	return files, nil
}
