// SPDX-License-Identifier: Apache-2.0

package opentelemetry

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/integrations/internal/rest"
	"github.com/lockstep-ml/lockstep/integrations/internal/tracker"
)

// run is one run of which points are sent.
type run struct {
	config   Config
	client   *rest.Client
	resource []attribute
	labels   []attribute // of each point
}

// Begin sends nothing: a series begins with its first point.
func (r *run) Begin(_ context.Context, begun tracker.Run) error {
	all := map[string]string{"service.instance.id": begun.ID}
	maps.Copy(all, r.config.Resource)
	all["service.name"] = cmp.Or(r.config.Service, "lockstep")
	r.resource = attributes(all)
	r.labels = attributes(map[string]string{"run": cmp.Or(begun.Name, begun.ID), "run_id": begun.ID})
	return nil
}

// Log sends the numbers of rows.
func (r *run) Log(ctx context.Context, rows []tracker.Row) error {
	metrics := r.metrics(rows)
	if len(metrics) == 0 {
		return nil
	}
	var answer struct {
		PartialSuccess struct {
			Rejected json.RawMessage `json:"rejectedDataPoints"` // a number, or one in quotes
			Message  string          `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	err := r.client.Post(ctx, "", request{[]resourceMetrics{{Resource: resource{r.resource},
		Scopes: []scopeMetrics{{scope{"github.com/lockstep-ml/lockstep"}, metrics}}}}}, &answer)
	if err != nil {
		return err
	}
	if n := strings.Trim(string(answer.PartialSuccess.Rejected), `"`); n != "" && n != "0" && n != "null" {
		return r.client.Refuse(fmt.Sprintf("%s points are rejected: %s", n, answer.PartialSuccess.Message))
	}
	return nil
}

// End sends nothing: a series ends with its last point.
func (r *run) End(context.Context, time.Time, tracker.Status) error { return nil }

// Close closes idle connections.
func (r *run) Close() error {
	r.client.Close()
	return nil
}

// metrics are the numbers of rows as gauges, in the order of their names.
func (r *run) metrics(rows []tracker.Row) (list []metric) {
	series := map[string][]point{}
	for _, row := range rows {
		at := strconv.FormatInt(row.Time.UnixNano(), 10)
		add := func(key string, x float64) {
			series[key] = append(series[key], point{Attributes: r.labels, Time: at, Value: number(x)})
		}
		for _, key := range row.Record.Keys() {
			if x, ok := row.Record.Number(key); ok && key != "step" {
				add(key, x)
			}
		}
		add("step", float64(row.Step))
	}
	for _, key := range slices.Sorted(maps.Keys(series)) {
		m := metric{Name: "lockstep." + key, Gauge: gauge{series[key]}}
		if strings.HasPrefix(key, "memory_") || strings.HasPrefix(key, "train_mem_") {
			m.Unit = "By"
		}
		list = append(list, m)
	}
	return list
}

func attributes(all map[string]string) (list []attribute) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		list = append(list, attribute{key, text{strings.ToValidUTF8(all[key], "�")}})
	}
	return list
}

// The types below are ExportMetricsServiceRequest of OTLP 1, as its mapping to JSON has it.
type (
	request struct {
		Resources []resourceMetrics `json:"resourceMetrics"`
	}
	resourceMetrics struct {
		Resource resource       `json:"resource"`
		Scopes   []scopeMetrics `json:"scopeMetrics"`
	}
	resource struct {
		Attributes []attribute `json:"attributes"`
	}
	scopeMetrics struct {
		Scope   scope    `json:"scope"`
		Metrics []metric `json:"metrics"`
	}
	scope struct {
		Name string `json:"name"`
	}
	metric struct {
		Name  string `json:"name"`
		Unit  string `json:"unit,omitempty"`
		Gauge gauge  `json:"gauge"`
	}
	gauge struct {
		Points []point `json:"dataPoints"`
	}
	point struct {
		Attributes []attribute `json:"attributes"`
		Time       string      `json:"timeUnixNano"`
		Value      number      `json:"asDouble"`
	}
	attribute struct {
		Key   string `json:"key"`
		Value text   `json:"value"`
	}
	text struct {
		Text string `json:"stringValue"`
	}
)

// number is a double of protobuf's JSON.
type number float64

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) {
	switch x := float64(n); {
	case math.IsNaN(x):
		return []byte(`"NaN"`), nil
	case math.IsInf(x, 0):
		return []byte(map[bool]string{true: `"Infinity"`, false: `"-Infinity"`}[x > 0]), nil
	default:
		return json.Marshal(x)
	}
}
