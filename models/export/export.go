// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/internal/gguf"
	"github.com/lockstep-ml/lockstep/internal/modelfiles"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/tensor"
)

// DType is how matrices are written. Norms, biases and the table of GPT-2's positions are float32 in any case.
type DType string

// The values of DType.
const (
	Auto DType = "auto" // as most of the weights are saved; float32 if those are quantized
	F32  DType = "f32"
	F16  DType = "f16"
	BF16 DType = "bf16"
	Q8_0 DType = "q8_0" // 8 bits and, for each 32 numbers of a row, a scale in float16
)

// DTypes are the values of DType.
func DTypes() []DType { return []DType{Auto, F32, F16, BF16, Q8_0} }

// written is what a DType is in a file: the type, and the number for general.file_type.
var written = map[DType]struct {
	tensor gguf.Type
	file   int
}{F32: {gguf.F32, 0}, F16: {gguf.F16, 1}, Q8_0: {gguf.Q8_0, 7}, BF16: {gguf.BF16, 32}}

// Options are what can be asked for beside the model.
type Options struct {
	DType   DType  // "": Auto
	Adapter string // the folder of an adapter that is merged into the weights; "": none
	Name    string // general.name; "": the folder's
}

// Model is a saved model of which a file can be written. No weights are in memory.
type Model struct {
	Dir   string // as it was opened
	DType DType  // that of matrices, not Auto
	// Notes say what llama.cpp does differently, or what was written differently than asked for. There may be none.
	Notes []string

	tokenizer *tokenizers.Tokenizer
	chat      *chatTemplate
	ends      []int // tokens that end an answer
	context   int   // tokens that the model reads at most
	metadata  []gguf.Pair
	tensors   []gguf.NewTensor
}

// language is a model that can be exported, if it is of a known type.
type language interface {
	models.Configured
	models.TokenReader
	EndTokens() []int
	ContextLength() int
}

// Open opens a saved model, a folder or a GGUF file, and finds out what a file of it would have. It returns an error
// that lists all that cannot be written.
func Open(dir string, o Options) (*Model, error) {
	m, err := open(dir, o)
	if err != nil && !strings.HasPrefix(err.Error(), "models: ") && !strings.HasPrefix(err.Error(), "lora: ") {
		err = fmt.Errorf("export: %s: %w", dir, err)
	}
	return m, err
}

func open(dir string, o Options) (*Model, error) {
	if o.DType == "" {
		o.DType = Auto
	}
	if _, ok := written[o.DType]; !ok && o.DType != Auto {
		return nil, fmt.Errorf("dtype %.100q: want one of %v", o.DType, DTypes())
	}
	p, err := models.OpenPretrained[language](tensor.CPU(), dir, "a language model, such as LlamaForCausalLM",
		models.Deferred())
	if err != nil {
		return nil, err
	}
	m := &Model{Dir: dir, DType: o.DType, tokenizer: p.Tokenizer, context: p.Model.ContextLength()}
	if o.DType == Auto {
		if m.DType, err = savedDType(dir); err != nil {
			return nil, err
		}
	}
	layout, err := models.Layout(p.Model) // without adapters
	if err != nil {
		return nil, err
	}
	var adapter *lora.Adapter
	if o.Adapter != "" {
		if adapter, err = lora.LoadOnto(p.Model, dir, o.Adapter, ""); err != nil {
			return nil, err
		}
	}
	if o.Name == "" {
		o.Name = nameOf(dir)
	}
	b := &builder{model: m, vocabulary: p.Model.VocabSize(), unknown: -1}
	if err := b.build(p.Model, layout, adapter, o.Name); err != nil {
		return nil, err
	}
	return m, nil
}

// nameOf is the name of a model by its path.
func nameOf(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return strings.TrimSuffix(filepath.Base(dir), filepath.Ext(".gguf"))
}

// FileName is a name for a file of the model.
func (m *Model) FileName() string { return nameOf(m.Dir) + "-" + string(m.DType) + ".gguf" }

// Tensors is the number of tensors in the file.
func (m *Model) Tensors() int { return len(m.tensors) }

// savedDType is the dtype of most of the weights of a saved model.
func savedDType(dir string) (d DType, err error) {
	set, err := modelfiles.OpenSet(dir, models.WeightsBase)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	counts := map[tensor.DType]int{}
	for _, name := range set.Names() {
		a, _ := set.Lookup(name)
		counts[a.DType] += a.Numel()
	}
	switch {
	case counts[tensor.BFloat16] > counts[tensor.Float32]+counts[tensor.Float16]:
		return BF16, nil
	case counts[tensor.Float16] > counts[tensor.Float32]+counts[tensor.BFloat16]:
		return F16, nil
	}
	return F32, nil
}

// builder finds what a file has of a model.
type builder struct {
	model      *Model
	arch       string // general.architecture
	vocabulary int    // tokens of the model
	permuted   bool   // rows of queries and keys lie in the order of a RoPE that turns neighbours
	offset     float32
	inOut      bool // matrices are [in, out] in transformers
	unknown    int  // the token of what has no other; -1: none
	faults     []string

	matrices, unfit int    // all, and those whose rows are no whole blocks
	example         string // the first of these
}

// set adds a key to the metadata.
func (b *builder) set(key string, v gguf.Value) {
	b.model.metadata = append(b.model.metadata, gguf.Pair{Key: key, Value: v})
}

// own adds a key of the architecture.
func (b *builder) own(key string, v gguf.Value) { b.set(b.arch+"."+key, v) }

// want notes a fault unless ok.
func (b *builder) want(ok bool, format string, args ...any) {
	if !ok {
		b.faults = append(b.faults, fmt.Sprintf(format, args...))
	}
}

// note adds to what the user should know.
func (b *builder) note(format string, args ...any) {
	b.model.Notes = append(b.model.Notes, fmt.Sprintf(format, args...))
}

func (b *builder) build(m language, layout models.WeightsLayout, adapter *lora.Adapter, name string) error {
	b.arch = architectureOf(m)
	if b.arch == "" {
		return fmt.Errorf("it is a %s, for which no architecture of llama.cpp is known: want a language model of "+
			"GPT-2, Llama, Mistral, Qwen 2 or 3, SmolLM3, Gemma 2 or 3, Phi-3 or OLMo 2", models.Architecture(m))
	}
	b.set("general.architecture", gguf.Text(b.arch))
	b.set("general.type", gguf.Text("model"))
	b.set("general.name", gguf.Text(b.safeName(name)))
	if err := b.arrays(m, layout, adapter); err != nil {
		return err
	}
	if b.unfit > 0 {
		b.note("%d of %d matrices are f16 and not %s: their rows are no multiple of 32 elements, its blocks (%s)",
			b.unfit, b.matrices, b.model.DType, b.example)
	}
	total := 0
	for _, t := range b.model.tensors {
		n := 1
		for _, d := range t.Shape {
			n *= d
		}
		total += n
	}
	b.set("general.size_label", gguf.Text(sizeLabel(total)))
	switch m := m.(type) {
	case *transformer.Model:
		b.decoder(&m.Cfg)
	case *gpt2.Model:
		b.gpt2(&m.Cfg)
	}
	b.set("general.file_type", gguf.Uint32(written[b.model.DType].file))
	b.set("general.quantization_version", gguf.Uint32(2))
	if err := b.tokens(); err != nil {
		b.faults = append(b.faults, err.Error())
	} else if err := b.special(m); err != nil {
		b.faults = append(b.faults, err.Error())
	}
	if len(b.faults) > 0 {
		return errors.New("it cannot be written for llama.cpp: " + strings.Join(b.faults, "; "))
	}
	return nil
}

// sizeLabel is a number of parameters in at least two digits, as 1.7B, 135M or 12K.
func sizeLabel(n int) string {
	unit, x := "K", float64(n)/1e3
	for _, u := range []struct {
		name string
		size float64
	}{{"T", 1e12}, {"B", 1e9}, {"M", 1e6}} {
		if float64(n) > u.size {
			unit, x = u.name, float64(n)/u.size
			break
		}
	}
	whole := strings.TrimLeft(fmt.Sprintf("%.0f", x), "0")
	return fmt.Sprintf("%.*f%s", max(2-len(whole), 0), x, unit)
}
