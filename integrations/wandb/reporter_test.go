// SPDX-License-Identifier: Apache-2.0

package wandb_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/trackertest"
	"github.com/lockstep-ml/lockstep/integrations/wandb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "0123456789secret0123456789secret01234567"

func arguments(dir string) *args.TrainingArguments {
	a := args.Default(dir)
	a.RunName, a.ReportTo = "my run", []string{"wandb"}
	return a
}

func begin(t *testing.T, c wandb.Config) *trackertest.Run {
	reporter, err := wandb.New(c)
	require.NoError(t, err)
	return trackertest.New(t, arguments(c.Dir), reporter)
}

// logs returns the files of the runs in a folder, oldest first.
func logs(t *testing.T, dir string) []string {
	paths, err := filepath.Glob(filepath.Join(dir, "wandb", "*", "run-*.wandb"))
	require.NoError(t, err)
	slices.Sort(paths)
	return paths
}

func TestOfflineRun(t *testing.T) {
	told := trackertest.Logged(t)
	dir := t.TempDir()
	r := begin(t, wandb.Config{Dir: dir, Tags: []string{"a", "b"}, Entity: "team"})
	r.Begin()
	r.Log(10, callbacks.Record{"loss": 0.5, "epoch": 1.0, "step": 10})
	r.Evaluate(10, callbacks.Record{"eval_loss": math.NaN(), "eval_low": math.Inf(-1), "step": 10,
		"eval_text": strings.Repeat("long ", 20_000)}) // over several blocks
	r.Log(20, callbacks.Record{"train_loss": 0.25, "train_runtime": 2.0, "epoch": 2.0, "step": 20})
	r.End("")

	paths := logs(t, dir)
	require.Len(t, paths, 1)
	require.Regexp(t, `wandb/offline-run-\d{8}_\d{6}-([a-z0-9]{8})/run-[a-z0-9]{8}\.wandb$`, filepath.ToSlash(paths[0]))
	require.Contains(t, told.String(), "wandb sync "+filepath.Dir(paths[0]))
	run := read(t, paths[0])
	require.Equal(t, map[string]string{"project": "huggingface", "entity": "team", "name": "my run", "tags": "a b",
		"resume": "0", "exit": "0", "axis": "train/global_step", "of": "*"}, run.facts)
	require.Equal(t, "12", run.config["model/num_parameters"])
	require.Equal(t, `"my run"`, run.config["run_name"])
	require.Equal(t, "0.00005", run.config["learning_rate"])
	require.Len(t, run.rows, 3)
	for _, row := range run.rows {
		require.Contains(t, row, "_timestamp")
		require.Contains(t, row, "_runtime")
		delete(row, "_timestamp")
		delete(row, "_runtime")
	}
	require.Equal(t, map[string]string{"train/loss": "0.5", "train/epoch": "1", "train/global_step": "10",
		"_step": "0"}, run.rows[0])
	require.Equal(t, "NaN", run.rows[1]["eval/loss"])
	require.Equal(t, "-Infinity", run.rows[1]["eval/low"])
	require.Len(t, run.rows[1]["eval/text"], 100_002)
	require.Equal(t, map[string]string{"train/epoch": "2", "train/global_step": "20", "_step": "2"}, run.rows[2])
	require.Equal(t, "2", run.summary["train_runtime"])
	require.Equal(t, "NaN", run.summary["eval/loss"])
}

// What a program trains and evaluates is one run; each part that ends has a folder, which says that it continues.
func TestPartsOfOneRun(t *testing.T) {
	trackertest.Logged(t)
	dir := t.TempDir()
	first := begin(t, wandb.Config{Dir: dir})
	first.Evaluate(0, callbacks.Record{"eval_loss": 3.0})
	first.Begin()
	first.Log(1, callbacks.Record{"loss": 2.0})
	first.BreakOff()
	second := begin(t, wandb.Config{Dir: dir})
	second.Resume(first)
	second.Begin()
	second.Log(2, callbacks.Record{"loss": 1.0})
	second.End(callbacks.StopInterrupted)
	var facts []string
	names := map[string]bool{}
	for _, path := range logs(t, dir) {
		run := read(t, path)
		facts = append(facts, run.facts["resume"]+" "+run.facts["exit"])
		names[filepath.Base(path)] = true
	}
	require.Equal(t, []string{"0 0", "1 1", "1 255"}, facts)
	require.Len(t, names, 1, "all have one ID")

	third := begin(t, wandb.Config{Dir: t.TempDir(), RunID: "mine-1"})
	third.Resume(first)
	third.Begin()
	third.End("")
}

// server is as much of Weights & Biases as a run needs.
type server struct {
	sync.Mutex
	runs      map[string][]string // the lines of the history
	summaries map[string]string
	ends      []string
	variables map[string]any
	upserts   int
	error     string // of GraphQL
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	defer s.Unlock()
	if user, password, _ := r.BasicAuth(); user != "api" || password != key {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, "the key %q is wrong", password)
		return
	}
	var in struct {
		Query     string
		Variables map[string]any
		Files     map[string]struct {
			Offset  int
			Content []string
		}
		Complete bool
		ExitCode *int
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	parts := strings.Split(r.URL.Path, "/")
	switch {
	case r.URL.Path == "/graphql" && s.error != "":
		fmt.Fprintf(w, `{"errors":[{"message":%q}]}`, s.error)
	case r.URL.Path == "/graphql":
		id := in.Variables["name"].(string)
		lines, has := s.runs[id]
		project := map[string]any{"name": in.Variables["project"], "entity": map[string]any{"name": "me"}}
		tail, _ := json.Marshal(lines[max(0, len(lines)-1):])
		bucket := map[string]any{"name": id, "historyLineCount": len(lines), "historyTail": string(tail),
			"summaryMetrics": s.summaries[id], "project": project}
		if strings.HasPrefix(in.Query, "mutation") {
			s.variables, s.runs[id] = in.Variables, lines
			s.upserts++
			_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"upsertBucket": map[string]any{
				"bucket": bucket}}})
			return
		}
		model := map[string]any{"bucket": bucket}
		if !has {
			model["bucket"] = nil
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"model": model}})
	case len(parts) == 6 && parts[1] == "files" && parts[5] == "file_stream":
		if h, ok := in.Files["wandb-history.jsonl"]; ok {
			s.runs[parts[4]] = append(s.runs[parts[4]][:h.Offset], h.Content...)
			s.summaries[parts[4]] = in.Files["wandb-summary.json"].Content[0]
		}
		if in.Complete {
			s.ends = append(s.ends, fmt.Sprint(parts[2:5], *in.ExitCode))
		}
		fmt.Fprint(w, `{"exitcode":null,"limits":{}}`)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func online(t *testing.T) (*server, *trackertest.Server, wandb.Config) {
	s := &server{runs: map[string][]string{}, summaries: map[string]string{}}
	h := trackertest.NewServer(t, s)
	return s, h, wandb.Config{Dir: t.TempDir(), BaseURL: h.URL, APIKey: key, Project: "p", Name: "named"}
}

func TestOnlineRunAndResume(t *testing.T) {
	told := trackertest.Logged(t)
	s, _, c := online(t)
	first := begin(t, c)
	first.Begin()
	first.Log(1, callbacks.Record{"loss": math.NaN(), "step": 1})
	first.Log(2, callbacks.Record{"loss": 2.0, "eval_loss": 7.0})
	first.End("")
	second := begin(t, c)
	second.Resume(first)
	second.Begin()
	second.Log(3, callbacks.Record{"loss": 1.0})
	second.End(callbacks.StopNonfinite)

	require.Len(t, s.runs, 1)
	for id, lines := range s.runs {
		require.Len(t, lines, 3)
		require.Contains(t, lines[0], `"train/loss":NaN,"train/global_step":1,"_step":0,"_runtime":`)
		require.Contains(t, lines[2], `"train/loss":1,"train/global_step":3,"_step":2,"_runtime":`)
		require.Contains(t, s.summaries[id], `"eval/loss":7,`, "of the first part")
		require.Contains(t, s.summaries[id], `"train/loss":1`)
		require.Equal(t, []string{"[me p " + id + "] 0", "[me p " + id + "] 1"}, s.ends)
		require.Contains(t, told.String(), "/me/p/runs/"+id)
	}
	require.Equal(t, "named", s.variables["displayName"])
	require.Contains(t, s.variables["config"], `"learning_rate":{"value":0.00005}`)
	require.Contains(t, s.variables["config"], `"train/global_step"`)
	require.Len(t, logs(t, c.Dir), 2, "the folder has the run too")
	require.NotContains(t, told.String(), "WARN")
}

// A server that fails for a while gets each row once.
func TestOutage(t *testing.T) {
	for _, code := range []int32{0, 429, 503} {
		told := trackertest.Logged(t)
		s, h, c := online(t)
		r := begin(t, c)
		r.Begin()
		r.Log(1, callbacks.Record{"loss": 3.0})
		h.Code.Store(code)
		h.Fail.Store(1)
		for step := range int64(250) {
			r.Log(step+2, callbacks.Record{"loss": 2.0})
		}
		r.End("")
		for _, lines := range s.runs {
			require.Len(t, lines, 251, "%s", told)
			require.Contains(t, lines[250], `"_step":250,`)
		}
		require.Len(t, s.ends, 1)
		require.Equal(t, 1, strings.Count(told.String(), "level=WARN"), "%s", told)
	}
}

// A server that is not there costs warnings, and the folder has the run.
func TestDeadServer(t *testing.T) {
	told := trackertest.Logged(t)
	_, h, c := online(t)
	h.Close()
	r := begin(t, c)
	r.Begin()
	r.Log(1, callbacks.Record{"loss": 3.0})
	r.End("")
	paths := logs(t, c.Dir)
	require.Len(t, paths, 1)
	require.Len(t, read(t, paths[0]).rows, 1)
	require.Contains(t, told.String(), "a reporter cannot send; the run continues, and its records wait")
	require.Contains(t, told.String(), "wandb sync --include-online "+filepath.Dir(paths[0]))
	require.NotContains(t, told.String(), key)
}

func TestRefusals(t *testing.T) {
	told := trackertest.Logged(t)
	_, _, c := online(t)
	c.APIKey = "another" + key
	r := begin(t, c)
	r.Begin()
	r.Log(1, callbacks.Record{"loss": 3.0})
	r.End("")
	require.Contains(t, told.String(), `401 Unauthorized: the key \"***\" is wrong`)

	s, _, c := online(t)
	s.error = "the team of " + key + " is unknown"
	r = begin(t, c)
	r.Begin()
	r.Log(1, callbacks.Record{"loss": 3.0})
	r.End("")
	require.Contains(t, told.String(), "the team of *** is unknown")
	require.NotContains(t, told.String(), key)
	require.Zero(t, s.upserts)
}

func TestConfig(t *testing.T) {
	for _, name := range []string{"DIR", "MODE", "BASE_URL", "API_KEY", "PROJECT", "ENTITY", "NAME", "RUN_ID",
		"RUN_GROUP", "JOB_TYPE", "NOTES", "TAGS", "WATCH", "LOG_MODEL"} {
		t.Setenv("WANDB_"+name, "")
	}
	netrc := filepath.Join(t.TempDir(), "netrc")
	t.Setenv("NETRC", netrc)
	require.NoError(t, os.WriteFile(netrc, []byte("machine other login user password no\n"+
		"machine api.wandb.ai\n  login user\n  password "+key+"\n"), 0o600))
	c, err := wandb.FromEnvironment("out")
	require.NoError(t, err)
	require.Equal(t, wandb.Config{Dir: "out", BaseURL: wandb.DefaultBaseURL, APIKey: key}, c)
	t.Setenv("WANDB_API_KEY", "mine")
	t.Setenv("WANDB_TAGS", "a, b,")
	t.Setenv("WANDB_DIR", "elsewhere")
	c, err = wandb.FromEnvironment("out")
	require.NoError(t, err)
	require.Equal(t, wandb.Config{Dir: "elsewhere", BaseURL: wandb.DefaultBaseURL, APIKey: "mine",
		Tags: []string{"a", "b"}}, c)
	t.Setenv("WANDB_WATCH", "all")
	_, err = wandb.FromEnvironment("out")
	require.ErrorContains(t, err, `WANDB_WATCH is "all": want false`)

	for want, c := range map[string]wandb.Config{
		`mode is "shared" (WANDB_MODE): want online, offline or disabled`: {Mode: "shared"},
		`there is no API key for mode online`:                             {Mode: wandb.Online},
		`the address of the server (WANDB_BASE_URL): want the address`:    {BaseURL: "ftp://user:" + key + "@x"},
		`project is "a/b" (WANDB_PROJECT): want a name without`:           {Project: "a/b"},
		`the run's ID is "a b" (WANDB_RUN_ID)`:                            {RunID: "a b"},
	} {
		_, err := wandb.New(c)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), key)
	}
	dir := t.TempDir()
	r := begin(t, wandb.Config{Dir: dir, Mode: wandb.Disabled, APIKey: key})
	r.Begin()
	r.Log(1, callbacks.Record{"loss": 1.0})
	r.End("")
	require.Empty(t, logs(t, dir))
}
