// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Named is a tensor and the name that it has in a file.
type Named struct {
	Name   string
	Tensor *tensor.Tensor
}

// TensorParts is the parts that the tensors are saved in: base.safetensors or, if they
// are larger than maxShardBytes (≤ 0: no limit), several files and their index, as
// transformers does. The elements are copied to the host when the parts are written: the
// tensors must not change until then, and c is used by the goroutine that writes.
func TensorParts(c *tensor.Ctx, base string, tensors []Named, maxShardBytes int64) ([]Part, error) {
	shards, index, err := safetensors.Split(base, hostTensors(c, tensors), maxShardBytes)
	if err != nil {
		return nil, err
	}
	var parts []Part
	for _, shard := range shards {
		parts = append(parts, Part{Name: shard.File, Write: func(w io.Writer) error {
			return safetensors.Write(w, shard.Tensors, safetensors.PyTorchMetadata())
		}})
	}
	if index != nil {
		parts = append(parts, BytesPart(safetensors.IndexFile(base), index))
	}
	return parts, nil
}

// SaveTensors writes the tensors as one safetensors file.
func SaveTensors(c *tensor.Ctx, w io.Writer, tensors []Named) error {
	return safetensors.Write(w, hostTensors(c, tensors), safetensors.PyTorchMetadata())
}

// hostTensors describes the tensors to the writer, which copies one at a time.
func hostTensors(c *tensor.Ctx, tensors []Named) []safetensors.Tensor {
	list := make([]safetensors.Tensor, len(tensors))
	for i, n := range tensors {
		list[i] = safetensors.Tensor{Name: n.Name, DType: n.Tensor.DType(), Shape: n.Tensor.Shape(), Write: func(w io.Writer) error {
			_, err := w.Write(tensor.ReadBytes(c, n.Tensor))
			return err
		}}
	}
	return list
}

// LoadOption relaxes what LoadTensors demands.
type LoadOption func(*loadOptions)

type loadOptions struct {
	ignore func(name string) bool
	cast   bool
	judge  func(name string, c tensor.Census) string
}

// Judge is asked about each tensor that has been loaded, with what was counted in it. What it returns is what is wrong
// with the tensor, "" if nothing is; all of that is one error when everything has been read.
func Judge(judge func(name string, c tensor.Census) string) LoadOption {
	return func(o *loadOptions) { o.judge = judge }
}

// IgnoreUnexpected passes over tensors of the file that are not asked for, if ignore
// accepts their names: buffers that other programs save, for instance.
func IgnoreUnexpected(ignore func(name string) bool) LoadOption {
	return func(o *loadOptions) { o.ignore = ignore }
}

// CastFloats converts between floating-point dtypes: weights kept in bfloat16 load into
// float32 parameters. Without it a differing dtype is an error, and so is with it a finite number that becomes infinite.
func CastFloats() LoadOption { return func(o *loadOptions) { o.cast = true } }

// LoadTensors overwrites the tensors with those of the same names in base.safetensors, or
// the files of its index, in the checkpoint. Names, shapes and dtypes must agree on both
// sides; all that do not are listed in one MismatchError, and then nothing is written. A piece of a tensor is in memory
// at a time, beside the tensors.
func (ck *Checkpoint) LoadTensors(c *tensor.Ctx, base string, tensors []Named, opts ...LoadOption) error {
	return loadTensors(c, ck.fsys, ck.Path, base, tensors, opts)
}

// LoadTensors does the same for a folder that need not be a checkpoint: one with a saved
// model, by Lockstep or by transformers. There are no hashes to verify there.
func LoadTensors(c *tensor.Ctx, dir, base string, tensors []Named, opts ...LoadOption) error {
	return loadTensors(c, vfs.OS, dir, base, tensors, opts)
}

// ReadTensors makes a tensor of each in base.safetensors, or the files of its index,
// sorted by name.
func (ck *Checkpoint) ReadTensors(c *tensor.Ctx, base string) (tensors []Named, err error) {
	set, err := ck.OpenTensors(base)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	for _, name := range set.Names() {
		r, e, _ := set.Lookup(name)
		if e.DType.Size() == 0 {
			return nil, fmt.Errorf("%s: tensor %q has elements of type %s, which are not supported", ck.Path, name, e.Raw)
		}
		data, err := r.ReadTensor(name)
		if err != nil {
			return nil, err
		}
		var t *tensor.Tensor
		if err := tensor.Try(func() { t = tensor.FromBytes(c, data, e.DType, e.Shape...) }); err != nil {
			return nil, fmt.Errorf("%s: tensor %q: %w", ck.Path, name, err)
		}
		tensors = append(tensors, Named{name, t})
	}
	return tensors, nil
}

func loadTensors(c *tensor.Ctx, fsys vfs.FS, dir, base string, tensors []Named, opts []LoadOption) (err error) {
	var o loadOptions
	for _, opt := range opts {
		opt(&o)
	}
	set, err := safetensors.OpenSet(fsys, dir, base)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	if err := o.compare(set, dir, tensors); err != nil {
		return err
	}
	var bad []string
	for _, n := range tensors {
		r, e, _ := set.Lookup(n.Name)
		section, err := r.Section(n.Name)
		if err != nil {
			return err
		}
		census, err := tensor.WriteFrom(c.NoGrad(), n.Tensor, e.DType, section)
		if err != nil {
			return fmt.Errorf("%s: tensor %q: %w", dir, n.Name, err)
		}
		if census.Overflowed > 0 {
			bad = append(bad, fmt.Sprintf("%s: %d of %d elements are too large for %v", n.Name, census.Overflowed, n.Tensor.Numel(), n.Tensor.DType()))
		} else if fault := o.fault(n.Name, census); fault != "" {
			bad = append(bad, fault)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("tensors in %s cannot be used: %s", dir, strings.Join(bad[:min(len(bad), 20)], "; "))
	}
	return nil
}

func (o loadOptions) fault(name string, c tensor.Census) string {
	if o.judge == nil {
		return ""
	}
	return o.judge(name, c)
}

// MismatchError lists everything in which the tensors of a file differ from those asked
// for. Each list is sorted by name.
type MismatchError struct {
	Path       string   // the folder
	Missing    []string // asked for, not in the file
	Unexpected []string // in the file, not asked for
	Differing  []string // "name: file float32 [2 3], want float32 [3 2]"
}

// Error implements error.
func (e *MismatchError) Error() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "tensors in %s do not fit:", e.Path)
	for _, kind := range []struct {
		what string
		list []string
	}{{"missing", e.Missing}, {"unexpected", e.Unexpected}, {"differing", e.Differing}} {
		if n := len(kind.list); n > 0 {
			fmt.Fprintf(&b, "\n  %d %s: %s", n, kind.what, strings.Join(kind.list[:min(n, 20)], "; "))
			if n > 20 {
				fmt.Fprintf(&b, "; and %d more", n-20)
			}
		}
	}
	return b.String()
}

// compare returns a MismatchError unless the set holds what is asked for.
func (o loadOptions) compare(set *safetensors.Set, dir string, tensors []Named) error {
	bad := &MismatchError{Path: dir}
	wanted := make(map[string]bool, len(tensors))
	for _, n := range tensors {
		if wanted[n.Name] {
			return fmt.Errorf("tensor %q is requested twice", n.Name)
		}
		wanted[n.Name] = true
		_, e, ok := set.Lookup(n.Name)
		switch {
		case !ok:
			bad.Missing = append(bad.Missing, n.Name)
		case !slices.Equal(e.Shape, n.Tensor.Shape()) || !o.fits(e, n.Tensor):
			bad.Differing = append(bad.Differing,
				fmt.Sprintf("%s: file %s %v, want %v %v", n.Name, nameOf(e), e.Shape, n.Tensor.DType(), n.Tensor.Shape()))
		}
	}
	for _, name := range set.Names() {
		if !wanted[name] && (o.ignore == nil || !o.ignore(name)) {
			bad.Unexpected = append(bad.Unexpected, name)
		}
	}
	if len(bad.Missing)+len(bad.Unexpected)+len(bad.Differing) == 0 {
		return nil
	}
	slices.Sort(bad.Missing)
	slices.Sort(bad.Differing)
	return bad
}

// fits reports whether the dtype of the file can be loaded into t.
func (o loadOptions) fits(e safetensors.Entry, t *tensor.Tensor) bool {
	return e.DType == t.DType() || o.cast && e.DType.IsFloat() && t.DType().IsFloat()
}

// nameOf is the dtype as the engine calls it, or as the file does if it has none.
func nameOf(e safetensors.Entry) string {
	if e.DType.Size() == 0 {
		return e.Raw
	}
	return e.DType.String()
}
