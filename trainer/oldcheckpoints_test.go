// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"archive/zip"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

// oldCheckpoints are checkpoints of an earlier format: testdata/README.md says how each was made.
var oldCheckpoints = []string{"testdata/checkpoints-pieces1.zip"}

var saveCheckpoints = flag.String("save_checkpoints", "",
	"write the checkpoints of TestOldCheckpoints, in today's format, into this zip file")

// longGPT2 is a GPT-2 whose position embeddings, zeros for the most part, have more elements than a cell, so that two
// ranks own a part each, and still pack into a few KB.
func longGPT2(t testing.TB) models.Model {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = vocabulary, 520, 8, 1, 2
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	for _, p := range nn.NamedParameters(m) {
		if p.Name == "transformer.wpe.weight" {
			tensor.FillInto(c, p.Tensor, 0)
		}
	}
	return m
}

// oldRun trains a longGPT2 for so many steps.
func oldRun(t *testing.T, disk *vfs.Mem, ranks, steps int, set ...func(*args.TrainingArguments)) rankRun {
	t.Helper()
	set = append(set, func(a *args.TrainingArguments) { a.MaxSteps = steps })
	return trainModel(t, longGPT2(t), disk, ranks, append([]func(*args.TrainingArguments){shardsArgs}, set...)...)
}

// unzipped are the checkpoint-2 of a folder of a zip file, as the checkpoint of a run.
func unzipped(t *testing.T, file, folder string) *vfs.Mem {
	t.Helper()
	z, err := zip.OpenReader(file)
	require.NoError(t, err)
	defer z.Close()
	disk := vfs.NewMem()
	require.NoError(t, vfs.MkdirAll(disk, out+"/checkpoint-2"))
	for _, f := range z.File {
		dir, name := filepath.Split(f.Name)
		if dir != folder+"/" {
			continue
		}
		r, err := f.Open()
		require.NoError(t, err)
		text, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, vfs.WriteFile(disk, out+"/checkpoint-2/"+name, text))
	}
	return disk
}

// Checkpoints of earlier formats, whole and in pieces, hold the same weights and moments, and a run that resumes from
// either ends with the same bits, on any number of ranks.
func TestOldCheckpoints(t *testing.T) {
	const path = out + "/checkpoint-2"
	if *saveCheckpoints != "" {
		writeCheckpoints(t, *saveCheckpoints)
	}
	resume := func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = path }
	for _, file := range oldCheckpoints {
		whole, pieces := unzipped(t, file, "whole"), unzipped(t, file, "pieces")
		merged := t.TempDir()
		_, err := checkpointer.MergeWeights(t.Context(), exported(t, pieces, path), merged,
			checkpointer.MergeOptions{Optimizer: true})
		require.NoError(t, err)
		for _, part := range []string{"model.safetensors", "optimizer.safetensors", "optimizer.json", "config.json"} {
			text, err := os.ReadFile(filepath.Join(merged, part))
			require.NoError(t, err)
			require.Equal(t, content(t, whole, path+"/"+part), string(text), "%s: %s", file, part)
		}
		resumed := func(folder string, ranks int, set ...func(*args.TrainingArguments)) rankRun {
			return oldRun(t, unzipped(t, file, folder), ranks, 4, append(set, resume)...)
		}
		want := resumed("whole", 1).weights
		for name, got := range map[string]rankRun{
			"whole on 2 ranks":    resumed("whole", 2, fullShard),
			"pieces on 1 rank":    resumed("pieces", 1),
			"pieces on 2 ranks":   resumed("pieces", 2, fullShard, scattered),
			"pieces on 4, zero 1": resumed("pieces", 4, zero(1)),
			"whole on pp 2":       resumed("whole", 2, meshOf(2, 0, 0, "1f1b")),
			"pieces on 2 × pp 2":  resumed("pieces", 4, meshOf(2, 2, 0, "zb_h1"), scattered),
		} {
			require.Equal(t, want, got.weights, "%s: %s", file, name)
		}
	}
}

// writeCheckpoints writes the checkpoints of a run of one rank, whole, and of two, in pieces.
func writeCheckpoints(t *testing.T, file string) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for folder, run := range map[string]rankRun{"whole": oldRun(t, vfs.NewMem(), 1, 2),
		"pieces": oldRun(t, vfs.NewMem(), 2, 2, fullShard, scattered)} {
		const path = out + "/checkpoint-2"
		for _, name := range filesOf(t, run.disk, path) {
			w, err := z.Create(folder + "/" + name)
			require.NoError(t, err)
			_, err = fmt.Fprint(w, content(t, run.disk, path+"/"+name))
			require.NoError(t, err)
		}
	}
	require.NoError(t, z.Close())
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o644))
}
