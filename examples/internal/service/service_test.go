// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// While one batch is computed, requests gather for the next, up to the limit; each gets its own answer.
func TestBatcherGathers(t *testing.T) {
	var sizes []int
	begun, goOn := make(chan struct{}), make(chan struct{})
	b := NewBatcher(4, func(in []int) ([]string, error) {
		sizes = append(sizes, len(in))
		if len(sizes) == 1 {
			close(begun)
			<-goOn
		}
		out := make([]string, len(in))
		for i, x := range in {
			out[i] = strconv.Itoa(x)
		}
		return out, nil
	})
	var all sync.WaitGroup
	waiting := make(chan struct{}, 6)
	ask := func(x int) {
		all.Go(func() {
			waiting <- struct{}{}
			got, err := b.Do(t.Context(), x)
			require.NoError(t, err)
			require.Equal(t, strconv.Itoa(x), got)
		})
	}
	ask(0)
	<-begun
	for x := range 5 {
		ask(x + 1)
	}
	for range 6 {
		<-waiting
	}
	close(goOn)
	all.Wait()
	b.Close()
	total := 0
	for _, n := range sizes {
		require.LessOrEqual(t, n, 4)
		total += n
	}
	require.Equal(t, 6, total)
	_, err := b.Do(t.Context(), 1)
	require.ErrorIs(t, err, ErrClosed)
}

func TestBatcherErrors(t *testing.T) {
	mode := ""
	b := NewBatcher(4, func(in []int) ([]int, error) {
		switch mode {
		case "error":
			return nil, errors.New("no model")
		case "panic":
			panic(&tensor.Error{Op: "op", Msg: "wrong shape"})
		}
		return nil, nil
	})
	defer b.Close()
	for _, c := range [][2]string{{"error", "no model"}, {"panic", "wrong shape"}, {"", "0 outputs for 1 inputs"}} {
		mode = c[0]
		_, err := b.Do(t.Context(), 1)
		require.ErrorContains(t, err, c[1])
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 { // the request may be taken before the context is looked at
		_, err := b.Do(ctx, 1)
		require.Error(t, err)
	}
}

// lines hands over what is written to it.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func decodeNumber(body io.Reader) (n int, err error) {
	return n, json.NewDecoder(body).Decode(&n)
}

// The service listens on the own machine alone, answers, and ends with its context after the last answer.
func TestServe(t *testing.T) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	b := NewBatcher(4, func(in []int) ([]int, error) {
		if in[0] == 7 {
			close(entered)
			<-goOn
		}
		return in, nil
	})
	defer b.Close()
	ctx, end := context.WithCancel(t.Context())
	out, ended := make(lines, 1), make(chan error, 1)
	go func() { ended <- Serve(ctx, ":0", Handler(b, decodeNumber), out) }()
	m := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(<-out)
	require.NotEmpty(t, m)
	post := func(body string) (int, string) {
		r, err := http.Post(m+"/predict", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return r.StatusCode, strings.TrimSpace(string(text))
	}
	status, text := post("3")
	require.Equal(t, []any{200, "3"}, []any{status, text})
	status, text = post("{")
	require.Equal(t, []any{400, `{"error":"unexpected EOF"}`}, []any{status, text})
	for _, size := range []int{maxBody + 1, 8 << 20} {
		status, text = post(strings.Repeat("x", size))
		require.Equal(t, []any{413, `{"error":"the body has more than 1048576 bytes"}`}, []any{status, text})
	}

	late := make(chan string)
	go func() {
		_, text := post("7")
		late <- text
	}()
	<-entered
	end() // with a request under way
	close(goOn)
	require.Equal(t, "7", <-late)
	require.NoError(t, <-ended)

	require.ErrorContains(t, Serve(t.Context(), "8080", nil, out), "want an address such as :8080")
}

func TestHandler(t *testing.T) {
	b := NewBatcher(1, func(in []int) ([]int, error) { return nil, errors.New("no model") })
	h := Handler(b, decodeNumber)
	ask := func(method, path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, bytes.NewReader([]byte("1"))))
		return w.Code, w.Body.String()
	}
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/healthz", "ok", 200}, {"POST", "/predict", "no model", 500}, {"GET", "/predict", "", 405},
		{"POST", "/", "", 404},
	} {
		status, body := ask(c.method, c.path)
		require.Equal(t, c.status, status, c.path)
		require.Contains(t, body, c.body)
	}
	b.Close()
	status, body := ask("POST", "/predict")
	require.Equal(t, 503, status)
	require.Contains(t, body, "shutting down")
}
