// SPDX-License-Identifier: Apache-2.0

package jsontext

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Columns are the keys of objects that are kept, by the names that they get. nil keeps all.
type Columns map[string]string

// Keys are those of the objects, sorted.
func (c Columns) Keys() []string { return slices.Compact(slices.Sorted(maps.Values(c))) }

// Select is the text of an object with its kept keys alone, under their new names, sorted. Keys that it lacks are left
// out; an object without any of them is an error.
func (c Columns) Select(object []byte) ([]byte, error) {
	if c == nil {
		return object, nil
	}
	fields, err := Fields(object)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteByte('{')
	for _, name := range slices.Sorted(maps.Keys(c)) {
		for _, f := range fields {
			if f.Key != c[name] {
				continue
			}
			if out.Len() > 1 {
				out.WriteByte(',')
			}
			key, err := json.Marshal(name)
			if err != nil {
				return nil, err
			}
			out.Write(key)
			out.WriteByte(':')
			out.Write(f.Value)
		}
	}
	if out.Len() == 1 {
		var keys []string
		for _, f := range fields {
			keys = append(keys, f.Key)
		}
		return nil, fmt.Errorf("the row has the keys %.200q, and none of the columns %q that are wanted", keys,
			c.Keys())
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}
