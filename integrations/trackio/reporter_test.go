// SPDX-License-Identifier: Apache-2.0

package trackio_test

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/trackertest"
	"github.com/lockstep-ml/lockstep/integrations/trackio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "s3cret-token"

type entry struct {
	Project, Run, RunID string
	Metrics             map[string]any
	Step                int64
	Config              map[string]any
	LogID               string
}

// server is trackio's bulk_log, with the answers of trackio 0.43.
type server struct {
	sync.Mutex
	rows []entry
	cut  bool // the connection once, after rows have come
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	defer s.Unlock()
	var in struct {
		Logs []struct {
			entry
			RunID string `json:"run_id"`
			LogID string `json:"log_id"`
		}
		HFToken *string `json:"hf_token"`
	}
	token := r.Header.Get("X-Trackio-Write-Token")
	switch {
	case token != secret:
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"A write_token is required, not ` + token + `"}`))
		return
	case r.URL.Path != "/api/bulk_log" || json.NewDecoder(r.Body).Decode(&in) != nil:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	for _, e := range in.Logs {
		e.entry.RunID, e.entry.LogID = e.RunID, e.LogID
		if !slices.ContainsFunc(s.rows, func(had entry) bool { return had.LogID == e.LogID }) {
			s.rows = append(s.rows, e.entry)
		}
	}
	if s.cut {
		s.cut = false
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write([]byte(`{"data":null}`))
}

func begin(t *testing.T, c trackio.Config) *trackertest.Run {
	reporter, err := trackio.New(c)
	require.NoError(t, err)
	a := args.Default(t.TempDir())
	a.RunName = "my run"
	return trackertest.New(t, a, reporter)
}

// A run and its resumption are one run, and each row is there once, also where the server did not answer.
func TestRunAndResume(t *testing.T) {
	trackertest.Logged(t)
	s := &server{cut: true}
	h := trackertest.NewServer(t, s)
	c := trackio.Config{ServerURL: h.URL + "/?write_token=" + secret, Project: "mine"}
	first := begin(t, c)
	first.Begin()
	for step := range int64(150) {
		first.Log(step+1, callbacks.Record{"loss": 0.5, "epoch": 1.0, "step": step + 1})
	}
	first.Log(150, callbacks.Record{"eval_loss": math.NaN(), "eval_low": math.Inf(-1), "eval_high": math.Inf(1),
		"note": "text"})
	first.Log(150, callbacks.Record{"train_loss": 0.5, "train_runtime": 3.0, "epoch": 1.0})
	first.End("")
	second := begin(t, c)
	second.Resume(first)
	second.Begin()
	second.Log(151, callbacks.Record{"loss": 0.25})
	second.End("")
	require.Len(t, s.rows, 153)
	for i, e := range s.rows {
		require.Equal(t, []string{"mine", "my run", s.rows[0].RunID}, []string{e.Project, e.Run, e.RunID})
		require.Equal(t, i == 0 || i == 152, e.Config != nil)
		require.EqualValues(t, min(i+1, 150+i/152), e.Step)
	}
	require.Equal(t, map[string]any{"train/loss": 0.5, "train/epoch": 1.0, "train/global_step": 1.0}, s.rows[0].Metrics)
	require.Equal(t, map[string]any{"eval/loss": "NaN", "eval/low": "-Infinity", "eval/high": "Infinity",
		"train/note": "text", "train/global_step": 150.0}, s.rows[150].Metrics)
	require.Equal(t, map[string]any{"train/epoch": 1.0, "train/global_step": 150.0}, s.rows[151].Metrics)
	require.Equal(t, 5e-5, s.rows[0].Config["learning_rate"])
	require.Contains(t, s.rows[0].Config, "_Created")
}

func TestFailures(t *testing.T) {
	told := trackertest.Logged(t)
	h := trackertest.NewServer(t, &server{})
	for want, c := range map[string]trackio.Config{
		"400 Bad Request: {": {ServerURL: h.URL, WriteToken: "wrong" + secret},
		"connect: ":          {ServerURL: "http://127.0.0.1:1/?write_token=" + secret},
	} {
		r := begin(t, c)
		r.Begin()
		r.Log(1, callbacks.Record{"loss": 0.5})
		r.End("")
		require.Contains(t, told.String(), want)
		require.NotContains(t, told.String(), secret)
	}
	for _, bad := range []string{"localhost:7860", "http://x/?token=" + secret, "ftp://a/?write_token=" + secret} {
		_, err := trackio.New(trackio.Config{ServerURL: bad})
		require.ErrorContains(t, err, "the address of the server (TRACKIO_SERVER_URL): want the address")
		require.NotContains(t, err.Error(), secret)
	}
	t.Setenv("TRACKIO_SPACE_ID", "me/space")
	a := args.Default("out")
	a.ReportTo = []string{"trackio"}
	_, err := callbacks.NewReporters(a)
	require.ErrorContains(t, err, `TRACKIO_SPACE_ID is "me/space": want TRACKIO_SERVER_URL`)
	t.Setenv("TRACKIO_SPACE_ID", "")
	list, err := callbacks.NewReporters(a)
	require.NoError(t, err)
	require.Len(t, list, 1)
}

// Another server that answers everything is no trackio server.
func TestOtherServers(t *testing.T) {
	for _, answer := range []string{`{}`, `null`, `<html>`, `[`} {
		told := trackertest.Logged(t)
		other := trackertest.NewServer(t, nil)
		other.Fail.Store(100)
		other.Code.Store(http.StatusOK)
		other.Answer.Store(answer)
		r := begin(t, trackio.Config{ServerURL: other.URL})
		r.Begin()
		r.Log(1, callbacks.Record{"loss": 0.5})
		r.End("")
		require.Contains(t, told.String(), `msg="a reporter lost records" reporter=trackio records=1`, answer)
	}
}
