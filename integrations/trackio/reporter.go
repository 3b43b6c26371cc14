// SPDX-License-Identifier: Apache-2.0

package trackio

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/rest"
	"github.com/lockstep-ml/lockstep/integrations/internal/tracker"
)

// DefaultServerURL is where "trackio show" listens by itself.
const DefaultServerURL = "http://127.0.0.1:7860"

// Config says where runs go. The zero value of a field is its default.
type Config struct {
	ServerURL  string // which may have the query write_token, as "trackio show" prints it; TRACKIO_SERVER_URL
	WriteToken string // instead of the address's; TRACKIO_WRITE_TOKEN
	Project    string // by default huggingface; the argument project
}

func init() {
	callbacks.RegisterReporter("trackio", func(a *args.TrainingArguments) (callbacks.Callback, error) {
		if space := os.Getenv("TRACKIO_SPACE_ID"); space != "" {
			return nil, fmt.Errorf("TRACKIO_SPACE_ID is %q: want TRACKIO_SERVER_URL, the address of a server", space)
		}
		return New(Config{ServerURL: os.Getenv("TRACKIO_SERVER_URL"), WriteToken: os.Getenv("TRACKIO_WRITE_TOKEN"),
			Project: a.Project})
	})
}

// New returns the reporter of a configuration. It opens nothing yet.
func New(c Config) (callbacks.Callback, error) {
	c.ServerURL, c.Project = cmp.Or(c.ServerURL, DefaultServerURL), cmp.Or(c.Project, "huggingface")
	if u, err := url.Parse(c.ServerURL); err == nil && u.Query().Has("write_token") {
		c.WriteToken = cmp.Or(strings.TrimSpace(c.WriteToken), u.Query().Get("write_token"))
		u.RawQuery = ""
		c.ServerURL = u.String()
	}
	if _, err := c.client(); err != nil {
		return nil, err
	}
	return tracker.New(tracker.Options{Name: "trackio", Callback: "TrackioCallback", Project: c.Project,
		Open: func(tracker.Run) []tracker.Destination {
			client, err := c.client()
			if err != nil {
				return nil // which New has seen
			}
			return []tracker.Destination{&run{client: client}}
		}}), nil
}

func (c Config) client() (*rest.Client, error) {
	client, err := rest.New(c.ServerURL)
	if err != nil {
		return nil, fmt.Errorf("the address of the server (TRACKIO_SERVER_URL): %w", err)
	}
	if c.WriteToken != "" {
		client.Secret("X-Trackio-Write-Token", "", c.WriteToken)
	}
	return client, nil
}

// run is a run of the server.
type run struct {
	client *rest.Client
	begun  tracker.Run
	rows   int // sent
}

// entry is a row of a run.
type entry struct {
	Project string         `json:"project"`
	Run     string         `json:"run"`
	RunID   string         `json:"run_id"`
	Metrics map[string]any `json:"metrics"`
	Step    int64          `json:"step"`
	Config  map[string]any `json:"config,omitempty"` // with the first row
	LogID   string         `json:"log_id"`           // of which the server keeps one row
}

// Begin sends nothing: the server makes a run with its first row.
func (r *run) Begin(_ context.Context, run tracker.Run) error {
	r.begun = run
	return nil
}

// Log sends rows.
func (r *run) Log(ctx context.Context, rows []tracker.Row) error {
	if len(rows) == 0 {
		return nil
	}
	var logs []entry
	for i, row := range rows {
		e := entry{Project: r.begun.Project, Run: cmp.Or(r.begun.Name, r.begun.ID), RunID: r.begun.ID, Step: row.Step,
			Metrics: metrics(row), LogID: fmt.Sprintf("%s-%x-%d", r.begun.ID, r.begun.Begin.UnixNano(), r.rows+i)}
		if r.rows+i == 0 {
			e.Config = maps.Clone(r.begun.Config)
			e.Config["_Created"] = r.begun.Begin.UTC().Format(time.RFC3339Nano)
		}
		logs = append(logs, e)
	}
	var answer map[string]any
	err := r.client.Post(ctx, "/api/bulk_log", map[string]any{"logs": logs, "hf_token": nil}, &answer)
	if err != nil {
		return err
	}
	if _, ok := answer["data"]; !ok { // {"data": null}, unless it is another server
		return r.client.Refuse("the answer has no data: want a trackio server")
	}
	r.rows += len(rows)
	return nil
}

// metrics returns a row's values by name. HuggingFace's reporter leaves out the figures of a run's summary.
func metrics(row tracker.Row) map[string]any {
	curves, _ := row.Split()
	all := map[string]any{"train/global_step": row.Step}
	for name, x := range curves.Metrics() {
		if all[name] = x; math.IsNaN(x) || math.IsInf(x, 0) {
			all[name] = map[bool]string{true: "Infinity", false: "-Infinity"}[x > 0]
			if math.IsNaN(x) {
				all[name] = "NaN"
			}
		}
	}
	for key, v := range curves {
		if text, ok := v.(string); ok {
			all[callbacks.MetricName(key)] = text
		}
	}
	return all
}

// End sends nothing: trackio's runs have no end.
func (r *run) End(context.Context, time.Time, tracker.Status) error { return nil }

// Close closes idle connections.
func (r *run) Close() error {
	r.client.Close()
	return nil
}
