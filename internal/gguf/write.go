// SPDX-License-Identifier: Apache-2.0

package gguf

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// writtenVersion is the version of the format that Write writes.
const writtenVersion = 3

// Pair is a key of the metadata and its value.
type Pair struct {
	Key   string
	Value Value
}

// NewTensor is a tensor to be written.
type NewTensor struct {
	Name  string
	Shape []int // the outermost dim first, as PyTorch has it
	Type  Type  // as it is written: F32, F16, BF16 or Q8_0
	// DType and Elements are what it is written from: floating-point numbers, row-major and little-endian.
	DType    dtype.DType
	Elements io.ReaderAt
}

// numel is the number of elements.
func (t *NewTensor) numel() int64 {
	n := int64(1)
	for _, s := range t.Shape {
		n *= int64(s)
	}
	return n
}

// row is the number of elements of the innermost dim.
func (t *NewTensor) row() int { return t.Shape[len(t.Shape)-1] }

// bytes is the size in the file.
func (t *NewTensor) bytes() int64 {
	l := layouts[t.Type]
	return t.numel() / int64(l.block) * int64(l.size)
}

// Fits reports whether rows of n elements can be of a type: they have whole blocks.
func (t Type) Fits(n int) bool {
	l, ok := layouts[t]
	return ok && n%l.block == 0
}

// Write writes a file: the metadata and the tensors in their order. The elements are read, converted and written part
// by part, so that memory does not grow with the tensors. progress, if it is not nil, is called with the elements that
// are written of all that there are. Elements that are not finite, or that the type cannot hold, are an error that
// names the tensor. A canceled ctx ends it.
func Write(ctx context.Context, w io.Writer, metadata []Pair, tensors []NewTensor,
	progress func(done, total int64)) error {
	head, err := encodeHeader(metadata, tensors)
	if err != nil {
		return err
	}
	out := &writer{Writer: bufio.NewWriterSize(w, 1<<20), progress: progress}
	for i := range tensors {
		out.total += tensors[i].numel()
	}
	if _, err := out.Write(head); err != nil {
		return err
	}
	for i := range tensors {
		if err := out.tensor(ctx, &tensors[i]); err != nil {
			return fmt.Errorf("tensor %.100q: %w", tensors[i].Name, err)
		}
	}
	return out.Flush()
}

// encodeHeader is what lies before the elements, padded.
func encodeHeader(metadata []Pair, tensors []NewTensor) ([]byte, error) {
	if len(metadata) > maxKeys || len(tensors) > maxTensors {
		return nil, fmt.Errorf("%d tensors and %d keys: want at most %d and %d", len(tensors), len(metadata),
			maxTensors, maxKeys)
	}
	le := binary.LittleEndian
	b := le.AppendUint32([]byte(magic), writtenVersion)
	b = le.AppendUint64(le.AppendUint64(b, uint64(len(tensors))), uint64(len(metadata)))
	for i, p := range metadata {
		again := func(q Pair) bool { return q.Key == p.Key }
		if slices.ContainsFunc(metadata[:i], again) || p.Key == "" || len(p.Key) > maxName {
			return nil, fmt.Errorf("key %.100q: want each once, of 1 to %d bytes", p.Key, maxName)
		}
		b = p.Value.append(appendText(b, p.Key))
	}
	at, seen := int64(0), map[string]bool{}
	for i := range tensors {
		t := &tensors[i]
		if err := t.check(); err != nil {
			return nil, fmt.Errorf("tensor %.100q: %w", t.Name, err)
		}
		if seen[t.Name] {
			return nil, fmt.Errorf("tensor %.100q is there twice", t.Name)
		}
		seen[t.Name] = true
		b = le.AppendUint32(appendText(b, t.Name), uint32(len(t.Shape)))
		for _, n := range slices.Backward(t.Shape) {
			b = le.AppendUint64(b, uint64(n))
		}
		b = le.AppendUint64(le.AppendUint32(b, uint32(t.Type)), uint64(at))
		at += padded(t.bytes())
	}
	if len(b) > maxHeader {
		return nil, fmt.Errorf("the metadata have %d bytes: want at most %d", len(b), maxHeader)
	}
	return append(b, make([]byte, padded(int64(len(b)))-int64(len(b)))...), nil
}

// check refuses what the reader would refuse.
func (t *NewTensor) check() error {
	elements := 1.0
	for _, n := range t.Shape {
		if n < 1 {
			return fmt.Errorf("shape %v: want dims of at least 1", t.Shape)
		}
		elements *= float64(n)
	}
	switch {
	case t.Name == "" || len(t.Name) > maxName:
		return fmt.Errorf("its name has %d bytes: want 1 to %d", len(t.Name), maxName)
	case len(t.Shape) < 1 || len(t.Shape) > maxDims || elements > 1<<60:
		return fmt.Errorf("shape %v: want 1 to %d dims, and fewer than 2^60 elements", t.Shape, maxDims)
	case encoders[t.Type] == nil:
		return fmt.Errorf("type %s is not written: want %s", t.Type, Writable)
	case !t.Type.Fits(t.row()):
		return fmt.Errorf("rows of %d elements: want a multiple of the %d of a block of %s", t.row(),
			layouts[t.Type].block, t.Type)
	case !t.DType.IsFloat():
		return fmt.Errorf("elements of %v: want a floating-point dtype", t.DType)
	}
	return nil
}

// padded is n, or the next multiple of the alignment.
func padded(n int64) int64 { return (n + defaultAlignment - 1) / defaultAlignment * defaultAlignment }

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// writer writes tensors.
type writer struct {
	*bufio.Writer
	progress    func(done, total int64)
	done, total int64

	raw    []byte    // of the source
	values []float32 // of them
	out    []byte
}

// part is how many elements are converted together: whole blocks of any type.
const part = 64 << 10

// tensor writes a tensor's elements, and the padding behind them.
func (w *writer) tensor(ctx context.Context, t *NewTensor) error {
	width := int64(t.DType.Size())
	src := io.NewSectionReader(t.Elements, 0, t.numel()*width)
	w.values = slices.Grow(w.values[:0], part)[:part]
	for left, at := t.numel(), int64(0); left > 0; {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n := min(left, part)
		w.raw = slices.Grow(w.raw[:0], int(n*width))[:n*width]
		if _, err := io.ReadFull(src, w.raw); err != nil {
			return unexpected(err)
		}
		values := w.values[:n]
		decode(values, w.raw, t.DType)
		for i, x := range values {
			if x-x != 0 {
				return fmt.Errorf("element %d is %g: want finite numbers", at+int64(i), x)
			}
		}
		var bad int
		if w.out, bad = encoders[t.Type](w.out[:0], values); bad >= 0 {
			return fmt.Errorf("element %d is %g, which is beyond %s: want another type", at+int64(bad), values[bad],
				t.Type)
		}
		if _, err := w.Write(w.out); err != nil {
			return err
		}
		left, at, w.done = left-n, at+n, w.done+n
		if w.progress != nil {
			w.progress(w.done, w.total)
		}
	}
	size := t.bytes()
	_, err := w.Write(make([]byte, padded(size)-size))
	return err
}

// unexpected is the error of a source that ends too early.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decode converts elements to float32.
func decode(dst []float32, raw []byte, from dtype.DType) {
	le := binary.LittleEndian
	switch from {
	case dtype.Float16:
		for i := range dst {
			dst[i] = dtype.F16(le.Uint16(raw[2*i:])).Float32()
		}
	case dtype.BFloat16:
		for i := range dst {
			dst[i] = dtype.BF16(le.Uint16(raw[2*i:])).Float32()
		}
	case dtype.Float64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(le.Uint64(raw[8*i:])))
		}
	default:
		for i := range dst {
			dst[i] = math.Float32frombits(le.Uint32(raw[4*i:]))
		}
	}
}
