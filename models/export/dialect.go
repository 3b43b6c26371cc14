// SPDX-License-Identifier: Apache-2.0

package export

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/template"

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/models/generation"
)

// chatTemplate is what a conversation is made of.
type chatTemplate struct {
	template *chat.Template // nil: none, or one that is not understood
	options  generation.Options
	bos      bool   // the tokenizer puts a token before a text
	begin    string // that token, "" for none
}

// dialect is a chat template as text before and behind the messages of each role.
type dialect struct {
	before, behind map[string]string // by role
	// folded: a system message stands in the user's that follows it, between these.
	folded     bool
	fold, open string
	answer     string // behind the last message: the beginning of an answer
	fallback   string // the system message of a conversation without one
}

// message is one of a conversation, as ollama's templates see it.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// The texts that stand in for those of a conversation.
const (
	ruleText, askText, replyText, againText = "RULE1TEXT", "ASK2TEXT", "REPLY3TEXT", "AGAIN4TEXT"
)

// The roles of messages.
const (
	systemRole, userRole, assistantRole = "system", "user", "assistant"
)

// errForm is the error of a template that treats a message by what stands elsewhere.
var errForm = errors.New("the chat template is more than text before and behind messages")

// dialect finds the texts around messages by rendering conversations, and checks them on others.
func (c *chatTemplate) dialect() (*dialect, error) {
	d := &dialect{before: map[string]string{}, behind: map[string]string{}}
	user, reply, again := message{userRole, askText}, message{assistantRole, replyText}, message{userRole, againText}
	open, err := c.render(false, user, reply, again)
	if err != nil {
		return nil, err
	}
	asked, err := c.render(true, user, reply, again)
	if err != nil {
		return nil, err
	}
	closed, err := c.render(false, user, reply)
	if err != nil {
		return nil, err
	}
	parts, ok := cut(open, askText, replyText, againText)
	ends, closes := cutLast(closed, replyText)
	if !ok || !closes || !strings.HasPrefix(asked, open) {
		return nil, errForm
	}
	d.answer = asked[len(open):]
	d.behind[userRole] = parts[3]
	if d.before[assistantRole], ok = strings.CutPrefix(parts[1], parts[3]); !ok {
		return nil, errForm
	}
	if d.before[userRole], ok = strings.CutPrefix(parts[2], ends); !ok {
		return nil, errForm
	}
	d.behind[assistantRole] = ends
	if err := d.system(c); err != nil {
		return nil, err
	}
	return d, d.check(c)
}

// system finds how a system message is written, and which one a conversation without one has.
func (d *dialect) system(c *chatTemplate) error {
	plain, err := c.render(false, message{userRole, askText})
	if err != nil {
		return err
	}
	head, _, ok := strings.Cut(plain, askText)
	if !ok {
		return errForm
	}
	ruled, err := c.render(false, message{systemRole, ruleText}, message{userRole, askText})
	if err != nil { // it has no system messages
		if head != d.before[userRole] {
			return errForm
		}
		return nil
	}
	parts, ok := cut(ruled, ruleText, askText)
	if !ok {
		return errForm
	}
	if before, ok := strings.CutSuffix(parts[1], d.before[userRole]); ok {
		d.before[systemRole], d.behind[systemRole] = parts[0], before
		rest, ok := strings.CutSuffix(head, d.before[userRole])
		if ok && rest != "" {
			rest, ok = strings.CutPrefix(rest, parts[0])
		}
		if ok && rest != "" {
			d.fallback, ok = strings.CutSuffix(rest, before)
		}
		if !ok {
			return errForm
		}
		return nil
	}
	d.folded = true
	if d.fold, ok = strings.CutPrefix(parts[0], d.before[userRole]); !ok || head != d.before[userRole] {
		return errForm
	}
	d.open = parts[1]
	return nil
}

// cut cuts a text at others that it has in this order, each once.
func cut(text string, at ...string) (parts []string, ok bool) {
	for _, a := range at {
		before, rest, found := strings.Cut(text, a)
		if !found {
			return nil, false
		}
		parts, text = append(parts, before), rest
	}
	return append(parts, text), true
}

// cutLast is what a text has behind another.
func cutLast(text, at string) (string, bool) {
	i := strings.LastIndex(text, at)
	if i < 0 {
		return "", false
	}
	return text[i+len(at):], true
}

// render is a conversation as the model's own template has it, without the token that the tokenizer puts before it.
func (c *chatTemplate) render(generate bool, messages ...message) (string, error) {
	list, err := json.Marshal(messages)
	if err != nil {
		return "", err
	}
	text, _, err := c.template.Render(chat.Conversation{Messages: list, GenerationPrompt: generate})
	return strings.TrimPrefix(text, c.begin), err
}

// template is the template in ollama's language, Go's text/template. An answer that is continued has no end.
func (d *dialect) template() string {
	var b strings.Builder
	b.WriteString(`{{ range $i, $_ := .Messages }}{{ $last := eq (len (slice $.Messages $i)) 1 }}`)
	if d.folded {
		b.Reset()
		b.WriteString(`{{ $rule := "" }}{{ range $i, $_ := .Messages }}` +
			`{{ $last := eq (len (slice $.Messages $i)) 1 }}` +
			`{{ if eq .Role "system" }}{{ $rule = .Content }}{{ else if eq .Role "user" }}` +
			escaped(d.before[userRole]) + `{{ if $rule }}` + escaped(d.fold) + `{{ $rule }}` + escaped(d.open) +
			`{{ $rule = "" }}{{ end }}{{ .Content }}` + escaped(d.behind[userRole]))
	} else {
		word := "if"
		for _, role := range []string{systemRole, userRole} {
			if _, ok := d.before[role]; ok {
				b.WriteString(`{{ ` + word + ` eq .Role "` + role + `" }}` + escaped(d.before[role]) +
					`{{ .Content }}` + escaped(d.behind[role]))
				word = "else if"
			}
		}
	}
	b.WriteString(`{{ else if eq .Role "assistant" }}` + escaped(d.before[assistantRole]) +
		`{{ .Content }}{{ if not $last }}` + escaped(d.behind[assistantRole]) + `{{ end }}{{ end }}` +
		`{{ if and $last (ne .Role "assistant") }}` + escaped(d.answer) + `{{ end }}{{ end }}`)
	return b.String()
}

// escaped is a text in a template.
func escaped(text string) string { return strings.ReplaceAll(text, "{{", `{{ "{{" }}`) }

// check renders conversations by both templates. White space at the ends of messages, which many templates take away,
// stays in ollama.
func (d *dialect) check(c *chatTemplate) error {
	text := d.template()
	if strings.Contains(text+d.fallback, `"""`) {
		return errors.New(`the chat template has """, which a Modelfile cannot have in a text`)
	}
	made, err := template.New("").Parse(text)
	if err != nil {
		return fmt.Errorf("%w: %w", errForm, err)
	}
	rule, ask := message{systemRole, "Be brief.\nAnd kind."}, message{userRole, "2 + 2 {is}\n  what?"}
	reply, again := message{assistantRole, "It is **4**.\n\n`4`"}, message{userRole, "Why?"}
	long := []message{rule, ask, reply, again, reply, ask}
	for _, messages := range [][]message{{ask}, {rule, ask}, {ask, reply, again}, long} {
		if _, known := d.before[systemRole]; messages[0].Role == systemRole && !known && !d.folded {
			continue
		}
		want, err := c.render(true, messages...)
		if err != nil {
			return err
		}
		if d.fallback != "" && messages[0].Role != systemRole { // as ollama does
			messages = append([]message{{systemRole, d.fallback}}, messages...)
		}
		var got strings.Builder
		if err := made.Execute(&got, map[string]any{"Messages": messages}); err != nil {
			return fmt.Errorf("%w: %w", errForm, err)
		}
		if got.String() != want {
			return errForm
		}
	}
	return nil
}
