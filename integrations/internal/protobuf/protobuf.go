// SPDX-License-Identifier: Apache-2.0

// Package protobuf appends fields to encoded messages. Reporters encode by hand, with protowire: a generated copy of
// the schemas of TensorBoard and Weights & Biases would be the larger part of the binary.
package protobuf

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Bytes appends a message, or bytes.
func Bytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

// String appends a text.
func String(b []byte, field protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), v)
}

// Varint appends a whole number, an enumerator or a truth value.
func Varint(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// Double appends a number.
func Double(b []byte, field protowire.Number, v float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), math.Float64bits(v))
}
