// SPDX-License-Identifier: Apache-2.0

// Package jsonfile reads JSON settings files: config.json, tokenizer.json and others. [Unmarshal] is encoding/json's
// with errors that name the key, the value and what was expected, in JSON's words and never in Go's, and without its
// silent choices: keys that occur twice, keys in another case, null for a number, and bytes that are not UTF-8 are
// errors. For data sets, which may be looser, see package jsontext.
package jsonfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Options are what a file may have. The zero value allows keys that the Go value has no field for, and no null where
// the Go value cannot be nil.
type Options struct {
	KnownKeys bool // refuse keys that the Go value has no field for
	Nulls     bool // allow null everywhere: the Go value keeps what it has
	Checked   bool // the text is a part of a file that Unmarshal has seen: raw values need no second look
	Numbers   bool // numbers of interface values become json.Number

	// Duplicates, if it is not nil, gets the keys that occur twice, which are then no error.
	Duplicates *[]string
}

// Unmarshal reads a whole JSON text into v, a pointer, as json.Unmarshal does. The error has all that is wrong with
// keys and values, up to a dozen, or the line and column of the first place that is not JSON.
//
// A field with the tag null:"ok" keeps its value at null, and one with max:"N" takes a list of at most N values. A
// field without a name in a json tag has its own in lower case.
func Unmarshal(text []byte, v any) error { return Options{}.Unmarshal(text, v) }

// Strict is Unmarshal that refuses keys which v has no field for.
func Strict(text []byte, v any) error { return Options{KnownKeys: true}.Unmarshal(text, v) }

// Unmarshal is the function Unmarshal with options.
func (o Options) Unmarshal(text []byte, v any) error {
	if err := o.check(text, v, false); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if o.Numbers {
		d.UseNumber()
	}
	err := d.Decode(v)
	if err == nil {
		return nil
	}
	if found := o.check(text, v, true); found != nil { // by which value's own method it was
		return found
	}
	return err
}

// Error is what is wrong with one value.
type Error struct {
	Path string // rope_parameters.factor, added_tokens[3].id; "" for the whole text
	What string // begins with a verb: is "64": want a whole number
}

// Error names the value and what is wrong.
func (e *Error) Error() string {
	if e.Path == "" {
		return "it " + e.What
	}
	return e.Path + " " + e.What
}

// faults are several errors.
type faults []*Error

// maxFaults bounds what an error names.
const maxFaults = 12

// Error joins them.
func (f faults) Error() string {
	var b strings.Builder
	for i, e := range f {
		switch {
		case i == maxFaults:
			fmt.Fprintf(&b, "; and %d more", len(f)-i)
			return b.String()
		case i > 0:
			b.WriteString("; ")
		}
		b.WriteString(e.Error())
	}
	return b.String()
}

func (o Options) check(text []byte, v any, probe bool) error {
	c := &checker{Options: o, text: text, probe: probe}
	switch rest := bytes.TrimSpace(text); {
	case bytes.HasPrefix(text, []byte("\ufeff")):
		return errors.New("it begins with a byte order mark (EF BB BF), which JSON does not have: save it as UTF-8 " +
			"without one")
	case len(rest) == 0:
		return errors.New("it is empty: want JSON")
	}
	err := c.document(v)
	if err != nil {
		return err
	}
	if len(c.faults) > 0 {
		return c.faults
	}
	return nil
}
