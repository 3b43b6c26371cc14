// SPDX-License-Identifier: Apache-2.0

package opentelemetry_test

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/trackertest"
	"github.com/lockstep-ml/lockstep/integrations/opentelemetry"
)

func TestMain(m *testing.M) {
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "OTEL_") {
			_ = os.Unsetenv(name)
		}
	}
	goleak.VerifyTestMain(m)
}

const secret = "s3cret key,1"

// collector is OTLP's receiver of metrics.
type collector struct {
	sync.Mutex
	points   map[string]map[string][]any // value by metric and time
	units    map[string]string
	resource map[string]string
	labels   map[string]string
	answer   string
}

type attributes []struct {
	Key   string
	Value struct{ StringValue string }
}

func (a attributes) all() map[string]string {
	all := map[string]string{}
	for _, one := range a {
		all[one.Key] = one.Value.StringValue
	}
	return all
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.Lock()
	defer c.Unlock()
	var in struct {
		ResourceMetrics []struct {
			Resource     struct{ Attributes attributes }
			ScopeMetrics []struct {
				Metrics []struct {
					Name, Unit string
					Gauge      struct {
						DataPoints []struct {
							Attributes   attributes
							TimeUnixNano string
							AsDouble     any
						}
					}
				}
			}
		}
	}
	body, _ := io.ReadAll(r.Body)
	switch {
	case r.Header.Get("X-Key") != secret:
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte("want a key, not " + r.Header.Get("X-Key")))
		return
	case r.URL.Path != "/otlp/v1/metrics" || r.Header.Get("Content-Type") != "application/json" ||
		json.Unmarshal(body, &in) != nil:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if c.points == nil {
		c.points, c.units = map[string]map[string][]any{}, map[string]string{}
	}
	for _, m := range in.ResourceMetrics[0].ScopeMetrics[0].Metrics {
		if c.points[m.Name] == nil {
			c.points[m.Name] = map[string][]any{}
		}
		c.units[m.Name] = m.Unit
		for _, p := range m.Gauge.DataPoints {
			c.points[m.Name][p.TimeUnixNano] = append(c.points[m.Name][p.TimeUnixNano], p.AsDouble)
			c.labels = p.Attributes.all()
		}
	}
	c.resource = in.ResourceMetrics[0].Resource.Attributes.all()
	_, _ = w.Write([]byte(c.answer))
}

func begin(t *testing.T) *trackertest.Run {
	a := args.Default(t.TempDir())
	a.RunName, a.ReportTo = "my run", []string{"opentelemetry"}
	reporters, err := callbacks.NewReporters(a)
	require.NoError(t, err)
	require.Len(t, reporters, 1)
	return trackertest.New(t, a, reporters...)
}

// A run and its resumption are one series, with the names, times and labels of OpenTelemetry.
func TestRunAndResume(t *testing.T) {
	told := trackertest.Logged(t)
	c := &collector{answer: "{}"}
	h := trackertest.NewServer(t, c)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", h.URL+"/otlp/")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=s3cret%20key%2C1 , other=2")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine,host.name=a%2Cb")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	first := begin(t)
	first.Begin()
	h.Fail.Store(1) // the first request, whose rows come again
	for step := range int64(150) {
		first.Log(step+1, callbacks.Record{"loss": 0.5, "step": step + 1, "memory_rss": 4096.0, "note": "text"})
	}
	first.Log(150, callbacks.Record{"eval_loss": math.NaN(), "eval_low": math.Inf(-1), "eval_high": math.Inf(1)})
	first.End("")
	run := c.labels["run_id"]
	second := begin(t)
	second.Resume(first)
	second.Begin()
	second.Log(151, callbacks.Record{"loss": 0.25})
	second.End("")
	require.NotContains(t, told.String(), "***") // of the header that is no key
	require.Len(t, c.points["lockstep.loss"], 151)
	require.Len(t, c.points["lockstep.step"], 152)
	require.Equal(t, map[string]string{"run": "my run", "run_id": run}, c.labels)
	require.Equal(t, map[string]string{"service.name": "mine", "host.name": "a,b", "service.instance.id": run},
		c.resource)
	require.Equal(t, map[string]string{"lockstep.loss": "", "lockstep.step": "", "lockstep.memory_rss": "By",
		"lockstep.eval_loss": "", "lockstep.eval_low": "", "lockstep.eval_high": ""}, c.units)
	for name, want := range map[string]any{"eval_loss": "NaN", "eval_low": "-Infinity", "eval_high": "Infinity"} {
		for _, values := range c.points["lockstep."+name] {
			require.Equal(t, []any{want}, values)
		}
	}
}

// What a collector refuses, or one that is not there, is a warning of the run, without keys.
func TestFailures(t *testing.T) {
	rejects := `{"partialSuccess":{"rejectedDataPoints":"3","errorMessage":"too old"}}`
	h := trackertest.NewServer(t, &collector{answer: rejects})
	for want, v := range map[string][2]string{
		"401 Unauthorized: want a key, not ***": {h.URL + "/otlp", "X-Key=wrong s3cret"},
		"3 points are rejected: too old":        {h.URL + "/otlp", "X-Key=s3cret key%2C1"},
		"connect: ":                             {"http://127.0.0.1:1", "X-Key=s3cret key%2C1"},
	} {
		told := trackertest.Logged(t)
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", v[0])
		t.Setenv("OTEL_EXPORTER_OTLP_METRICS_HEADERS", v[1])
		r := begin(t)
		r.Begin()
		for step := range int64(3) {
			r.Log(step, callbacks.Record{"loss": 0.5})
		}
		r.End("")
		require.Contains(t, told.String(), want)
		require.Contains(t, told.String(), `msg="a reporter lost records" reporter=opentelemetry records=3`)
		require.Equal(t, 2, strings.Count(told.String(), "\n"), told.String())
		require.NotContains(t, told.String(), secret)
	}
}

// Variables that ask for what is not there are errors of the start, which tell no keys.
func TestSettings(t *testing.T) {
	for name, c := range map[string]struct{ value, want string }{
		"OTEL_EXPORTER_OTLP_PROTOCOL":         {"grpc", `PROTOCOL is "grpc": want http/json`},
		"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": {"grpc", `METRICS_PROTOCOL is "grpc": want http/json`},
		"OTEL_EXPORTER_OTLP_CERTIFICATE":      {"ca.pem", `CERTIFICATE is "ca.pem": want it unset`},
		"OTEL_EXPORTER_OTLP_ENDPOINT":         {"localhost:4318", "the address of the collector"},
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": {"http://a?key=" + secret, "the address of the collector"},
		"OTEL_EXPORTER_OTLP_HEADERS":          {secret, "OTEL_EXPORTER_OTLP_HEADERS: entry 1: want key=value"},
		"OTEL_EXPORTER_OTLP_METRICS_HEADERS": {"a b=" + strings.ReplaceAll(secret, ",", ""),
			"want names and values of HTTP headers"},
		"OTEL_RESOURCE_ATTRIBUTES": {"a=%", "OTEL_RESOURCE_ATTRIBUTES: entry 1: want key=value"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, c.value)
			a := args.Default("out")
			a.ReportTo = []string{"opentelemetry"}
			_, err := callbacks.NewReporters(a)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), secret)
		})
	}
	_, err := opentelemetry.New(opentelemetry.Config{Headers: map[string]string{"content-type": "text/plain"}})
	require.ErrorContains(t, err, "have Content-Type: want it left out")
}
