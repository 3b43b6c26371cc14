// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// arg is the argument at a position or of a name, nil and false if it is missing.
func (a *arguments) arg(i int, name string) (any, bool) {
	if i < len(a.list) {
		return a.list[i], true
	}
	v, ok := a.named[name]
	return v, ok
}

// text is a text among the arguments.
func (a *arguments) text(s *state, i int, name, standard string) string {
	v, ok := a.arg(i, name)
	if !ok || v == nil {
		return standard
	}
	t, ok := v.(string)
	if !ok {
		s.fail("%s is %s: want a text", name, typeName(v))
	}
	return t
}

// number is an integer among the arguments.
func (a *arguments) number(s *state, i int, name string, standard int64) int64 {
	v, ok := a.arg(i, name)
	if !ok || v == nil {
		return standard
	}
	n, ok := v.(int64)
	if !ok {
		s.fail("%s is %s: want an integer", name, typeName(v))
	}
	return n
}

func (a *arguments) bool(i int, name string) bool {
	v, ok := a.arg(i, name)
	return ok && truth(v)
}

// method is a method of a value, nil if it has none of that name.
func method(of any, name string) any {
	switch of := of.(type) {
	case string:
		if m := textMethods[name]; m != nil {
			return function(func(s *state, a arguments) any { return m(s, of, a) })
		}
	case *Dict:
		if m := dictMethods[name]; m != nil {
			return function(func(s *state, a arguments) any { return m(s, of, a) })
		}
	case *List:
		switch name {
		case "index":
			return function(func(s *state, a arguments) any { return of.index(s, a) })
		case "count":
			return function(func(s *state, a arguments) any {
				n := int64(0)
				for _, v := range of.Items {
					if s.tick(); len(a.list) > 0 && equal(v, a.list[0]) {
						n++
					}
				}
				return n
			})
		case "append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse":
			return function(func(s *state, _ arguments) any {
				s.fail("a list cannot be changed by %s: want list + [value]", name)
				return nil
			})
		}
	}
	return nil
}

func (l *List) index(s *state, a arguments) any {
	for i, v := range l.Items {
		if s.tick(); len(a.list) > 0 && equal(v, a.list[0]) {
			return int64(i)
		}
	}
	s.fail("index of a value that the list does not have")
	return nil
}

var dictMethods = map[string]func(s *state, d *Dict, a arguments) any{
	"keys":  func(s *state, d *Dict, _ arguments) any { return &List{Items: s.iterate(d)} },
	"items": func(_ *state, d *Dict, _ arguments) any { return d.items() },
	"values": func(_ *state, d *Dict, _ arguments) any {
		list := &List{}
		for _, k := range d.Keys {
			list.Items = append(list.Items, d.Values[k])
		}
		return list
	},
	"get": func(_ *state, d *Dict, a arguments) any {
		key, _ := a.arg(0, "key")
		if k, ok := key.(string); ok {
			if v, ok := d.Values[k]; ok {
				return v
			}
		}
		v, _ := a.arg(1, "default")
		return v
	},
}

func (d *Dict) items() *List {
	list := &List{}
	for _, k := range d.Keys {
		list.Items = append(list.Items, &List{[]any{k, d.Values[k]}, true})
	}
	return list
}

type textMethod = func(s *state, t string, a arguments) any

func textOnly(f func(string) string) textMethod {
	return func(_ *state, t string, _ arguments) any { return f(t) }
}

// trimmed takes what strip takes: white space, or the characters of an argument.
func trimmed(left, right bool) textMethod {
	return func(s *state, t string, a arguments) any {
		is := isSpace
		if set := a.text(s, 0, "chars", "\x00none"); set != "\x00none" {
			is = func(r rune) bool { return strings.ContainsRune(set, r) }
		}
		if left {
			t = strings.TrimLeftFunc(t, is)
		}
		if right {
			t = strings.TrimRightFunc(t, is)
		}
		return t
	}
}

func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1C && r <= 0x1F }

// affix reports whether a text begins or ends with one of the texts.
func affix(has func(s, part string) bool) textMethod {
	return func(s *state, t string, a arguments) any {
		v, _ := a.arg(0, "prefix")
		if part, ok := v.(string); ok {
			return has(t, part)
		}
		for _, p := range s.iterate(v) {
			if part, ok := p.(string); ok && has(t, part) {
				return true
			}
		}
		return false
	}
}

var textMethods = map[string]textMethod{
	"strip": trimmed(true, true), "lstrip": trimmed(true, false), "rstrip": trimmed(false, true),
	"upper": textOnly(upper), "lower": textOnly(strings.ToLower),
	"title": textOnly(title), "capitalize": textOnly(capitalize),
	"startswith": affix(strings.HasPrefix), "endswith": affix(strings.HasSuffix),
	"split":  func(s *state, t string, a arguments) any { return split(s, t, a, false) },
	"rsplit": func(s *state, t string, a arguments) any { return split(s, t, a, true) },
	"splitlines": func(s *state, t string, _ arguments) any {
		list := &List{}
		for line := range strings.Lines(strings.ReplaceAll(t, "\r\n", "\n")) {
			s.tick()
			list.Items = append(list.Items, strings.TrimSuffix(line, "\n"))
		}
		return list
	},
	"replace": func(s *state, t string, a arguments) any {
		return s.replace(t, a.text(s, 0, "old", ""), a.text(s, 1, "new", ""), a.number(s, 2, "count", -1))
	},
	"join": func(s *state, t string, a arguments) any {
		v, _ := a.arg(0, "iterable")
		return s.joinAll(s.iterate(v), t)
	},
	"find": func(s *state, t string, a arguments) any {
		i := strings.Index(t, a.text(s, 0, "sub", ""))
		if i > 0 {
			i = utf8.RuneCountInString(t[:i])
		}
		return int64(i)
	},
	"count": func(s *state, t string, a arguments) any { return int64(strings.Count(t, a.text(s, 0, "sub", ""))) },
	"removeprefix": func(s *state, t string, a arguments) any {
		return strings.TrimPrefix(t, a.text(s, 0, "prefix", ""))
	},
	"removesuffix": func(s *state, t string, a arguments) any {
		return strings.TrimSuffix(t, a.text(s, 0, "suffix", ""))
	},
	"partition": func(s *state, t string, a arguments) any {
		sep := a.text(s, 0, "sep", " ")
		before, after, found := strings.Cut(t, sep)
		if !found {
			sep = ""
		}
		return &List{[]any{before, sep, after}, true}
	},
	"isdigit": every(unicode.IsDigit), "isalpha": every(unicode.IsLetter), "isspace": every(isSpace),
	"isupper": func(_ *state, t string, _ arguments) any { return t == strings.ToUpper(t) && t != strings.ToLower(t) },
	"islower": func(_ *state, t string, _ arguments) any { return t == strings.ToLower(t) && t != strings.ToUpper(t) },
}

func every(is func(rune) bool) textMethod {
	return func(_ *state, t string, _ arguments) any {
		return t != "" && strings.IndexFunc(t, func(r rune) bool { return !is(r) }) < 0
	}
}

// upper is str.upper, by which some letters become two.
func upper(t string) string { return cases.Upper(language.Und).String(t) }

func capitalize(t string) string {
	r, n := utf8.DecodeRuneInString(t)
	if n == 0 {
		return t
	}
	return string(unicode.ToTitle(r)) + strings.ToLower(t[n:])
}

func title(t string) string {
	inside := false
	return strings.Map(func(r rune) rune {
		was := inside
		inside = unicode.IsLetter(r)
		switch {
		case !inside:
			return r
		case was:
			return unicode.ToLower(r)
		}
		return unicode.ToTitle(r)
	}, t)
}

// split is str.split, and str.rsplit.
func split(s *state, t string, a arguments, right bool) any {
	sep, most := a.text(s, 0, "sep", "\x00none"), a.number(s, 1, "maxsplit", -1)
	var parts []string
	switch {
	case sep == "":
		s.fail("split by an empty text")
	case sep == "\x00none":
		parts = splitSpaces(t, most, right)
	case right && most >= 0:
		for ; most > 0; most-- {
			i := strings.LastIndex(t, sep)
			if i < 0 {
				break
			}
			s.tick()
			parts, t = append([]string{t[i+len(sep):]}, parts...), t[:i]
		}
		parts = append([]string{t}, parts...)
	default:
		s.fits(16 * strings.Count(t, sep))
		n := -1
		if most >= 0 {
			n = int(most) + 1
		}
		parts = strings.SplitN(t, sep, n)
	}
	list := &List{}
	for _, p := range parts {
		list.Items = append(list.Items, p)
	}
	return list
}

func splitSpaces(t string, most int64, right bool) []string {
	fields := strings.FieldsFunc(t, isSpace)
	if most < 0 || int64(len(fields)) <= most+1 {
		return fields
	}
	var parts []string
	if right {
		t = strings.TrimRightFunc(t, isSpace)
		for ; most > 0; most-- {
			i := strings.LastIndexFunc(t, isSpace)
			parts = append([]string{t[i+1:]}, parts...)
			t = strings.TrimRightFunc(t[:i+1], isSpace)
		}
		return append([]string{t}, parts...)
	}
	t = strings.TrimLeftFunc(t, isSpace)
	for ; most > 0; most-- {
		i := strings.IndexFunc(t, isSpace)
		parts = append(parts, t[:i])
		t = strings.TrimLeftFunc(t[i:], isSpace)
	}
	return append(parts, t)
}

func (s *state) replace(t, old, by string, count int64) string {
	n := strings.Count(t, old)
	s.fits(len(t) + n*max(0, len(by)-len(old)))
	return strings.Replace(t, old, by, int(max(count, -1)))
}

func (s *state) joinAll(items []any, sep string) string {
	parts := make([]string, len(items))
	n := 0
	for i, v := range items {
		s.tick()
		parts[i] = text(v)
		n += len(parts[i]) + len(sep)
		s.fits(n)
	}
	return strings.Join(parts, sep)
}
