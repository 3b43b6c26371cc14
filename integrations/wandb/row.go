// SPDX-License-Identifier: Apache-2.0

package wandb

import (
	"encoding/json"
	"math"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/tracker"
)

// pair is a value as JSON text, in which numbers that are not finite are the words NaN, Infinity and -Infinity.
type pair struct{ name, value string }

// columns returns a row of the history, and what goes into the summary besides.
func columns(r tracker.Row, step int64, begin time.Time) (history, summary []pair) {
	curves, figures := r.Split()
	for name, x := range curves.Metrics() {
		history = append(history, pair{name, jsonText(x)})
	}
	for _, key := range curves.Keys() {
		if text, ok := curves[key].(string); ok {
			history = append(history, pair{callbacks.MetricName(key), jsonText(text)})
		}
	}
	for _, key := range figures.Keys() {
		x, _ := figures.Number(key)
		summary = append(summary, pair{key, jsonText(x)})
	}
	return append(history, pair{stepMetric, jsonText(r.Step)}, pair{"_step", jsonText(step)},
		pair{"_runtime", jsonText(r.Time.Sub(begin).Seconds())},
		pair{"_timestamp", jsonText(float64(r.Time.UnixMicro()) / 1e6)}), summary
}

// stepMetric is the x-axis of all metrics.
const stepMetric = "train/global_step"

// jsonText returns a value of JSON, or a number that is not finite.
func jsonText(v any) string {
	if x, ok := v.(float64); ok {
		switch {
		case math.IsNaN(x):
			return "NaN"
		case math.IsInf(x, 0):
			return map[bool]string{true: "Infinity", false: "-Infinity"}[x > 0]
		}
	}
	text, err := json.Marshal(v)
	if err != nil {
		return "null"
	}
	return string(text)
}

// object joins pairs to one line.
func object(pairs []pair) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, p := range pairs {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(jsonText(p.name) + ":" + p.value)
	}
	b.WriteByte('}')
	return b.String()
}

// exitCode is what the wandb library reports of a process that ended so.
func exitCode(s tracker.Status) int {
	return map[tracker.Status]int{tracker.Finished: 0, tracker.Interrupted: 255, tracker.Failed: 1}[s]
}
