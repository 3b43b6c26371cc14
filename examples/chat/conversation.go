// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/generation"
)

// message is a message as chat templates read it.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// conversation is what was said, and the model that answers.
type conversation struct {
	base      *models.Pretrained[language.Model]
	template  *chat.Template
	variables map[string]json.RawMessage
	options   generation.Options // MaxNewTokens 0: what the context has room for
	stops     []string
	engine    *generation.Engine // which the caller of open closes

	system   string
	messages []message // questions and answers by turns
	from     int       // messages before it are left out: the context has no room for them
}

// reset starts over, with the system prompt.
func (c *conversation) reset() { c.messages, c.from = nil, 0 }

// said are the system prompt and the messages from one on.
func (c *conversation) said(from int) (list []message) {
	if c.system != "" {
		list = append(list, message{"system", c.system})
	}
	return append(list, c.messages[from:]...)
}

// encode returns the tokens of a prompt, from which the model answers.
func (c *conversation) encode(list []message) (ids []int, err error) {
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	prompt, _, err := c.template.Render(chat.Conversation{Messages: text, GenerationPrompt: true,
		Variables: c.variables})
	if err != nil {
		return nil, err
	}
	tokens, err := c.base.Tokenizer.Encode(prompt) // the template has the special tokens
	for _, id := range tokens {
		ids = append(ids, int(id))
	}
	return ids, err
}

// leastShare is the part of the context that is kept for an answer, as long as earlier messages can go.
const leastShare = 4

// prompt is what the model reads of the messages: without the earliest, if there is no room for them and an answer.
func (c *conversation) prompt() (ids []int, err error) {
	context := c.base.Model.ContextLength()
	wanted := max(1, context/leastShare)
	if n := c.options.MaxNewTokens; n > 0 {
		wanted = min(wanted, n)
	}
	for from := c.from; ; from += 2 {
		if ids, err = c.encode(c.said(from)); err != nil {
			return nil, err
		}
		switch last := from == len(c.messages)-1; {
		case len(ids)+wanted <= context, last && len(ids) < context:
			c.from = from
			return ids, nil
		case last:
			return nil, fmt.Errorf("the message has %d tokens, with those of the template, and the model reads %d: "+
				"want a shorter one", len(ids), context)
		}
	}
}

// ending says why an answer has ended.
type ending string

const (
	atEnd     ending = ""
	atLimit   ending = "cut at max_new_tokens"
	atContext ending = "cut: the context is full"
	atStop    ending = "stopped"
)

// errStopped is the cause of the end of an answer's context if a person stops it.
var errStopped = errors.New("stopped")

// answer answers a question. show gets the text as it comes; forgotten is called if there is no room for further
// messages. A question that cannot be answered is not kept; of an answer that is stopped, what there is.
func (c *conversation) answer(ctx context.Context, question string, show func(string) error, forgotten func()) (
	ending, error) {
	c.messages = append(c.messages, message{"user", question})
	end, text, err := c.generate(ctx, show, forgotten)
	if err != nil {
		c.messages = c.messages[:len(c.messages)-1]
		return end, err
	}
	c.messages = append(c.messages, message{"assistant", text})
	return end, nil
}

func (c *conversation) generate(ctx context.Context, show func(string) error, forgotten func()) (end ending,
	answer string, err error) {
	before := c.from
	ids, err := c.prompt()
	if err != nil {
		return end, "", err
	}
	if c.from > before {
		forgotten()
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	opt := c.options
	room := c.base.Model.ContextLength() - len(ids)
	opt.MaxNewTokens = min(cmp.Or(opt.MaxNewTokens, room), room)
	stream := generation.NewTextStream(c.base.Tokenizer.NewStream(), opt.EOS, c.stops...)
	var said strings.Builder
	give := func(piece string, err error) {
		said.WriteString(piece)
		if err == nil && piece != "" {
			err = show(piece)
		}
		if err != nil {
			stop(err)
		}
	}
	opt.OnToken = func(id int) { give(stream.Next(id)) }
	tokens, err := c.engine.Generate(ctx, ids, opt)
	give(stream.Flush(), nil)
	if cause := context.Cause(ctx); err == nil && cause != nil {
		err = cause // of the last piece
	}
	switch ended := stream.Stopped() || len(tokens) > 0 && slices.Contains(opt.EOS, tokens[len(tokens)-1]); {
	case errors.Is(err, errStopped):
		return atStop, said.String(), nil
	case err != nil || ended:
	case opt.MaxNewTokens == room:
		end = atContext
	default:
		end = atLimit
	}
	return end, said.String(), err
}

// save adds the conversation to a file as a row that examples/finetune reads.
func (c *conversation) save(path string) (err error) {
	row, err := json.Marshal(map[string][]message{"messages": c.said(0)})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(append(row, '\n'))
	return errors.Join(err, f.Close())
}
