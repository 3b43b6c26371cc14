// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/gguf"
	"github.com/lockstep-ml/lockstep/internal/modelfiles"
)

// ggml is what the keys of a tokenizer begin with.
const ggml = "tokenizer.ggml."

// The values of tokenizer.ggml.token_type.
const (
	normalToken = iota + 1
	unknownToken
	controlToken
	userToken
	unusedToken
	byteToken
)

// tokenizerFile is what is written of a tokenizer.json, which package tokenizers has read and checked.
type tokenizerFile struct {
	AddedTokens []struct {
		ID      int
		Content string
		Special bool
	} `json:"added_tokens"`
	Normalizer   json.RawMessage
	PreTokenizer json.RawMessage `json:"pre_tokenizer"`
	Model        struct {
		Type                    string
		Vocab                   map[string]int
		Merges                  []merge
		UnkToken                *string `json:"unk_token"`
		ContinuingSubwordPrefix string  `json:"continuing_subword_prefix"`
		EndOfWordSuffix         string  `json:"end_of_word_suffix"`
		ByteFallback            bool    `json:"byte_fallback"`
		IgnoreMerges            bool    `json:"ignore_merges"`
	}

	tokens []string
	kinds  []int32
}

// merge is ["a", "b"], or "a b" in older files.
type merge [2]string

// UnmarshalJSON implements json.Unmarshaler.
func (m *merge) UnmarshalJSON(text []byte) error {
	if text[0] != '"' {
		return json.Unmarshal(text, (*[2]string)(m))
	}
	var line string
	if err := json.Unmarshal(text, &line); err != nil {
		return err
	}
	m[0], m[1], _ = strings.Cut(line, " ")
	return nil
}

// tokens sets the keys of the vocabulary.
func (b *builder) tokens() error {
	var text bytes.Buffer
	if _, err := b.model.tokenizer.WriteTo(&text); err != nil {
		return err
	}
	var f tokenizerFile
	if err := json.Unmarshal(text.Bytes(), &f); err != nil {
		return fmt.Errorf("tokenizer.json: %w", err)
	}
	f.list(b.vocabulary)
	var err error
	switch m := &f.Model; {
	case m.Type != "" && m.Type != "BPE":
		err = fmt.Errorf("a model of type %s: want BPE", m.Type)
	case m.ContinuingSubwordPrefix != "" || m.EndOfWordSuffix != "":
		err = fmt.Errorf("continuing_subword_prefix %q, end_of_word_suffix %q: want none", m.ContinuingSubwordPrefix,
			m.EndOfWordSuffix)
	case m.ByteFallback && !bytes.Contains(f.PreTokenizer, []byte(`"ByteLevel"`)):
		err = b.pieces(&f)
	default:
		err = b.bytePairs(&f)
	}
	if err != nil {
		return fmt.Errorf("tokenizer.json: %w", err)
	}
	return nil
}

// list fills in tokens and kinds, one for each row of the embeddings.
func (f *tokenizerFile) list(size int) {
	f.tokens, f.kinds = make([]string, size), slices.Repeat([]int32{unusedToken}, size)
	for i := range f.tokens {
		f.tokens[i] = fmt.Sprintf("[PAD%d]", i)
	}
	for token, id := range f.Model.Vocab {
		f.tokens[id], f.kinds[id] = token, normalToken
	}
	for _, a := range f.AddedTokens {
		f.tokens[a.ID], f.kinds[a.ID] = a.Content, userToken
		if a.Special || looksSpecial(a.Content) {
			f.kinds[a.ID] = controlToken
		} else {
			f.tokens[a.ID] = strings.ReplaceAll(a.Content, space, " ")
		}
	}
}

// space stands for a space in the vocabularies of SentencePiece.
const space = "▁"

// looksSpecial reports whether llama.cpp's converter takes an added token for one of control, whatever its file says.
func looksSpecial(token string) bool {
	for _, marks := range [][2]string{{"<|", "|>"}, {"<｜", "｜>"}, {"<unused", ">"}} {
		if strings.HasPrefix(token, marks[0]) && strings.HasSuffix(token, marks[1]) {
			return true
		}
	}
	return slices.Contains([]string{"<pad>", "<mask>", "<2mass>", "[@BOS@]"}, token)
}

// tokenList sets the keys that both kinds of tokenizers have.
func (b *builder) tokenList(f *tokenizerFile, model, pre string) {
	b.set(ggml+"model", gguf.Text(model))
	b.set(ggml+"pre", gguf.Text(pre))
	b.set(ggml+"tokens", gguf.Texts(f.tokens))
	b.set(ggml+"token_type", gguf.Int32s(f.kinds))
}

// bytePairs sets the keys of a vocabulary of bytes.
func (b *builder) bytePairs(f *tokenizerFile) error {
	nfc := false
	var normalizer struct{ Type string }
	if text := string(f.Normalizer); text != "" && text != "null" {
		if err := json.Unmarshal(f.Normalizer, &normalizer); err != nil || normalizer.Type != "NFC" {
			return fmt.Errorf("normalizer %.200s: llama.cpp has none: want none, or NFC", f.Normalizer)
		}
		nfc = true
		b.note("texts in another normal form than C (NFC), such as letters with combining accents, become other " +
			"tokens in llama.cpp, which does not normalize them")
	}
	pre, err := modelfiles.Pre(f.PreTokenizer, f.Model.IgnoreMerges, nfc)
	if err != nil {
		return err
	}
	merges := make([]string, len(f.Model.Merges))
	for i, m := range f.Model.Merges {
		if strings.Contains(m[0]+m[1], " ") {
			return fmt.Errorf("merge %d is of %q and %q: want tokens without spaces", i, m[0], m[1])
		}
		merges[i] = m[0] + " " + m[1]
	}
	b.tokenList(f, "gpt2", pre)
	b.set(ggml+"merges", gguf.Texts(merges))
	return nil
}
