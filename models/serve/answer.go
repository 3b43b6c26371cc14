// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/models/generation"
)

// answer is the answer to a query.
type answer struct {
	*query
	s       *Chat
	w       http.ResponseWriter
	control *http.ResponseController
	head    map[string]any // what all objects of it have
	begun   bool           // a stream has its header
	events  chan event
}

// event is something new of a choice.
type event struct {
	choice int
	piece  string
	end    *ending
}

// ending is how a choice has ended.
type ending struct {
	text   string
	tokens int
	reason string
	err    error
}

// usage counts tokens.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func newAnswer(s *Chat, q *query, w http.ResponseWriter) *answer {
	a := &answer{query: q, s: s, w: w, control: http.NewResponseController(w), events: make(chan event)}
	a.head = map[string]any{"id": "chatcmpl-" + rand.Text(), "object": "chat.completion", "model": s.Name,
		"created": time.Now().Unix(), "system_fingerprint": nil}
	if q.stream {
		a.head["object"] = "chat.completion.chunk"
	}
	return a
}

// serve answers. The end of ctx, with the client's connection, ends the generation.
func (a *answer) serve(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for i := range a.choices {
		go a.generate(ctx, i)
	}
	defer func() {
		_ = a.control.SetWriteDeadline(time.Time{}) // or it would end a later answer on the connection
	}()
	ends, ended := make([]*ending, a.choices), 0
	for ended < a.choices {
		var e event
		select {
		case e = <-a.events:
		case <-ctx.Done():
			a.fail(generation.ErrClosed) // if the client is there
			return
		}
		if e.end != nil {
			ends[e.choice] = e.end
			ended++
			if e.end.err != nil {
				a.fail(e.end.err)
				return
			}
		}
		if a.stream && a.show(e) != nil {
			return // the client has gone away
		}
	}
	a.finish(ends)
}

// generate makes a choice.
func (a *answer) generate(ctx context.Context, choice int) {
	opt := a.options
	const stride = 0x9E3779B97F4A7C15 // far apart, so that the next seed has other choices
	opt.Seed += uint64(choice) * stride
	stream := generation.NewTextStream(a.s.Tokenizer.NewStream(), opt.EOS, a.stops...)
	var text strings.Builder
	var fault error
	give := func(piece string, err error) {
		if err != nil && fault == nil {
			fault = err
		}
		if text.WriteString(piece); piece != "" && a.stream {
			a.tell(ctx, event{choice: choice, piece: piece})
		}
	}
	opt.OnToken = func(id int) { give(stream.Next(id)) }
	tokens, err := a.s.Engine.Generate(ctx, a.prompt, opt)
	give(stream.Flush(), err)
	end := &ending{text: text.String(), tokens: len(tokens), reason: "length", err: fault}
	if stream.Stopped() || len(tokens) > 0 && slices.Contains(opt.EOS, tokens[len(tokens)-1]) {
		end.reason = "stop"
	}
	a.tell(ctx, event{choice: choice, end: end})
}

func (a *answer) tell(ctx context.Context, e event) {
	select {
	case a.events <- e:
	case <-ctx.Done():
	}
}

// fail reports an error of the engine: in a stream that has begun, as its last object, before its end.
func (a *answer) fail(err error) {
	e := errorOf(err)
	switch {
	case e == nil:
	case a.begun:
		if a.send(e) == nil {
			a.done()
		}
	default:
		fail(a.w, e)
	}
}

// show streams what is new.
func (a *answer) show(e event) error {
	if !a.begun {
		a.begun = true
		a.w.Header().Set("Content-Type", "text/event-stream")
		a.w.Header().Set("Cache-Control", "no-cache")
		for i := range a.choices {
			if err := a.chunk(i, map[string]any{"role": "assistant", "content": ""}, nil); err != nil {
				return err
			}
		}
	}
	if e.end != nil {
		return a.chunk(e.choice, map[string]any{}, e.end.reason)
	}
	return a.chunk(e.choice, map[string]any{"content": e.piece}, nil)
}

// chunk streams a change of a choice.
func (a *answer) chunk(choice int, delta map[string]any, reason any) error {
	o := a.object([]any{map[string]any{"index": choice, "delta": delta, "logprobs": nil, "finish_reason": reason}})
	if a.usage {
		o["usage"] = nil
	}
	return a.send(o)
}

// object is an object of the answer.
func (a *answer) object(choices []any) map[string]any {
	o := map[string]any{"choices": choices}
	for key, value := range a.head {
		o[key] = value
	}
	return o
}

// send streams an object.
func (a *answer) send(object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return a.write("data: " + string(text) + "\n\n")
}

func (a *answer) write(text string) error {
	_ = a.control.SetWriteDeadline(time.Now().Add(patience)) // recorders of tests have none
	if _, err := a.w.Write([]byte(text)); err != nil {
		return err
	}
	return a.control.Flush()
}

// finish ends a stream, or answers at once.
func (a *answer) finish(ends []*ending) {
	u := usage{Prompt: len(a.prompt)}
	var choices []any
	for i, e := range ends {
		u.Completion += e.tokens
		choices = append(choices, map[string]any{"index": i, "finish_reason": e.reason, "logprobs": nil,
			"message": map[string]any{"role": "assistant", "content": e.text, "refusal": nil}})
	}
	u.Total = u.Prompt + u.Completion
	if !a.stream {
		o := a.object(choices)
		o["usage"] = u
		Reply(a.w, http.StatusOK, o)
		return
	}
	if a.usage {
		o := a.object([]any{})
		o["usage"] = u
		if a.send(o) != nil {
			return
		}
	}
	a.done()
}

// done ends a stream. The client may have gone away.
func (a *answer) done() { _ = a.write("data: [DONE]\n\n") }
