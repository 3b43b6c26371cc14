// SPDX-License-Identifier: Apache-2.0

package data

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Stack is the default Collator, for samples that are structs (or pointers to structs) of
// numbers: each exported field becomes a tensor whose first dim is the batch. A field is a
// number, a bool, or an array or slice of these, nested too; slices of one field must have
// one length throughout the batch.
//
//	type Point struct{ Inputs [1]float32; Labels float32 } // inputs [B,1], labels [B]
//
// The name is the field's in snake case (InputIDs is input_ids), or that of its tag
// `data:"name"`; with "-" the field is left out. As in transformers'
// default_data_collator, label and label_ids become labels, and integers become int64; float32,
// float64, uint8 and bool stay.
//
// Count is the number of labels: of their elements that are not tensor.IgnoreIndex if they are
// integers, of all their elements otherwise; without labels it is the number of samples.
func Stack[T any](c *tensor.Ctx, samples []T) (*Batch, error) {
	fields, err := stackFields(reflect.TypeFor[T]())
	if err != nil {
		return nil, err
	}
	b := &Batch{Tensors: make(map[string]*tensor.Tensor, len(fields)), Count: float64(len(samples))}
	for _, f := range fields {
		col, err := f.column(samples)
		if err != nil {
			return nil, err
		}
		b.Tensors[f.name] = col.tensor(c)
		if f.name == Labels {
			b.Count = col.terms()
		}
	}
	return b, nil
}

// stackField is a field of a sample.
type stackField struct {
	name  string
	index int
}

func stackFields(t reflect.Type) ([]stackField, error) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("samples are %v: want a struct of numbers; use another collator", t)
	}
	var fields []stackField
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("data")
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = snakeCase(f.Name)
		}
		if name == "label" || name == "label_ids" {
			name = Labels
		}
		if slices.ContainsFunc(fields, func(g stackField) bool { return g.name == name }) {
			return nil, fmt.Errorf("%v has two fields for %q", t, name)
		}
		fields = append(fields, stackField{name: name, index: i})
	}
	if len(fields) == 0 {
		return nil, fmt.Errorf("%v has no exported field", t)
	}
	return fields, nil
}

// snakeCase turns InputIDs into input_ids.
func snakeCase(name string) string {
	runes := []rune(strings.ReplaceAll(name, "IDs", "Ids"))
	var b strings.Builder
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 {
			afterLower := !unicode.IsUpper(runes[i-1])
			beforeLower := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if afterLower || beforeLower {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// column gathers one field of all samples, row-major, in the slice of its kind.
type column struct {
	shape []int // of the whole column
	f32   []float32
	f64   []float64
	i64   []int64
	u8    []uint8
	bools []bool
	kind  reflect.Kind // Float32, Float64, Int64, Uint8 or Bool
}

func (f stackField) column(samples any) (*column, error) {
	rows := reflect.ValueOf(samples)
	col := &column{}
	for i := range rows.Len() {
		row := rows.Index(i)
		if row.Kind() == reflect.Pointer {
			if row.IsNil() {
				return nil, fmt.Errorf("sample %d of the batch is nil", i)
			}
			row = row.Elem()
		}
		value := row.Field(f.index)
		shape := shapeOf(value, nil)
		if i == 0 {
			col.shape = shape
		}
		if !slices.Equal(shape, col.shape) {
			return nil,
				fmt.Errorf("%s of sample %d of the batch has shape %v, earlier ones have %v; pad them in your own "+
					"collator", f.name, i, shape, col.shape)
		}
		if err := col.append(value, shape); err != nil {
			return nil, fmt.Errorf("%s of sample %d of the batch: %w", f.name, i, err)
		}
	}
	col.shape = append([]int{rows.Len()}, col.shape...)
	return col, nil
}

// shapeOf appends v's lengths by the first element of each level.
func shapeOf(v reflect.Value, shape []int) []int {
	for v.Kind() == reflect.Slice || v.Kind() == reflect.Array {
		shape = append(shape, v.Len())
		if v.Len() == 0 {
			break
		}
		v = v.Index(0)
	}
	return shape
}

// append adds v's elements, which must fill shape.
func (col *column) append(v reflect.Value, shape []int) error {
	if k := v.Kind(); k == reflect.Slice || k == reflect.Array {
		if len(shape) == 0 || v.Len() != shape[0] {
			return fmt.Errorf("the lengths are ragged: %d where others have %v", v.Len(), shape)
		}
		if v.Len() == 0 {
			return col.setKind(elemKind(v.Type()))
		}
		switch s := v.Interface().(type) { // without a call per element
		case []float32:
			col.f32 = append(col.f32, s...)
			return col.setKind(reflect.Float32)
		case []uint8:
			col.u8 = append(col.u8, s...)
			return col.setKind(reflect.Uint8)
		}
		for i := range v.Len() {
			if err := col.append(v.Index(i), shape[1:]); err != nil {
				return err
			}
		}
		return nil
	}
	if err := col.setKind(v.Kind()); err != nil {
		return err
	}
	switch col.kind {
	case reflect.Float32:
		col.f32 = append(col.f32, float32(v.Float()))
	case reflect.Float64:
		col.f64 = append(col.f64, v.Float())
	case reflect.Uint8:
		col.u8 = append(col.u8, uint8(v.Uint()))
	case reflect.Bool:
		col.bools = append(col.bools, v.Bool())
	default:
		if v.CanInt() {
			col.i64 = append(col.i64, v.Int())
		} else {
			col.i64 = append(col.i64, int64(v.Uint()))
		}
	}
	return nil
}

// elemKind is the kind of the numbers in a nested slice or array type.
func elemKind(t reflect.Type) reflect.Kind {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Array {
		t = t.Elem()
	}
	return t.Kind()
}

func (col *column) setKind(k reflect.Kind) error {
	switch k {
	case reflect.Float32, reflect.Float64, reflect.Uint8, reflect.Bool:
		col.kind = k
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint16, reflect.Uint32:
		col.kind = reflect.Int64
	default:
		return fmt.Errorf("a %v cannot be stacked: want numbers, bools, or arrays and slices of them", k)
	}
	return nil
}

func (col *column) tensor(c *tensor.Ctx) *tensor.Tensor {
	switch col.kind {
	case reflect.Float32:
		return tensor.FromSlice(c, col.f32, col.shape...)
	case reflect.Float64:
		return tensor.FromSlice(c, col.f64, col.shape...)
	case reflect.Uint8:
		return tensor.FromSlice(c, col.u8, col.shape...)
	case reflect.Bool:
		return tensor.FromSlice(c, col.bools, col.shape...)
	}
	return tensor.FromSlice(c, col.i64, col.shape...)
}

// terms is the number of loss terms if the column is the labels.
func (col *column) terms() float64 {
	n := 1.0
	for _, d := range col.shape {
		n *= float64(d)
	}
	for _, label := range col.i64 {
		if label == tensor.IgnoreIndex {
			n--
		}
	}
	return n
}
