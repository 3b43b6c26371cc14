// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strings"
)

// stem is a word of lower-case letters and digits without its endings (Porter 1980, "An algorithm for suffix
// stripping"), with the exceptions and the rules that NLTK adds, which are marked.
func stem(word string) string {
	if s, ok := irregular[word]; ok { // NLTK
		return s
	}
	if len(word) <= 2 {
		return word
	}
	word = plural(word)
	word = pastOrGerund(word)
	if s, ok := strings.CutSuffix(word, "y"); ok && len(s) > 1 && consonant(s, len(s)-1) { // NLTK's condition
		word = s + "i"
	}
	for strings.HasSuffix(word, "alli") && measure(word[:len(word)-4]) > 0 { // NLTK: it is looked at again
		word = word[:len(word)-2]
	}
	word = longEndings.apply(word)
	word = shortEndings.apply(word)
	word = lastEndings.apply(word)
	if s, ok := strings.CutSuffix(word, "e"); ok && (measure(s) > 1 || measure(s) == 1 && !short(s)) {
		word = s
	}
	if s, ok := strings.CutSuffix(word, "l"); ok && strings.HasSuffix(s, "l") && measure(s) > 1 {
		word = s
	}
	return word
}

// irregular are NLTK's exceptions.
var irregular = map[string]string{"sky": "sky", "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie",
	"news": "news", "innings": "inning", "inning": "inning", "outings": "outing", "outing": "outing",
	"cannings": "canning", "canning": "canning", "howe": "howe", "proceed": "proceed", "exceed": "exceed",
	"succeed": "succeed"}

// plural is step 1a.
func plural(word string) string {
	if s, ok := strings.CutSuffix(word, "ies"); ok && len(word) == 4 { // NLTK
		return s + "ie"
	}
	for _, r := range []rule{{"sses", "ss", 0}, {"ies", "i", 0}, {"ss", "ss", 0}, {"s", "", 0}} {
		if s, ok := strings.CutSuffix(word, r.suffix); ok {
			return s + r.by
		}
	}
	return word
}

// pastOrGerund is step 1b.
func pastOrGerund(word string) string {
	if s, ok := strings.CutSuffix(word, "ied"); ok { // NLTK
		if len(word) == 4 {
			return s + "ie"
		}
		return s + "i"
	}
	if s, ok := strings.CutSuffix(word, "eed"); ok {
		if measure(s) > 0 {
			return s + "ee"
		}
		return word
	}
	s, ok := strings.CutSuffix(word, "ed")
	if !ok || !hasVowel(s) {
		if s, ok = strings.CutSuffix(word, "ing"); !ok || !hasVowel(s) {
			return word
		}
	}
	last := s[len(s)-1]
	switch double := len(s) > 1 && s[len(s)-2] == last && consonant(s, len(s)-1); {
	case strings.HasSuffix(s, "at"), strings.HasSuffix(s, "bl"), strings.HasSuffix(s, "iz"):
		return s + "e"
	case double && !strings.ContainsRune("lsz", rune(last)):
		return s[:len(s)-1]
	case !double && measure(s) == 1 && short(s):
		return s + "e"
	}
	return s
}

// rule replaces an ending if what is before it has a measure above.
type rule struct {
	suffix, by string
	above      int
}

// rules are tried in order; the first whose ending a word has decides.
type rules []rule

func (list rules) apply(word string) string {
	for _, r := range list {
		s, ok := strings.CutSuffix(word, r.suffix)
		if !ok {
			continue
		}
		of := s
		switch r.suffix {
		case "logi": // NLTK measures the l too
			of = s + "l"
		case "ion":
			if !strings.HasSuffix(s, "s") && !strings.HasSuffix(s, "t") {
				return word
			}
		}
		if measure(of) > r.above {
			return s + r.by
		}
		return word
	}
	return word
}

var (
	// longEndings are step 2. The last two are NLTK's.
	longEndings = rules{{"ational", "ate", 0}, {"tional", "tion", 0}, {"enci", "ence", 0}, {"anci", "ance", 0},
		{"izer", "ize", 0}, {"bli", "ble", 0}, {"alli", "al", 0}, {"entli", "ent", 0}, {"eli", "e", 0},
		{"ousli", "ous", 0}, {"ization", "ize", 0}, {"ation", "ate", 0}, {"ator", "ate", 0}, {"alism", "al", 0},
		{"iveness", "ive", 0}, {"fulness", "ful", 0}, {"ousness", "ous", 0}, {"aliti", "al", 0}, {"iviti", "ive", 0},
		{"biliti", "ble", 0}, {"fulli", "ful", 0}, {"logi", "log", 0}}
	// shortEndings are step 3.
	shortEndings = rules{{"icate", "ic", 0}, {"ative", "", 0}, {"alize", "al", 0}, {"iciti", "ic", 0},
		{"ical", "ic", 0}, {"ful", "", 0}, {"ness", "", 0}}
	// lastEndings are step 4.
	lastEndings = rules{{"al", "", 1}, {"ance", "", 1}, {"ence", "", 1}, {"er", "", 1}, {"ic", "", 1}, {"able", "", 1},
		{"ible", "", 1}, {"ant", "", 1}, {"ement", "", 1}, {"ment", "", 1}, {"ent", "", 1}, {"ion", "", 1},
		{"ou", "", 1}, {"ism", "", 1}, {"ate", "", 1}, {"iti", "", 1}, {"ous", "", 1}, {"ive", "", 1}, {"ize", "", 1}}
)

// consonants tells of each letter whether it is none of a, e, i, o and u, and no y behind a consonant.
func consonants(word string) []bool {
	list := make([]bool, len(word))
	for i := range list {
		switch word[i] {
		case 'a', 'e', 'i', 'o', 'u':
		case 'y':
			list[i] = i == 0 || !list[i-1]
		default:
			list[i] = true
		}
	}
	return list
}

func consonant(word string, i int) bool { return consonants(word)[i] }

// measure counts the runs of vowels that a consonant follows.
func measure(word string) (m int) {
	list := consonants(word)
	for i := 1; i < len(list); i++ {
		if list[i] && !list[i-1] {
			m++
		}
	}
	return m
}

func hasVowel(word string) bool { return slices.Contains(consonants(word), false) }

// short reports whether a word ends with consonant, vowel and a consonant other than w, x and y, or (NLTK) is a vowel
// and a consonant.
func short(word string) bool {
	n := len(word)
	if n == 2 {
		return !consonant(word, 0) && consonant(word, 1)
	}
	return n > 2 && consonant(word, n-3) && !consonant(word, n-2) && consonant(word, n-1) &&
		!strings.ContainsRune("wxy", rune(word[n-1]))
}
