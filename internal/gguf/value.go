// SPDX-License-Identifier: Apache-2.0

package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Kind is the type of a value of the metadata.
type Kind uint32

const (
	kindUint8   Kind = 0
	kindInt8    Kind = 1
	kindUint16  Kind = 2
	kindInt16   Kind = 3
	kindUint32  Kind = 4
	kindInt32   Kind = 5
	kindFloat32 Kind = 6
	kindBool    Kind = 7
	kindString  Kind = 8
	kindArray   Kind = 9
	kindUint64  Kind = 10
	kindInt64   Kind = 11
	kindFloat64 Kind = 12
)

// sizes are the bytes of the kinds that are numbers.
var sizes = map[Kind]uint64{kindUint8: 1, kindInt8: 1, kindUint16: 2, kindInt16: 2, kindUint32: 4, kindInt32: 4,
	kindFloat32: 4, kindBool: 1, kindUint64: 8, kindInt64: 8, kindFloat64: 8}

// Value is a value of the metadata, as its bytes in the file. The zero Value is that of a key that is missing: it is of
// no type.
type Value struct {
	kind  Kind // of an array: of its elements
	array bool
	count int // elements
	raw   []byte
}

// value reads a value. The elements of an array have no arrays in them.
func (r *reader) value(kind Kind) (v Value, err error) {
	v = Value{kind: kind, count: 1}
	if kind == kindArray {
		elem, err := r.uint32()
		if err != nil {
			return v, err
		}
		n, err := r.uint64()
		if err != nil {
			return v, err
		}
		if Kind(elem) == kindArray {
			return v, errors.New("an array of arrays: want numbers or strings in it")
		}
		v.kind, v.array = Kind(elem), true
		if n > uint64(r.left) {
			return v, r.take(n)
		}
		v.count = int(n)
	}
	if v.kind == kindString {
		v.raw, err = r.strings(v.count)
		return v, err
	}
	size, ok := sizes[v.kind]
	if !ok {
		return v, fmt.Errorf("a value of type %d: want 0 to 12", uint32(v.kind))
	}
	v.raw, err = r.bytes(uint64(v.count) * size) // count is below 2^27
	return v, err
}

// strings reads so many strings with their lengths.
func (r *reader) strings(count int) ([]byte, error) {
	var raw []byte
	for range count {
		n, err := r.uint64()
		if err != nil {
			return nil, err
		}
		if err := r.take(n); err != nil {
			return nil, err
		}
		raw = binary.LittleEndian.AppendUint64(raw, n)
		at := len(raw)
		raw = append(raw, make([]byte, n)...)
		if _, err := io.ReadFull(r.buf, raw[at:]); err != nil {
			return nil, err
		}
	}
	return raw, nil
}

// append is the value behind its kind, as in a file.
func (v Value) append(b []byte) []byte {
	le := binary.LittleEndian
	if v.array {
		b = le.AppendUint32(b, uint32(kindArray))
		b = le.AppendUint64(le.AppendUint32(b, uint32(v.kind)), uint64(v.count))
	} else {
		b = le.AppendUint32(b, uint32(v.kind))
	}
	return append(b, v.raw...)
}

// Uint32 is the value of a whole number.
func Uint32(n int) Value {
	return Value{kind: kindUint32, count: 1, raw: binary.LittleEndian.AppendUint32(nil, uint32(n))}
}

// Float32 is the value of a number.
func Float32(x float64) Value {
	return Value{kind: kindFloat32, count: 1, raw: binary.LittleEndian.AppendUint32(nil,
		math.Float32bits(float32(x)))}
}

// Bool is the value of a truth value.
func Bool(yes bool) Value {
	raw := []byte{0}
	if yes {
		raw[0] = 1
	}
	return Value{kind: kindBool, count: 1, raw: raw}
}

// Text is the value of a string.
func Text(s string) Value { return Value{kind: kindString, count: 1, raw: appendText(nil, s)} }

// Texts is the value of a list of strings.
func Texts(list []string) Value {
	v := Value{kind: kindString, array: true, count: len(list)}
	for _, s := range list {
		v.raw = appendText(v.raw, s)
	}
	return v
}

// Int32s is the value of a list of whole numbers.
func Int32s(list []int32) Value {
	v := Value{kind: kindInt32, array: true, count: len(list)}
	for _, n := range list {
		v.raw = binary.LittleEndian.AppendUint32(v.raw, uint32(n))
	}
	return v
}

// Float32s is the value of a list of numbers.
func Float32s(list []float32) Value {
	v := Value{kind: kindFloat32, array: true, count: len(list)}
	for _, x := range list {
		v.raw = binary.LittleEndian.AppendUint32(v.raw, math.Float32bits(x))
	}
	return v
}

// Len is the number of elements of an array, 1 of another value, and 0 of one that is missing.
func (v Value) Len() int { return v.count }

// Int is a whole number.
func (v Value) Int() (int64, bool) {
	if v.array || v.count == 0 {
		return 0, false
	}
	return v.int(0)
}

// int is the element i as a whole number.
func (v Value) int(i int) (int64, bool) {
	le := binary.LittleEndian
	switch v.kind {
	case kindUint8:
		return int64(v.raw[i]), true
	case kindInt8:
		return int64(int8(v.raw[i])), true
	case kindUint16:
		return int64(le.Uint16(v.raw[2*i:])), true
	case kindInt16:
		return int64(int16(le.Uint16(v.raw[2*i:]))), true
	case kindUint32:
		return int64(le.Uint32(v.raw[4*i:])), true
	case kindInt32:
		return int64(int32(le.Uint32(v.raw[4*i:]))), true
	case kindUint64:
		n := le.Uint64(v.raw[8*i:])
		return int64(n), n <= math.MaxInt64
	case kindInt64:
		return int64(le.Uint64(v.raw[8*i:])), true
	}
	return 0, false
}

// Float is a number that is finite, of a float32 the Shortest.
func (v Value) Float() (float64, bool) {
	if v.array || v.count == 0 {
		return 0, false
	}
	return v.float(0)
}

func (v Value) float(i int) (float64, bool) {
	switch v.kind {
	case kindFloat32:
		return Shortest(math.Float32frombits(binary.LittleEndian.Uint32(v.raw[4*i:])))
	case kindFloat64:
		x := math.Float64frombits(binary.LittleEndian.Uint64(v.raw[8*i:]))
		return x, !math.IsNaN(x) && !math.IsInf(x, 0)
	}
	n, ok := v.int(i)
	return float64(n), ok
}

// Shortest is the number of the fewest digits that is x in float32: 1e-05 and not 9.999999747378752e-06. It is false
// for what is not finite.
func Shortest(x float32) (float64, bool) {
	short, err := strconv.ParseFloat(strconv.FormatFloat(float64(x), 'g', -1, 32), 64)
	return short, err == nil && !math.IsNaN(short) && !math.IsInf(short, 0)
}

// Bool is true or false.
func (v Value) Bool() (value, ok bool) {
	if v.array || v.kind != kindBool || v.count == 0 {
		return false, false
	}
	return v.raw[0] != 0, true
}

// Text is a string.
func (v Value) Text() (string, bool) {
	if v.array || v.kind != kindString || v.count == 0 {
		return "", false
	}
	return string(v.raw[8:]), true
}

// Texts are the strings of an array.
func (v Value) Texts() ([]string, bool) {
	if !v.array || v.kind != kindString {
		return nil, false
	}
	list := make([]string, v.count)
	raw := v.raw
	for i := range list {
		n := binary.LittleEndian.Uint64(raw)
		list[i], raw = string(raw[8:8+n]), raw[8+n:]
	}
	return list, true
}

// Ints are the whole numbers, or truth values as 0 and 1, of an array.
func (v Value) Ints() ([]int64, bool) {
	if !v.array {
		return nil, false
	}
	list := make([]int64, v.count)
	for i := range list {
		n, ok := v.int(i)
		if v.kind == kindBool {
			n, ok = int64(v.raw[i]), true
		}
		if !ok {
			return nil, false
		}
		list[i] = n
	}
	return list, true
}

// Floats are the numbers of an array.
func (v Value) Floats() ([]float64, bool) {
	if !v.array {
		return nil, false
	}
	list := make([]float64, v.count)
	for i := range list {
		x, ok := v.float(i)
		if !ok {
			return nil, false
		}
		list[i] = x
	}
	return list, true
}

// String is the value as messages show it.
func (v Value) String() string {
	if v.count == 0 && !v.array {
		return "missing"
	}
	if v.array {
		return fmt.Sprintf("an array of %d", v.count)
	}
	if s, ok := v.Text(); ok {
		return fmt.Sprintf("%.100q", s)
	}
	if b, ok := v.Bool(); ok {
		return strconv.FormatBool(b)
	}
	if n, ok := v.Int(); ok {
		return strconv.FormatInt(n, 10)
	}
	x, _ := v.Float()
	return strconv.FormatFloat(x, 'g', -1, 64)
}
