// SPDX-License-Identifier: Apache-2.0

package mlflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/integrations/internal/rest"
	"github.com/lockstep-ml/lockstep/integrations/internal/tracker"
)

// The server's limits.
const (
	mostMetrics = 1000 // of a request
	mostParams  = 100  // of a request
	longest     = 6000 // bytes of a parameter; longer ones are cut
)

// idTag is the tag that has the run's ID, by which a training that resumes finds its run.
const idTag = "lockstep.run_id"

// run is a run of the server.
type run struct {
	config Config
	client *rest.Client
	id     string // the server's
}

// pair is a parameter or a tag.
type pair struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// entity is a run as the server answers it.
type entity struct {
	Info struct {
		RunID string `json:"run_id"`
	}
	Data struct{ Params []pair }
}

func (r *run) post(ctx context.Context, path string, in map[string]any, out any) error {
	return r.client.Post(ctx, "/api/2.0/mlflow/"+path, in, out)
}

// Begin finds the run, or makes it, and sends the parameters that it does not have: MLflow's never change.
func (r *run) Begin(ctx context.Context, run tracker.Run) error {
	found, err := r.find(ctx, run)
	if err != nil {
		return err
	}
	tags := []pair{{idTag, run.ID}}
	for _, key := range slices.Sorted(maps.Keys(r.config.Tags)) {
		tags = append(tags, pair{key, r.config.Tags[key]})
	}
	if r.id = found.Info.RunID; run.Resumed {
		err = r.post(ctx, "runs/update", map[string]any{"run_id": r.id, "status": "RUNNING"}, nil)
		if err != nil {
			return err
		}
	}
	if err := r.batch(ctx, "tags", tags); err != nil {
		return err
	}
	had := map[string]bool{}
	for _, p := range found.Data.Params {
		had[p.Key] = true
	}
	params := slices.DeleteFunc(r.params(run.Config), func(p pair) bool { return had[p.Key] })
	for some := range slices.Chunk(params, mostParams) {
		if err := r.batch(ctx, "params", some); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) batch(ctx context.Context, what string, list any) error {
	return r.post(ctx, "runs/log-batch", map[string]any{"run_id": r.id, what: list}, nil)
}

// find returns the run of an ID, which a try before this one may have made too.
func (r *run) find(ctx context.Context, run tracker.Run) (entity, error) {
	var out struct {
		Run  entity
		Runs []entity
	}
	if r.config.RunID != "" {
		err := r.client.Get(ctx, "/api/2.0/mlflow/runs/get", url.Values{"run_id": {r.config.RunID}}, &out)
		return out.Run, r.named(out.Run, err)
	}
	experiment, err := r.experiment(ctx)
	if err != nil {
		return entity{}, err
	}
	err = r.post(ctx, "runs/search", map[string]any{"experiment_ids": []string{experiment}, "max_results": 1,
		"filter": fmt.Sprintf("tags.`%s` = '%s'", idTag, run.ID)}, &out)
	if err != nil {
		return entity{}, err
	}
	if len(out.Runs) > 0 {
		return out.Runs[0], r.named(out.Runs[0], nil)
	}
	in := map[string]any{"experiment_id": experiment, "start_time": run.Begin.UnixMilli(),
		"tags": []pair{{idTag, run.ID}}}
	if run.Name != "" {
		in["run_name"] = run.Name
	}
	err = r.post(ctx, "runs/create", in, &out)
	return out.Run, r.named(out.Run, err)
}

// named refuses a run without a name, which no MLflow server answers.
func (r *run) named(e entity, err error) error {
	if err == nil && e.Info.RunID == "" {
		return r.client.Refuse("the answer has no run: want an MLflow server")
	}
	return err
}

// experiment returns the ID of the experiment, and makes it if there is none.
func (r *run) experiment(ctx context.Context) (string, error) {
	get := func() (string, error) {
		var out struct {
			Experiment struct {
				ID string `json:"experiment_id"`
			}
		}
		query := url.Values{"experiment_name": {r.config.Experiment}}
		err := r.client.Get(ctx, "/api/2.0/mlflow/experiments/get-by-name", query, &out)
		if err == nil && out.Experiment.ID == "" {
			err = r.client.Refuse("the answer has no experiment: want an MLflow server")
		}
		return out.Experiment.ID, err
	}
	id, err := get()
	if !answers(err, http.StatusNotFound, "RESOURCE_DOES_NOT_EXIST") {
		return id, err
	}
	err = r.post(ctx, "experiments/create", map[string]any{"name": r.config.Experiment}, nil)
	if err != nil && !answers(err, http.StatusBadRequest, "RESOURCE_ALREADY_EXISTS") { // another run made it meanwhile
		return "", err
	}
	return get()
}

// answers reports whether an error is the server's, of that kind.
func answers(err error, code int, kind string) bool {
	var status *rest.StatusError
	return errors.As(err, &status) && status.Code == code && strings.Contains(status.Body, kind)
}

// params returns the settings as MLflow has them: texts, under names that it takes, sorted.
func (r *run) params(settings map[string]any) (list []pair) {
	if r.config.FlattenParams {
		settings = flatten(settings, "", map[string]any{})
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		text, ok := settings[key].(string)
		if !ok {
			encoded, err := json.Marshal(settings[key])
			if err != nil {
				continue
			}
			text = string(encoded)
		}
		list = append(list, pair{plainName(key), strings.ToValidUTF8(text[:min(len(text), longest)], "")})
	}
	if r.config.MaxParams > 0 {
		list = list[:min(len(list), r.config.MaxParams)]
	}
	return list
}

// flatten gives nested settings names with dots.
func flatten(settings map[string]any, prefix string, to map[string]any) map[string]any {
	for key, v := range settings {
		if nested, ok := v.(map[string]any); ok && len(nested) > 0 {
			flatten(nested, prefix+key+".", to)
		} else {
			to[prefix+key] = v
		}
	}
	return to
}

var notPlain = regexp.MustCompile(`[^0-9A-Za-z_\-. :/]`)

// plainName replaces the characters that MLflow refuses, as HuggingFace's reporter does.
func plainName(name string) string { return notPlain.ReplaceAllString(name, "_") }

// metric is a point of a curve.
type metric struct {
	Key       string `json:"key"`
	Value     number `json:"value"`
	Timestamp int64  `json:"timestamp"` // milliseconds
	Step      int64  `json:"step"`
}

// number is a float64 that JSON may lack: NaN, Infinity and -Infinity are texts.
type number float64

// MarshalJSON writes the number.
func (n number) MarshalJSON() ([]byte, error) {
	switch x := float64(n); {
	case math.IsNaN(x):
		return []byte(`"NaN"`), nil
	case math.IsInf(x, 1):
		return []byte(`"Infinity"`), nil
	case math.IsInf(x, -1):
		return []byte(`"-Infinity"`), nil
	default:
		return json.Marshal(x)
	}
}

// Log sends the numbers of rows. The server keeps one of points that are sent twice.
func (r *run) Log(ctx context.Context, rows []tracker.Row) error {
	var points []metric
	for _, row := range rows {
		for _, key := range row.Record.Keys() {
			if x, ok := row.Record.Number(key); ok && key != "step" {
				points = append(points, metric{plainName(key), number(x), row.Time.UnixMilli(), row.Step})
			}
		}
	}
	for some := range slices.Chunk(points, mostMetrics) {
		if err := r.batch(ctx, "metrics", some); err != nil {
			return err
		}
	}
	return nil
}

// End gives the run its final status.
func (r *run) End(ctx context.Context, at time.Time, s tracker.Status) error {
	status := map[tracker.Status]string{tracker.Finished: "FINISHED", tracker.Interrupted: "KILLED",
		tracker.Failed: "FAILED"}[s]
	return r.post(ctx, "runs/update", map[string]any{"run_id": r.id, "status": status, "end_time": at.UnixMilli()}, nil)
}

// Close closes idle connections.
func (r *run) Close() error {
	r.client.Close()
	return nil
}
