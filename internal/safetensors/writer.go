// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Tensor is an array to be written. Its bytes are asked for when their turn comes, so
// that a set larger than the memory can be written.
type Tensor struct {
	Name  string
	DType dtype.DType
	Shape []int
	// Write writes the elements, little-endian and row-major; exactly Size bytes. To Elsewhere it may write fewer.
	Write func(w io.Writer) error
}

// FromBytes is the array whose elements are data.
func FromBytes(name string, dt dtype.DType, shape []int, data []byte) Tensor {
	return Tensor{Name: name, DType: dt, Shape: shape, Write: func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}}
}

// Size is the number of bytes of the array.
func (t Tensor) Size() (int64, error) {
	rank, ok := rankOf(t.DType)
	if !ok {
		return 0, fmt.Errorf("tensor %q: dtype %v cannot be written", t.Name, t.DType)
	}
	n, err := elements[rank].size(t.Shape)
	if err != nil {
		return 0, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	return n, nil
}

// Elsewhere is given to Write by a process that helps another one to make the arrays, and writes none itself: each
// Tensor.Write is called, in the order of the file.
var Elsewhere io.Writer = elsewhere{}

type elsewhere struct{}

func (elsewhere) Write(p []byte) (int, error) { return len(p), nil }

// PyTorchMetadata returns the metadata that transformers demands of files of weights.
func PyTorchMetadata() map[string]string { return map[string]string{"format": "pt"} }

// Write writes the arrays as one file. Their order in it is the format's (wide elements
// first, then by name), whatever the order given: the same arrays give the same bytes.
// Nothing is written if a name is repeated or a shape or dtype is wrong.
func Write(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	tensors = slices.Clone(tensors)
	if err := sortTensors(tensors); err != nil {
		return err
	}
	head, err := encodeHeader(tensors, metadata)
	if err != nil {
		return err
	}
	if w == Elsewhere {
		return writeAll(w, tensors)
	}
	buf := bufio.NewWriterSize(w, 64<<10)
	if _, err := buf.Write(head); err != nil {
		return err
	}
	if err := writeAll(buf, tensors); err != nil {
		return err
	}
	return buf.Flush()
}

func writeAll(w io.Writer, tensors []Tensor) error {
	for _, t := range tensors {
		if err := writeData(w, t); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	return nil
}

// sortTensors orders them as the format's own implementation does.
func sortTensors(tensors []Tensor) error {
	seen := make(map[string]bool, len(tensors))
	for _, t := range tensors {
		switch {
		case t.Name == metadataKey || !utf8.ValidString(t.Name):
			return fmt.Errorf("%q cannot be a tensor's name", t.Name)
		case seen[t.Name]:
			return fmt.Errorf("tensor %q is given twice", t.Name)
		}
		if _, err := t.Size(); err != nil {
			return err
		}
		seen[t.Name] = true
	}
	slices.SortFunc(tensors, func(a, b Tensor) int {
		rankA, _ := rankOf(a.DType)
		rankB, _ := rankOf(b.DType)
		if rankA != rankB {
			return rankB - rankA
		}
		return strings.Compare(a.Name, b.Name)
	})
	return nil
}

// encodeHeader returns the length and the JSON, padded with spaces to 8 bytes.
func encodeHeader(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	h := bytes.NewBuffer(make([]byte, 8, 8+128*len(tensors)))
	h.WriteByte('{')
	if len(metadata) > 0 {
		h.WriteString(quote(metadataKey) + ":{")
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			if i > 0 {
				h.WriteByte(',')
			}
			h.WriteString(quote(key) + ":" + quote(metadata[key]))
		}
		h.WriteByte('}')
	}
	var offset int64
	for i, t := range tensors {
		if i > 0 || len(metadata) > 0 {
			h.WriteByte(',')
		}
		rank, _ := rankOf(t.DType)
		size, err := t.Size()
		if err != nil {
			return nil, err
		}
		shape := strings.ReplaceAll(strings.Trim(fmt.Sprint(t.Shape), "[]"), " ", ",")
		fmt.Fprintf(h, `%s:{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}`,
			quote(t.Name), elements[rank].raw, shape, offset, offset+size)
		if offset += size; offset < 0 {
			return nil, fmt.Errorf("tensor %q: the file would have more bytes than an int64 counts", t.Name)
		}
	}
	h.WriteByte('}')
	for h.Len()%8 != 0 {
		h.WriteByte(' ')
	}
	n := h.Len() - 8
	if n > maxHeader {
		return nil, fmt.Errorf("header of %d bytes for %d tensors: want at most %d", n, len(tensors), maxHeader)
	}
	binary.LittleEndian.PutUint64(h.Bytes(), uint64(n))
	return h.Bytes(), nil
}

// quote encodes s as JSON without HTML escapes.
func quote(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string into a Builder cannot fail
	return strings.TrimSuffix(b.String(), "\n")
}

func writeData(w io.Writer, t Tensor) error {
	size, err := t.Size()
	if err != nil {
		return err
	}
	if w == Elsewhere {
		return t.Write(w)
	}
	exact := &exactWriter{w: w, left: size}
	if err := t.Write(exact); err != nil {
		return err
	}
	if exact.left > 0 {
		return fmt.Errorf("%d of %d bytes were not given", exact.left, size)
	}
	return nil
}

// exactWriter refuses more than left bytes.
type exactWriter struct {
	w    io.Writer
	left int64
}

func (e *exactWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > e.left {
		return 0, fmt.Errorf("more bytes are given than the shape has: %d of %d", len(p), e.left)
	}
	n, err := e.w.Write(p)
	e.left -= int64(n)
	return n, err
}
