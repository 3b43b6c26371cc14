// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

type filter = func(s *state, v any, a arguments) any

var (
	filters map[string]filter
	tests   map[string]func(s *state, v any, a arguments) bool
	globals map[string]any
)

// They call each other by name, which an initializer may not.
func init() {
	tests = testTable()
	filters = maps.Clone(filterTable)
	maps.Copy(filters, map[string]filter{
		"map":        mapFilter,
		"select":     func(s *state, v any, a arguments) any { return s.selected(v, a, "", true) },
		"reject":     func(s *state, v any, a arguments) any { return s.selected(v, a, "", false) },
		"selectattr": func(s *state, v any, a arguments) any { return s.selectedBy(v, a, true) },
		"rejectattr": func(s *state, v any, a arguments) any { return s.selectedBy(v, a, false) },
	})
	globals = map[string]any{
		"range":     function(rangeOf),
		"namespace": function(func(s *state, a arguments) any { return namespace{s.dict(a)} }),
		"dict":      function(func(s *state, a arguments) any { return s.dict(a) }),
		"raise_exception": function(func(s *state, a arguments) any {
			panic(&Raised{Line: s.line, Message: a.text(s, 0, "message", "")})
		}),
		"strftime_now": function(func(s *state, a arguments) any {
			return strftime(s.limits.now(), a.text(s, 0, "format", ""))
		}),
	}
}

// dict makes a dict of another one and named arguments.
func (s *state) dict(a arguments) *Dict {
	d := NewDict()
	for _, v := range a.list {
		from, ok := v.(*Dict)
		if !ok {
			s.fail("a dict of %s: want a dict or named values", typeName(v))
		}
		for _, k := range from.Keys {
			d.Set(k, from.Values[k])
		}
	}
	for _, k := range a.names {
		d.Set(k, a.named[k])
	}
	return d
}

// rangeOf is range, of as many values as Jinja's sandbox allows.
func rangeOf(s *state, a arguments) any {
	start, stop, step := int64(0), a.number(s, 0, "stop", 0), int64(1)
	if len(a.list) > 1 {
		start, stop, step = stop, a.number(s, 1, "stop", 0), a.number(s, 2, "step", 1)
	}
	if step == 0 {
		s.fail("a range with a step of 0")
	}
	list := &List{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if s.tick(); len(list.Items) == 100_000 {
			s.fail("a range of more than 100000 values")
		}
		list.Items = append(list.Items, i)
	}
	return list
}

func length(s *state, v any, _ arguments) any {
	switch v := v.(type) {
	case string:
		return int64(utf8.RuneCountInString(v))
	case *List:
		return int64(len(v.Items))
	case *Dict:
		return int64(len(v.Keys))
	case undefined:
		return int64(0)
	}
	s.fail("the length of %s", typeName(v))
	return nil
}

func ofText(f func(string) string) filter {
	return func(_ *state, v any, _ arguments) any { return f(text(v)) }
}

var filterTable = map[string]filter{
	"trim":   func(s *state, v any, a arguments) any { return trimmed(true, true)(s, text(v), a) },
	"length": length, "count": length,
	"upper": ofText(upper), "lower": ofText(strings.ToLower),
	"capitalize": ofText(capitalize), "title": ofText(title),
	"string": ofText(func(t string) string { return t }),
	"safe":   func(_ *state, v any, _ arguments) any { return v },
	"e":      ofText(escapeHTML), "escape": ofText(escapeHTML),
	"tojson": toJSON, "default": standard, "d": standard,
	"join": func(s *state, v any, a arguments) any {
		items := s.iterate(v)
		if attribute, ok := a.arg(1, "attribute"); ok {
			items = s.attributes(items, text(attribute))
		}
		return s.joinAll(items, a.text(s, 0, "d", ""))
	},
	"replace": func(s *state, v any, a arguments) any {
		return s.replace(text(v), a.text(s, 0, "old", ""), a.text(s, 1, "new", ""), a.number(s, 2, "count", -1))
	},
	"list": func(s *state, v any, _ arguments) any { return &List{Items: slices.Clone(s.iterate(v))} },
	"first": func(s *state, v any, _ arguments) any {
		if items := s.iterate(v); len(items) > 0 {
			return items[0]
		}
		return undefined{"the first of no values"}
	},
	"last": func(s *state, v any, _ arguments) any {
		if items := s.iterate(v); len(items) > 0 {
			return items[len(items)-1]
		}
		return undefined{"the last of no values"}
	},
	"reverse": func(s *state, v any, _ arguments) any {
		items := slices.Clone(s.iterate(v))
		slices.Reverse(items)
		if _, ok := v.(string); ok {
			return s.joinAll(items, "")
		}
		return &List{Items: items}
	},
	"items": func(s *state, v any, _ arguments) any {
		switch v := v.(type) {
		case *Dict:
			return v.items()
		case undefined:
			return &List{}
		}
		s.fail("items of %s: want a dict", typeName(v))
		return nil
	},
	"dictsort": func(s *state, v any, _ arguments) any {
		d, ok := v.(*Dict)
		if !ok {
			s.fail("dictsort of %s: want a dict", typeName(v))
		}
		list := &List{}
		keys := slices.Clone(d.Keys)
		slices.SortStableFunc(keys, func(a, b string) int {
			return strings.Compare(strings.ToLower(a), strings.ToLower(b))
		})
		for _, k := range keys {
			list.Items = append(list.Items, &List{[]any{k, d.Values[k]}, true})
		}
		return list
	},
	"sort": func(s *state, v any, a arguments) any {
		items := slices.Clone(s.iterate(v))
		by := items
		if attribute, ok := a.arg(2, "attribute"); ok {
			by = s.attributes(items, text(attribute))
		}
		return &List{Items: s.sorted(items, by, a.bool(0, "reverse"), a.bool(1, "case_sensitive"))}
	},
	"unique": func(s *state, v any, _ arguments) any {
		list := &List{}
		for _, e := range s.iterate(v) {
			if s.tick(); !s.contains(list, e) {
				list.Items = append(list.Items, e)
			}
		}
		return list
	},
	"int": func(_ *state, v any, a arguments) any {
		if f, ok := number(v); ok {
			return int64(f)
		}
		if t, ok := v.(string); ok {
			if i, err := strconv.ParseInt(strings.TrimSpace(t), 10, 64); err == nil {
				return i
			}
			if f, err := strconv.ParseFloat(strings.TrimSpace(t), 64); err == nil {
				return int64(f)
			}
		}
		if d, ok := a.arg(0, "default"); ok {
			return d
		}
		return int64(0)
	},
	"float": func(_ *state, v any, a arguments) any {
		if f, ok := number(v); ok {
			return f
		}
		if t, ok := v.(string); ok {
			if f, err := strconv.ParseFloat(strings.TrimSpace(t), 64); err == nil {
				return f
			}
		}
		if d, ok := a.arg(0, "default"); ok {
			return d
		}
		return float64(0)
	},
	"abs": func(s *state, v any, _ arguments) any {
		if i, ok := v.(int64); ok && i < 0 {
			return -i
		}
		if f, ok := v.(float64); ok {
			return math.Abs(f)
		}
		return v
	},
	"round": func(s *state, v any, a arguments) any {
		f, ok := number(v)
		if !ok {
			s.fail("round of %s: want a number", typeName(v))
		}
		scale := math.Pow(10, float64(a.number(s, 0, "precision", 0)))
		return math.RoundToEven(f*scale) / scale
	},
	"sum": func(s *state, v any, a arguments) any {
		items := s.iterate(v)
		if attribute, ok := a.arg(0, "attribute"); ok {
			items = s.attributes(items, text(attribute))
		}
		total := any(int64(0))
		for _, e := range items {
			total = s.calculate("+", total, e)
		}
		return total
	},
	"min": func(s *state, v any, _ arguments) any { return s.extreme(v, "<") },
	"max": func(s *state, v any, _ arguments) any { return s.extreme(v, ">") },
	"indent": func(s *state, v any, a arguments) any {
		margin := strings.Repeat(" ", int(min(max(a.number(s, 0, "width", 4), 0), 1000)))
		lines := strings.Split(text(v), "\n")
		s.fits(len(text(v)) + len(lines)*len(margin))
		for i := range lines {
			if i == 0 && !a.bool(1, "first") || lines[i] == "" && !a.bool(2, "blank") {
				continue
			}
			lines[i] = margin + lines[i]
		}
		return strings.Join(lines, "\n")
	},
	"format": func(s *state, v any, a arguments) any { return s.format(text(v), &List{Items: a.list}) },
}

func escapeHTML(t string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace(t)
}

// standard is default.
func standard(_ *state, v any, a arguments) any {
	_, missing := v.(undefined)
	if missing || a.bool(1, "boolean") && !truth(v) {
		if d, ok := a.arg(0, "default_value"); ok {
			return d
		}
		return ""
	}
	return v
}

// toJSON is the tojson of transformers: json.dumps without Jinja's escapes.
func toJSON(s *state, v any, a arguments) any {
	style := jsonStyle{comma: ", ", colon: ": ", ascii: a.bool(0, "ensure_ascii"), sortedKeys: a.bool(3, "sort_keys")}
	if n, ok := a.arg(1, "indent"); ok && n != nil {
		style.indent, style.comma = strings.Repeat(" ", int(min(max(a.number(s, 1, "indent", 0), 0), 1000))), ","
	}
	if sep, ok := a.arg(2, "separators"); ok && sep != nil {
		if items := s.iterate(sep); len(items) == 2 {
			style.comma, style.colon = text(items[0]), text(items[1])
		}
	}
	var b strings.Builder
	s.dump(&b, v, style, "")
	return b.String()
}

// attributes are those of values by a name, such as "function.name".
func (s *state) attributes(items []any, name string) []any {
	list := make([]any, len(items))
	for i, v := range items {
		s.tick()
		list[i] = v
		for part := range strings.SplitSeq(name, ".") {
			if n, err := strconv.ParseInt(part, 10, 64); err == nil {
				list[i] = s.get(list[i], n, part)
			} else {
				list[i] = s.get(list[i], part, part)
			}
		}
	}
	return list
}

func mapFilter(s *state, v any, a arguments) any {
	items := s.iterate(v)
	if attribute, ok := a.named["attribute"]; ok {
		list := s.attributes(items, text(attribute))
		if d, ok := a.named["default"]; ok {
			for i := range list {
				if _, missing := list[i].(undefined); missing {
					list[i] = d
				}
			}
		}
		return &List{Items: list}
	}
	name := a.text(s, 0, "filter", "")
	f := filters[name]
	if f == nil {
		s.fail("there is no filter %s", name)
	}
	list := &List{}
	for _, e := range items {
		s.tick()
		list.Items = append(list.Items, f(s, e, arguments{a.list[1:], a.named, a.names}))
	}
	return list
}

// selectedBy is selectattr and rejectattr.
func (s *state) selectedBy(v any, a arguments, keep bool) any {
	if len(a.list) == 0 {
		s.fail("selectattr and rejectattr want the name of an attribute")
	}
	return s.selected(v, arguments{a.list[1:], a.named, a.names}, text(a.list[0]), keep)
}

// selected are the values for which a test holds, or which are true without one.
func (s *state) selected(v any, a arguments, attribute string, keep bool) any {
	items := s.iterate(v)
	by := items
	if attribute != "" {
		by = s.attributes(items, attribute)
	}
	holds := func(v any) bool { return truth(v) }
	if len(a.list) > 0 {
		name := text(a.list[0])
		test := tests[name]
		if test == nil {
			s.fail("there is no test %s", name)
		}
		holds = func(v any) bool { return test(s, v, arguments{a.list[1:], a.named, a.names}) }
	}
	list := &List{}
	for i, e := range items {
		if s.tick(); holds(by[i]) == keep {
			list.Items = append(list.Items, e)
		}
	}
	return list
}

// sorted are the values by others.
func (s *state) sorted(items, by []any, reverse, cased bool) []any {
	order, by := make([]int, len(items)), slices.Clone(by)
	for i := range order {
		order[i] = i
		if t, ok := by[i].(string); ok && !cased {
			by[i] = strings.ToLower(t)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		less, more := s.compare("<", by[i], by[j]), s.compare(">", by[i], by[j])
		switch {
		case less && !reverse || more && reverse:
			return -1
		case less || more:
			return 1
		}
		return 0
	})
	out := make([]any, len(items))
	for i, j := range order {
		out[i] = items[j]
	}
	return out
}

func (s *state) extreme(v any, op string) any {
	items := s.iterate(v)
	if len(items) == 0 {
		return undefined{"the extreme of no values"}
	}
	best := items[0]
	for _, e := range items[1:] {
		if s.compare(op, e, best) {
			best = e
		}
	}
	return best
}

// format is Python's % of a text, with the verbs s, d, i, r, f and %.
func (s *state) format(t string, v any) any {
	values := []any{v}
	if list, ok := v.(*List); ok {
		values = list.Items
	}
	var b strings.Builder
	for i := 0; i < len(t); i++ {
		if t[i] != '%' {
			b.WriteByte(t[i])
			continue
		}
		end := i + 1
		for end < len(t) && strings.IndexByte("0123456789.-+ ", t[end]) >= 0 {
			end++
		}
		if end == len(t) || end-i > 5 {
			s.fail("the format %.20q is not supported", t[i:])
		}
		if t[end] != '%' {
			if len(values) == 0 {
				s.fail("a format with too few values")
			}
			b.WriteString(s.verb(t[i:end], t[end], values[0]))
			values = values[1:]
		} else {
			b.WriteByte('%')
		}
		s.fits(b.Len())
		i = end
	}
	return b.String()
}

func (s *state) verb(flags string, verb byte, v any) string {
	switch verb {
	case 's':
		return fmt.Sprintf(flags+"s", text(v))
	case 'r':
		return fmt.Sprintf(flags+"s", repr(v))
	case 'd', 'i':
		if f, ok := number(v); ok {
			return fmt.Sprintf(flags+"d", int64(f))
		}
	case 'f':
		if f, ok := number(v); ok {
			return fmt.Sprintf(flags+"f", f)
		}
	}
	s.fail("the format %s%c of %s is not supported", flags, verb, typeName(v))
	return ""
}

func testTable() map[string]func(s *state, v any, a arguments) bool {
	kind := func(names ...string) func(*state, any, arguments) bool {
		return func(_ *state, v any, _ arguments) bool { return slices.Contains(names, typeName(v)) }
	}
	compare := func(op string) func(*state, any, arguments) bool {
		return func(s *state, v any, a arguments) bool {
			with, _ := a.arg(0, "other")
			return s.compare(op, v, with)
		}
	}
	remainder := func(of, is int64) func(*state, any, arguments) bool {
		return func(s *state, v any, _ arguments) bool { return equal(s.calculate("%", v, of), is) }
	}
	t := map[string]func(s *state, v any, a arguments) bool{
		"defined":   func(_ *state, v any, _ arguments) bool { _, missing := v.(undefined); return !missing },
		"undefined": kind("undefined"),
		"none":      kind("None"), "string": kind("str"), "number": kind("bool", "int", "float"),
		"integer": kind("int"), "float": kind("float"), "boolean": kind("bool"), "mapping": kind("dict"),
		"sequence": kind("str", "list", "dict", "undefined"), "iterable": kind("str", "list", "dict", "undefined"),
		"callable": kind("function"),
		"true":     func(_ *state, v any, _ arguments) bool { return v == any(true) },
		"false":    func(_ *state, v any, _ arguments) bool { return v == any(false) },
		"odd":      remainder(2, 1), "even": remainder(2, 0),
		"divisibleby": func(s *state, v any, a arguments) bool {
			return equal(s.calculate("%", v, a.number(s, 0, "num", 1)), int64(0))
		},
		"in": compare("in"),
		"sameas": func(_ *state, v any, a arguments) bool {
			with, _ := a.arg(0, "other")
			return typeName(v) == typeName(with) && equal(v, with)
		},
		"filter": func(_ *state, v any, _ arguments) bool { return filters[text(v)] != nil },
		"test":   func(_ *state, v any, _ arguments) bool { return tests[text(v)] != nil },
		"upper":  func(_ *state, v any, _ arguments) bool { return text(v) == strings.ToUpper(text(v)) },
		"lower":  func(_ *state, v any, _ arguments) bool { return text(v) == strings.ToLower(text(v)) },
	}
	for op, names := range map[string]string{"==": "== eq equalto", "!=": "!= ne", "<": "< lt lessthan",
		">": "> gt greaterthan", "<=": "<= le", ">=": ">= ge"} {
		for name := range strings.FieldsSeq(names) {
			t[name] = compare(op)
		}
	}
	return t
}
