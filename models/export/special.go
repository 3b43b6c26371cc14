// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/internal/gguf"
	"github.com/lockstep-ml/lockstep/internal/modelfiles"
	"github.com/lockstep-ml/lockstep/models/generation"
)

// maxTemplate bounds a chat template, in bytes.
const maxTemplate = 16 << 20

// special sets the tokens with a role, and the chat template.
func (b *builder) special(m language) error {
	named, err := chat.SpecialTokens(b.model.Dir)
	if err != nil {
		return err
	}
	bos, eos := b.named(named["bos_token"]), b.named(named["eos_token"])
	opt, err := generation.Saved(b.model.Dir)
	if err != nil {
		b.note("%v: it is not in a Modelfile", err)
	}
	source, template, err := b.template()
	if err != nil {
		return err
	}
	ends := slices.Clone(m.EndTokens())
	if eos >= 0 {
		ends = append([]int{eos}, ends...)
	}
	ends = append(ends, opt.EOS...)
	if template != nil {
		more, err := template.TurnEnds(b.model.tokenizer)
		if err != nil {
			b.note("the chat template renders no conversation here: %v", err)
		}
		for _, id := range more {
			ends = append(ends, int(id))
		}
	}
	seen := map[int]bool{}
	ends = slices.DeleteFunc(ends, func(id int) bool {
		again := seen[id] || id < 0 || id >= b.vocabulary
		seen[id] = true
		return again
	})
	before, after, err := b.around(&bos, ends)
	if err != nil {
		return err
	}
	b.id("bos", bos)
	for i, role := range []string{"eos", "eot", "eom"} {
		if i < len(ends) {
			b.id(role, ends[i])
		}
	}
	if id := b.named(named["unk_token"]); id >= 0 {
		b.unknown = id
	}
	b.id("unknown", b.unknown)
	b.id("padding", b.named(named["pad_token"]))
	b.set(ggml+"add_bos_token", gguf.Bool(before))
	b.set(ggml+"add_eos_token", gguf.Bool(after))
	if source != "" {
		b.set("tokenizer.chat_template", gguf.Text(source))
	}
	b.model.ends = ends
	b.model.chat = &chatTemplate{template: template, options: opt, bos: before}
	if before {
		b.model.chat.begin, _ = b.model.tokenizer.Token(int32(bos))
	}
	return nil
}

// named is the number of a token, -1 if there is none.
func (b *builder) named(token string) int {
	if id, ok := b.model.tokenizer.TokenID(token); ok && token != "" {
		return int(id)
	}
	return -1
}

// id sets the number of a token with a role, -1 for none.
func (b *builder) id(role string, id int) {
	if id >= 0 {
		b.set(ggml+role+"_token_id", gguf.Uint32(id))
	}
}

// around reports whether a text begins with bos, and ends with the first of ends, and sets bos if no file names it.
func (b *builder) around(bos *int, ends []int) (before, after bool, err error) {
	const text = -1
	ids := b.model.tokenizer.AddSpecialTokens([]int32{text})
	at := slices.Index(ids, text)
	head, tail := ids[:at], ids[at+1:]
	if *bos < 0 && len(head) == 1 {
		*bos = int(head[0])
	}
	if len(head) > 1 || len(head) == 1 && int(head[0]) != *bos ||
		len(tail) > 1 || len(tail) == 1 && (len(ends) == 0 || int(tail[0]) != ends[0]) {
		return false, false, fmt.Errorf("tokenizer.json: post_processor puts the tokens %v before a text and %v "+
			"behind it: llama.cpp puts bos_token before it, and eos_token behind it", head, tail)
	}
	return len(head) == 1, len(tail) == 1, nil
}

// template is the source of the chat template, "" if there is none, and what has been made of it, nil if it is not
// understood here.
func (b *builder) template() (string, *chat.Template, error) {
	t, err := chat.LoadTemplate(b.model.Dir)
	switch {
	case err == nil:
		return t.Source, t, nil
	case errors.Is(err, chat.ErrNoTemplate):
		return "", nil, nil
	}
	raw, other := modelfiles.ReadFile(filepath.Join(b.model.Dir, chat.TemplateFile), maxTemplate)
	if other != nil {
		return "", nil, err
	}
	b.note("%v: it is written as it is", err)
	return string(raw), nil, nil
}

// phi3 are the names of models whose special tokens take the white space behind them in llama.cpp, which looks for
// these letters, and for some tokens that such models have.
var (
	phi3       = regexp.MustCompile(`(?i)phi-?3`)
	phi3Tokens = []string{"</s>", "<unk>", "<s>", "<|endoftext|>"}
)

// safeName is the name, or one that makes llama.cpp treat the white space behind special tokens as the tokenizer does.
func (b *builder) safeName(name string) string {
	strips := slices.ContainsFunc(b.model.tokenizer.AddedTokens(), func(a tokenizers.AddedToken) bool {
		return a.RStrip && a.Special
	})
	canStrip := !slices.ContainsFunc(phi3Tokens, func(token string) bool { return b.named(token) < 0 })
	switch {
	case strips && canStrip && !phi3.MatchString(name):
		name = "Phi-3 " + name
		b.note("general.name is %q: by it llama.cpp removes white space behind special tokens, as the tokenizer does",
			name)
	case strips && !canStrip:
		b.note("special tokens take the white space behind them, and do not in llama.cpp")
		fallthrough
	case !strips:
		if other := phi3.ReplaceAllString(name, "Phi 3"); other != name {
			name = other
			b.note("general.name is %q, since llama.cpp treats models whose names have Phi-3 otherwise", name)
		}
	}
	return name
}
