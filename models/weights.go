// SPDX-License-Identifier: Apache-2.0

package models

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/internal/modelfiles"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Names of the files that a saved model consists of, HuggingFace's.
const (
	ConfigFile  = "config.json"
	WeightsBase = "model"
	WeightsFile = WeightsBase + ".safetensors"
)

// ConfigJSON is the text of a model's config.json: the model's configuration and, for a loaded model with KeptConfig,
// the other keys of its config.json. It is for package trainer/checkpointer, which writes it.
func ConfigJSON(m Configured) ([]byte, error) {
	text, err := json.MarshalIndent(m.Config(), "", "  ")
	if c, ok := m.(configKeeper); err == nil && ok && c.OriginalConfig() != "" {
		text, err = mergeConfig([]byte(c.OriginalConfig()), text)
	} else {
		text = append(text, '\n')
	}
	if err != nil {
		return nil, fmt.Errorf("models: config of %T: %w", m, err)
	}
	return text, nil
}

// LoadOption changes what LoadPretrained makes and demands.
type LoadOption func(*loadOptions)

type loadOptions struct {
	nonFinite []string
	dtype     tensor.DType           // of parameters; Invalid: as saved
	deferred  bool                   // parameters are read when they are used
	quantized bool                   // weights of linear layers and embeddings become blocks of 8-bit numbers
	mapped    bool                   // parameters lie in the files' memory, where they can
	look      func(Configured) error // sees the model before it takes memory; nil: nobody looks
}

// WithDType loads the parameters in another floating-point dtype than float32, regardless of the dtype they were saved
// in. Those of BFloat16 and Float16 train by the rule of optim.HalfUpdate, without a copy in float32.
func WithDType(dt tensor.DType) LoadOption {
	return func(o *loadOptions) { o.dtype = dt }
}

// WithSavedDType makes the parameters of the dtype that config.json names, or else of that of the first saved weight of
// a floating-point dtype. It is "auto" in transformers.
func WithSavedDType() LoadOption { return WithDType(tensor.Invalid) }

// Deferred makes parameters that have no memory until something uses them and are read then (nn.Init.Deferred): each
// rank of a sharded model reads one unit after the other and keeps its shards. Weights that are not finite are an error
// of the run, when they are read. The files must stay unchanged until then.
func Deferred() LoadOption { return func(o *loadOptions) { o.deferred = true } }

// Quantized quantizes the model, see [Quantize]. It goes with float32, and not with Deferred.
func Quantized() LoadOption { return func(o *loadOptions) { o.quantized = true } }

// Mapped leaves the parameters in the files: they are mapped into memory, and the system reads a page when something
// uses it. It is for models that compute and are not trained, or whose base is frozen; parameters that training writes
// become the process's own memory, page by page. Their values are not checked: NaN and infinities are no error.
//
// Parameters of another dtype than the file's, Quantized and transposed ones and those of GGUF files are read, and so
// is everything on devices with their own memory, where the files lie on a network file system, and on other systems
// than Linux.
//
// The files may be replaced by others, as all that saves here and in Python's Hub does (a new file gets the name of the
// old one). If one is cut short, what computes with it ends with an error; if one is written in place, the model
// changes.
func Mapped() LoadOption { return func(o *loadOptions) { o.mapped = true } }

// dtypeOf is the dtype that parameters get.
func (o *loadOptions) dtypeOf(config []byte, set *safetensors.Set) (tensor.DType, error) {
	if o.dtype.IsFloat() {
		return o.dtype, nil
	}
	if o.dtype != tensor.Invalid {
		return 0, fmt.Errorf("models: WithDType(%v): want float32, float64, bfloat16 or float16", o.dtype)
	}
	var named struct {
		DType      string `json:"dtype"`
		TorchDType string `json:"torch_dtype"`
	}
	if err := (jsonfile.Options{Nulls: true}).Unmarshal(config, &named); err != nil {
		return 0, fmt.Errorf("models: config.json: %w", err)
	}
	if name := cmp.Or(named.DType, named.TorchDType); name != "" {
		dt, err := dtype.Parse(strings.TrimPrefix(name, "torch."))
		if err != nil || !dt.IsFloat() {
			return 0, fmt.Errorf("models: config.json: dtype %.100q: want float32, float64, bfloat16 or float16", name)
		}
		return dt, nil
	}
	for _, name := range set.Names() {
		if e, ok := set.Lookup(name); ok && e.DType.IsFloat() {
			return e.DType, nil
		}
	}
	return tensor.Float32, nil
}

// AllowNonFinite loads weights with NaN or infinities, which are an error otherwise, of the named parameters and
// buffers; of all, if none is named. It is for looking at a model that training has ruined.
func AllowNonFinite(names ...string) LoadOption {
	return func(o *loadOptions) {
		if len(names) == 0 {
			names = []string{""}
		}
		o.nonFinite = append(o.nonFinite, names...)
	}
}

func optionsOf(opts []LoadOption) loadOptions {
	o := loadOptions{dtype: tensor.Float32}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// allows reports whether a parameter or buffer may have such values.
func (o *loadOptions) allows(name string) bool {
	return slices.ContainsFunc(o.nonFinite, func(n string) bool { return n == "" || n == name })
}

// ReadWeights fills the parameters and buffers of m from a saved set, converting floating-point dtypes. Every one must
// be there, in its shape, and nothing else: the error lists all that is missing, unexpected or of another shape, and
// then nothing was changed. NaN, infinities and numbers that the dtype of m cannot hold are an error that names the
// weights, after all have been read; only a buffer that has such values in m already, as masks have, may have them. It
// is for package trainer; programs use LoadPretrained.
func ReadWeights(set *safetensors.Set, m nn.Module, opts ...LoadOption) error {
	w, err := FitWeights(set, m)
	if err != nil {
		return err
	}
	w.options = optionsOf(opts)
	state := nn.Walk(m).State()
	bad := make([][]string, len(state))
	var readers errgroup.Group
	readers.SetLimit(min(runtime.GOMAXPROCS(0), maxReaders))
	for i, p := range state {
		readers.Go(func() (err error) {
			tried := tensor.Try(func() {
				c := tensor.NewCtx(p.Device()).NoGrad()
				err = w.check(c, p.Placed(), &bad[i])
				c.Sync() // before other contexts use it
			})
			return cmp.Or(err, tried)
		})
	}
	if err := readers.Wait(); err != nil {
		return err
	}
	return notFinite(slices.Concat(bad...))
}

// maxReaders is how many arrays ReadWeights reads at once, at most: more saturate the memory.
const maxReaders = 8

// fit finds the saved array of each parameter and buffer. The error lists all that does not fit.
func fit(set *safetensors.Set, m nn.Module, tree *nn.Tree) (saved map[string]SavedArray, err error) {
	saved, bad := savedArrays(set, m, tree)
	named := byName(tree)
	for _, p := range tree.State() {
		a, ok := saved[p.Name]
		if !ok {
			bad = append(bad, fmt.Sprintf("%s is missing", p.Name))
			continue
		}
		params, err := a.tensors(named)
		if err != nil {
			return nil, err
		}
		e, _ := set.Lookup(a.Name)
		want := a.shape(shapesOf(params)...)
		fits := slices.Equal(e.Shape, want) && (e.DType == p.DType() || e.DType.IsFloat() && p.DType().IsFloat())
		if !fits && a.Params[0] == p.Name {
			bad = append(bad, fmt.Sprintf("%s is %s%v: want %v%v", a.Name, e.TypeName(), e.Shape, p.DType(), want))
		}
	}
	if len(bad) > 0 {
		return nil, fmt.Errorf("models: the saved weights do not fit %T: %s", m, some(bad))
	}
	return saved, nil
}

// some is the first faults, and how many there are more.
func some(bad []string) string {
	const most = 12
	if n := len(bad) - most; n > 0 {
		bad = append(bad[:most:most], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(bad, "; ")
}

// savedArrays finds the saved array of each parameter and buffer, and lists saved arrays that are not expected. Of a
// parameter that several modules share, any of its names will do: transformers saves the first, safetensors.torch's
// save_model another one.
func savedArrays(set *safetensors.Set, m nn.Module, tree *nn.Tree) (saved map[string]SavedArray, bad []string) {
	saved = map[string]SavedArray{}
	others := map[string]SavedArray{} // arrays of shared parameters, under another of their names
	named, list := byName(tree), rules(m)
	if set.Scattered() {
		list = nil // they were not renamed
	}
	for _, name := range set.Names() {
		a := arrayOf(list, name)
		for i, to := range a.Params {
			first, tied := tree.Aliases()[to]
			_, known := named[to]
			switch {
			case tied:
				a.Params[i] = first
				others[first] = a
			case !known:
				bad = append(bad, fmt.Sprintf("%s is not expected", name))
			case saved[to].Name != "":
				bad = append(bad, fmt.Sprintf("%s and %s are both %s", saved[to].Name, name, to))
			default:
				saved[to] = a
			}
		}
	}
	for first, a := range others {
		if saved[first].Name == "" {
			saved[first] = a
		}
	}
	return saved, bad
}

// maxConfig is the largest config.json, in bytes.
const maxConfig = 1 << 20

// ReadConfig reads the config.json of a saved model's folder, or the file itself: a regular file of at most a MiB; or
// makes it of a GGUF file. If there is none, the path may be the name of a published model (see [Configs]).
func ReadConfig(path string) ([]byte, error) {
	file := path
	if info, err := os.Stat(path); err == nil && (info.IsDir() || modelfiles.IsGGUF(path)) {
		file = filepath.Join(path, ConfigFile)
	}
	text, err := modelfiles.ReadFile(file, maxConfig)
	if err == nil {
		return text, nil
	}
	registry.Lock()
	config, known := registry.configs[path]
	registry.Unlock()
	if known && errors.Is(err, fs.ErrNotExist) {
		return []byte(config), nil
	}
	return nil, fmt.Errorf("models: %w: want a folder, a %s, or one of %s", err, ConfigFile,
		strings.Join(Configs(), ", "))
}

// LoadPretrained makes the model that a folder holds, ours or one that transformers saved: config.json, and
// model.safetensors or its shards with their index. dir may also be a GGUF file of llama.cpp, or a folder with one and
// without safetensors: then the configuration is made of its metadata, and quantized weights are dequantized as they
// are read. Memory for the model is taken once its parameters have been compared with those of the weights. Weights
// with NaN or infinities are an error that names them: see AllowNonFinite.
func LoadPretrained(dev *tensor.Device, dir string, opts ...LoadOption) (Configured, error) {
	config, err := modelfiles.ReadFile(filepath.Join(dir, ConfigFile), maxConfig)
	if err != nil {
		return nil, notSaved(dir, err)
	}
	in := nn.NewInit(dev, 0)
	set, err := modelfiles.OpenSet(dir, WeightsBase)
	if err != nil {
		_, fault := fromConfig(in.Dry(1), config)
		if _, tooMany := errors.AsType[*tensor.Error](fault); fault != nil && !tooMany {
			return nil, fmt.Errorf("%s: %w", dir, fault) // the configuration comes first
		}
		return nil, noWeights(dir, config, err)
	}
	o := optionsOf(opts)
	o.mapped = o.mapped && !o.quantized // they become other numbers
	if !o.deferred {
		defer set.Close()
	}
	dt, err := o.dtypeOf(config, set)
	if err == nil && o.quantized && (o.deferred || dt != tensor.Float32) {
		err = fmt.Errorf("models: Quantized with parameters of %v, deferred %v: want float32, and without Deferred", dt,
			o.deferred)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), closed(set, o))
	}
	in = in.As(dt)
	// A model may have more parameters than there are weights: the comparison tells which.
	dry, err := fromConfig(in.Dry(2*len(set.Names())+100), config)
	if err == nil && o.look != nil {
		if err := o.look(dry); err != nil {
			return nil, errors.Join(err, closed(set, o))
		}
	}
	if err == nil {
		_, err = fit(set, dry, nn.Walk(dry))
	}
	var m Configured
	in = in.Unfilled()
	if err == nil && (o.deferred || o.mapped) {
		in = in.Deferred()
	}
	if err == nil {
		m, err = fromConfig(in, config)
	}
	switch {
	case err != nil:
	case o.deferred:
		err = readLater(set, m, o)
	case o.mapped:
		err = mapNow(set, m, o)
	default:
		err = ReadWeights(set, m, opts...)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), closed(set, o))
	}
	if o.quantized {
		Quantize(m)
	}
	if c, ok := m.(configKeeper); ok {
		c.KeepConfig(string(config))
	}
	return m, nil
}
