// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// splitter cuts a piece into pre-tokens, which it may change, and gives them to emit in order. None is empty.
type splitter func(p piece, emit func(piece))

// filePattern is the pattern of a Split or a Replace.
type filePattern struct {
	Regex  *string `json:"Regex"`
	String *string `json:"String"`
}

// What a regular expression of a file may have. Those of real files have some 600 bytes and 10 groups in each other;
// deeper ones overflow the stack of package regexp2.
const (
	maxExpression = 1 << 14 // bytes
	maxNesting    = 100     // of groups and classes
)

// matcher makes a matcher of the pattern.
func (f filePattern) matcher() (matcher, error) {
	switch {
	case (f.Regex == nil) == (f.String == nil):
		return nil, errors.New(`pattern: want either {"Regex": …} or {"String": …}`)
	case f.String != nil && *f.String == "":
		return nil, errors.New(`pattern.String is "": want a text to look for`)
	case f.String != nil:
		return matchString(*f.String), nil
	}
	if *f.Regex == spaceRuns {
		return matchSpaceRuns, nil
	}
	if scan, ok := scanners[*f.Regex]; ok {
		return scan.match, nil
	}
	re, err := compile(*f.Regex)
	if err != nil {
		return nil, fmt.Errorf("the regular expression %.200q: %w", *f.Regex, err)
	}
	return func(r *run, text string, each func(start, end int)) { matchRegexp(r, re, text, each) }, nil
}

// compile compiles an expression of Oniguruma's.
func compile(expr string) (*regexp2.Regexp, error) {
	if len(expr) > maxExpression {
		return nil, fmt.Errorf("it has %d bytes: want at most %d", len(expr), maxExpression)
	}
	depth := 0
	for i := 0; i < len(expr); i++ {
		switch expr[i] {
		case '\\':
			i++
		case '(', '[':
			if depth++; depth > maxNesting {
				return nil, fmt.Errorf("it has more than %d nested groups: want at most as many", maxNesting)
			}
		case ')', ']':
			depth--
		}
	}
	translated, err := translate(expr)
	if err != nil {
		return nil, err
	}
	re, err := regexp2.Compile(translated)
	if err == nil {
		re.MatchTimeout = maxMatching
	}
	return re, err
}

// spaceRuns is the expression of most Unigram tokenizers.
const spaceRuns = " {2,}"

// matchSpaceRuns matches spaceRuns.
func matchSpaceRuns(_ *run, text string, each func(start, end int)) {
	for i := strings.Index(text, "  "); i < len(text) && i >= 0; {
		end := i
		for end < len(text) && text[end] == ' ' {
			end++
		}
		each(i, end)
		next := strings.Index(text[end:], "  ")
		if next < 0 {
			return
		}
		i = end + next
	}
}

func matchString(s string) matcher {
	return func(_ *run, text string, each func(start, end int)) {
		for i := 0; ; i += len(s) {
			n := strings.Index(text[i:], s)
			if n < 0 {
				return
			}
			i += n
			each(i, i+len(s))
		}
	}
}

// matchRegexp counts in bytes, where package regexp2 counts in characters.
func matchRegexp(r *run, re *regexp2.Regexp, text string, each func(start, end int)) {
	var runes []rune
	starts := make([]int, 0, len(text)+1)
	for i := 0; i < len(text); {
		c, size := decodeRune(text, i)
		runes, starts = append(runes, min(c, utf8.MaxRune)), append(starts, i)
		i += size
	}
	starts = append(starts, len(text))
	last, begin := -1, time.Now()
	err := re.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
		now := time.Now()
		ok := r.spend(re.String(), now.Sub(begin))
		begin = now
		start, size, _ := m.GroupRange(0)
		if ok && (size > 0 || start != last) { // an empty match behind another is none
			each(starts[start], starts[start+size])
			last = start + size
		}
		return ok
	})
	if spent := time.Since(begin); err != nil {
		r.spend(re.String(), max(spent, r.time+1))
	} else {
		r.spend(re.String(), spent)
	}
}

// matchRune matches characters one by one.
func matchRune(is func(rune) bool) matcher {
	return func(_ *run, text string, each func(start, end int)) {
		for i := 0; i < len(text); {
			r, size := decodeRune(text, i)
			if is(r) {
				each(i, i+size)
			}
			i += size
		}
	}
}

func isSpaceRune(r rune) bool { return spaces.has(classOf(r)) }

func hasProperty(property class) func(rune) bool {
	return func(r rune) bool { return classOf(r)&property != 0 }
}

// parsePreTokenizer reads one pre-tokenizer that is no Sequence, and not ByteLevel.
func parsePreTokenizer(c component) (splitter, error) {
	switch c.Type {
	case "Split":
		return parseSplit(c.raw)
	case "Metaspace":
		m, err := parseMetaspace(c.raw)
		return m.split, err
	case "BertPreTokenizer":
		words := splitBy(matchRune(isSpaceRune), "Removed")
		marks := splitBy(matchRune(hasProperty(isPunct)), "Isolated")
		return func(p piece, emit func(piece)) {
			words(p, func(p piece) { marks(p, emit) })
		}, onlyType(c)
	case "Whitespace":
		return splitBy(scanner(wordOrNot).match, "Matched"), onlyType(c)
	case "WhitespaceSplit":
		return splitBy(matchRune(isSpaceRune), "Removed"), onlyType(c)
	case "Digits":
		s := struct {
			Type       string
			Individual bool `json:"individual_digits"`
		}{}
		err := strict(c.raw, &s)
		if s.Individual {
			return splitBy(matchRune(hasProperty(isNumeric)), "Isolated"), err
		}
		return splitBy(matchRune(hasProperty(isNumeric)), "Contiguous"), err
	case "Punctuation":
		s := struct{ Type, Behavior string }{Behavior: "Isolated"}
		if err := strict(c.raw, &s); err != nil {
			return nil, err
		}
		return splitBy(matchRune(hasProperty(isPunct)), s.Behavior), knownBehavior(s.Behavior)
	}
	return nil, errUnknown
}

// wordOrNot matches \w+|[^\w\s]+.
func wordOrNot(text string, i int) int {
	kind := func(c class) int {
		switch {
		case c&isWord != 0:
			return 1
		case spaces.has(c):
			return 0
		}
		return 2
	}
	c, size := classAt(text, i)
	first := kind(c)
	if first == 0 {
		return i
	}
	for i += size; i < len(text); i += size {
		if c, size = classAt(text, i); kind(c) != first {
			break
		}
	}
	return i
}

func parseSplit(raw json.RawMessage) (splitter, error) {
	s := struct {
		Type     string
		Pattern  filePattern
		Behavior string
		Invert   bool
	}{}
	if err := strict(raw, &s); err != nil {
		return nil, err
	}
	match, err := s.Pattern.matcher()
	if err == nil {
		err = knownBehavior(s.Behavior)
	}
	switch {
	case err != nil:
		return nil, err
	case s.Invert && s.Behavior == "Removed":
		return splitBy(match, "Matched"), nil
	case s.Invert && s.Behavior != "Isolated" && s.Behavior != "Contiguous":
		return nil, fmt.Errorf("behavior is %q and invert is true, which is not supported", s.Behavior)
	}
	return splitBy(match, s.Behavior), nil
}

var behaviors = map[string]func(match matcher) splitter{
	"Isolated":           isolated,
	"Removed":            removed,
	"Matched":            matched, // Removed with invert
	"Contiguous":         contiguous,
	"MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext":     mergedWithNext,
}

func knownBehavior(b string) error {
	if behaviors[b] == nil || b == "Matched" {
		return fmt.Errorf("behavior is %q: want Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext", b)
	}
	return nil
}

func splitBy(match matcher, behavior string) splitter {
	if behaviors[behavior] == nil {
		return nil
	}
	return behaviors[behavior](match)
}

// segments calls each for the matches in a text and for what lies between them, in order. An empty match ends what
// lies before it.
func segments(match matcher, p piece, each func(start, end int, match bool)) {
	done := 0
	match(p.run, p.text, func(start, end int) {
		if start > done {
			each(done, start, false)
		}
		if end > start {
			each(start, end, true)
		}
		done = end
	})
	if done < len(p.text) {
		each(done, len(p.text), false)
	}
}

func isolated(match matcher) splitter {
	return func(p piece, emit func(piece)) {
		segments(match, p, func(start, end int, _ bool) { emit(p.cut(start, end)) })
	}
}

func removed(match matcher) splitter {
	return func(p piece, emit func(piece)) {
		segments(match, p, func(start, end int, isMatch bool) {
			if !isMatch {
				emit(p.cut(start, end))
			}
		})
	}
}

func matched(match matcher) splitter {
	return func(p piece, emit func(piece)) {
		segments(match, p, func(start, end int, isMatch bool) {
			if isMatch {
				emit(p.cut(start, end))
			}
		})
	}
}

// grouped emits segments together as long as joins says so of the last one's and the next one's match.
func grouped(match matcher, joins func(last, next bool) bool) splitter {
	return func(p piece, emit func(piece)) {
		start, end, last := 0, 0, false
		segments(match, p, func(from, to int, isMatch bool) {
			if end > start && !joins(last, isMatch) {
				emit(p.cut(start, end))
				start = from
			}
			end, last = to, isMatch
		})
		if end > start {
			emit(p.cut(start, end))
		}
	}
}

func contiguous(match matcher) splitter {
	return grouped(match, func(last, next bool) bool { return last == next })
}

func mergedWithPrevious(match matcher) splitter {
	return grouped(match, func(last, next bool) bool { return !last && next })
}

func mergedWithNext(match matcher) splitter {
	return grouped(match, func(last, next bool) bool { return last && !next })
}

// metaspace is SentencePiece's way to write spaces: as a visible character, with one before the text.
type metaspace struct {
	mark        string
	prepend     string // always, first, never
	splitBefore splitter
}

func parseMetaspace(raw json.RawMessage) (*metaspace, error) {
	s := struct {
		Type, Replacement string
		StrRep            string `json:"str_rep"`
		AddPrefixSpace    *bool  `json:"add_prefix_space"` // until version 0.15 of the library
		PrependScheme     string `json:"prepend_scheme"`
		Split             bool
	}{Split: true}
	if err := strict(raw, &s); err != nil {
		return nil, err
	}
	switch {
	case utf8.RuneCountInString(s.Replacement) != 1:
		return nil, fmt.Errorf("replacement is %q: want one character", s.Replacement)
	case s.PrependScheme == "" && s.AddPrefixSpace != nil && !*s.AddPrefixSpace:
		s.PrependScheme = "never"
	case s.PrependScheme == "":
		s.PrependScheme = "always"
	case s.PrependScheme != "always" && s.PrependScheme != "first" && s.PrependScheme != "never":
		return nil, fmt.Errorf("prepend_scheme is %q: want always, first or never", s.PrependScheme)
	}
	m := &metaspace{mark: s.Replacement, prepend: s.PrependScheme}
	if s.Split {
		match, err := filePattern{String: &m.mark}.matcher()
		if err != nil {
			return nil, err
		}
		m.splitBefore = mergedWithNext(match)
	}
	return m, nil
}

var matchBlank = matchString(" ")

func (m *metaspace) split(p piece, emit func(piece)) {
	first := p.base == 0
	p = p.replace(matchBlank, m.mark)
	if (m.prepend == "always" || m.prepend == "first" && first) && !strings.HasPrefix(p.text, m.mark) {
		p = p.prepend(m.mark)
	}
	switch {
	case m.splitBefore != nil:
		m.splitBefore(p, emit)
	case p.text != "":
		emit(p)
	}
}

// byteLevelSplit is the last pre-tokenizer of byte-level vocabularies. Their model reads the bytes of a pre-token where
// HuggingFace's reads a character for each byte.
func byteLevelSplit(b fileByteLevel) splitter {
	words := isolated(scanner(gpt2).match)
	return func(p piece, emit func(piece)) {
		if b.AddPrefixSpace && !strings.HasPrefix(p.text, " ") {
			p = p.prepend(" ")
		}
		switch {
		case b.UseRegex:
			words(p, emit)
		case p.text != "":
			emit(p)
		}
	}
}
