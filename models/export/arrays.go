// SPDX-License-Identifier: Apache-2.0

package export

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/gguf"
	"github.com/lockstep-ml/lockstep/internal/modelfiles"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/tensor"
)

// arrays lists the tensors. One array at a time is read, in float32, when it is written.
func (b *builder) arrays(m language, layout models.WeightsLayout, adapter *lora.Adapter) error {
	heads, keyHeads := 0, 0
	b.inOut = b.arch == "gpt2"
	tied := false
	if t, ok := m.(*transformer.Model); ok {
		heads, keyHeads, tied = t.Cfg.NumAttentionHeads, t.Cfg.NumKeyValueHeads, t.Cfg.TieWordEmbeddings
		b.permuted = b.arch == "llama" || b.arch == "smollm3"
		if strings.HasPrefix(b.arch, "gemma") {
			b.offset = 1
		}
	}
	if g, ok := m.(*gpt2.Model); ok {
		tied = g.Cfg.TieWordEmbeddings
	}
	list, err := layout.ReadArrays(m, reader(adapter))
	if err != nil {
		return err
	}
	for _, a := range list {
		name, ok := modelfiles.TensorName(b.arch, a.Name)
		if b.want(ok, "%s: llama.cpp's %s has no such tensor", a.Name, b.arch); !ok {
			continue
		}
		shape, change := a.Shape, func(raw []byte) []byte { return raw }
		switch {
		case b.permuted && strings.Contains(name, ".attn_q."):
			change = func(raw []byte) []byte { return permuted(raw, a.Shape[0], heads) }
		case b.permuted && strings.Contains(name, ".attn_k."):
			change = func(raw []byte) []byte { return permuted(raw, a.Shape[0], keyHeads) }
		case b.inOut && strings.HasPrefix(name, "blk.") && len(shape) == 2:
			rows, columns := shape[0], shape[1]
			shape = []int{columns, rows}
			change = func(raw []byte) []byte { return modelfiles.Transposed(raw, rows, columns, 4) }
		case b.offset != 0 && strings.HasSuffix(name, "_norm.weight"):
			change = func(raw []byte) []byte { return raised(raw, b.offset) }
		}
		b.tensor(name, shape, a, change)
		if name == "token_embd.weight" && tied && b.arch == "olmo2" { // llama.cpp needs both
			b.tensor("output.weight", shape, a, change)
		}
	}
	return nil
}

// tensor adds a tensor that is made of an array.
func (b *builder) tensor(name string, shape []int, a models.Array, change func(raw []byte) []byte) {
	t := gguf.NewTensor{Name: name, Shape: shape, Type: gguf.F32, DType: a.DType}
	if len(shape) > 1 && strings.HasSuffix(name, ".weight") && name != "position_embd.weight" &&
		!strings.HasSuffix(name, "_norm.weight") {
		t.Type = written[b.model.DType].tensor
		b.matrices++
	}
	if row := shape[len(shape)-1]; !t.Type.Fits(row) { // as llama.cpp's converter does
		if b.unfit++; b.unfit == 1 {
			b.example = fmt.Sprintf("%s has %d", name, row)
		}
		t.Type = gguf.F16
	}
	t.Elements = &lazy{read: func() ([]byte, error) {
		raw, err := a.Read()
		if err != nil {
			return nil, err
		}
		return change(raw), nil
	}}
	b.model.tensors = append(b.model.tensors, t)
}

// reader reads parameters that are not in memory, and leaves none there; an adapter is added to them.
func reader(adapter *lora.Adapter) func(c *tensor.Ctx, p tensor.Named) (*tensor.Tensor, error) {
	return func(c *tensor.Ctx, p tensor.Named) (*tensor.Tensor, error) {
		w := p.Tensor
		if fill := w.Deferred(); fill != nil {
			w = fill(c)
		}
		if adapter == nil {
			return w, nil
		}
		if more := adapter.Update(c, p.Tensor); more != nil {
			w = tensor.Add(c, w, tensor.Cast(c, more, w.DType()))
		}
		return w, nil
	}
}

// lazy are elements that are read as a whole when the first are needed, and given up with the last.
type lazy struct {
	read func() ([]byte, error)
	data []byte
}

// ReadAt implements io.ReaderAt.
func (l *lazy) ReadAt(p []byte, off int64) (int, error) {
	if l.data == nil {
		data, err := l.read()
		if err != nil {
			return 0, err
		}
		l.data = data
	}
	if off < 0 || off > int64(len(l.data)) {
		return 0, fmt.Errorf("offset %d: want 0 to %d", off, len(l.data))
	}
	n := copy(p, l.data[off:])
	if off+int64(n) == int64(len(l.data)) {
		l.data = nil
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// permuted has the rows of queries or keys in the order of a RoPE that turns the elements 2i and 2i+1 of a head, where
// transformers' turns i and i+D/2.
func permuted(raw []byte, rows, heads int) []byte {
	out := make([]byte, len(raw))
	width, half := len(raw)/rows, rows/heads/2
	for to := range rows {
		head, in := to/(2*half), to%(2*half)
		from := head*2*half + in%2*half + in/2
		copy(out[to*width:], raw[from*width:(from+1)*width])
	}
	return out
}

// raised adds a number to float32.
func raised(raw []byte, by float32) []byte {
	le := binary.LittleEndian
	for i := 0; i < len(raw); i += 4 {
		le.PutUint32(raw[i:], math.Float32bits(math.Float32frombits(le.Uint32(raw[i:]))+by))
	}
	return raw
}
