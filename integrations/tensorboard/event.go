// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/lockstep-ml/lockstep/integrations/internal/protobuf"
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
	b := protobuf.Double(nil, eventWallTime, seconds(at))
	return protobuf.String(b, eventFileVersion, fileVersion)
}

// summaryEvent encodes an event of one step with summary values.
func summaryEvent(at time.Time, step int64, values ...[]byte) []byte {
	var summary []byte
	for _, v := range values {
		summary = protobuf.Bytes(summary, summaryValue, v)
	}
	b := protobuf.Double(nil, eventWallTime, seconds(at))
	b = protobuf.Varint(b, eventStep, uint64(step))
	return protobuf.Bytes(b, eventSummary, summary)
}

// scalarValue encodes a number under a tag, in float32 as TensorBoard keeps it.
func scalarValue(tag string, x float64) []byte {
	b := protobuf.String(nil, valueTag, tag)
	b = protowire.AppendTag(b, valueSimpleValue, protowire.Fixed32Type)
	return protowire.AppendFixed32(b, math.Float32bits(float32(x)))
}

// textValue encodes a text (Markdown) for TensorBoard's text plugin: a string tensor of one element.
func textValue(tag, text string) []byte {
	plugin := protobuf.String(nil, pluginName, "text")
	metadata := protobuf.Bytes(nil, metadataPluginData, plugin)
	dim := protobuf.Varint(nil, dimSize, 1)
	shape := protobuf.Bytes(nil, shapeDim, dim)
	tensor := protobuf.Varint(nil, tensorDType, dtypeString)
	tensor = protobuf.Bytes(tensor, tensorShape, shape)
	tensor = protobuf.String(tensor, tensorStringVal, text)
	b := protobuf.String(nil, valueTag, tag+"/text_summary")
	b = protobuf.Bytes(b, valueTensor, tensor)
	return protobuf.Bytes(b, valueMetadata, metadata)
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
