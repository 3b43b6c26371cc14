// SPDX-License-Identifier: Apache-2.0

// Package catalog lists the optimizers, learning-rate schedules, communication hooks and styles of tensor parallelism
// that training arguments name, with the settings of each. It is plain data and the only such list: package args takes
// choices, checks and usage texts from it, and package optim takes names, defaults and checks.
package catalog

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
)

// Setting is a setting of one optimizer, schedule or other choice.
type Setting struct {
	Key string
	// Default is a number (float64), a text or a boolean; nil: it follows from other values, or must be given.
	Default any
	Rule    Rule
}

// Rule is what a setting may hold: a boolean with Switch, one of Texts if there are any, otherwise a number that OK
// accepts, or a list of such numbers with Lists. Want words it.
type Rule struct {
	Switch bool
	Lists  bool
	Texts  []string
	OK     func(v float64) bool
	Want   string
}

// maxExact is 2⁵³: up to it a float64 holds every whole number.
const maxExact = 1 << 53

// The rules.
var (
	NonNegative  = Rule{OK: func(v float64) bool { return v >= 0 }, Want: "a number ≥ 0"}
	Positive     = Rule{OK: func(v float64) bool { return v > 0 }, Want: "a number > 0"}
	Negative     = Rule{OK: func(v float64) bool { return v < 0 }, Want: "a number < 0"}
	UnitRatio    = Rule{OK: func(v float64) bool { return v >= 0 && v <= 1 }, Want: "a number in [0, 1]"}
	PositivePart = Rule{OK: func(v float64) bool { return v > 0 && v <= 1 }, Want: "a number in (0, 1]"}
	Share        = Rule{OK: func(v float64) bool { return v > 0 && v < 1 }, Want: "a number between 0 and 1"}
	DecayRate    = Rule{OK: func(v float64) bool { return v >= 0 && v < 1 }, Want: "a number in [0, 1)"}
	Count        = Rule{OK: func(v float64) bool { return v >= 0 && whole(v) }, Want: "a whole number ≥ 0"}
	PositiveInt  = Rule{OK: func(v float64) bool { return v >= 1 && whole(v) }, Want: "a whole number ≥ 1"}
	Rounds       = Rule{OK: func(v float64) bool { return v >= 1 && v < 100 && whole(v) },
		Want: "a whole number from 1 to 99"}
	Switch = Rule{Switch: true, Want: "true or false"}
	// Rates are learning rates: one for all groups of parameters, or one for each.
	Rates = Rule{Lists: true, OK: NonNegative.OK, Want: "a number ≥ 0, or a list with one for each parameter group"}
)

func whole(v float64) bool { return v <= maxExact && v == math.Trunc(v) }

// oneOf is the rule of a text.
func oneOf(texts ...string) Rule {
	return Rule{Texts: texts, Want: "one of " + strings.Join(texts, ", ")}
}

// accepts reports whether value, any Go or JSON number, a text or a boolean, keeps the rule.
func (r Rule) accepts(value any) bool {
	switch {
	case r.Switch:
		return reflect.ValueOf(value).Kind() == reflect.Bool
	case r.Texts != nil:
		text, ok := value.(string)
		return ok && slices.Contains(r.Texts, text)
	}
	list, numbers := Numbers(value)
	if _, one := Number(value); !numbers || !one && (!r.Lists || len(list) == 0) {
		return false
	}
	for _, v := range list {
		if math.IsInf(v, 0) || math.IsNaN(v) || !r.OK(v) {
			return false
		}
	}
	return true
}

// Numbers reads a list of Go or JSON numbers; a number is a list of one.
func Numbers(v any) (list []float64, ok bool) {
	if one, ok := Number(v); ok {
		return []float64{one}, true
	}
	r := reflect.ValueOf(v)
	if r.Kind() != reflect.Slice {
		return nil, false
	}
	for i := range r.Len() {
		one, ok := Number(r.Index(i).Interface())
		if !ok {
			return nil, false
		}
		list = append(list, one)
	}
	return list, true
}

// Number reads any Go or JSON number.
func Number(v any) (f float64, ok bool) {
	if n, ok := v.(interface{ Float64() (float64, error) }); ok { // json.Number
		f, err := n.Float64()
		return f, err == nil
	}
	switch r := reflect.ValueOf(v); {
	case r.CanInt():
		return float64(r.Int()), true
	case r.CanUint():
		return float64(r.Uint()), true
	case r.CanFloat():
		return r.Float(), true
	}
	return 0, false
}

// Settings are all that a choice has, in the order of its usage text.
type Settings []Setting

// Keys lists their names.
func (s Settings) Keys() (keys []string) {
	for _, one := range s {
		keys = append(keys, one.Key)
	}
	return keys
}

// Lookup finds a setting by its key.
func (s Settings) Lookup(key string) (one Setting, ok bool) {
	i := slices.IndexFunc(s, func(one Setting) bool { return one.Key == key })
	if i < 0 {
		return one, false
	}
	return s[i], true
}

// Wants completes the phrase "want …" for each value that is not as it must be, of is whose settings they are. A value
// nil counts as not given.
func (s Settings) Wants(of string, given Values) (wants []string) {
	for _, key := range slices.Sorted(maps.Keys(given)) {
		one, known := s.Lookup(key)
		switch {
		case len(s) == 0:
			return []string{fmt.Sprintf("none, since %s has no settings of its own", of)}
		case !known:
			wants = append(wants, fmt.Sprintf("keys from %s for %s, not %s", strings.Join(s.Keys(), ", "), of, key))
		case given[key] != nil && !one.Rule.accepts(given[key]):
			wants = append(wants, key+" to be "+one.Rule.Want)
		}
	}
	return wants
}

// Fill adds the defaults of what is not given.
func (s Settings) Fill(given Values) Values {
	filled := Values{}
	for _, one := range s {
		if v := given[one.Key]; v != nil {
			filled[one.Key] = v
		} else if one.Default != nil {
			filled[one.Key] = one.Default
		}
	}
	return filled
}

// usage lists keys and defaults.
func (s Settings) usage() string {
	words := make([]string, len(s))
	for i, one := range s {
		if words[i] = one.Key; one.Default != nil {
			words[i] += fmt.Sprintf(" %v", one.Default)
		}
	}
	return strings.Join(words, ", ")
}

// Values are settings by key.
type Values map[string]any

// Number is a number, or missing where it is not given.
func (v Values) Number(key string, missing float64) float64 {
	if f, ok := Number(v[key]); ok {
		return f
	}
	return missing
}

// Numbers are n numbers: those of a list, or one number n times. ok is false if the list has another length.
func (v Values) Numbers(key string, n int) (list []float64, ok bool) {
	list, _ = Numbers(v[key])
	if _, one := Number(v[key]); one {
		list = slices.Repeat(list, n)
	}
	return list, len(list) == n
}

// On reports whether a switch is given and true.
func (v Values) On(key string) bool {
	on, _ := v[key].(bool)
	return on
}

// Text is a text; empty where it is not given.
func (v Values) Text(key string) string {
	text, _ := v[key].(string)
	return text
}
