// SPDX-License-Identifier: Apache-2.0

package modelfiles

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/gguf"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
)

// weights are the tensors of a file as transformers' arrays.
func weights(f *gguf.File) (*safetensors.Set, error) {
	name, a, err := architectureOf(f)
	if err != nil {
		return nil, err
	}
	m := &metadata{file: f, arch: name, used: map[string]bool{}}
	heads := m.number("attention.head_count")
	keyHeads := m.numberOr("attention.head_count_kv", heads)
	if len(m.bad) > 0 {
		return nil, errors.New(strings.Join(m.bad, "; "))
	}
	var arrays []safetensors.Source
	var unknown []string
	for _, t := range f.Tensors {
		if t.Name == ropeFreqs || t.Name == ropeLong || t.Name == ropeShort {
			continue // config has read them
		}
		to, ok := a.rename(t.Name)
		if !ok {
			unknown = append(unknown, t.Name)
			continue
		}
		s := safetensors.Source{Name: to, DType: t.Type.DType(), Shape: t.Shape, In: f.Name()}
		if s.Elements, err = f.Elements(t); err != nil {
			return nil, err
		}
		switch {
		case a.inOut && strings.HasPrefix(t.Name, "blk.") && len(t.Shape) == 2:
			transpose(&s)
		case a.permuted && strings.Contains(t.Name, ".attn_q."):
			err = unpermute(&s, heads)
		case a.permuted && strings.Contains(t.Name, ".attn_k."):
			err = unpermute(&s, keyHeads)
		case a.offset != 0 && strings.HasSuffix(t.Name, "_norm.weight"):
			err = lowerBy(&s, a.offset)
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		arrays = append(arrays, s)
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("unknown tensors: %s: the architecture %s has none of this name, and it may change "+
			"what is computed", some(unknown), name)
	}
	return safetensors.NewSet(arrays, f)
}

// some is the first names, and how many there are more.
func some(names []string) string {
	const most = 8
	if n := len(names) - most; n > 0 {
		names = append(names[:most:most], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(names, ", ")
}

// rename is transformers' name of a tensor.
func (a *architecture) rename(name string) (string, bool) {
	stem, kind, _ := cutLast(name)
	if kind != "weight" && kind != "bias" {
		return "", false
	}
	if to, ok := a.topNames()[stem]; ok {
		return to + "." + kind, true
	}
	layer, ok := strings.CutPrefix(stem, "blk.")
	if !ok {
		return "", false
	}
	layer, part, _ := strings.Cut(layer, ".")
	to, ok := a.blocks[part]
	if !ok && a.top == nil {
		to, ok = blockNames[part]
	}
	return cmp.Or(a.layers, layers) + layer + "." + to + "." + kind, ok
}

// topNames are transformers' names of what is outside of the blocks.
func (a *architecture) topNames() map[string]string {
	if a.top != nil {
		return a.top
	}
	return topNames
}

// TensorName is the name that a file of an architecture has for an array of transformers; false if it has none.
func TensorName(arch, array string) (string, bool) {
	a, ok := architectures[arch]
	stem, kind, _ := cutLast(array)
	if !ok || kind != "weight" && kind != "bias" {
		return "", false
	}
	for name, to := range a.topNames() {
		if to == stem {
			return name + "." + kind, true
		}
	}
	rest, ok := strings.CutPrefix(stem, cmp.Or(a.layers, layers))
	if !ok {
		return "", false
	}
	layer, part, _ := strings.Cut(rest, ".")
	name := a.blockName(part)
	return "blk." + layer + "." + name + "." + kind, name != ""
}

// blockName is the name of a part of a block, "" if there is none.
func (a *architecture) blockName(part string) string {
	for name, to := range a.blocks {
		if to == part {
			return name
		}
	}
	for name, to := range blockNames {
		_, other := a.blocks[name]
		if ambiguous := name == "ffn_norm" && a.postNorm || name == "post_attention_norm" && !a.postNorm; to == part &&
			!other && !ambiguous && a.top == nil {
			return name
		}
	}
	return ""
}

// layers is what transformers' names of blocks begin with, as a rule.
const layers = "model.layers."

// cutLast cuts a name at its last dot.
func cutLast(name string) (before, after string, ok bool) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return name, "", false
	}
	return name[:i], name[i+1:], true
}

// unpermute puts the rows of queries or keys in transformers' order. There, RoPE turns the elements i and i+D/2 of a
// head of D; in the file it turns 2i and 2i+1.
func unpermute(s *safetensors.Source, heads int) error {
	rows := s.Shape[0]
	if heads < 1 || rows%(2*heads) != 0 {
		return fmt.Errorf("%d rows: want those of %d heads of even width", rows, heads)
	}
	width := int64(s.DType.Size())
	for _, n := range s.Shape[1:] {
		width *= int64(n)
	}
	half := int64(rows / heads / 2)
	s.Elements = &reordered{src: s.Elements, width: width, rows: int64(rows), from: func(row int64) int64 {
		head, in := row/(2*half), row%(2*half)
		return head*2*half + in%half*2 + in/half
	}}
	return nil
}

// transpose turns a matrix around, which is read as a whole for it.
func transpose(s *safetensors.Source) {
	rows, columns, width := s.Shape[0], s.Shape[1], s.DType.Size()
	s.Shape = []int{columns, rows}
	src := s.Elements
	s.Elements = &turned{size: int64(rows * columns * width), read: sync.OnceValues(func() ([]byte, error) {
		raw := make([]byte, rows*columns*width)
		if _, err := io.ReadFull(io.NewSectionReader(src, 0, int64(len(raw))), raw); err != nil {
			return nil, err
		}
		return Transposed(raw, rows, columns, width), nil
	})}
}

// Transposed are the elements, of width bytes, of a matrix [rows, columns] as those of one [columns, rows].
func Transposed(raw []byte, rows, columns, width int) []byte {
	out := make([]byte, len(raw))
	for i := range rows {
		for j := range columns {
			copy(out[(j*rows+i)*width:][:width], raw[(i*columns+j)*width:])
		}
	}
	return out
}

// turned is a matrix that has been turned around.
type turned struct {
	size int64
	read func() ([]byte, error)
}

// ReadAt implements io.ReaderAt.
func (t *turned) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= t.size {
		return 0, io.EOF
	}
	raw, err := t.read()
	if err != nil {
		return 0, err
	}
	n := copy(p, raw[off:])
	if n < len(p) {
		err = io.EOF
	}
	return n, err
}

// reordered has the rows of another source in another order.
type reordered struct {
	src   io.ReaderAt
	width int64 // bytes of a row
	rows  int64
	from  func(row int64) int64
}

// ReadAt implements io.ReaderAt.
func (r *reordered) ReadAt(p []byte, off int64) (n int, err error) {
	total := r.rows * r.width
	if off < 0 || off >= total {
		return 0, io.EOF
	}
	if int64(len(p)) > total-off {
		p, err = p[:total-off], io.EOF
	}
	for n < len(p) {
		row, in := (off+int64(n))/r.width, (off+int64(n))%r.width
		k := int(min(int64(len(p)-n), r.width-in))
		if _, err := io.ReadFull(io.NewSectionReader(r.src, r.from(row)*r.width+in, int64(k)), p[n:n+k]); err != nil {
			return n, err
		}
		n += k
	}
	return n, err
}

// lowerBy takes from all elements what the file has added to them.
func lowerBy(s *safetensors.Source, by float32) error {
	if s.DType != dtype.Float32 {
		return fmt.Errorf("a norm of %v: want float32", s.DType)
	}
	s.Elements = &lowered{s.Elements, by}
	return nil
}

// lowered is float32 less a number.
type lowered struct {
	src io.ReaderAt
	by  float32
}

// ReadAt implements io.ReaderAt.
func (l *lowered) ReadAt(p []byte, off int64) (int, error) {
	skip := int(off % 4)
	raw := make([]byte, (skip+len(p)+3)/4*4)
	n, err := l.src.ReadAt(raw, off-int64(skip))
	for i := 0; i+4 <= n; i += 4 {
		x := math.Float32frombits(binary.LittleEndian.Uint32(raw[i:])) - l.by
		binary.LittleEndian.PutUint32(raw[i:], math.Float32bits(x))
	}
	n = min(max(n-skip, 0), len(p))
	if n == len(p) {
		err = nil
	}
	return copy(p, raw[skip:skip+n]), err
}
