// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/protobuf"
)

// Field numbers of tensorboard/plugins/hparams: plugin_data.proto and api.proto; of struct.proto those of Value. The
// plugin's version is 0, which is not written.
const (
	hparamsPlugin = "hparams"
	pluginContent = 2

	dataExperiment   = 2
	dataSessionStart = 3
	dataSessionEnd   = 4

	experimentHParams = 4
	experimentMetrics = 5
	experimentCreated = 3
	hparamName        = 1
	hparamType        = 4
	hparamDiffers     = 7
	metricName        = 1
	metricNameTag     = 2
	startHParams      = 1
	startModelURI     = 2
	startTime         = 5
	endStatus         = 1
	endTime           = 2
	mapKey            = 1
	mapValue          = 2
	valueNumber       = 2
	valueString       = 3
	valueBool         = 4
	typeString        = 1
	typeBool          = 2
	typeFloat         = 3
	statusSuccess     = 1
	statusFailure     = 2
	dtypeFloat        = 1
	experimentTag     = "_hparams_/experiment"
	sessionStartTag   = "_hparams_/session_start_info"
	sessionEndTag     = "_hparams_/session_end_info"
)

// hparam is a setting as the hparams plugin knows it: a number, a truth value or a text.
type hparam struct {
	name  string
	value any // float64, bool or string
	set   bool
}

// hparams returns the settings of a run by name. set are those that are not defaults. Settings that are not set are the
// text "none", lists and maps their JSON.
func hparams(a *args.TrainingArguments) ([]hparam, error) {
	text, err := a.JSON()
	if err != nil {
		return nil, err
	}
	var values map[string]any
	if err := json.Unmarshal(text, &values); err != nil {
		return nil, err
	}
	set := map[string]bool{}
	for _, d := range args.Default(a.OutputDir).Diff(a) {
		set[d.Key] = true
	}
	var out []hparam
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch v := values[name].(type) {
		case float64, bool, string:
			out = append(out, hparam{name, v, set[name]})
		case nil:
			out = append(out, hparam{name, "none", set[name]})
		default:
			nested, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			out = append(out, hparam{name, string(nested), set[name]})
		}
	}
	return out, nil
}

// metricTags are the scalars that a table of runs compares: the losses and what the best model is chosen by.
func metricTags(a *args.TrainingArguments) []string {
	tags := []string{callbacks.MetricName("loss")}
	if a.EvalStrategy != args.StrategyNo {
		tags = append(tags, callbacks.MetricName("eval_loss"))
	}
	if best := a.BestMetric(); best != "" && !slices.Contains(tags, callbacks.MetricName(best)) {
		tags = append(tags, callbacks.MetricName(best))
	}
	return append(tags, callbacks.MetricName("train_loss"), callbacks.MetricName("train_runtime"))
}

// AddHParams writes what TensorBoard's HPARAMS tab needs at the beginning of a run: its settings, and the tags of the
// scalars by which runs are compared.
func (w *Writer) AddHParams(at time.Time, a *args.TrainingArguments) error {
	list, err := hparams(a)
	if err != nil {
		return fmt.Errorf("tensorboard: the arguments as hparams: %w", err)
	}
	experiment := protobuf.Double(nil, experimentCreated, seconds(at))
	var start []byte
	for _, p := range list {
		value, kind := p.encode()
		info := protobuf.String(nil, hparamName, p.name)
		info = protobuf.Varint(info, hparamType, kind)
		info = protobuf.Varint(info, hparamDiffers, protowire.EncodeBool(p.set)) // TensorBoard shows these first
		experiment = protobuf.Bytes(experiment, experimentHParams, info)
		entry := protobuf.String(nil, mapKey, p.name)
		entry = protobuf.Bytes(entry, mapValue, value)
		start = protobuf.Bytes(start, startHParams, entry)
	}
	for _, tag := range metricTags(a) {
		name := protobuf.String(nil, metricNameTag, tag)
		experiment = protobuf.Bytes(experiment, experimentMetrics, protobuf.Bytes(nil, metricName, name))
	}
	start = protobuf.String(start, startModelURI, a.OutputDir)
	start = protobuf.Double(start, startTime, seconds(at))
	return w.add(summaryEvent(at, 0, hparamsValue(experimentTag, dataExperiment, experiment),
		hparamsValue(sessionStartTag, dataSessionStart, start)))
}

// AddSessionEnd writes that the run of AddHParams is over, and whether it came to its end.
func (w *Writer) AddSessionEnd(at time.Time, success bool) error {
	status := uint64(statusFailure)
	if success {
		status = statusSuccess
	}
	end := protobuf.Varint(nil, endStatus, status)
	end = protobuf.Double(end, endTime, seconds(at))
	return w.add(summaryEvent(at, 0, hparamsValue(sessionEndTag, dataSessionEnd, end)))
}

// encode returns the value as a google.protobuf.Value, and its type.
func (p hparam) encode() (value []byte, kind uint64) {
	switch v := p.value.(type) {
	case float64:
		return protobuf.Double(nil, valueNumber, v), typeFloat
	case bool:
		return protobuf.Varint(nil, valueBool, protowire.EncodeBool(v)), typeBool
	}
	return protobuf.String(nil, valueString, p.value.(string)), typeString
}

// hparamsValue encodes a summary value whose content is the plugin's message in its metadata; the tensor is empty.
func hparamsValue(tag string, field protowire.Number, message []byte) []byte {
	plugin := protobuf.String(nil, pluginName, hparamsPlugin)
	plugin = protobuf.Bytes(plugin, pluginContent, protobuf.Bytes(nil, field, message))
	tensor := protobuf.Varint(nil, tensorDType, dtypeFloat)
	tensor = protobuf.Bytes(tensor, tensorShape, protobuf.Bytes(nil, shapeDim, nil)) // one dim, of size 0
	b := protobuf.String(nil, valueTag, tag)
	b = protobuf.Bytes(b, valueTensor, tensor)
	return protobuf.Bytes(b, valueMetadata, protobuf.Bytes(nil, metadataPluginData, plugin))
}
