// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
	"github.com/lockstep-ml/lockstep/program"
)

// folder is a model that knows nothing yet, and rows the conversations that it is to learn.
const (
	folder = "../finetune/testdata/model"
	rows   = "../finetune/testdata/chats.jsonl"
)

// api is a running service.
type api struct {
	t   *testing.T
	url string
}

// start runs the service for a test.
func start(t *testing.T, argv ...string) *api {
	ctx, end := context.WithCancel(t.Context())
	var out syncbuffer.Buffer
	argv = append([]string{"--model_name_or_path", folder, "--serve", ":0", "--report_to", "none"}, argv...)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, &program.Process{Name: "service", Args: argv, Stdout: &out, Stderr: &out}) }()
	t.Cleanup(func() {
		end()
		require.NoError(t, <-ended)
	})
	a := &api{t: t}
	require.Eventually(t, func() bool {
		a.url = regexp.MustCompile(`http://127\.0\.0\.1:\d+/v1`).FindString(out.String())
		return a.url != ""
	}, time.Minute, time.Millisecond, "%s", &out)
	return a
}

// ask sends a request, and reads the answer into v.
func (a *api) ask(method, path, body string, v any) int {
	r, err := http.NewRequest(method, a.url+path, strings.NewReader(body))
	require.NoError(a.t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(a.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(a.t, err)
	require.NoError(a.t, json.Unmarshal(text, v), "%s", text)
	return answer.StatusCode
}

// say is what the model answers.
func (a *api) say(question string) string {
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
	}
	body := fmt.Sprintf(`{"model": "model", "messages": [{"role": "user", "content": %q}], "temperature": 0,
		"max_tokens": 12}`, question)
	require.Equal(a.t, 200, a.ask("POST", "/chat/completions", body, &answer))
	return answer.Choices[0].Message.Content
}

// await waits for the end of a round.
func (a *api) await(round int) (s status) {
	require.Eventually(a.t, func() bool {
		a.ask("GET", "/training", "", &s)
		return s.Rounds == round && !s.Training || s.Fault != ""
	}, time.Minute, 5*time.Millisecond)
	require.Empty(a.t, s.Fault)
	return s
}

// The service learns what it is sent, while others ask: each answer is one of the weights before or those after, whole.
func TestLearnsUnderLoad(t *testing.T) {
	out := t.TempDir()
	a := start(t, "--output_dir", out, "--learning_rate", "1e-2", "--num_train_epochs", "30",
		"--per_device_train_batch_size", "4", "--assistant_only_loss", "--train_after", "8")
	const question, learned = "Who is Bo 0?", "Bo is number 0."
	before := a.say(question)
	require.NotEqual(t, learned, before)
	stop := make(chan bool)
	var heard sync.Map
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					heard.Store(a.say(question), true)
				}
			}
		})
	}
	file, err := os.Open(rows)
	require.NoError(t, err)
	defer file.Close()
	lines, s := bufio.NewScanner(file), status{}
	for range 8 {
		require.True(t, lines.Scan())
		require.Equal(t, 202, a.ask("POST", "/examples", lines.Text(), &s))
	}
	require.Equal(t, 8, s.Examples)
	require.Equal(t, 8, a.await(1).Examples)
	require.Equal(t, learned, a.say(question))
	close(stop)
	all.Wait()
	for answer := range heard.Range {
		require.Contains(t, []string{before, learned}, answer)
	}
	require.FileExists(t, filepath.Join(out, "model.safetensors"))

	a.ask("POST", "/training", "", &s) // once more, with all of them
	require.Equal(t, learned, a.say(question))
	a.await(2)
	require.Equal(t, learned, a.say(question))
}

// What cannot be learned is refused, and so is more than there is room for.
func TestRefusals(t *testing.T) {
	a := start(t, "--output_dir", t.TempDir(), "--max_examples", "1", "--train_after", "0", "--max_steps", "1",
		"--max_length", "64")
	var e struct{ Error struct{ Message string } }
	for body, want := range map[string]string{
		`{"nix": 1}`: "the row has the keys", `[`: "", `{"messages": []}`: "at least one message",
		`{"text": "` + strings.Repeat("x", maxBody) + `"}`: "more than 1048576 bytes",
		`{"text": "` + strings.Repeat("x ", 70) + `"}`:     "want at most 64 (max_length)",
	} {
		require.GreaterOrEqual(t, a.ask("POST", "/examples", body, &e), 400)
		require.Contains(t, e.Error.Message, want)
	}
	require.Equal(t, 409, a.ask("POST", "/training", "", &e))
	require.Contains(t, e.Error.Message, "no examples")
	require.Equal(t, 405, a.ask("DELETE", "/examples", "", &e))
	require.Contains(t, e.Error.Message, "want POST")
	var s status
	require.Equal(t, 202, a.ask("POST", "/examples", `{"text": "some text"}`, &s))
	require.Equal(t, status{Examples: 1, New: 1}, s, "nothing was trained without examples")
	require.Equal(t, 429, a.ask("POST", "/examples", `{"text": "some text"}`, &e))
	a.ask("POST", "/training", "", &s)
	a.await(1)
	require.Equal(t, 404, a.ask("GET", "/nix", "", &e), "the rest is the API of chat completions")
}

// A round that fails leaves nothing to the next one, which begins with the weights that answer.
func TestFailedRound(t *testing.T) {
	a := start(t, "--output_dir", t.TempDir(), "--train_after", "0", "--max_steps", "9", "--learning_rate", "1e30",
		"--max_grad_norm", "0")
	var s status
	require.Equal(t, 202, a.ask("POST", "/examples", `{"text": "some text"}`, &s))
	before := a.say("Who is Bo 0?")
	for range 2 {
		a.ask("POST", "/training", "", &s)
		require.Eventually(t, func() bool {
			a.ask("GET", "/training", "", &s)
			return s.Fault != "" && !s.Training
		}, time.Minute, 5*time.Millisecond)
		require.Contains(t, s.Fault, "step 2: loss NaN", "what the first step of a round has done")
		require.Equal(t, before, a.say("Who is Bo 0?"))
	}
}
