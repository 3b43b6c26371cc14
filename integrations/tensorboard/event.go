// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of tensorflow/core/util/event.proto and of framework's summary.proto, tensor.proto and
// tensor_shape.proto.
const (
	eventWallTime    = 1
	eventStep        = 2
	eventFileVersion = 3
	eventSummary     = 5

	summaryValue = 1

	valueTag         = 1
	valueSimpleValue = 2
	valueTensor      = 8
	valueMetadata    = 9

	metadataPluginData = 1
	pluginName         = 1

	tensorDType     = 1
	tensorShape     = 2
	tensorStringVal = 8
	dtypeString     = 7

	shapeDim = 2
	dimSize  = 1
)

// fileVersion is the text of a file's first event.
const fileVersion = "brain.Event:2"

// versionEvent encodes the event that begins a file.
func versionEvent(at time.Time) []byte {
	b := appendDouble(nil, eventWallTime, seconds(at))
	return appendString(b, eventFileVersion, fileVersion)
}

// summaryEvent encodes an event of one step with summary values.
func summaryEvent(at time.Time, step int64, values ...[]byte) []byte {
	var summary []byte
	for _, v := range values {
		summary = appendBytes(summary, summaryValue, v)
	}
	b := appendDouble(nil, eventWallTime, seconds(at))
	b = appendVarint(b, eventStep, uint64(step))
	return appendBytes(b, eventSummary, summary)
}

// scalarValue encodes a number under a tag, in float32 as TensorBoard keeps it.
func scalarValue(tag string, x float64) []byte {
	b := appendString(nil, valueTag, tag)
	b = protowire.AppendTag(b, valueSimpleValue, protowire.Fixed32Type)
	return protowire.AppendFixed32(b, math.Float32bits(float32(x)))
}

// textValue encodes a text (Markdown) for TensorBoard's text plugin: a string tensor of one element.
func textValue(tag, text string) []byte {
	plugin := appendString(nil, pluginName, "text")
	metadata := appendBytes(nil, metadataPluginData, plugin)
	dim := appendVarint(nil, dimSize, 1)
	shape := appendBytes(nil, shapeDim, dim)
	tensor := appendVarint(nil, tensorDType, dtypeString)
	tensor = appendBytes(tensor, tensorShape, shape)
	tensor = appendString(tensor, tensorStringVal, text)
	b := appendString(nil, valueTag, tag+"/text_summary")
	b = appendBytes(b, valueTensor, tensor)
	return appendBytes(b, valueMetadata, metadata)
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendString(b []byte, field protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendDouble(b []byte, field protowire.Number, v float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), math.Float64bits(v))
}
