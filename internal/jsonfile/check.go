// SPDX-License-Identifier: Apache-2.0

package jsonfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/internal/jsontext"
)

// maxDepth bounds the nesting of brackets.
const maxDepth = 100

// checker goes through a text beside the type that it is read into.
type checker struct {
	Options
	text   []byte
	at     int
	probe  bool // call the methods by which values read themselves, to find the one that fails
	path   []step
	faults faults
}

// step leads into an object or a list.
type step struct {
	key   string
	index int // -1: key counts
}

func (c *checker) document(v any) error {
	if err := c.value(shapeOf(reflect.TypeOf(v)), tags{}); err != nil {
		return err
	}
	if c.blanks(); c.at < len(c.text) {
		return c.syntax("there is more behind the end of the JSON value: want nothing")
	}
	return nil
}

var (
	rawType    = reflect.TypeFor[json.RawMessage]()
	readerType = reflect.TypeFor[json.Unmarshaler]()
)

// shape is a type without pointers.
type shape struct {
	of  reflect.Type // nil: takes any value
	own reflect.Type // not nil: reads itself
}

func shapeOf(t reflect.Type) shape {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == nil || t.Kind() == reflect.Interface || t == rawType:
		return shape{}
	case reflect.PointerTo(t).Implements(readerType):
		return shape{own: t}
	}
	return shape{of: t}
}

// value checks the next value.
func (c *checker) value(s shape, tag tags) error {
	if c.blanks(); c.at == len(c.text) {
		return c.syntax("the text ends too early: want a value")
	}
	start := c.at
	err := c.typed(s.of, tag)
	if err == nil && s.own != nil && c.probe {
		c.try(s.own, c.text[start:c.at])
	}
	return err
}

// typed checks the next value against a type.
func (c *checker) typed(t reflect.Type, tag tags) error {
	start := c.at
	switch b := c.text[c.at]; {
	case b == '{':
		return c.object(c.want(t, "is an object", reflect.Struct, reflect.Map))
	case b == '[':
		return c.list(c.want(t, "is a list", reflect.Slice, reflect.Array), tag.max)
	case b == '"':
		if err := c.skipString(); err != nil {
			return err
		}
		c.want(t, "is "+shown(c.text[start:c.at]), reflect.String)
	case b == '-' || b >= '0' && b <= '9':
		if err := c.skipNumber(); err != nil {
			return err
		}
		c.number(t, string(c.text[start:c.at]))
	default:
		return c.word(t, tag)
	}
	return nil
}

// want is t if its kind is one of those given. Otherwise it notes a fault, and is any type.
func (c *checker) want(t reflect.Type, is string, kinds ...reflect.Kind) reflect.Type {
	if t == nil {
		return nil
	}
	for _, k := range kinds {
		if t.Kind() == k {
			return t
		}
	}
	c.fault(is + ": want " + wanted(t))
	return nil
}

// wanted names what a type takes.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a whole number"
}

// number checks the text of a number.
func (c *checker) number(t reflect.Type, text string) {
	if t == nil {
		return
	}
	var err error
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		_, err = strconv.ParseInt(text, 10, t.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		_, err = strconv.ParseUint(text, 10, t.Bits())
	case reflect.Float32, reflect.Float64:
		_, err = strconv.ParseFloat(text, t.Bits())
	default:
		c.want(t, "is "+shown([]byte(text)))
		return
	}
	if err != nil {
		limit := ""
		if errors.Is(err, strconv.ErrRange) {
			limit = fmt.Sprintf(" that %d bits can hold", t.Bits())
		}
		c.fault("is " + shown([]byte(text)) + ": want " + wanted(t) + limit)
	}
}

// word checks true, false, null, or what Python writes in place of a number.
func (c *checker) word(t reflect.Type, tag tags) error {
	end := c.at
	for end < len(c.text) && (c.text[end]|0x20 >= 'a' && c.text[end]|0x20 <= 'z') {
		end++
	}
	switch word := string(c.text[c.at:end]); word {
	case "true", "false":
		c.at = end
		c.want(t, "is "+word, reflect.Bool)
	case "null":
		c.at = end
		if !c.Nulls && !tag.null && !tag.pointer {
			c.want(t, "is null", reflect.Slice, reflect.Map)
		}
	case "NaN", "Infinity":
		return c.syntax(word + " is not a number in JSON, although Python writes it: want a finite number")
	case "":
		r, _ := utf8.DecodeRune(c.text[c.at:])
		return c.syntax(fmt.Sprintf("%q: want a value", r))
	default:
		return c.syntax(fmt.Sprintf("%.40s: want a value in JSON, texts in quotes", word))
	}
	return nil
}

func (c *checker) object(t reflect.Type) error {
	c.at++ // {
	seen := keySet{}
	for n := 0; ; n++ {
		done, err := c.next(n, '}')
		if done || err != nil {
			return err
		}
		start := c.at
		if c.text[c.at] != '"' {
			return c.syntax("want a key in quotes")
		}
		if err := c.skipString(); err != nil {
			return err
		}
		key := unquoted(c.text[start:c.at])
		if c.blanks(); c.at == len(c.text) || c.text[c.at] != ':' {
			return c.syntax(fmt.Sprintf("want a colon behind the key %.100q", key))
		}
		c.at++
		if (t != nil || !c.Checked) && !seen.add(key) {
			c.twice(key)
		}
		member, tag := c.member(t, key)
		c.path = append(c.path, step{key, -1})
		if err := c.value(member, tag); err != nil {
			return err
		}
		c.path = c.path[:len(c.path)-1]
	}
}

// twice notes a key that occurs twice.
func (c *checker) twice(key string) {
	switch {
	case c.Duplicates == nil:
		c.fault(fmt.Sprintf("has the key %.100q twice", key))
	case !c.probe:
		*c.Duplicates = append(*c.Duplicates, key)
	}
}

// member is the type of the value of a key.
func (c *checker) member(t reflect.Type, key string) (shape, tags) {
	switch {
	case t == nil:
		return shape{}, tags{}
	case t.Kind() == reflect.Map:
		return shapeOf(t.Elem()), tags{pointer: t.Elem().Kind() == reflect.Pointer}
	}
	list := fieldsOf(t)
	if f, ok := list[key]; ok {
		return f.shape, f.tags
	}
	if other := otherCase(list, key); other != "" {
		c.fault(fmt.Sprintf("has the key %.100q: want %q", key, other))
	} else if c.KnownKeys {
		c.fault(fmt.Sprintf("has the key %.100q, which is unknown", key))
	}
	return shape{}, tags{}
}

func (c *checker) list(t reflect.Type, most int) error {
	c.at++ // [
	var elem shape
	var tag tags
	if t != nil {
		elem, tag.pointer = shapeOf(t.Elem()), t.Elem().Kind() == reflect.Pointer
	}
	for n := 0; ; n++ {
		done, err := c.next(n, ']')
		if done || err != nil {
			return err
		}
		if most > 0 && n == most {
			return &Error{c.where(), fmt.Sprintf("has more than %d values", most)}
		}
		c.path = append(c.path, step{"", n})
		if err := c.value(elem, tag); err != nil {
			return err
		}
		c.path = c.path[:len(c.path)-1]
	}
}

// next goes to value n of an object or list, and reports whether it has ended.
func (c *checker) next(n int, end byte) (done bool, err error) {
	if len(c.path) >= maxDepth {
		return false, c.syntax(fmt.Sprintf("brackets are nested more than %d deep: want at most so many", maxDepth))
	}
	early := "the text ends too early: want " + string(end)
	if c.blanks(); c.at == len(c.text) {
		return false, c.syntax(early)
	}
	switch b := c.text[c.at]; {
	case b == end:
		c.at++
		return true, nil
	case n == 0:
		return false, nil
	case b != ',':
		r, _ := utf8.DecodeRune(c.text[c.at:])
		return false, c.syntax(fmt.Sprintf("%q: want a comma or %c", r, end))
	}
	c.at++
	if c.blanks(); c.at == len(c.text) {
		return false, c.syntax(early)
	}
	if c.text[c.at] == end {
		return false, c.syntax(fmt.Sprintf("a comma before %c: want none", end))
	}
	return false, nil
}

func (c *checker) blanks() {
	for c.at < len(c.text) {
		switch c.text[c.at] {
		case ' ', '\t', '\r', '\n':
			c.at++
		default:
			return
		}
	}
}

// skipString passes over a text in quotes.
func (c *checker) skipString() error {
	start := c.at
	ascii, escaped := true, false
	for c.at++; c.at < len(c.text); c.at++ {
		switch b := c.text[c.at]; {
		case b == '"':
			c.at++
			return c.checkString(c.text[start:c.at], ascii, escaped)
		case b == '\\':
			c.at++
			escaped = true
		case b < ' ':
			return c.syntax("a control character in a text: want \\n, \\t or another escape")
		case b >= utf8.RuneSelf:
			ascii = false
		}
	}
	c.at = start
	return c.syntax("a text whose closing quote is missing")
}

// checkString checks a text with its quotes.
func (c *checker) checkString(text []byte, ascii, escaped bool) error {
	if !ascii && !utf8.Valid(text) {
		return c.syntax("a text that is not UTF-8")
	}
	if escaped && !json.Valid(text) {
		return c.syntax(`a text with an escape that JSON does not have: want \n, \", \\, \u0041 or another escape of JSON`)
	}
	if escaped && jsontext.LoneSurrogate(text) {
		return c.syntax(`an escape \uD800 to \uDFFF that is not half of a pair`)
	}
	return nil
}

func (c *checker) skipNumber() error {
	start := c.at
	for c.at < len(c.text) {
		switch b := c.text[c.at]; {
		case b >= '0' && b <= '9', b == '+', b == '-', b == '.', b|0x20 == 'e':
			c.at++
			continue
		}
		break
	}
	if text := c.text[start:c.at]; !json.Valid(text) {
		c.at = start
		if end := min(len(c.text), start+len("-Infinity")); string(c.text[start:end]) == "-Infinity" {
			return c.syntax("-Infinity is not a number in JSON, although Python writes it: want a finite number")
		}
		return c.syntax(fmt.Sprintf("%.40s is not a number in JSON", text))
	}
	return nil
}
