// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// The values of templates are nil, bool, int64, float64, string, *List, *Dict and what the template itself makes.
type (
	// List is a list or a tuple of Python's.
	List struct {
		Items []any
		tuple bool // which is only written otherwise
	}

	// Dict is a dict of Python's, which keeps the order of its keys.
	Dict struct {
		Keys   []string
		Values map[string]any
	}

	undefined struct{ name string }
	namespace struct{ *Dict }

	// function is what can be called: a method, a macro, a global.
	function func(s *state, a arguments) any
)

// NewDict makes a dict of keys and values in turn.
func NewDict(pairs ...any) *Dict {
	d := &Dict{Values: map[string]any{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		d.Set(pairs[i].(string), pairs[i+1])
	}
	return d
}

// Set gives a key a value, at the end if it is new.
func (d *Dict) Set(key string, value any) {
	if _, ok := d.Values[key]; !ok {
		d.Keys = append(d.Keys, key)
	}
	d.Values[key] = value
}

// FromJSON reads JSON as Python's json does: objects keep the order of their keys, and whole numbers are integers.
func FromJSON(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return fromJSON(d)
}

func fromJSON(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Number:
		if i, err := strconv.ParseInt(t.String(), 10, 64); err == nil {
			return i, nil
		}
		return t.Float64()
	case json.Delim:
		if t == '[' {
			list := &List{}
			for d.More() {
				v, err := fromJSON(d)
				if err != nil {
					return nil, err
				}
				list.Items = append(list.Items, v)
			}
			_, err := d.Token()
			return list, err
		}
		dict := NewDict()
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := fromJSON(d)
			if err != nil {
				return nil, err
			}
			dict.Set(key.(string), v)
		}
		_, err := d.Token()
		return dict, err
	}
	return token, nil
}

// truth is Python's bool().
func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.Keys) > 0
	}
	return true
}

// typeName is Python's name of a type.
func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "None"
	case undefined:
		return "undefined"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case *List:
		return "list"
	case *Dict:
		return "dict"
	case namespace:
		return "namespace"
	}
	return "function"
}

// text is Python's str().
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case undefined:
		return ""
	}
	return repr(v)
}

// repr is Python's repr().
func repr(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case undefined:
		return "Undefined"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return floatRepr(v)
	case string:
		return quote(v)
	case *List:
		var b strings.Builder
		for i, e := range v.Items {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(repr(e))
		}
		switch {
		case !v.tuple:
			return "[" + b.String() + "]"
		case len(v.Items) == 1:
			b.WriteByte(',')
		}
		return "(" + b.String() + ")"
	case *Dict:
		var b strings.Builder
		for i, k := range v.Keys {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(quote(k) + ": " + repr(v.Values[k]))
		}
		return "{" + b.String() + "}"
	}
	return "<" + typeName(v) + ">"
}

func floatRepr(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 0):
		return strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(f, 'g', -1, 64)), "+")
	}
	if size := math.Abs(f); size != 0 && (size < 1e-4 || size >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quote is Python's repr of a str.
func quote(s string) string {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	var b strings.Builder
	b.WriteByte(q)
	for _, r := range s {
		switch {
		case r == rune(q) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteByte(q)
	return b.String()
}

// equal is Python's ==.
func equal(a, b any) bool {
	x, xok := number(a)
	y, yok := number(b)
	if xok && yok {
		return x == y
	}
	switch a := a.(type) {
	case *List:
		b, ok := b.(*List)
		return ok && slices.EqualFunc(a.Items, b.Items, equal)
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.Keys) != len(b.Keys) {
			return false
		}
		for _, k := range a.Keys {
			if v, ok := b.Values[k]; !ok || !equal(a.Values[k], v) {
				return false
			}
		}
		return true
	case undefined:
		_, ok := b.(undefined)
		return ok
	case nil, string:
		return a == b
	}
	return false
}

// number is a value as a number; bool is one in Python.
func number(v any) (float64, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// jsonStyle is how Python's json.dumps is asked to write.
type jsonStyle struct {
	indent     string // "" writes one line
	comma      string
	colon      string
	ascii      bool
	sortedKeys bool
}

// dump is json.dumps.
func (s *state) dump(b *strings.Builder, v any, style jsonStyle, margin string) {
	s.tick()
	s.fits(b.Len())
	inner, newline := margin+style.indent, ""
	if style.indent != "" {
		newline = "\n" + inner
	}
	separate := func(i int) {
		if i > 0 {
			b.WriteString(style.comma)
		}
		b.WriteString(newline)
	}
	end := func(n int, bracket string) {
		if n > 0 && style.indent != "" {
			b.WriteString("\n" + margin)
		}
		b.WriteString(bracket)
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case int64, float64:
		b.WriteString(repr(v))
	case string:
		dumpString(b, v, style.ascii)
	case *List:
		b.WriteString("[")
		for i, e := range v.Items {
			separate(i)
			s.dump(b, e, style, inner)
		}
		end(len(v.Items), "]")
	case *Dict:
		b.WriteString("{")
		keys := v.Keys
		if style.sortedKeys {
			keys = slices.Sorted(slices.Values(keys))
		}
		for i, k := range keys {
			separate(i)
			dumpString(b, k, style.ascii)
			b.WriteString(style.colon)
			s.dump(b, v.Values[k], style, inner)
		}
		end(len(keys), "}")
	default:
		s.fail("tojson of %s: want what JSON has", typeName(v))
	}
}

func dumpString(b *strings.Builder, s string, ascii bool) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\f':
			b.WriteString(`\f`)
		case r < 0x20:
			fmt.Fprintf(b, `\u%04x`, r)
		case ascii && r > 0xFFFF:
			r -= 0x10000
			fmt.Fprintf(b, `\u%04x\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
		case ascii && r > 0x7E:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}
