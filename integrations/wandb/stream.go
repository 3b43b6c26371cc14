// SPDX-License-Identifier: Apache-2.0

package wandb

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/integrations/internal/rest"
	"github.com/lockstep-ml/lockstep/integrations/internal/tracker"
)

// stream sends a run to the server: GraphQL begins it, and file_stream takes the lines of its history by their number,
// so that lines which are sent twice are there once.
type stream struct {
	config  Config
	folder  *folder // which has what the server did not get
	client  *rest.Client
	path    string // of file_stream
	begin   time.Time
	line    int64 // of the history, the next
	step    int64
	summary map[string]string
	ended   bool
}

func newStream(c Config, f *folder) (*stream, error) {
	client, err := rest.New(c.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("the address of the server (WANDB_BASE_URL): %w", err)
	}
	client.Basic("api", c.APIKey)
	return &stream{config: c, folder: f, client: client}, nil
}

const resumeStatus = `query RunResumeStatus($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) {
    bucket(name: $name, missingOk: true) { summaryMetrics historyLineCount historyTail }
  }
}`

const upsertBucket = `mutation UpsertBucket($name: String, $project: String, $entity: String, $groupName: String,
  $displayName: String, $notes: String, $config: JSONString, $host: String, $jobType: String, $tags: [String!]) {
  upsertBucket(input: {name: $name, modelName: $project, entityName: $entity, groupName: $groupName,
    displayName: $displayName, notes: $notes, config: $config, host: $host, jobType: $jobType, tags: $tags}) {
    bucket { name historyLineCount project { name entity { name } } }
  }
}`

// bucket is a run as the server has it.
type bucket struct {
	Name             string
	HistoryLineCount int64
	HistoryTail      string // a list of rows, each a text
	SummaryMetrics   string
	Project          struct {
		Name   string
		Entity struct{ Name string }
	}
}

// Begin makes the run, or finds how far the one that it continues has come.
func (s *stream) Begin(ctx context.Context, run tracker.Run) error {
	s.begin, s.line, s.step, s.summary = run.Begin, 0, 0, map[string]string{}
	if run.Resumed {
		if err := s.resume(ctx, run); err != nil {
			return err
		}
	}
	variables := map[string]any{"name": run.ID, "project": run.Project, "config": runSettings(run.Config),
		"tags": s.config.Tags}
	for key, text := range map[string]string{"entity": s.config.Entity, "groupName": s.config.Group,
		"displayName": run.Name, "notes": s.config.Notes, "host": hostName(), "jobType": s.config.JobType} {
		if text != "" {
			variables[key] = text
		}
	}
	var made struct{ UpsertBucket struct{ Bucket *bucket } }
	if err := s.query(ctx, upsertBucket, variables, &made); err != nil {
		return err
	}
	b := made.UpsertBucket.Bucket
	if b == nil || b.Name == "" || b.Project.Entity.Name == "" {
		return s.client.Refuse("the answer to UpsertBucket has no run: want the server of Weights & Biases")
	}
	s.line = max(s.line, b.HistoryLineCount)
	parts := []string{b.Project.Entity.Name, b.Project.Name, b.Name}
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	s.path = "/files/" + strings.Join(parts, "/") + "/file_stream"
	page := strings.Replace(s.client.Base(), "//api.wandb.ai", "//wandb.ai", 1)
	slog.Info("the run is online", "reporter", "wandb", "at", page+"/"+parts[0]+"/"+parts[1]+"/runs/"+parts[2])
	return nil
}

// resume reads how far a run has come. A run that the server does not have is begun.
func (s *stream) resume(ctx context.Context, run tracker.Run) error {
	variables := map[string]any{"project": run.Project, "name": run.ID}
	if s.config.Entity != "" {
		variables["entity"] = s.config.Entity
	}
	var found struct{ Model *struct{ Bucket *bucket } }
	if err := s.query(ctx, resumeStatus, variables, &found); err != nil {
		return err
	}
	if found.Model == nil || found.Model.Bucket == nil {
		return nil
	}
	b := found.Model.Bucket
	s.line, s.step = b.HistoryLineCount, b.HistoryLineCount
	var tail []string
	if json.Unmarshal([]byte(b.HistoryTail), &tail) == nil {
		for _, row := range tail {
			var last struct {
				Step int64 `json:"_step"`
			}
			if json.Unmarshal([]byte(finiteJSON(row)), &last) == nil {
				s.step = max(s.step, last.Step+1)
			}
		}
	}
	var summary map[string]json.RawMessage
	if json.Unmarshal([]byte(finiteJSON(b.SummaryMetrics)), &summary) == nil {
		for name, v := range summary {
			s.summary[name] = string(v)
		}
	}
	return nil
}

// finiteJSON makes texts of numbers that are not finite, which JSON does not have.
func finiteJSON(text string) string {
	return strings.NewReplacer(`:NaN`, `:"NaN"`, `:Infinity`, `:"Infinity"`, `:-Infinity`, `:"-Infinity"`).Replace(text)
}

// runSettings returns the configuration as the server has it, with the x-axis of all metrics, and with the platform, a
// part of the telemetry without which the wandb library does not resume a run.
func runSettings(settings map[string]any) string {
	const name, glob, stepMetricIndex, options, defined, synced, platform = "1", "2", "5", "6", 3, 1, "13"
	all := map[string]any{"_wandb": map[string]any{"value": map[string]any{"m": []any{
		map[string]any{name: stepMetric, options: []int{defined}, "7": []int{}},
		map[string]any{glob: "*", stepMetricIndex: 1, options: []int{synced}, "7": []int{}},
	}, "t": map[string]any{platform: runtime.GOOS + "-" + runtime.GOARCH}}}}
	for key, v := range settings {
		all[key] = map[string]any{"value": v}
	}
	return jsonText(all)
}

// query asks GraphQL. Errors in the answer refuse it.
func (s *stream) query(ctx context.Context, text string, variables map[string]any, out any) error {
	var answer struct {
		Data   json.RawMessage
		Errors []struct{ Message string }
	}
	err := s.client.Post(ctx, "/graphql", map[string]any{"query": text, "variables": variables}, &answer)
	if err != nil {
		return err
	}
	if len(answer.Errors) > 0 {
		return s.client.Refuse(answer.Errors[0].Message)
	}
	if err := json.Unmarshal(answer.Data, out); err != nil {
		return s.client.Refuse("the answer is not that of Weights & Biases: " + err.Error())
	}
	return nil
}

// chunk is a part of a file of the run.
type chunk struct {
	Offset  int64    `json:"offset"`
	Content []string `json:"content"`
}

// Log sends lines of the history and the summary.
func (s *stream) Log(ctx context.Context, rows []tracker.Row) error {
	files := map[string]chunk{}
	if len(rows) > 0 {
		history := chunk{Offset: s.line}
		for i, r := range rows {
			line, summary := columns(r, s.step+int64(i), s.begin)
			history.Content = append(history.Content, object(line))
			for _, p := range append(line, summary...) {
				s.summary[p.name] = p.value
			}
		}
		files["wandb-history.jsonl"] = history
		var last []pair
		for _, name := range slices.Sorted(maps.Keys(s.summary)) {
			last = append(last, pair{name, s.summary[name]})
		}
		files["wandb-summary.json"] = chunk{Content: []string{object(last)}}
	}
	if err := s.client.Post(ctx, s.path, map[string]any{"files": files}, nil); err != nil {
		return err
	}
	s.line, s.step = s.line+int64(len(rows)), s.step+int64(len(rows))
	return nil
}

// End completes the run.
func (s *stream) End(ctx context.Context, _ time.Time, status tracker.Status) error {
	err := s.client.Post(ctx, s.path, map[string]any{"complete": true, "exitcode": exitCode(status)}, nil)
	s.ended = err == nil
	return err
}

// Close tells how the rest of a run reaches the server if that did not get it.
func (s *stream) Close() error {
	if !s.ended {
		slog.Warn("the server did not receive the whole run", "reporter", "wandb", "upload", s.folder.syncCommand())
	}
	s.client.Close()
	return nil
}
