// SPDX-License-Identifier: Apache-2.0

package serve_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/serve"
	"github.com/lockstep-ml/lockstep/tensor"
)

// folder is a chat model that knows nothing yet.
const folder = "../../examples/finetune/testdata/model"

// api is a server of the model, which stands still at each token while its gate is locked.
type api struct {
	*httptest.Server
	t    *testing.T
	gate sync.RWMutex
	chat *serve.Chat
}

func start(t *testing.T, cfg generation.EngineConfig) *api {
	tok, err := tokenizers.Load(folder + "/tokenizer.json")
	require.NoError(t, err)
	template, err := chat.LoadTemplate(folder)
	require.NoError(t, err)
	m, err := models.LoadPretrained(tensor.CPU(), folder)
	require.NoError(t, err)
	a := &api{t: t}
	e := generation.NewEngine(tensor.CPU(), m.(models.Generator), cfg)
	wait := func([]int, []float32) {
		a.gate.RLock()
		defer a.gate.RUnlock()
	}
	a.chat = &serve.Chat{Name: "tiny", Engine: e, Tokenizer: tok, Template: template, Context: 128,
		Options: generation.Options{EOS: []int{2}, Processors: []generation.Processor{wait}}}
	a.Server = httptest.NewServer(a.chat.Handler())
	t.Cleanup(func() {
		a.Server.Close()
		e.Close()
	})
	return a
}

// body is a request, with further parameters.
func body(text, more string) string {
	return fmt.Sprintf(`{"model": "tiny", "messages": [{"role": "user", "content": %q}]%s}`, text, more)
}

func (a *api) post(text string) (status int, answer string) {
	r, err := http.Post(a.URL+"/v1/chat/completions", "application/json", strings.NewReader(text))
	require.NoError(a.t, err)
	defer r.Body.Close()
	all, err := io.ReadAll(r.Body)
	require.NoError(a.t, err)
	return r.StatusCode, string(all)
}

// completion is an answer, or a part of a stream.
type completion struct {
	Object  string
	Choices []struct {
		Index          int
		Message, Delta struct{ Content string }
		FinishReason   *string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
}

// contents are the choices' texts.
func (a *api) contents(text string) (all []string) {
	status, answer := a.post(text)
	require.Equal(a.t, 200, status, answer)
	var c completion
	require.NoError(a.t, json.Unmarshal([]byte(answer), &c))
	require.Equal(a.t, "chat.completion", c.Object)
	require.Equal(a.t, c.Usage.Total, c.Usage.Prompt+c.Usage.Completion)
	for _, choice := range c.Choices {
		all = append(all, choice.Message.Content)
	}
	return all
}

// A request has the same answer alone and in a batch with others, streamed and at once.
func TestAnswers(t *testing.T) {
	a := start(t, generation.EngineConfig{Rows: 4, Prefill: 16})
	requests := []string{
		body("Who?", `, "max_tokens": 12, "temperature": 0`), body("a longer question than the other one",
			`, "max_completion_tokens": 30, "temperature": 2, "seed": -3, "n": 3`),
		body("x", `, "temperature": 1.5, "seed": 7, "top_k": 20, "min_p": 0.01, "logit_bias": {"40": 3}`),
		body("one", `, "stop": "e", "seed": 1, "temperature": 1, "top_p": 0.9, "stream": false, "user": null`),
	}
	var want [][]string
	for _, text := range requests {
		want = append(want, a.contents(text))
		require.Equal(t, want[len(want)-1], a.contents(text), "seeds say what is drawn")
	}
	require.NotContains(t, want[3][0], "e")
	require.NotEqual(t, want[1][0], want[1][1])
	require.NotEqual(t, a.contents(body("x", `, "temperature": 2`)), a.contents(body("x", `, "temperature": 2`)))
	var all sync.WaitGroup
	for range 2 {
		for i, text := range requests {
			all.Go(func() { require.Equal(t, want[i], a.contents(text), "request %d", i) })
			all.Go(func() { require.Equal(t, want[i], a.streamed(text), "request %d", i) })
		}
	}
	all.Wait()
}

// streamed is what comes in parts.
func (a *api) streamed(text string) []string {
	text = strings.Replace(text, `, "stream": false`, "", 1)
	text = strings.TrimSuffix(text, "}") + `, "stream": true, "stream_options": {"include_usage": true}}`
	r, err := http.Post(a.URL+"/v1/chat/completions", "application/json", strings.NewReader(text))
	require.NoError(a.t, err)
	defer r.Body.Close()
	require.Equal(a.t, "text/event-stream", r.Header.Get("Content-Type"))
	contents, reasons := map[int]string{}, map[int]string{}
	var last completion
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		line, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			require.Empty(a.t, lines.Text())
			continue
		}
		if line == "[DONE]" {
			require.NotNil(a.t, last.Usage)
			require.Empty(a.t, last.Choices)
			require.False(a.t, lines.Scan() && lines.Text() != "", "nothing follows")
			break
		}
		require.Nil(a.t, last.Usage)
		last = completion{}
		require.NoError(a.t, json.Unmarshal([]byte(line), &last))
		require.Equal(a.t, "chat.completion.chunk", last.Object)
		for _, c := range last.Choices {
			require.Empty(a.t, reasons[c.Index])
			contents[c.Index] += c.Delta.Content
			if c.FinishReason != nil {
				reasons[c.Index] = *c.FinishReason
			}
		}
	}
	var all []string
	for i := range len(contents) {
		require.Contains(a.t, []string{"stop", "length"}, reasons[i])
		all = append(all, contents[i])
	}
	return all
}

// What is wrong with a request is an error of OpenAI's shape, with its parameter.
func TestErrors(t *testing.T) {
	a := start(t, generation.EngineConfig{})
	for _, c := range []struct {
		body   string
		status int
		param  string
		text   string
	}{
		{`{`, 400, "", "We could not parse the JSON body of your request"},
		{`[]`, 400, "", "We could not parse"},
		{`{"messages": []}`, 400, "model", "You must provide a model parameter"},
		{`{"model": "other", "messages": []}`, 404, "", "The model `other` does not exist"},
		{`{"model": "tiny", "messages": []}`, 400, "messages", "at least one message"},
		{`{"model": "tiny", "messages": [{"role": "tool", "content": "x"}]}`, 400, "messages[0].role", "tool"},
		{`{"model": "tiny", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}`, 400, "", "image_url"},
		{body("x", `, "foo": 1`), 400, "foo", "Unrecognized request argument supplied: foo"},
		{body("x", `, "logprobs": true`), 400, "logprobs", "is not built"},
		{body("x", `, "tools": [{}]`), 400, "tools", "is not built"},
		{body("x", `, "n": 0`), 400, "n", "want 1 to 16"},
		{body("x", `, "n": 17`), 400, "n", "want 1 to 16"},
		{body("x", `, "stop": ["a", ""]`), 400, "stop", "none of them empty"},
		{body("x", `, "temperature": 2.1`), 400, "temperature", "from 0 to 2"},
		{body("x", `, "top_p": -1`), 400, "top_p", "top_p is -1"},
		{body("x", `, "max_tokens": 0`), 400, "max_tokens", "at least 1"},
		{body("x", `, "max_tokens": 1, "max_completion_tokens": 1`), 400, "max_tokens", "one of them"},
		{body("x", `, "max_tokens": 1000`), 400, "messages", "This model's maximum context length is 128 tokens"},
		{body(strings.Repeat("x ", 200), ""), 400, "messages", "maximum context length"},
		{body(strings.Repeat("x", 100_000), ""), 400, "messages", "you sent 100000 bytes in 1 messages"},
		{`{"model": "tiny", "messages": [{"role": "user"}` + strings.Repeat(`, {"role": "user"}`, 128) + `]}`, 400,
			"messages", "you sent 0 bytes in 129 messages"},
		{body("x", `, "stream_options": {}`), 400, "stream_options", "with stream alone"},
		{body("x", `, "logit_bias": {"-1": 3}`), 400, "logit_bias", "ids of tokens"},
		{strings.Repeat("x", 5<<20), 413, "", "more than 4194304 bytes"},
		{body("x", `, "tools": null, "logprobs": false, "store": true`), 200, "", ""},
		{body("x", `, "response_format": {"type": "text"}`), 200, "", ""},
	} {
		status, answer := a.post(c.body)
		require.Equal(t, c.status, status, "%.100s: %s", c.body, answer)
		if status == 200 {
			continue
		}
		var e struct {
			Error struct {
				Message, Type string
				Param, Code   *string
			}
		}
		require.NoError(t, json.Unmarshal([]byte(answer), &e))
		require.Contains(t, e.Error.Message, c.text)
		require.Equal(t, "invalid_request_error", e.Error.Type)
		require.Equal(t, c.param != "", e.Error.Param != nil, answer)
		if c.param != "" {
			require.Equal(t, c.param, *e.Error.Param)
		}
	}
	for path, want := range map[string][2]string{"/v1/models": {"200", `"id":"tiny"`}, "/nix": {"404", "Invalid URL"},
		"/v1/models/tiny": {"200", `"object":"model"`}, "/v1/models/x": {"404", "model_not_found"},
		"/v1/chat/completions": {"405", "Not allowed"}, "/health": {"200", `"status":"ok"`}} {
		r, err := http.Get(a.URL + path)
		require.NoError(t, err)
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, want[0], fmt.Sprint(r.StatusCode), path)
		require.Contains(t, string(text), want[1])
	}
}

// load waits until so many texts are under way, and wait.
func (a *api) load(active, waiting int) {
	a.t.Helper()
	require.Eventually(a.t, func() bool {
		has, waits := a.chat.Engine.Load()
		return has == active && waits == waiting
	}, time.Minute, time.Millisecond)
}

// A client that goes away ends its generation, streamed or not, and who finds no place is told so.
func TestDisconnectAndBusy(t *testing.T) {
	a := start(t, generation.EngineConfig{Rows: 1, Waiting: 1})
	for _, stream := range []string{"", `, "stream": true`} {
		a.gate.Lock()
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		ask := func() {
			r, err := http.NewRequestWithContext(ctx, "POST", a.URL+"/v1/chat/completions",
				strings.NewReader(body("go on", `, "max_tokens": 90, "logit_bias": {"2": -100}`+stream)))
			require.NoError(t, err)
			if answer, err := http.DefaultClient.Do(r); err == nil {
				_, err = io.Copy(io.Discard, answer.Body)
				require.Error(t, err)
				require.NoError(t, answer.Body.Close())
			}
		}
		all.Go(ask)
		a.load(1, 0)
		all.Go(ask)
		a.load(1, 1)
		status, answer := a.post(body("x", stream))
		require.Equal(t, 429, status)
		require.Contains(t, answer, "rate_limit_exceeded")
		leave()
		all.Wait()
		a.load(1, 0) // who waited has left the queue; the other one stands still
		a.gate.Unlock()
		a.load(0, 0)
	}
	status, _ := a.post(body("x", ""))
	require.Equal(t, 200, status)
	a.chat.Engine.Close()
	status, answer := a.post(body("x", ""))
	require.Equal(t, 503, status)
	require.Contains(t, answer, "shutting down")
}

// A stream that an error ends has an end, as every stream: clients wait for it.
func TestStreamEndsAfterError(t *testing.T) {
	a := start(t, generation.EngineConfig{})
	r, err := http.Post(a.URL+"/v1/chat/completions", "application/json", strings.NewReader(body("go on",
		`, "max_tokens": 90, "logit_bias": {"2": -100}, "stream": true, "n": 2`)))
	require.NoError(t, err)
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	require.True(t, lines.Scan(), "the first object")
	a.chat.Engine.Close()
	var all []string
	for lines.Scan() {
		if lines.Text() != "" {
			all = append(all, lines.Text())
		}
	}
	require.NoError(t, lines.Err())
	require.Contains(t, all[len(all)-2], "shutting down")
	require.Equal(t, "data: [DONE]", all[len(all)-1])
}

// sender records the deadlines that reads have.
type sender struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (s *sender) SetReadDeadline(t time.Time) error {
	s.set = append(s.set, t)
	return nil
}

// Who sends a body has not forever, and who waits for the answer may.
func TestReadBody(t *testing.T) {
	w := &sender{ResponseRecorder: httptest.NewRecorder()}
	text, err := serve.ReadBody(w, httptest.NewRequest("POST", "/", strings.NewReader("text")), 4)
	require.NoError(t, err)
	require.Equal(t, "text", string(text))
	require.Len(t, w.set, 2)
	require.True(t, w.set[0].After(time.Now()))
	require.Zero(t, w.set[1])
	_, err = serve.ReadBody(w, httptest.NewRequest("POST", "/", strings.NewReader("texts")), 4)
	require.Error(t, err)
	serve.Fail(w, http.StatusBadRequest, err)
	require.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
}

// What JSON cannot say is an error, and no empty answer.
func TestReply(t *testing.T) {
	w := httptest.NewRecorder()
	serve.Reply(w, http.StatusOK, math.NaN())
	require.Equal(t, http.StatusInternalServerError, w.Code)
	require.Contains(t, w.Body.String(), `"type":"server_error"`)
}

func TestKeyAndOrigin(t *testing.T) {
	a := start(t, generation.EngineConfig{})
	a.chat.APIKey = "secret"
	h := a.chat.Handler()
	ask := func(path string, headers ...string) int {
		r := httptest.NewRequest("POST", path, strings.NewReader(body("x", "")))
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	const path = "/v1/chat/completions"
	require.Equal(t, 401, ask(path))
	require.Equal(t, 401, ask(path, "Authorization", "Bearer other"))
	require.Equal(t, 200, ask(path, "Authorization", "Bearer secret"))
	require.Equal(t, 403, ask(path, "Authorization", "Bearer secret", "Sec-Fetch-Site", "cross-site"))
}

// deadlines records the deadline that writes have.
type deadlines struct {
	*httptest.ResponseRecorder
	set  int
	last time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.set++
	d.last = t
	return nil
}

// The deadline of a stream does not stay: a later answer on the connection may take longer.
func TestDeadline(t *testing.T) {
	a := start(t, generation.EngineConfig{})
	for _, more := range []string{`, "stream": true, "max_tokens": 2`, `, "max_tokens": 2`} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		a.chat.Handler().ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body("x",
			more))))
		require.Equal(t, 200, w.Code)
		require.Equal(t, strings.Contains(more, "stream"), w.set > 1)
		require.Zero(t, w.last)
	}
}

// A request that the server's end cuts off is told so.
func TestCutOff(t *testing.T) {
	a := start(t, generation.EngineConfig{})
	for _, more := range []string{`, "max_tokens": 9`, `, "max_tokens": 9, "stream": true`} {
		a.gate.Lock()
		ctx, end := context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		answered := make(chan bool)
		go func() {
			a.chat.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/v1/chat/completions",
				strings.NewReader(body("x", more))))
			close(answered)
		}()
		a.load(1, 0)
		end()
		<-answered
		a.gate.Unlock()
		require.Equal(t, 503, w.Code, w.Body)
		require.Contains(t, w.Body.String(), "shutting down")
		a.load(0, 0)
	}
}

// The server is this machine's alone unless it is told otherwise, and ends after the requests that are under way.
func TestListen(t *testing.T) {
	for addr, want := range map[string]string{"8080": "want an address such as :8080", "0.0.0.0:0": "other machines " +
		"can reach the address: want one of this machine alone, such as :0, in place of 0.0.0.0:0"} {
		require.ErrorContains(t, serve.Listen(t.Context(), addr, false, nil, nil), want)
	}
	for _, addr := range []string{":0", "127.0.0.1:0", "0.0.0.0:0"} {
		entered, goOn, ready := make(chan bool), make(chan bool), make(chan net.Addr, 1)
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(entered)
			<-goOn
			_, _ = io.WriteString(w, "late")
		})
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- serve.Listen(ctx, addr, addr[0] == '0', h, func(a net.Addr) { ready <- a }) }()
		at := (<-ready).(*net.TCPAddr)
		require.Equal(t, addr[0] != '0', at.IP.IsLoopback())
		answer := make(chan string)
		go func() {
			r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d", at.Port))
			require.NoError(t, err)
			defer r.Body.Close()
			text, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			answer <- string(text)
		}()
		<-entered
		end()
		close(goOn)
		require.Equal(t, "late", <-answer)
		require.NoError(t, <-ended)
	}
}

// status is how the server answers a request for a host.
func status(t *testing.T, at *net.TCPAddr, host string) int {
	r, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://127.0.0.1:%d", at.Port), nil)
	require.NoError(t, err)
	r.Host = host
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	return answer.StatusCode
}

// A server of this machine alone answers for names that sites of the internet cannot have.
func TestHosts(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	ready, ended := make(chan net.Addr, 1), make(chan error, 1)
	h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	go func() { ended <- serve.Listen(ctx, ":0", false, h, func(a net.Addr) { ready <- a }) }()
	at := (<-ready).(*net.TCPAddr)
	for _, host := range []string{"localhost:8080", "LOCALHOST.", "127.0.0.1:1", "[::1]:8080", "[::1]", "10.0.0.3",
		"box", "a.localhost", "host.docker.internal:8080"} {
		require.Equal(t, 200, status(t, at, host), host)
	}
	for _, host := range []string{"pages.example:80", "1.2.3.4.example", "example.com.", "localhost.example.com"} {
		require.Equal(t, 403, status(t, at, host), host)
	}
	end()
	require.NoError(t, <-ended)
}
