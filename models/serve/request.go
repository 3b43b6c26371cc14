// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/models/generation"
)

// parameters are the fields of a request that are used.
type parameters struct {
	Model    string    `json:"model"`
	Messages []message `json:"messages"`
	Stream   bool      `json:"stream"`
	Options  *struct {
		IncludeUsage bool `json:"include_usage"`
		Obfuscation  bool `json:"include_obfuscation"` // of the lengths of pieces: there is none
	} `json:"stream_options"`
	MaxTokens           *int                       `json:"max_tokens"`
	MaxCompletionTokens *int                       `json:"max_completion_tokens"`
	MinTokens           *int                       `json:"min_tokens"`
	Temperature         *float64                   `json:"temperature"`
	TopP                *float64                   `json:"top_p"`
	TopK                *int                       `json:"top_k"`
	MinP                *float64                   `json:"min_p"`
	RepetitionPenalty   *float64                   `json:"repetition_penalty"`
	NoRepeatNGram       *int                       `json:"no_repeat_ngram_size"`
	N                   *int                       `json:"n"`
	Seed                *int64                     `json:"seed"`
	Stop                stops                      `json:"stop"`
	LogitBias           map[string]float64         `json:"logit_bias"`
	Variables           map[string]json.RawMessage `json:"chat_template_kwargs"`
}

// ignored are OpenAI's parameters that change no token here.
var ignored = []string{"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
	"prompt_cache_retention", "parallel_tool_calls"}

// neutral are OpenAI's parameters that are not built, and the values with which they change nothing.
var neutral = map[string][]string{
	"tools": {"[]"}, "functions": {"[]"}, "tool_choice": {`"none"`, `"auto"`}, "function_call": {`"none"`, `"auto"`},
	"logprobs": {"false"}, "top_logprobs": {"0"}, "frequency_penalty": {"0", "0.0"}, "presence_penalty": {"0", "0.0"},
	"response_format": {`{"type":"text"}`}, "modalities": {`["text"]`}, "audio": nil, "prediction": nil,
	"reasoning_effort": nil, "verbosity": nil, "web_search_options": nil, "moderation": nil,
}

// tooLong is the code of messages that the model's context has no room for.
const tooLong = "context_length_exceeded"

// message is a message of a request.
type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

// content is a text, or parts that are texts.
type content string

// UnmarshalJSON implements json.Unmarshaler.
func (c *content) UnmarshalJSON(text []byte) error {
	if string(text) == "null" || json.Unmarshal(text, (*string)(c)) == nil {
		return nil
	}
	var parts []struct{ Type, Text string }
	if json.Unmarshal(text, &parts) != nil {
		return fmt.Errorf("want a text, or a list of parts")
	}
	for _, p := range parts {
		if p.Type != "text" {
			return fmt.Errorf("a part is of type %.40q: want text, which is all that the model reads", p.Type)
		}
		*c += content(p.Text)
	}
	return nil
}

// stops are one text, or several.
type stops []string

// UnmarshalJSON implements json.Unmarshaler.
func (s *stops) UnmarshalJSON(text []byte) error {
	var one string
	switch {
	case string(text) == "null":
	case json.Unmarshal(text, &one) == nil:
		*s = stops{one}
	case json.Unmarshal(text, (*[]string)(s)) != nil:
		return fmt.Errorf("want a text, or a list of texts")
	}
	return nil
}

// query is a request that can be answered.
type query struct {
	prompt  []int
	options generation.Options
	stops   []string
	choices int
	stream  bool
	usage   bool // ends a stream
}

// parse reads a request.
func (s *Chat) parse(body []byte) (*query, *apiError) {
	var given map[string]json.RawMessage
	if err := jsonfile.Unmarshal(body, &given); err != nil {
		return nil, refused("", "We could not parse the JSON body of your request: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if bad := known(name, given[name]); bad != nil {
			return nil, bad
		}
	}
	var p parameters
	if err := (jsonfile.Options{Nulls: true}).Unmarshal(body, &p); err != nil {
		return nil, refused("", "We could not parse the JSON body of your request: %v", err)
	}
	if given["model"] == nil {
		return nil, refused("model", "You must provide a model parameter")
	}
	if p.Model != s.Name {
		return nil, s.unknown(p.Model)
	}
	q := &query{stops: p.Stop, choices: 1, stream: p.Stream, usage: p.Options != nil && p.Options.IncludeUsage}
	if bad := s.render(&p, q); bad != nil {
		return nil, bad
	}
	return q, s.settings(&p, q)
}

// parameterNames are those that parameters has.
var parameterNames = func() (names []string) {
	text, _ := json.Marshal(parameters{}) // it has nothing that fails
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(text, &fields)
	return slices.Collect(maps.Keys(fields))
}()

// known refuses a parameter that nobody knows, and what is not built.
func known(name string, value json.RawMessage) *apiError {
	if slices.Contains(parameterNames, name) || slices.Contains(ignored, name) {
		return nil
	}
	values, ok := neutral[name]
	if !ok {
		return &apiError{status: 400, Type: invalidRequest, Param: name, Code: "unknown_parameter",
			Message: fmt.Sprintf("Unrecognized request argument supplied: %.100s", name)}
	}
	compact := strings.Join(strings.Fields(string(value)), "")
	if compact == "null" || slices.Contains(values, compact) {
		return nil
	}
	return &apiError{status: 400, Type: invalidRequest, Param: name, Code: "unsupported_parameter",
		Message: fmt.Sprintf("Unsupported parameter: %s is not built here", name)}
}

// roles are those of messages, and what templates call them.
var roles = map[string]string{"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

// render makes the prompt of the messages.
func (s *Chat) render(p *parameters, q *query) *apiError {
	if len(p.Messages) == 0 {
		return refused("messages", "[] is too short - 'messages': want at least one message")
	}
	list, size := make([]map[string]string, len(p.Messages)), 0
	for i, m := range p.Messages {
		size += len(m.Content)
		role, ok := roles[m.Role]
		if !ok {
			return refused(fmt.Sprintf("messages[%d].role", i), "The role is %.40q: want system, developer, user or "+
				"assistant", m.Role)
		}
		list[i] = map[string]string{"role": role, "content": string(m.Content)}
	}
	// Before the template and the tokenizer take time and memory for them: a message has one token at least.
	if most := s.Context * s.longest; size > most || len(list) > s.Context {
		bad := refused("messages", "This model's maximum context length is %d tokens, which have %d bytes at most. "+
			"However, you sent %d bytes in %d messages", s.Context, most, size, len(list))
		bad.Code = tooLong
		return bad
	}
	text, err := json.Marshal(list)
	if err != nil {
		return refused("messages", "%v", err)
	}
	prompt, _, err := s.Template.Render(chat.Conversation{Messages: text, GenerationPrompt: true,
		Variables: p.Variables})
	if err != nil {
		return refused("messages", "The model's chat template refuses the messages: %v", err)
	}
	ids, err := s.Tokenizer.Encode(prompt) // the template has the special tokens
	if err != nil {
		return refused("messages", "%v", err)
	}
	for _, id := range ids {
		q.prompt = append(q.prompt, int(id))
	}
	if len(ids) == 0 {
		return refused("messages", "The messages have no tokens")
	}
	return nil
}

// settings are the options of generation.
func (s *Chat) settings(p *parameters, q *query) *apiError {
	o := s.Options
	give(&o.Temperature, p.Temperature)
	give(&o.TopP, p.TopP)
	give(&o.TopK, p.TopK)
	give(&o.MinP, p.MinP)
	give(&o.RepetitionPenalty, p.RepetitionPenalty)
	give(&o.NoRepeatNGram, p.NoRepeatNGram)
	give(&o.MinNewTokens, p.MinTokens)
	give(&q.choices, p.N)
	o.Seed = rand.Uint64()
	if p.Seed != nil {
		o.Seed = uint64(*p.Seed)
	}
	switch {
	case o.Temperature < 0 || o.Temperature > 2:
		return refused("temperature", "temperature is %g: want a number from 0 to 2", o.Temperature)
	case o.TopP < 0 || o.TopP > 1:
		return refused("top_p", "top_p is %g: want a number from 0 to 1", o.TopP)
	case q.choices < 1 || q.choices > maxChoices:
		return refused("n", "n is %d: want 1 to %d", q.choices, maxChoices)
	case len(q.stops) > 4 || slices.Contains(q.stops, ""):
		return refused("stop", "stop: want at most 4 texts, none of them empty")
	case p.MaxTokens != nil && p.MaxCompletionTokens != nil:
		return refused("max_tokens", "max_tokens and max_completion_tokens are set: want one of them")
	case p.Options != nil && !p.Stream:
		return refused("stream_options", "stream_options: want it with stream alone")
	}
	if bad := s.bias(p, &o); bad != nil {
		return bad
	}
	if bad := s.length(p, q, &o); bad != nil {
		return bad
	}
	if len(q.stops) > 0 {
		o.Stop = generation.StopStrings(s.Tokenizer, q.stops...)
	}
	if err := o.Validate(); err != nil {
		return refused("", "%v", err)
	}
	q.options = o
	return nil
}

func give[T any](setting, given *T) {
	if given != nil {
		*setting = *given
	}
}

// length bounds the answer.
func (s *Chat) length(p *parameters, q *query, o *generation.Options) *apiError {
	param, asked := "max_tokens", p.MaxTokens
	if p.MaxCompletionTokens != nil {
		param, asked = "max_completion_tokens", p.MaxCompletionTokens
	}
	if asked != nil && *asked < 1 {
		return refused(param, "%s is %d: want at least 1", param, *asked)
	}
	room, wanted := s.Context-len(q.prompt), 1
	if asked != nil {
		wanted = *asked
	}
	if wanted > room {
		bad := refused("messages", "This model's maximum context length is %d tokens. However, you requested %d "+
			"tokens (%d in the messages, %d in the completion)", s.Context, len(q.prompt)+wanted, len(q.prompt), wanted)
		bad.Code = tooLong
		return bad
	}
	o.MaxNewTokens = min(cmp.Or(o.MaxNewTokens, room), room)
	give(&o.MaxNewTokens, asked)
	return nil
}

// bias makes logit_bias a processor.
func (s *Chat) bias(p *parameters, o *generation.Options) *apiError {
	if len(p.LogitBias) == 0 {
		return nil
	}
	bias := map[int]float32{}
	for name, by := range p.LogitBias {
		id, err := strconv.Atoi(name)
		if err != nil || id < 0 || id >= s.Tokenizer.VocabSize() || by < -100 || by > 100 {
			return refused("logit_bias", "logit_bias has %.20s: %g: want ids of tokens and numbers from -100 "+
				"to 100", name, by)
		}
		bias[id] = float32(by)
	}
	add := func(_ []int, logits []float32) {
		for id, by := range bias {
			logits[id] += by
		}
	}
	o.Processors = append(o.Processors[:len(o.Processors):len(o.Processors)], add)
	return nil
}
