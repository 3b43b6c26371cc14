// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// WeightFile is one file of a saved model's weights, a checkpoint.Part. Write is called once, in the order of the
// files.
type WeightFile = vfs.Part

// WeightFiles are the files of a model's weights as transformers saves them: model.safetensors alone or, if that has
// more than maxShardSize bytes of elements, model-00001-of-0000n.safetensors and so on, cut where huggingface_hub cuts,
// and model.safetensors.index.json last. 0 means no limit. The weights are all parameters, tied ones once, and buffers;
// each is read when its turn comes, in the same order on all ranks: from the device, or by read if it is not nil, which
// returns the elements of a parameter or buffer, little-endian; nil where another process writes the files. It is for
// package trainer, whose SaveModel calls it.
func WeightFiles(m nn.Module, maxShardSize int64,
	read func(p tensor.Named) ([]byte, error)) ([]WeightFile, error) {
	l, err := layoutOf(m)
	if err != nil {
		return nil, err
	}
	return l.files(maxShardSize, pieces(m, read))
}

// pieces finds the parameters and buffers of a model by name; read is that of WeightFiles.
func pieces(m nn.Module, read func(p tensor.Named) ([]byte, error)) func(name string) (piece, bool) {
	named := byName(nn.Walk(m))
	synced := map[*tensor.Device]bool{} // whoever wrote the weights
	return func(name string) (piece, bool) {
		p, ok := named[name]
		if !ok {
			return piece{}, false
		}
		if read != nil {
			return gathered(p.DType(), p.Shape(), func() ([]byte, error) { return read(p) }), true
		}
		return piece{dtype: p.DType(), shape: p.Shape(), device: p.Device(),
			read: func(*tensor.Ctx) (*tensor.Tensor, error) {
				if dev := p.Device(); !synced[dev] {
					dev.Sync()
					synced[dev] = true
				}
				return p.Tensor, nil
			}}, true
	}
}

// gathered is a piece whose elements are read into host memory. A process that writes none of them gets no tensor.
func gathered(dt tensor.DType, shape []int, read func() ([]byte, error)) piece {
	return piece{dtype: dt, shape: shape, device: tensor.CPU(), bytes: read,
		read: func(c *tensor.Ctx) (*tensor.Tensor, error) {
			data, err := read()
			if err != nil || data == nil {
				return nil, err
			}
			return tensor.FromBytes(c, data, dt, shape...), nil
		}}
}

// WeightsLayoutFile is the part of a sharded checkpoint with the WeightsLayout of its model.
const WeightsLayoutFile = "weights_layout.json"

// WeightsLayout says which arrays a model is saved as, and of which parameters and buffers they are made. It is all
// that is needed to make a saved model of the parameters in a sharded checkpoint, without the model.
type WeightsLayout struct {
	FormatVersion   int          `json:"format_version"`
	TotalParameters int64        `json:"total_parameters"`
	Arrays          []SavedArray `json:"arrays"` // in the order in which transformers has them
}

// SavedArray is an array of a saved model. See WeightRule for its fields.
type SavedArray struct {
	Name      string   `json:"name"`
	Params    []string `json:"params"`
	Dim       int      `json:"dim,omitempty"`
	Transpose bool     `json:"transpose,omitempty"`
}

// layoutVersion is the version of WeightsLayoutFile.
const layoutVersion = 1

// WeightsLayoutJSON is the contents of WeightsLayoutFile for a model. It is for package trainer.
func WeightsLayoutJSON(m nn.Module) ([]byte, error) {
	l, err := layoutOf(m)
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(l, "", " ")
	return append(text, '\n'), err
}

// layoutOf is the layout of a model, of whose tensors it needs the shapes alone.
func layoutOf(m nn.Module) (WeightsLayout, error) {
	tree, list := nn.Walk(m), rules(m)
	named := byName(tree)
	l := WeightsLayout{FormatVersion: layoutVersion}
	for _, p := range tree.Parameters() {
		l.TotalParameters += int64(p.Numel())
	}
	for _, p := range inModules(tree) {
		a := arrayFor(list, p.Name)
		if _, err := a.tensors(named); err != nil {
			return WeightsLayout{}, err
		}
		if a.Params[0] == p.Name { // it is written with the first
			l.Arrays = append(l.Arrays, a)
		}
	}
	return l, nil
}

// inModules lists parameters and buffers in the order of PyTorch's state_dict: module by module.
func inModules(tree *nn.Tree) (list []tensor.Named) {
	order := map[string]int{}
	tree.Modules(func(path string, _ nn.Module) { order[path] = len(order) })
	list = tree.State()
	parent := func(p tensor.Named) int { return order[p.Name[:max(0, strings.LastIndexByte(p.Name, '.'))]] }
	slices.SortStableFunc(list, func(a, b tensor.Named) int { return parent(a) - parent(b) })
	return list
}

// ParseWeightsLayout reads a WeightsLayoutFile.
func ParseWeightsLayout(text []byte) (WeightsLayout, error) {
	var l WeightsLayout
	if err := jsonfile.Unmarshal(text, &l); err != nil {
		return l, fmt.Errorf("models: %s: %w", WeightsLayoutFile, err)
	}
	if l.FormatVersion != layoutVersion {
		return l, fmt.Errorf("models: %s: format version %d: this program reads version %d", WeightsLayoutFile,
			l.FormatVersion,
			layoutVersion)
	}
	return l, nil
}

// piece is a parameter or buffer of a layout.
type piece struct {
	dtype  tensor.DType
	shape  []int
	device *tensor.Device
	read   func(c *tensor.Ctx) (*tensor.Tensor, error)
	bytes  func() ([]byte, error) // what is read, without a tensor; nil: there is one
}

// MergeSet makes the files of a model's weights, as WeightFiles does, of the parameters of a set that several ranks
// wrote. One array at a time is in memory.
func MergeSet(set *safetensors.Set, l WeightsLayout, maxShardSize int64) ([]WeightFile, error) {
	used := map[string]bool{}
	for _, a := range l.Arrays {
		for _, p := range a.Params {
			used[p] = true
		}
	}
	for _, name := range set.Names() {
		if !used[name] {
			return nil, fmt.Errorf("models: %s does not describe what %s becomes", WeightsLayoutFile, name)
		}
	}
	return l.files(maxShardSize, func(name string) (piece, bool) {
		a, ok := set.Lookup(name)
		if !ok {
			return piece{}, false
		}
		return gathered(a.DType, a.Shape, a.Read), true
	})
}

// files are those of the layout's arrays.
func (l WeightsLayout) files(maxShardSize int64, find func(name string) (piece, bool)) ([]WeightFile, error) {
	var ts []safetensors.Tensor
	for _, s := range l.Arrays {
		t, err := s.tensor(find)
		if err != nil {
			return nil, err
		}
		ts = append(ts, t)
	}
	shards, index, err := safetensors.Split(WeightsBase, ts, maxShardSize,
		map[string]any{"total_parameters": l.TotalParameters})
	if err != nil {
		return nil, fmt.Errorf("models: %w", err)
	}
	var files []WeightFile
	for _, s := range shards {
		files = append(files, WeightFile{Name: s.File, Write: func(w io.Writer) error {
			return safetensors.Write(w, s.Tensors, safetensors.PyTorchMetadata())
		}})
	}
	if index != nil {
		files = append(files, WeightFile{Name: safetensors.IndexFile(WeightsBase), Write: func(w io.Writer) error {
			_, err := w.Write(index)
			return err
		}})
	}
	return files, nil
}

// Array is an array of a saved model's weights, which is read when it is needed.
type Array struct {
	Name  string
	DType tensor.DType
	Shape []int
	Read  func() ([]byte, error) // its elements, little-endian
}

// ReadArrays are the arrays of the layout of a model, in which the model may have adapters that the layout does not.
// read gives the elements of a parameter or buffer in a scope of c.
func (l WeightsLayout) ReadArrays(m nn.Module,
	read func(c *tensor.Ctx, p tensor.Named) (*tensor.Tensor, error)) ([]Array, error) {
	named := byName(nn.Walk(m))
	var list []Array
	for _, s := range l.Arrays {
		a, err := s.array(func(name string) (piece, bool) {
			p, ok := named[name]
			if !ok {
				return piece{}, false
			}
			return piece{dtype: p.DType(), shape: p.Shape(), device: p.Device(),
				read: func(c *tensor.Ctx) (*tensor.Tensor, error) { return read(c, p) }}, true
		})
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

// tensor is the array to be written.
func (a SavedArray) tensor(find func(name string) (piece, bool)) (safetensors.Tensor, error) {
	array, err := a.array(find)
	return safetensors.Tensor{Name: array.Name, DType: array.DType, Shape: array.Shape,
		Write: func(w io.Writer) error {
			data, err := array.Read()
			if err != nil {
				return err
			}
			_, err = w.Write(data)
			return err
		}}, err
}

// array is the array made of its pieces.
func (a SavedArray) array(find func(name string) (piece, bool)) (Array, error) {
	var pieces []piece
	var shapes [][]int
	for i, name := range a.Params {
		p, ok := find(name)
		switch {
		case !ok:
			return Array{}, fmt.Errorf("models: %s is made of %s, which is missing", a.Name, name)
		case i > 0 && p.dtype != pieces[0].dtype:
			return Array{}, fmt.Errorf("models: %s is made of %s of %v and %s of %v", a.Name, a.Params[0],
				pieces[0].dtype, name, p.dtype)
		case i > 0 && (a.Dim < 0 || a.Dim >= len(p.shape) || len(p.shape) != len(shapes[0])):
			return Array{}, fmt.Errorf("models: %s%v and %s%v do not fit along dim %d of %s", a.Params[0],
				shapes[0], name, p.shape, a.Dim, a.Name)
		}
		pieces, shapes = append(pieces, p), append(shapes, p.shape)
	}
	if len(pieces) == 0 {
		return Array{}, fmt.Errorf("models: %s is made of no parameters", a.Name)
	}
	return Array{Name: a.Name, DType: pieces[0].dtype, Shape: a.shape(shapes...), Read: func() ([]byte, error) {
		return a.read(pieces)
	}}, nil
}

// read is the bytes of the array of pieces.
func (a SavedArray) read(pieces []piece) (data []byte, err error) {
	if whole := pieces[0].bytes; whole != nil && len(pieces) == 1 && !a.Transpose {
		return whole()
	}
	tried := tensor.Try(func() {
		tensor.NewCtx(pieces[0].device).NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			params := make([]*tensor.Tensor, len(pieces))
			elsewhere := false
			for i, p := range pieces {
				if params[i], err = p.read(c); err != nil {
					return nil
				}
				elsewhere = elsewhere || params[i] == nil
			}
			if !elsewhere {
				data = a.bytes(c, params)
			}
			return nil
		})
	})
	return data, errors.Join(err, tried)
}

// shapesOf are the shapes of tensors.
func shapesOf(list []tensor.Named) (shapes [][]int) {
	for _, p := range list {
		shapes = append(shapes, p.Shape())
	}
	return shapes
}

var shardName = regexp.MustCompile(`^` + WeightsBase + `-\d{5}-of-\d{5}\.safetensors$`)

// StaleWeights says which files of a model saved before must go when others take their place in the same folder: before
// they are written, so that shards of two models are never taken for one, and after. It is for package trainer.
func StaleWeights(existing, names []string) (before, after []string) {
	index := safetensors.IndexFile(WeightsBase)
	for _, name := range existing {
		switch {
		case name == index && !slices.Contains(names, WeightsFile):
			before = append(before, name)
		case !slices.Contains(names, name) && (name == WeightsFile || name == index || shardName.MatchString(name)):
			after = append(after, name)
		}
	}
	slices.Sort(after)
	// A reader looks for the whole file first, then for the index.
	slices.SortStableFunc(after, func(a, b string) int { return place(a) - place(b) })
	return before, after
}

func place(name string) int {
	if name == WeightsFile || name == safetensors.IndexFile(WeightsBase) {
		return 0
	}
	return 1
}

// PlainWeightsLayout is the layout under which the arrays of a set are saved as they are.
func PlainWeightsLayout(set *safetensors.Set) WeightsLayout {
	l := WeightsLayout{FormatVersion: layoutVersion}
	for _, name := range set.Names() {
		a, _ := set.Lookup(name)
		l.TotalParameters += int64(a.Numel())
		l.Arrays = append(l.Arrays, SavedArray{Name: name, Params: []string{name}})
	}
	return l
}
