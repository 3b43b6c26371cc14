// SPDX-License-Identifier: Apache-2.0

package mlflow

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/rest"
	"github.com/lockstep-ml/lockstep/integrations/internal/tracker"
)

// DefaultTrackingURI is where "mlflow server" listens by itself.
const DefaultTrackingURI = "http://127.0.0.1:5000"

// Config says where runs go. The zero value of a field is its default.
type Config struct {
	TrackingURI string            // of the server; MLFLOW_TRACKING_URI
	Token       string            // MLFLOW_TRACKING_TOKEN
	Username    string            // MLFLOW_TRACKING_USERNAME
	Password    string            // MLFLOW_TRACKING_PASSWORD
	Experiment  string            // by default Default; it is made if there is none; MLFLOW_EXPERIMENT_NAME
	RunName     string            // instead of run_name; MLFLOW_RUN_NAME
	RunID       string            // of a run of the server to continue; MLFLOW_RUN_ID
	Tags        map[string]string // MLFLOW_TAGS, a JSON object
	// FlattenParams makes a parameter of each entry of a nested setting, as fsdp_config.version; MLFLOW_FLATTEN_PARAMS
	FlattenParams bool
	MaxParams     int // the first parameters alone, in the order of their names; 0: all; MLFLOW_MAX_LOG_PARAMS
}

func init() {
	callbacks.RegisterReporter("mlflow", func(*args.TrainingArguments) (callbacks.Callback, error) {
		c, err := FromEnvironment()
		if err != nil {
			return nil, err
		}
		return New(c)
	})
}

// FromEnvironment returns the configuration that MLflow's variables make.
func FromEnvironment() (Config, error) {
	for _, name := range []string{"HF_MLFLOW_LOG_ARTIFACTS", "MLFLOW_NESTED_RUN", "MLFLOW_TRACKING_INSECURE_TLS"} {
		if isTrue(os.Getenv(name)) {
			return Config{}, fmt.Errorf("%s is %q: want false", name, os.Getenv(name))
		}
	}
	c := Config{TrackingURI: os.Getenv("MLFLOW_TRACKING_URI"),
		Token:    strings.TrimSpace(os.Getenv("MLFLOW_TRACKING_TOKEN")),
		Username: os.Getenv("MLFLOW_TRACKING_USERNAME"), Password: os.Getenv("MLFLOW_TRACKING_PASSWORD"),
		Experiment: os.Getenv("MLFLOW_EXPERIMENT_NAME"), RunName: os.Getenv("MLFLOW_RUN_NAME"),
		RunID: os.Getenv("MLFLOW_RUN_ID"), FlattenParams: isTrue(os.Getenv("MLFLOW_FLATTEN_PARAMS"))}
	if text := os.Getenv("MLFLOW_TAGS"); text != "" {
		if err := json.Unmarshal([]byte(text), &c.Tags); err != nil {
			return Config{}, fmt.Errorf("MLFLOW_TAGS: want a JSON object whose values are texts: %w", err)
		}
	}
	if text := os.Getenv("MLFLOW_MAX_LOG_PARAMS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return Config{}, fmt.Errorf("MLFLOW_MAX_LOG_PARAMS is %q: want a whole number ≥ 1", text)
		}
		c.MaxParams = n
	}
	return c, nil
}

// isTrue reports whether a variable's text means true to HuggingFace's reporter.
func isTrue(text string) bool {
	switch strings.ToUpper(text) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}

// New returns the reporter of a configuration. It opens nothing yet.
func New(c Config) (callbacks.Callback, error) {
	c.TrackingURI, c.Experiment = cmp.Or(c.TrackingURI, DefaultTrackingURI), cmp.Or(c.Experiment, "Default")
	if _, err := c.client(); err != nil {
		return nil, err
	}
	if c.RunID != "" && !tracker.ValidID(c.RunID) {
		return nil, fmt.Errorf("the run's ID is %q (MLFLOW_RUN_ID): want up to 64 letters, digits, hyphens and "+
			"underscores", c.RunID)
	}
	return tracker.New(tracker.Options{Name: "mlflow", Callback: "MLflowCallback", RunID: c.RunID, RunName: c.RunName,
		Open: func(tracker.Run) []tracker.Destination {
			client, err := c.client()
			if err != nil {
				return nil // which New has seen
			}
			return []tracker.Destination{&run{config: c, client: client}}
		}}), nil
}

func (c Config) client() (*rest.Client, error) {
	client, err := rest.New(c.TrackingURI)
	if err != nil {
		return nil, fmt.Errorf(`the address of the server (MLFLOW_TRACKING_URI): %w; a store of files or a database is `+
			`served by "mlflow server"`, err)
	}
	switch {
	case c.Username != "":
		client.Basic(c.Username, c.Password)
	case c.Token != "":
		client.Bearer(c.Token)
	}
	return client, nil
}
