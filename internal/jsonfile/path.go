// SPDX-License-Identifier: Apache-2.0

package jsonfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// tags are what a field allows.
type tags struct {
	null    bool
	pointer bool // null is nil
	max     int  // values of a list; 0: any number
}

// field is a field of a struct.
type field struct {
	shape
	tags
}

// known has the fields of structs, by reflect.Type.
var known sync.Map

// fieldsOf lists the fields of a struct by their keys, those of embedded structs among them.
func fieldsOf(t reflect.Type) map[string]field {
	if list, ok := known.Load(t); ok {
		return list.(map[string]field)
	}
	list := map[string]field{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		most, _ := strconv.Atoi(f.Tag.Get("max")) // none: 0
		list[name] = field{shapeOf(f.Type), tags{f.Tag.Get("null") == "ok", f.Type.Kind() == reflect.Pointer, most}}
	}
	known.Store(t, list)
	return list
}

// otherCase is the key that encoding/json would take another one for.
func otherCase(list map[string]field, key string) string {
	for name := range list {
		if strings.EqualFold(name, key) {
			return name
		}
	}
	return ""
}

// keySet is the keys of an object.
type keySet struct {
	few  []string
	many map[string]struct{}
}

// add reports whether a key is new.
func (s *keySet) add(key string) bool {
	const few = 16
	if s.many == nil {
		for _, k := range s.few {
			if k == key {
				return false
			}
		}
		if s.few = append(s.few, key); len(s.few) <= few {
			return true
		}
		s.many = make(map[string]struct{})
		for _, k := range s.few {
			s.many[k] = struct{}{}
		}
		return true
	}
	n := len(s.many)
	s.many[key] = struct{}{}
	return len(s.many) > n
}

// unquoted is the text in a valid JSON string.
func unquoted(text []byte) string {
	if bytes.IndexByte(text, '\\') < 0 {
		return string(text[1 : len(text)-1])
	}
	var s string
	_ = json.Unmarshal(text, &s) // it is valid
	return s
}

// shown is a value as an error has it.
func shown(text []byte) string {
	const most = 60
	if len(text) <= most {
		return string(text)
	}
	end := most
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return string(text[:end]) + "…"
}

func (c *checker) fault(what string) {
	c.faults = append(c.faults, &Error{c.where(), what})
}

// try lets a value read itself, and notes its error.
func (c *checker) try(t reflect.Type, text []byte) {
	err := reflect.New(t).Interface().(json.Unmarshaler).UnmarshalJSON(text)
	var list faults
	switch {
	case err == nil:
	case errors.As(err, &list):
		for _, inner := range list {
			c.faults = append(c.faults, &Error{joined(c.where(), inner.Path), inner.What})
		}
	default:
		c.faults = append(c.faults, &Error{c.where(), "is " + shown(text) + ": " + err.Error()})
	}
}

func joined(path, inner string) string {
	if path == "" || inner == "" || inner[0] == '[' {
		return path + inner
	}
	return path + "." + inner
}

var plainKey = regexp.MustCompile(`^[\w\-$]{1,100}$`)

// where is the path to the value.
func (c *checker) where() string {
	var b strings.Builder
	for i, s := range c.path {
		switch {
		case s.index >= 0:
			fmt.Fprintf(&b, "[%d]", s.index)
		case !plainKey.MatchString(s.key):
			fmt.Fprintf(&b, "[%.100q]", s.key)
		default:
			if i > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.key)
		}
	}
	return b.String()
}

// syntax is an error at the place that the checker has reached.
func (c *checker) syntax(what string) error {
	before := c.text[:c.at]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	if path := c.where(); path != "" && len(c.path) < maxDepth {
		return fmt.Errorf("line %d, column %d, %s: %s", line, column, path, what)
	}
	return fmt.Errorf("line %d, column %d: %s", line, column, what)
}
