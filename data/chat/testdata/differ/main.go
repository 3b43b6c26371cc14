// SPDX-License-Identifier: Apache-2.0

// Command differ renders conversations for differ.py: one JSON object on each line of the input, one of the output.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"
	"time"

	"github.com/lockstep-ml/lockstep/data/chat"
)

type task struct {
	Template  string                     `json:"template"`
	Messages  json.RawMessage            `json:"messages"`
	Tools     json.RawMessage            `json:"tools"`
	Prompt    bool                       `json:"add_generation_prompt"`
	Special   map[string]string          `json:"special"`
	Variables map[string]json.RawMessage `json:"variables"`
}

type result struct {
	Text  string      `json:"text"`
	Spans []chat.Span `json:"spans"`
	Error string      `json:"error"`
}

func main() {
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for in.More() {
		var t task
		if err := in.Decode(&t); err != nil {
			log.Fatal(err)
		}
		if err := out.Encode(render(t)); err != nil {
			log.Fatal(err)
		}
	}
}

func render(t task) (r result) {
	template, err := chat.ParseTemplate(t.Template)
	if err == nil {
		template.Special = t.Special
		template.Now = func() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC) }
		r.Text, r.Spans, err = template.Render(chat.Conversation{Messages: t.Messages, Tools: t.Tools,
			GenerationPrompt: t.Prompt, Variables: t.Variables})
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}
