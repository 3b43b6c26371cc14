// SPDX-License-Identifier: Apache-2.0

package mlflow_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/trackertest"
	"github.com/lockstep-ml/lockstep/integrations/mlflow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "s3cret-token"

type pair struct{ Key, Value string }

// run is a run as the server keeps it.
type run struct {
	name, status string
	params, tags map[string]string
	metrics      []string
}

// server is as much of MLflow's REST API as a run needs, with the answers of MLflow 3.
type server struct {
	sync.Mutex
	experiments []string
	runs        []*run
	largest     int  // of a request, in metrics, parameters and tags
	cut         bool // the connection once, after runs/create
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	defer s.Unlock()
	fail := func(code int, kind, message string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]string{"error_code": kind, "message": message})
	}
	if r.Header.Get("Authorization") != "Bearer "+secret {
		fail(http.StatusUnauthorized, "UNAUTHENTICATED", r.Header.Get("Authorization"))
		return
	}
	var in struct {
		RunID        string `json:"run_id"`
		RunName      string `json:"run_name"`
		Name, Filter string
		Status       string
		Tags, Params []pair
		Metrics      []struct {
			Key             string
			Value           any
			Timestamp, Step int64
		}
	}
	if r.Method == http.MethodPost && json.NewDecoder(r.Body).Decode(&in) != nil {
		fail(http.StatusBadRequest, "BAD_REQUEST", "not JSON")
		return
	}
	if in.RunID == "" {
		in.RunID = r.URL.Query().Get("run_id")
	}
	var at *run
	if i := slices.IndexFunc(s.runs, func(r *run) bool { return r.name == in.RunID }); i >= 0 {
		at = s.runs[i]
	}
	var out any = map[string]any{}
	switch path := strings.TrimPrefix(r.URL.Path, "/prefix/api/2.0/mlflow/"); path {
	case "experiments/get-by-name":
		i := slices.Index(s.experiments, r.URL.Query().Get("experiment_name"))
		if i < 0 {
			fail(http.StatusNotFound, "RESOURCE_DOES_NOT_EXIST", "no experiment")
			return
		}
		out = map[string]any{"experiment": map[string]any{"experiment_id": fmt.Sprint(i)}}
	case "experiments/create":
		s.experiments = append(s.experiments, in.Name)
	case "runs/search":
		for _, r := range s.runs {
			if in.Filter == "tags.`lockstep.run_id` = '"+r.tags["lockstep.run_id"]+"'" {
				out = map[string]any{"runs": []any{r.entity()}}
			}
		}
	case "runs/create":
		at = &run{name: fmt.Sprint("run", len(s.runs)), status: "RUNNING", params: map[string]string{},
			tags: map[string]string{"mlflow.runName": in.RunName}}
		s.runs = append(s.runs, at)
		for _, p := range in.Tags {
			at.tags[p.Key] = p.Value
		}
		out = map[string]any{"run": at.entity()}
		if s.cut {
			s.cut = false
			panic(http.ErrAbortHandler)
		}
	case "runs/get", "runs/update", "runs/log-batch":
		if at == nil {
			fail(http.StatusNotFound, "RESOURCE_DOES_NOT_EXIST", "no run")
			return
		}
		if in.Status != "" {
			at.status = in.Status
		}
		for _, p := range in.Params {
			if was, ok := at.params[p.Key]; ok && was != p.Value {
				fail(http.StatusBadRequest, "INVALID_PARAMETER_VALUE", "Changing param values is not allowed")
				return
			}
			at.params[p.Key] = p.Value
		}
		for _, p := range in.Tags {
			at.tags[p.Key] = p.Value
		}
		for _, m := range in.Metrics {
			at.metrics = append(at.metrics, fmt.Sprint(m.Step, " ", m.Key, " ", m.Value))
		}
		s.largest = max(s.largest, len(in.Metrics), len(in.Params)*10)
		out = map[string]any{"run": at.entity()}
	default:
		fail(http.StatusNotFound, "ENDPOINT_NOT_FOUND", path)
		return
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (r *run) entity() map[string]any {
	var params []map[string]string
	for k, v := range r.params {
		params = append(params, map[string]string{"key": k, "value": v})
	}
	return map[string]any{"info": map[string]any{"run_id": r.name, "status": r.status},
		"data": map[string]any{"params": params}}
}

func start(t *testing.T) (*server, *trackertest.Server, mlflow.Config) {
	s := &server{experiments: []string{"Default"}}
	h := trackertest.NewServer(t, s)
	return s, h, mlflow.Config{TrackingURI: h.URL + "/prefix/", Token: secret, Experiment: "mine"}
}

func begin(t *testing.T, c mlflow.Config, change func(*args.TrainingArguments)) *trackertest.Run {
	reporter, err := mlflow.New(c)
	require.NoError(t, err)
	a := args.Default(t.TempDir())
	a.RunName = "my run"
	change(a)
	return trackertest.New(t, a, reporter)
}

func same(*args.TrainingArguments) {}

func TestRunAndResume(t *testing.T) {
	told := trackertest.Logged(t)
	s, _, c := start(t)
	c.Tags = map[string]string{"team": "a"}
	first := begin(t, c, same)
	first.Begin()
	for step := range int64(300) {
		first.Log(step+1, callbacks.Record{"loss": 0.5, "eval_a(b)": 1, "epoch": 1.0, "step": step + 1, "note": "text"})
	}
	first.Log(301, callbacks.Record{"loss": math.NaN(), "low": math.Inf(-1), "high": math.Inf(1)})
	first.End(callbacks.StopInterrupted)
	require.Equal(t, []string{"Default", "mine"}, s.experiments)
	require.Len(t, s.runs, 1)
	r := s.runs[0]
	require.Equal(t, "KILLED", r.status)
	require.Equal(t, "my run", r.tags["mlflow.runName"])
	require.Equal(t, "a", r.tags["team"])
	require.Equal(t, "0.00005", r.params["learning_rate"])
	require.Equal(t, "12", r.params["model/num_parameters"])
	require.Equal(t, "my run", r.params["run_name"])
	require.Len(t, r.metrics, 903)
	require.Equal(t, []string{"1 epoch 1", "1 loss 0.5", "1 eval_a_b_ 1"}, r.metrics[:3])
	require.ElementsMatch(t, []string{"301 loss NaN", "301 high Infinity", "301 low -Infinity"}, r.metrics[900:])
	require.LessOrEqual(t, s.largest, 1000)

	params := maps.Clone(r.params)
	second := begin(t, c, func(a *args.TrainingArguments) { a.LearningRate = 1 })
	second.Resume(first)
	second.Begin()
	second.Log(302, callbacks.Record{"loss": 0.25})
	second.End("")
	require.Len(t, s.runs, 1)
	require.Equal(t, "302 loss 0.25", r.metrics[903])
	require.Equal(t, "FINISHED", r.status)
	require.Equal(t, params, r.params, "they never change")

	c.RunID = "run0" // by its name on the server
	third := begin(t, c, same)
	third.Evaluate(400, callbacks.Record{"eval_loss": 1.0})
	require.Len(t, s.runs, 1)
	require.Equal(t, "400 eval_loss 1", r.metrics[904])
	require.NotContains(t, told.String(), "WARN")
}

// A run whose creation was not answered is found, and not made twice.
func TestOutage(t *testing.T) {
	told := trackertest.Logged(t)
	s, h, c := start(t)
	s.cut = true
	r := begin(t, c, same)
	r.Begin()
	r.Log(1, callbacks.Record{"loss": 1.0})
	r.End("")
	require.Len(t, s.runs, 1)
	require.Equal(t, []string{"1 loss 1"}, s.runs[0].metrics)
	require.Equal(t, "FINISHED", s.runs[0].status)
	require.Equal(t, 1, strings.Count(told.String(), "level=WARN"), "%s", told)

	h.Close()
	r = begin(t, c, same)
	r.Begin()
	r.Log(1, callbacks.Record{"loss": 1.0})
	r.End("")
	require.Contains(t, told.String(), "a reporter lost records\" reporter=mlflow records=1")
	require.NotContains(t, told.String(), secret)
}

func TestRefusals(t *testing.T) {
	told := trackertest.Logged(t)
	for want, change := range map[string]func(*mlflow.Config){
		`401 Unauthorized: {`: func(c *mlflow.Config) { c.Token = "wrong" + secret },
		"Bearer ***":          func(c *mlflow.Config) { c.Token = "wrong" + secret },
		"404 Not Found":       func(c *mlflow.Config) { c.RunID = "unknown" },
	} {
		_, _, c := start(t)
		change(&c)
		r := begin(t, c, same)
		r.Begin()
		r.Log(1, callbacks.Record{"loss": 1.0})
		r.End("")
		require.Contains(t, told.String(), want)
	}
	require.NotContains(t, told.String(), secret)
}

func TestConfig(t *testing.T) {
	for _, name := range []string{"TRACKING_URI", "TRACKING_TOKEN", "TRACKING_USERNAME", "TRACKING_PASSWORD",
		"EXPERIMENT_NAME", "RUN_NAME", "RUN_ID", "TAGS", "FLATTEN_PARAMS", "MAX_LOG_PARAMS", "NESTED_RUN"} {
		t.Setenv("MLFLOW_"+name, "")
	}
	t.Setenv("HF_MLFLOW_LOG_ARTIFACTS", "")
	c, err := mlflow.FromEnvironment()
	require.NoError(t, err)
	require.Equal(t, mlflow.Config{}, c)
	t.Setenv("MLFLOW_TAGS", `{"a":"b"}`)
	t.Setenv("MLFLOW_FLATTEN_PARAMS", "true")
	t.Setenv("MLFLOW_MAX_LOG_PARAMS", "7")
	c, err = mlflow.FromEnvironment()
	require.NoError(t, err)
	require.Equal(t, mlflow.Config{Tags: map[string]string{"a": "b"}, FlattenParams: true, MaxParams: 7}, c)
	for name, want := range map[string][2]string{
		"MLFLOW_TAGS":             {"a=b", "want a JSON object whose values are texts"},
		"MLFLOW_MAX_LOG_PARAMS":   {"0", "want a whole number ≥ 1"},
		"MLFLOW_NESTED_RUN":       {"1", "want false"},
		"HF_MLFLOW_LOG_ARTIFACTS": {"TRUE", "want false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, want[0])
			_, err := mlflow.FromEnvironment()
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, want[1])
		})
	}
	for want, c := range map[string]mlflow.Config{
		`want the address of a server, as https://host or http://host:port/path; a store of files or a database is ` +
			`served by "mlflow server"`: {TrackingURI: "sqlite:///" + secret},
		`the run's ID is "a b" (MLFLOW_RUN_ID)`: {RunID: "a b"},
	} {
		_, err := mlflow.New(c)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), secret)
	}
}

// Nested settings are flattened on demand, and a number of parameters can be set.
func TestParameters(t *testing.T) {
	trackertest.Logged(t)
	for _, c := range []struct {
		config mlflow.Config
		key    string
		count  int
	}{
		{mlflow.Config{FlattenParams: true}, "lr_scheduler_kwargs.num_cycles", 0},
		{mlflow.Config{}, "lr_scheduler_kwargs", 0},
		{mlflow.Config{MaxParams: 3}, "", 3},
	} {
		s, _, config := start(t)
		config.FlattenParams, config.MaxParams = c.config.FlattenParams, c.config.MaxParams
		r := begin(t, config, func(a *args.TrainingArguments) {
			a.LRSchedulerKwargs = map[string]any{"num_cycles": 2.0}
		})
		r.Begin()
		r.End("")
		if c.count > 0 {
			require.Len(t, s.runs[0].params, c.count)
		} else {
			require.Contains(t, s.runs[0].params, c.key)
		}
	}
}

// MLflow takes a thousand metrics in a request.
func TestManyMetrics(t *testing.T) {
	trackertest.Logged(t)
	s, _, c := start(t)
	r := begin(t, c, same)
	r.Begin()
	record := callbacks.Record{}
	for i := range 25 {
		record[fmt.Sprint("eval_metric_", i)] = float64(i)
	}
	for step := range int64(100) {
		r.Log(step, record)
	}
	r.End("")
	require.Len(t, s.runs[0].metrics, 2500)
	require.LessOrEqual(t, s.largest, 1000)
}
