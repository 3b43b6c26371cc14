// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decoder makes texts of the spellings of tokens, one step of the file's decoder after the other. The text is what
// they give, joined.
type decoder []decodeStep

// decodeStep may fail by its run.
type decodeStep func(*run, []string) []string

// parseDecoder reads the decoder. Without one, tokens are words with a space between.
func parseDecoder(raw json.RawMessage) (d decoder, bad []string) {
	list, err := flat("decoder", raw)
	if err != nil {
		return nil, []string{err.Error()}
	}
	for _, c := range list {
		step, err := parseStep(c)
		if err != nil {
			bad = append(bad, fault(c, err))
		}
		d = append(d, step)
	}
	if isNull(raw) {
		d = decoder{func(_ *run, tokens []string) []string { return []string{strings.Join(tokens, " ")} }}
	}
	return d, bad
}

func parseStep(c component) (decodeStep, error) {
	switch c.Type {
	case "ByteLevel":
		_, err := readByteLevel(c.raw)
		return each(func(_ int, s string) string {
			if b, ok := unspell(s); ok {
				return string(b)
			}
			return s
		}), err
	case "ByteFallback":
		return bytesFallback, onlyType(c)
	case "Fuse":
		return func(_ *run, tokens []string) []string { return []string{strings.Join(tokens, "")} }, onlyType(c)
	case "Replace":
		s := struct {
			Type, Content string
			Pattern       filePattern
		}{}
		if err := strict(c.raw, &s); err != nil {
			return nil, err
		}
		match, err := s.Pattern.matcher()
		return func(r *run, tokens []string) []string {
			for i, token := range tokens {
				p := piece{text: token, run: r}.replace(match, s.Content)
				tokens[i] = p.text
				r.room -= len(p.text)
			}
			for _, token := range tokens {
				r.room += len(token)
			}
			return tokens
		}, err
	case "Strip":
		s := struct {
			Type, Content string
			Start, Stop   int
		}{}
		err := strict(c.raw, &s)
		if err == nil && utf8.RuneCountInString(s.Content) != 1 {
			err = fmt.Errorf("content is %q: want one character", s.Content)
		}
		return each(func(_ int, token string) string {
			for n := 0; n < s.Start && strings.HasPrefix(token, s.Content); n++ {
				token = token[len(s.Content):]
			}
			for n := 0; n < s.Stop && strings.HasSuffix(token, s.Content); n++ {
				token = token[:len(token)-len(s.Content)]
			}
			return token
		}), err
	case "Metaspace":
		m, err := parseMetaspace(c.raw)
		if err != nil {
			return nil, err
		}
		return each(func(i int, token string) string {
			if i == 0 && m.prepend != "never" {
				return strings.ReplaceAll(token, m.mark, "")
			}
			return strings.ReplaceAll(token, m.mark, " ")
		}), nil
	case "WordPiece":
		s := struct {
			Type, Prefix string
			Cleanup      bool
		}{Prefix: "##", Cleanup: true}
		err := strict(c.raw, &s)
		return each(func(i int, token string) string { return joinPiece(i, token, s.Prefix, s.Cleanup) }), err
	case "BPEDecoder":
		s := struct{ Type, Suffix string }{Suffix: "</w>"}
		err := strict(c.raw, &s)
		if err == nil && s.Suffix == "" {
			err = errors.New("suffix is empty")
		}
		return func(_ *run, tokens []string) []string {
			for i, t := range tokens {
				space := " "
				if i == len(tokens)-1 {
					space = ""
				}
				tokens[i] = strings.ReplaceAll(t, s.Suffix, space)
			}
			return tokens
		}, err
	}
	return nil, errUnknown
}

func each(f func(i int, token string) string) decodeStep {
	return func(_ *run, tokens []string) []string {
		for i, t := range tokens {
			tokens[i] = f(i, t)
		}
		return tokens
	}
}

// joinPiece writes a WordPiece token, with the space before it unless it continues a word.
func joinPiece(i int, token, prefix string, cleanup bool) string {
	if i > 0 {
		if rest, ok := strings.CutPrefix(token, prefix); ok {
			token = rest
		} else {
			token = " " + token
		}
	}
	if cleanup {
		for _, r := range [][2]string{{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"},
			{" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}} {
			token = strings.ReplaceAll(token, r[0], r[1])
		}
	}
	return token
}

// bytesFallback joins runs of byte tokens. A run that is not UTF-8 becomes a replacement character for each byte.
func bytesFallback(_ *run, tokens []string) []string {
	var out []string
	var run []byte
	flush := func() {
		switch {
		case utf8.Valid(run):
			out = append(out, string(run))
		default:
			out = append(out, strings.Repeat("\uFFFD", len(run)))
		}
		run = run[:0]
	}
	for _, t := range tokens {
		if b, ok := byteToken(t); ok {
			run = append(run, b)
			continue
		}
		if len(run) > 0 {
			flush()
		}
		out = append(out, t)
	}
	if len(run) > 0 {
		flush()
	}
	return out
}

// byteToken reads a token such as <0x0A>.
func byteToken(s string) (byte, bool) {
	if len(s) != len("<0x0A>") || !strings.HasPrefix(s, "<0x") || s[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(s[3:5], 16, 8)
	return byte(b), err == nil
}

// text decodes ids that are known to be in the vocabulary. It leaves out those without a token, and special ones if
// asked to.
func (t *Tokenizer) text(ids []int32, skipSpecial bool) (string, error) {
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		if t.has[id] && !(skipSpecial && t.special[id]) {
			tokens = append(tokens, t.spelled[id])
		}
	}
	return t.decode.text(tokens)
}

// text is what the steps make of the tokens.
func (d decoder) text(tokens []string) (string, error) {
	size := 0
	for _, t := range tokens {
		size += len(t)
	}
	r := newRun(size)
	for _, step := range d {
		tokens = step(r, tokens)
	}
	return strings.Join(tokens, ""), r.err
}

// Decode returns the text of the tokens; added tokens give their own. Of a byte-level vocabulary it is the bytes of the
// tokens, one after the other: Decode(Encode(s)) is s for every string, valid UTF-8 or not, if nothing normalizes it.
// The error names an id outside the vocabulary.
func (t *Tokenizer) Decode(ids []int32) (string, error) { return t.decodeIDs(ids, false) }

// DecodeText is Decode without special tokens: what a reader of a model's answer should see.
func (t *Tokenizer) DecodeText(ids []int32) (string, error) { return t.decodeIDs(ids, true) }

func (t *Tokenizer) decodeIDs(ids []int32, skipSpecial bool) (string, error) {
	for i, id := range ids {
		if err := t.known(id); err != nil {
			return "", fmt.Errorf("%w (at position %d)", err, i)
		}
	}
	return t.text(ids, skipSpecial)
}

// AppendToken appends the text of one token to dst, as it is in the middle of others. A token may end in the middle of
// a UTF-8 character: a Stream holds such text back. The error names an id outside the vocabulary.
func (t *Tokenizer) AppendToken(dst []byte, id int32) ([]byte, error) {
	if err := t.known(id); err != nil {
		return dst, err
	}
	if b, ok := byteToken(t.spelled[id]); ok && t.fallback {
		return append(dst, b), nil
	}
	const before = "." // some decoders take the first token for the beginning of a text
	text, err := t.decode.text([]string{before, t.spelled[id]})
	if err != nil {
		return dst, err
	}
	return append(dst, strings.TrimPrefix(text, before)...), nil
}
