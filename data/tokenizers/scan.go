// SPDX-License-Identifier: Apache-2.0

package tokenizers

import "strings"

// matcher calls each for the matches of a pattern in a text, in order.
type matcher func(r *run, text string, each func(start, end int))

// scanner matches a pattern at text[i], i < len(text), and returns the end of the match, i if there is none.
type scanner func(text string, i int) int

func (scan scanner) match(_ *run, text string, each func(start, end int)) {
	for i := 0; i < len(text); {
		if end := scan(text, i); end > i {
			each(i, end)
			i = end
			continue
		}
		_, size := decodeRune(text, i)
		i += size
	}
}

// gpt2 matches GPT-2's regular expression
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// whose alternatives are tried in order (Radford et al. 2019, "Language Models are
// Unsupervised Multitask Learners", encoder.py). Its matches cover a text without gaps.
// A byte that is not part of valid UTF-8 counts as one character of the fourth kind,
// so that the split is total.
func gpt2(text string, i int) int {
	if text[i] == '\'' {
		if n := contraction(text[i+1:], false); n > 0 {
			return i + 1 + n
		}
	}
	kind, size := classAt(text, i)
	at := i
	if text[i] == ' ' && i+1 < len(text) {
		if next, n := classAt(text, i+1); !spaces.has(next) {
			at, kind, size = i+1, next, n
		}
	}
	switch {
	case spaces.has(kind):
		return spaceEnd(text, i)
	case letters.has(kind):
		return runEnd(text, at+size, letters)
	case numbers.has(kind):
		return runEnd(text, at+size, numbers)
	}
	return runEnd(text, at+size, ^(spaces | letters | numbers))
}

// contraction is the length of the suffix s, t, re, ve, m, ll or d that follows an apostrophe, 0 if there is none.
// Oniguruma's (?i) takes ſ for an s.
func contraction(rest string, anyCase bool) int {
	if anyCase && strings.HasPrefix(rest, "ſ") {
		return len("ſ")
	}
	at := func(i int) byte {
		switch {
		case i >= len(rest):
			return 0
		case anyCase && 'A' <= rest[i] && rest[i] <= 'Z':
			return rest[i] + 'a' - 'A'
		}
		return rest[i]
	}
	switch at(0) {
	case 's', 't', 'm', 'd':
		return 1
	case 'r', 'v':
		if at(1) == 'e' {
			return 2
		}
	case 'l':
		if at(1) == 'l' {
			return 2
		}
	}
	return 0
}

// spaceEnd ends a run of white space that starts at text[i]: \s+(?!\S) leaves the last character of the run to the
// word after it, unless it is the only one.
func spaceEnd(text string, i int) int {
	last, end := i, i
	for end < len(text) {
		kind, size := classAt(text, end)
		if !spaces.has(kind) {
			if last > i {
				return last
			}
			return end
		}
		last, end = end, end+size
	}
	return end
}

// breaksOrSpace matches \s*[\r\n]+|\s+(?!\S)|\s+ at white space.
func breaksOrSpace(text string, i int) int {
	run := text[i:runEnd(text, i, spaces)]
	if n := strings.LastIndexAny(run, "\r\n"); n >= 0 {
		return i + n + 1
	}
	return spaceEnd(text, i)
}

// words describes the patterns that followed GPT-2's: cl100k's and o200k's, and those of the models that took them
// over with small changes. In order, a match is
//
//   - with contractions and no cases, an apostrophe and a contraction in any case;
//   - a word with at most one character before it that is neither a line break nor in notBefore; with cases, a word of
//     upper and then lower case, and a contraction after it if there are contractions;
//   - so many numbers;
//   - a space or none, characters of other, and any number of the bytes in after;
//   - white space, up to its last line break, or else without its last character if a word follows.
type words struct {
	contractions bool
	cases        bool
	word         set
	notBefore    set
	digits       int // 0: the pattern has none
	other        set
	after        string
}

func isBreak(b byte) bool { return b == '\r' || b == '\n' }

func (w *words) scan(text string, i int) int {
	if w.contractions && !w.cases && text[i] == '\'' {
		if n := contraction(text[i+1:], true); n > 0 {
			return i + 1 + n
		}
	}
	kind, size := classAt(text, i)
	if end := w.wordEnd(text, i, kind, size); end > i {
		return end
	}
	if w.digits > 0 && numbers.has(kind) {
		return w.numberEnd(text, i+size)
	}
	at := i
	if text[i] == ' ' {
		at++
	}
	if end := runEnd(text, at, w.other); end > at {
		for end < len(text) && strings.IndexByte(w.after, text[end]) >= 0 {
			end++
		}
		return end
	}
	if spaces.has(kind) {
		return breaksOrSpace(text, i)
	}
	return i
}

// numberEnd ends a number of w.digits characters at most, the first of which ends at i.
func (w *words) numberEnd(text string, i int) int {
	for n := 1; n < w.digits && i < len(text); n++ {
		k, size := classAt(text, i)
		if !numbers.has(k) {
			break
		}
		i += size
	}
	return i
}

// wordEnd is the end of a word with at most one other character before it, i if there is none. The character at i has
// the given class and size.
func (w *words) wordEnd(text string, i int, kind class, size int) int {
	prefix := !isBreak(text[i]) && !w.notBefore.has(kind)
	if !w.cases {
		if prefix {
			if end := runEnd(text, i+size, w.word); end > i+size {
				return end
			}
		}
		return runEnd(text, i, w.word)
	}
	for _, match := range []func(string, int) int{upperLower, upperOnly} {
		if prefix {
			if end := match(text, i+size); end > i+size {
				return w.contracted(text, end)
			}
		}
		if end := match(text, i); end > i {
			return w.contracted(text, end)
		}
	}
	return i
}

func (w *words) contracted(text string, i int) int {
	if w.contractions && i < len(text) && text[i] == '\'' {
		if n := contraction(text[i+1:], true); n > 0 {
			return i + 1 + n
		}
	}
	return i
}

var (
	upperSet = setOf(classUpper, classTitle, classModifier, classOtherLetter, classMark)
	lowerSet = setOf(classLower, classModifier, classOtherLetter, classMark)
)

// upperLower matches [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+, or returns i. The first set takes all
// that it can, and gives back the characters from the last one on that is in the second set too, if no other follows.
func upperLower(text string, i int) int {
	end, back := i, i
	for end < len(text) {
		k, size := classAt(text, end)
		if !upperSet.has(k) {
			break
		}
		end += size
		if lowerSet.has(k) {
			back = end
		}
	}
	if low := runEnd(text, end, lowerSet); low > end {
		return low
	}
	return back
}

// upperOnly matches [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*, or returns i.
func upperOnly(text string, i int) int {
	end := runEnd(text, i, upperSet)
	if end == i {
		return i
	}
	return runEnd(text, end, lowerSet)
}

// deepSeek matches the third expression of DeepSeek V3: a mark of ASCII and Latin letters; or a word, here with its
// marks; or punctuation and symbols; or white space. Numbers and control characters do not match.
func deepSeek(text string, i int) int {
	if b := text[i]; isASCIIPunct(b) {
		end := i + 1
		for end < len(text) && (text[end]|0x20) >= 'a' && (text[end]|0x20) <= 'z' {
			end++
		}
		if end > i+1 {
			return end
		}
	}
	return deepSeekWords.scan(text, i)
}

func isASCIIPunct(b byte) bool {
	return '!' <= b && b <= '/' || ':' <= b && b <= '@' || '[' <= b && b <= '`' || '{' <= b && b <= '~'
}

// ideographs matches DeepSeek's [一-龥぀-ゟ゠-ヿ]+.
func ideographs(text string, i int) int {
	for i < len(text) {
		r, size := decodeRune(text, i)
		if (r < '一' || r > '龥') && (r < 0x3040 || r > 0x30FF) {
			break
		}
		i += size
	}
	return i
}

// threeNumbers matches \p{N}{1,3}, and oneNumber \p{N}.
func threeNumbers(text string, i int) int {
	if k, size := classAt(text, i); numbers.has(k) {
		return (&words{digits: 3}).numberEnd(text, i+size)
	}
	return i
}

func oneNumber(text string, i int) int {
	if k, size := classAt(text, i); numbers.has(k) {
		return i + size
	}
	return i
}

var (
	marks       = setOf(classMark)
	punctuation = setOf(classPunctuation, classSymbol)
	cl100k      = words{contractions: true, word: letters, notBefore: letters | numbers, digits: 3,
		other: ^(spaces | letters | numbers), after: "\r\n"}
	o200k = words{contractions: true, cases: true, notBefore: letters | numbers, digits: 3,
		other: ^(spaces | letters | numbers), after: "\r\n/"}
	deepSeekWords = words{word: letters | marks, notBefore: letters | punctuation, other: punctuation, after: "\r\n"}
)

// scanners has hand-written scanners for the regular expressions of known families, as their files write them.
var scanners = func() map[string]scanner {
	const (
		contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
		cl           = `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}`
		clRest       = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		upper, lower = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
		before       = `[^\r\n\p{L}\p{N}]?`
		oRest        = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		gptRest      = `| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	)
	with := func(w words, change func(*words)) scanner {
		change(&w)
		return w.scan
	}
	one := func(w *words) { w.digits = 1 }
	return map[string]scanner{
		`'s|'t|'re|'ve|'m|'ll|'d` + gptRest:  gpt2,
		`'(?:[sdmt]|ll|ve|re)` + gptRest:     gpt2,
		contractions + cl + `{1,3}` + clRest: cl100k.scan,       // Llama 3, OLMo 2, Phi-4, GPT-4
		contractions + cl + clRest:           with(cl100k, one), // Qwen 2 and 3
		contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*` +
			`|\s*[\r\n]+|\s+(?!\S)|\s+`: with(cl100k, func(w *words) { // Qwen 3.5
			w.digits, w.word, w.other = 1, letters|marks, ^(spaces | letters | marks | numbers)
		}),
		before + upper + `*` + lower + `+` + contractions + `?|` + before + upper + `+` + lower + `*` + contractions +
			`?|\p{N}{1,3}` + oRest: o200k.scan, // GPT-4o, gpt-oss, Llama 4
		before + upper + `*` + lower + `+|` + before + upper + `+` + lower + `*|\p{N}` + oRest: with(o200k,
			func(w *words) { w.digits, w.contractions = 1, false }), // Mistral's Tekken
		`[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_` + "`" + `{|}~][A-Za-z]+|[^` + "\r\n" +
			`\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[` + "\r\n" + `]*|\s*[` + "\r\n" +
			`]+|\s+(?!\S)|\s+`: deepSeek,
		`[一-龥぀-ゟ゠-ヿ]+`: ideographs,
		`\p{N}{1,3}`:   threeNumbers,
		`\p{N}`:        oneNumber,
	}
}()
