// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
)

// MergeOptions say what MergeWeights writes.
type MergeOptions struct {
	// MaxShardSize is the most bytes of a file of weights; more are split over several files, with an index. 0: no
	// limit.
	MaxShardSize int64
	// Optimizer writes the optimizer's state too, as the whole tensors of optimizer.safetensors.
	Optimizer bool
	// AllowNonfinite merges weights with elements that are NaN or infinite. Otherwise they are an error.
	AllowNonfinite bool
}

// MergedFile is the name of the file that lists what MergeWeights wrote into a folder.
const MergedFile = "merged_files.json"

// MergeWeights makes a saved model, as LoadPretrained and transformers read it, in the folder to, and returns the names
// of its files. What it makes it of lies in the folder from: a checkpoint of a sharded run, to which each rank
// wrote what it had, a run's folder, whose last checkpoint is taken, or a saved model, whose weights may lie in
// several files. A checkpoint is verified first. The result has the bytes that a run without shards would have saved.
// One array at a time is in memory.
//
// It replaces and deletes nothing but what it wrote: the file MergedFile lists that, with sizes and hashes. A folder
// that holds other files of these names is an error.
func MergeWeights(ctx context.Context, from, to string, o MergeOptions) (names []string, err error) {
	dir, err := savedFolder(ctx, from)
	if err != nil {
		return nil, err
	}
	if SameFolder(dir, to) || SameFolder(from, to) {
		return nil, fmt.Errorf("the weights are read from %s: want another folder for the merged model", to)
	}
	set, err := safetensors.OpenSet(vfs.OS, dir, models.WeightsBase)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	if !o.AllowNonfinite {
		if err := requireFinite(dir, set); err != nil {
			return nil, err
		}
	}
	parts, err := mergedFiles(dir, set, o.MaxShardSize)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	kept := append([]string{models.ConfigFile, ArgsFile}, models.SidecarNames...)
	if o.Optimizer {
		state, err := safetensors.OpenSet(vfs.OS, dir, optimizerTensors)
		if err != nil {
			return nil, fmt.Errorf("the optimizer's state: %w", err)
		}
		defer func() { err = errors.Join(err, state.Close()) }()
		parts = append(parts, checkpoint.SetPart(optimizerTensors+".safetensors", state))
		kept = append(kept, optimizerFile)
	}
	others, err := keptParts(dir, kept)
	if err != nil {
		return nil, err
	}
	parts = append(parts, others...)
	if err := requireOwn(ctx, to, namesOf(parts)); err != nil {
		return nil, err
	}
	return namesOf(parts), writeMerged(ctx, to, parts)
}

// keptParts are the files of a folder that are copied, of those of the given names.
func keptParts(dir string, names []string) (parts []checkpoint.Part, err error) {
	for _, name := range names {
		text, err := vfs.ReadFile(vfs.OS, filepath.Join(dir, name), maxKept)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		parts = append(parts, checkpoint.BytesPart(name, text))
	}
	return parts, nil
}

// requireFinite is an error that names the first array with elements that are NaN or infinite.
func requireFinite(dir string, set *safetensors.Set) error {
	for _, name := range set.Names() {
		a, _ := set.Lookup(name)
		data, err := a.Read()
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		if nonfinite, _ := dtype.Census(a.DType, data); nonfinite > 0 {
			return fmt.Errorf("%s: %s has %d of %d elements that are NaN or infinite: the run diverged: want an "+
				"earlier checkpoint, or --allow_nonfinite (AllowNonfinite) to merge the weights anyway", dir,
				name, nonfinite, len(data)/a.DType.Size())
		}
	}
	return nil
}

// maxKept bounds the size of a file that is copied, in bytes.
const maxKept = 1 << 30

// savedFolder is the folder with the weights, verified if it is a checkpoint.
func savedFolder(ctx context.Context, from string) (string, error) {
	has := func(name string) bool {
		_, err := vfs.OS.Stat(filepath.Join(from, name))
		return err == nil
	}
	var ck *checkpoint.Checkpoint
	var err error
	switch {
	case has(checkpoint.ManifestFile):
		ck, err = checkpoint.Open(ctx, from)
	case has(checkpoint.LatestFile):
		ck, err = (&checkpoint.Store{Dir: from}).Latest(ctx)
	case has(models.WeightsFile), has(safetensors.IndexFile(models.WeightsBase)):
		return from, nil
	case has(models.AdapterConfigFile):
		return "", fmt.Errorf("%s has an adapter: want \"--adapter %s --merge OTHER\" of examples/generate, which "+
			"adds it to its model", from, from)
	default:
		if _, err = vfs.OS.Stat(from); err == nil {
			err = fmt.Errorf("%s has no weights: want the folder of a checkpoint, a run or a saved model", from)
		}
	}
	if err != nil {
		return "", err
	}
	return ck.Path, nil
}

// mergedFiles are the files of the saved model's weights.
func mergedFiles(dir string, set *safetensors.Set, maxShardSize int64) ([]models.WeightFile, error) {
	layout := models.PlainWeightsLayout(set)
	if set.Scattered() {
		text, err := vfs.ReadFile(vfs.OS, filepath.Join(dir, models.WeightsLayoutFile), maxKept)
		if err == nil {
			layout, err = models.ParseWeightsLayout(text)
		}
		if err != nil {
			return nil, err
		}
	}
	return models.MergeSet(set, layout, maxShardSize)
}
