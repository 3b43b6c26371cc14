// SPDX-License-Identifier: Apache-2.0

// Package serve answers chat completions over HTTP as OpenAI's API does. Use it to serve a trained model to programs
// that speak that API, such as OpenAI's clients. A [Chat] is the handler, over a generation.Engine, so that all clients
// share a batch; [Listen] runs it, by default only for this machine.
//
//	POST /v1/chat/completions   with stream and n; not tools, logprobs, images and response formats other than text
//	GET  /v1/models             and /v1/models/NAME
//	GET  /health                200, with how many texts are under way and wait
//
// Beside OpenAI's parameters it takes those of vLLM that transformers has: top_k, min_p, repetition_penalty,
// no_repeat_ngram_size, chat_template_kwargs. Missing parameters take their values from generation_config.json. A
// parameter that is unknown or not supported is an error.
package serve

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/models/generation"
)

// Chat answers conversations. It does not change while it serves.
type Chat struct {
	Name      string // of the model, which requests name
	Engine    *generation.Engine
	Tokenizer *tokenizers.Tokenizer
	Template  *chat.Template
	// Options are of requests that do not say otherwise, with all tokens that end an answer. MaxNewTokens 0: as many as
	// the context has room for.
	Options generation.Options
	Context int    // tokens that the model reads
	APIKey  string // that requests need; "": none

	began   time.Time
	longest int // bytes of a token at most
}

const (
	maxBody    = 4 << 20          // bytes of a request
	maxUnread  = 64 << 20         // bytes of a request that is too large, which are read so that its sender hears why
	patience   = 30 * time.Second // for a client that sends, or that does not read
	maxChoices = 16
)

// Handler is the API.
func (s *Chat) Handler() http.Handler {
	s.began, s.longest = time.Now(), s.longestToken()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.complete)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		Reply(w, http.StatusOK, map[string]any{"object": "list", "data": []any{s.model()}})
	})
	mux.HandleFunc("GET /v1/models/{name...}", func(w http.ResponseWriter, r *http.Request) {
		if name := r.PathValue("name"); name != s.Name {
			fail(w, s.unknown(name))
			return
		}
		Reply(w, http.StatusOK, s.model())
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, &apiError{status: http.StatusNotFound, Message: fmt.Sprintf("Invalid URL (%s %s)", r.Method,
			r.URL.Path), Type: invalidRequest})
	})
	for path, method := range map[string]string{"/v1/chat/completions": "POST", "/v1/models": "GET"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", method)
			fail(w, &apiError{status: http.StatusMethodNotAllowed, Type: invalidRequest, Message: fmt.Sprintf(
				"Not allowed to %s on %s (HINT: Perhaps you meant to use a different HTTP method?)", r.Method, path)})
		})
	}
	guard := http.NewCrossOriginProtection() // pages of other sites, in a browser on this machine
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, &apiError{status: http.StatusForbidden, Type: invalidRequest,
			Message: "The request comes from a page of another site"})
	}))
	all := http.NewServeMux()
	all.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		active, waiting := s.Engine.Load()
		Reply(w, http.StatusOK, map[string]any{"status": "ok", "active": active, "waiting": waiting})
	})
	all.Handle("/", guard.Handler(s.authorized(mux)))
	return all
}

// longestToken is the number of bytes of the longest token.
func (s *Chat) longestToken() int {
	var most int
	var token []byte
	for id := range s.Tokenizer.VocabSize() {
		var err error
		if token, err = s.Tokenizer.AppendToken(token[:0], int32(id)); err == nil { // or there is none of the number
			most = max(most, len(token))
		}
	}
	return most
}

// authorized lets requests with the key pass.
func (s *Chat) authorized(h http.Handler) http.Handler {
	if s.APIKey == "" {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(key), []byte(s.APIKey)) != 1 {
			fail(w, &apiError{status: http.StatusUnauthorized, Type: invalidRequest, Code: "invalid_api_key",
				Message: "Incorrect API key provided"})
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (s *Chat) model() any {
	return map[string]any{"id": s.Name, "object": "model", "created": s.began.Unix(), "owned_by": "lockstep"}
}

func (s *Chat) unknown(name string) *apiError {
	return &apiError{status: http.StatusNotFound, Type: invalidRequest, Code: "model_not_found",
		Message: fmt.Sprintf("The model `%.100s` does not exist: want `%s`", name, s.Name)}
}

// complete answers a conversation.
func (s *Chat) complete(w http.ResponseWriter, r *http.Request) {
	body, err := ReadBody(w, r, maxBody)
	if err != nil {
		Fail(w, http.StatusBadRequest, err)
		return
	}
	q, bad := s.parse(body)
	if bad != nil {
		fail(w, bad)
		return
	}
	a := newAnswer(s, q, w)
	a.serve(r.Context())
}

// ReadBody reads the body of a request, of so many bytes at most. Who sends it has half a minute for it, and who waits
// for the answer as long as it takes. [Fail] answers the error.
func ReadBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(patience)) // recorders of tests have none
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, most))
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		_, _ = io.CopyN(io.Discard, r.Body, maxUnread) // who still sends would get a reset in place of the answer
		return nil, &apiError{status: http.StatusRequestEntityTooLarge, Type: invalidRequest,
			Message: fmt.Sprintf("The body has more than %d bytes", large.Limit)}
	}
	if err != nil {
		return nil, refused("", "We could not read the body of your request: %v", err)
	}
	_ = control.SetReadDeadline(time.Time{}) // or it would end a long answer
	return body, nil
}

// Reply answers with JSON. A client that has gone away does not hear it. What JSON cannot say, such as NaN, is a fault
// of the server's.
func Reply(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		fail(w, errorOf(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}
