// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Record is one log record: a flat map of numbers and texts with the keys of HuggingFace's (loss, grad_norm,
// learning_rate, epoch, step, eval_loss …). In JSON, numbers that are not finite are the texts "NaN", "Infinity" and
// "-Infinity", and come back as numbers.
type Record map[string]any

// MarshalJSON writes the record with sorted keys. An error names the key of a value that JSON cannot hold.
func (r Record) MarshalJSON() ([]byte, error) {
	out := make(map[string]json.RawMessage, len(r))
	for _, key := range slices.Sorted(maps.Keys(r)) {
		v := r[key]
		if f, ok := asFloat(v); ok && !finite(f) {
			v = nonfinite(f)
		}
		text, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("%s is a %T, which JSON cannot hold: %w", key, v, err)
		}
		out[key] = text
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads a record. Numbers become float64.
func (r *Record) UnmarshalJSON(data []byte) error {
	var in map[string]any
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	for key, v := range in {
		switch v {
		case "NaN":
			in[key] = math.NaN()
		case "Infinity":
			in[key] = math.Inf(1)
		case "-Infinity":
			in[key] = math.Inf(-1)
		}
	}
	*r = in
	return nil
}

// Number returns the number under key, and whether there is one.
func (r Record) Number(key string) (float64, bool) { return asFloat(r[key]) }

// IsTrain tells whether this is a record of training steps, and not of an evaluation or of the end of a run.
func (r Record) IsTrain() bool {
	_, loss := r["loss"]
	_, rate := r["learning_rate"] // steps without loss terms have no loss
	return loss || rate
}

// Keys returns the keys in the order in which people read them: step, epoch, the loss, the gradient norm and the
// learning rate, the rest sorted.
func (r Record) Keys() []string {
	first := []string{"step", "epoch", "loss", "eval_loss", "train_loss", "grad_norm", "learning_rate"}
	keys := slices.DeleteFunc(slices.Clone(first), func(k string) bool { _, ok := r[k]; return !ok })
	for _, k := range slices.Sorted(maps.Keys(r)) {
		if !slices.Contains(first, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// String returns the record as one line of "key value" pairs with two spaces between them, numbers with the digits that
// people read: losses and norms with four decimals, the epoch with two. Texts above 100 bytes are replaced by their
// length. What is of interest over a whole run rather than at a glance (memory_…, gpu_…, total_flos) is
// left to the reporters.
func (r Record) String() string {
	var b strings.Builder
	for _, key := range r.Keys() {
		if hidden(key) {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("  ")
		}
		b.WriteString(key)
		b.WriteByte(' ')
		b.WriteString(readable(key, r[key]))
	}
	return b.String()
}

// Metrics returns the numbers of the record except its step, in the order of Keys, under the names and in the units in
// which reporters show them: see MetricName.
func (r Record) Metrics() iter.Seq2[string, float64] {
	return func(yield func(string, float64) bool) {
		for _, key := range r.Keys() {
			x, ok := r.Number(key)
			if !ok || key == "step" {
				continue
			}
			if isMemory(key) {
				x /= 1 << 20
			}
			if !yield(MetricName(key), x) {
				return
			}
		}
	}
}

// MetricName returns the name under which reporters show a record's key: HuggingFace's. eval_x is eval/x, test_x is
// test/x, anything else train/x. Memory, which records have in bytes, is shown in MiB, and its name ends with the unit:
// memory_x is memory/x_mib, train_mem_x is memory/train_x_mib.
func MetricName(key string) string {
	if isMemory(key) {
		return "memory/" + strings.TrimPrefix(strings.Replace(key, "train_mem_", "train_", 1), "memory_") + "_mib"
	}
	for _, split := range []string{"eval", "test"} {
		if rest, ok := strings.CutPrefix(key, split+"_"); ok {
			return split + "/" + rest
		}
	}
	return "train/" + key
}

// isMemory tells a number of bytes.
func isMemory(key string) bool {
	return strings.HasPrefix(key, "memory_") || strings.HasPrefix(key, "train_mem_")
}

// hidden tells what no display shows.
func hidden(key string) bool {
	return strings.HasPrefix(key, "memory_") || strings.HasPrefix(key, "gpu_") || key == "total_flos"
}

// readable returns a record's value with the digits that people read.
func readable(key string, v any) string {
	x, ok := asFloat(v)
	if !ok {
		text := fmt.Sprint(v)
		if len(text) > 100 {
			return fmt.Sprintf("(%d bytes)", len(text))
		}
		return strings.Join(strings.Fields(text), " ")
	}
	size := math.Abs(x)
	switch {
	case !finite(x):
		return strconv.FormatFloat(x, 'g', -1, 64)
	case key == "learning_rate":
		return strconv.FormatFloat(x, 'e', 2, 64)
	case key == "epoch":
		return strconv.FormatFloat(x, 'f', 2, 64)
	case (strings.HasSuffix(key, "loss") || key == "grad_norm") && (x == 0 || size >= 1e-3 && size < 1e5):
		return strconv.FormatFloat(x, 'f', 4, 64)
	}
	return figure(x)
}

// figure returns a number of unknown meaning: whole numbers in full, others with four decimals below 10 and four digits
// above.
func figure(x float64) string {
	size := math.Abs(x)
	decimals := 0
	switch {
	case x == math.Trunc(x) && size < 1e15:
	case size >= 1e15 || size < 1e-3:
		return strconv.FormatFloat(x, 'e', 2, 64)
	case size < 10:
		decimals = 4
	case size < 100:
		decimals = 2
	case size < 1000:
		decimals = 1
	}
	return strconv.FormatFloat(x, 'f', decimals, 64)
}

func nonfinite(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return "NaN"
}

func asFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case float32:
		return float64(v), true
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	}
	return 0, false
}
