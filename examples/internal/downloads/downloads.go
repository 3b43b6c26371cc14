// SPDX-License-Identifier: Apache-2.0

// Package downloads has the flags of examples that take models and data sets of HuggingFace's Hub. It is no example
// itself.
package downloads

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/program"
)

// HubArguments say how models are downloaded, by the names of transformers' scripts.
type HubArguments struct {
	ModelRevision string `json:"model_revision" usage:"branch, tag or commit of a model of the Hub"`
	CacheDir      string `json:"cache_dir" path:"true" usage:"folder for downloads; empty: huggingface_hub's (HF_HUB_CACHE, HF_HOME)"`
	Token         string `json:"token" usage:"token for the Hub; empty: HF_TOKEN, or the one that hf auth login saved"`
}

// Defaults are those of the scripts.
func Defaults() *HubArguments { return &HubArguments{ModelRevision: hub.DefaultRevision} }

// Aliases are other names of the flags.
func Aliases() []args.Known {
	return []args.Known{
		{Name: "revision", Type: args.TypeString, Status: args.StatusRenamed, Target: "model_revision"},
		{Name: "dataset_config", Type: args.TypeString, Status: args.StatusRenamed, Target: "dataset_config_name"},
	}
}

// client downloads for a program, which shows how far it is.
func (a *HubArguments) client(p *program.Process) (*hub.Client, error) {
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
func (a *HubArguments) Model(ctx context.Context, p *program.Process, nameOrPath *string) error {
	return a.ModelAt(ctx, p, nameOrPath, a.ModelRevision)
}

// ModelAt is Model with another revision.
func (a *HubArguments) ModelAt(ctx context.Context, p *program.Process, nameOrPath *string, revision string) error {
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

// HubDataArguments name a data set, by the names of transformers' scripts.
type HubDataArguments struct {
	DatasetName       string `json:"dataset_name" usage:"data set of the Hub, as org/name, in place of files"`
	DatasetConfigName string `json:"dataset_config_name" usage:"one of the data set's configurations"`
	DatasetRevision   string `json:"dataset_revision" usage:"branch, tag or commit of the data set"`
	DatasetTrainSplit string `json:"dataset_train_split" usage:"split to train on; empty: train"`
	DatasetTestSplit  string `json:"dataset_test_split" usage:"split to evaluate on; empty: validation"`
}

// Check reports all faults at once.
func (d *HubDataArguments) Check(c *args.Checker) {
	c.Require(d.DatasetName == "" || hub.IsName(d.DatasetName), "dataset_name", d.DatasetName,
		"the name of a data set of the Hub, as org/name")
	if d.DatasetName == "" {
		c.Require(d.DatasetConfigName == "", "dataset_config_name", d.DatasetConfigName, "it left out without "+
			"dataset_name")
		c.Require(d.DatasetRevision == "", "dataset_revision", d.DatasetRevision, "it left out without dataset_name")
		c.Require(slices.Contains([]string{"", hub.Train}, d.DatasetTrainSplit), "dataset_train_split",
			d.DatasetTrainSplit, "it left out without dataset_name")
		c.Require(slices.Contains([]string{"", hub.Test}, d.DatasetTestSplit), "dataset_test_split",
			d.DatasetTestSplit, "it left out without dataset_name")
		return
	}
	c.Require(!c.Given("train_file"), "dataset_name", d.DatasetName, "it, or train_file")
	c.Require(!c.Given("validation_file"), "dataset_name", d.DatasetName, "it, or validation_file")
}

// split is the data set's name of a split that a program reads.
func (d *HubDataArguments) split(name string) string {
	switch name {
	case hub.Train:
		return cmp.Or(d.DatasetTrainSplit, name)
	case hub.Validation:
		return cmp.Or(d.DatasetTestSplit, name)
	}
	return name
}

// Files downloads the files of some splits of the data set: of hub.Train those of DatasetTrainSplit, of hub.Validation
// those of DatasetTestSplit. Splits that it lacks are empty, unless a flag names them.
func (a *HubArguments) Files(ctx context.Context, p *program.Process, d *HubDataArguments, extensions []string,
	splits ...string,
) (map[string][]string, error) {
	c, err := a.client(p)
	if err != nil {
		return nil, err
	}
	named := make([]string, len(splits))
	for i, split := range splits {
		named[i] = d.split(split)
	}
	found, err := c.Dataset(ctx, d.DatasetName, hub.Selection{Revision: d.DatasetRevision, Config: d.DatasetConfigName,
		Splits: named, Extensions: extensions})
	if err != nil {
		return nil, err
	}
	facts, files := []string{d.DatasetName}, map[string][]string{}
	for i, split := range splits {
		if files[split] = found[named[i]]; len(files[split]) > 0 {
			facts = append(facts, fmt.Sprintf("%s: %s", named[i], program.Count(len(files[split]), "file")))
		} else if named[i] != split {
			return nil, fmt.Errorf("dataset_name: %s has no split %s: want one of its splits", d.DatasetName, named[i])
		}
	}
	p.Line("from the Hub", facts...)
	return files, nil
}
