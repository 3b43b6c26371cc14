// SPDX-License-Identifier: Apache-2.0

package data

import (
	"fmt"
	"reflect"
)

// LengthColumn is an optional interface of a Dataset or a Source that returns the lengths of all samples, as sorting
// them needs. It returns one length ≥ 0 per sample, in the order of the samples, or nil if it has no such column.
type LengthColumn interface {
	Lengths(column string) ([]int, error)
}

// Lengths returns the length of every sample of a Source. If its dataset has a LengthColumn, it returns that. Otherwise
// it reads all samples once; the length of a sample is its integer field named column (by the rules of Stack, also if
// its tag leaves it out of the batch), else the length of its field input_ids, or that of the sample itself if it is a
// slice. The error names the sample that could not be read, or the expected type. It is for package trainer's
// train_sampling_strategy group_by_length.
func Lengths(s Source, column string) ([]int, error) {
	c, ok := s.(LengthColumn)
	if !ok {
		return nil,
			fmt.Errorf("data: a source of type %T does not provide the lengths of its samples: want a method "+
				"Lengths, or a source made by NewSource", s)
	}
	lengths, err := c.Lengths(column)
	if err != nil {
		return nil, err
	}
	if len(lengths) != s.Len() {
		return nil, fmt.Errorf("data: column %q has lengths of %d samples: want %d", column, len(lengths), s.Len())
	}
	return lengths, nil
}

// Lengths implements LengthColumn.
func (s source[T]) Lengths(column string) ([]int, error) {
	if c, ok := s.dataset.(LengthColumn); ok {
		if lengths, err := c.Lengths(column); lengths != nil || err != nil {
			return lengths, err
		}
	}
	measure, err := measureOf(reflect.TypeFor[T](), column)
	if err != nil {
		return nil, err
	}
	lengths := make([]int, s.dataset.Len())
	for i := range lengths {
		err := guard(func() error {
			sample, err := s.dataset.Get(i)
			if err == nil {
				lengths[i] = measure(reflect.ValueOf(&sample).Elem())
			}
			return err
		})
		if err != nil {
			return nil, &SampleError{Index: int64(i), Err: err}
		}
	}
	return lengths, nil
}

// measureOf returns how to measure samples of a type.
func measureOf(t reflect.Type, column string) (func(reflect.Value) int, error) {
	pointer := t.Kind() == reflect.Pointer
	if pointer {
		t = t.Elem()
	}
	follow := func(v reflect.Value) reflect.Value {
		if pointer {
			return v.Elem()
		}
		return v
	}
	if t.Kind() == reflect.Slice {
		return func(v reflect.Value) int { return follow(v).Len() }, nil
	}
	if t.Kind() == reflect.Struct {
		if f, ok := fieldNamed(t, column); ok && f.Type.Kind() >= reflect.Int && f.Type.Kind() <= reflect.Int64 {
			return func(v reflect.Value) int { return int(follow(v).FieldByIndex(f.Index).Int()) }, nil
		}
		if f, ok := fieldNamed(t, InputIDs); ok && f.Type.Kind() == reflect.Slice {
			return func(v reflect.Value) int { return follow(v).FieldByIndex(f.Index).Len() }, nil
		}
	}
	return nil,
		fmt.Errorf("data: samples of type %v have no length: want slices, or structs with an integer %q or a slice "+
			"%q, or a dataset with a method Lengths", t, column, InputIDs)
}

// fieldNamed finds an exported field by its name in snake case or its tag.
func fieldNamed(t reflect.Type, name string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("data")
		if f.IsExported() && (tag == name || (tag == "" || tag == "-") && snakeCase(f.Name) == name) {
			return f, true
		}
	}
	return reflect.StructField{}, false
}
