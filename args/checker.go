// SPDX-License-Identifier: Apache-2.0

package args

import (
	"slices"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/misspelt"
)

// Checked is implemented by settings that can check themselves. Loader calls Check after it has checked the fields'
// choices.
type Checked interface {
	Check(c *Checker)
}

// Checker collects faults: at most one per key, so that a value that is wrong by
// itself is not blamed again by rules that join it with others.
type Checker struct {
	faults []Fault
	bad    map[string]bool
	origin func(key string) string
	parts  int
	model  func() any
}

// Require records a fault of key, whose value is value, unless ok. want completes
// the phrase "want …". It reports whether the key is free of faults.
func (c *Checker) Require(ok bool, key string, value any, want string) bool {
	if c.bad[key] {
		return false
	}
	if !ok {
		c.fault(Fault{Key: key, Value: quote(value), Want: want})
	}
	return ok
}

// refuse is Require for a value that something else has refused, with a reason that says what it needs.
func (c *Checker) refuse(key string, value any, reason string) {
	if !c.bad[key] {
		c.fault(Fault{Key: key, Value: quote(value), Reason: reason})
	}
}

func (c *Checker) fault(fault Fault) {
	key := fault.Key
	if strings.HasSuffix(key, "token") {
		fault.Value = "<" + strings.ToUpper(key) + ">"
	}
	if c.origin != nil {
		fault.Origin = c.origin(key)
	}
	c.add(fault)
}

// Given reports whether a flag, a variable or a file set the key. It is false for values of the program, and where no
// Loader checks.
func (c *Checker) Given(key string) bool { return c.origin != nil && c.origin(key) != "" }

// OK reports whether none of the keys has a fault yet. Rules that join keys ask
// first.
func (c *Checker) OK(keys ...string) bool {
	return !slices.ContainsFunc(keys, func(k string) bool { return c.bad[k] })
}

// Parts reports how many parts the model has that the settings describe: its blocks, and what is in front of them and
// behind them. A pipeline cannot have more stages.
func (c *Checker) Parts(n int) { c.parts = n }

// Model reports what makes a model such as the settings describe, which needs no values: its matrices are checked
// against tp_size and tp_plan, and its attentions against sp_size, before the program reads data. It is called at most
// once, after all settings were checked, and may return nil.
func (c *Checker) Model(made func() any) { c.model = sync.OnceValue(made) }

// described is the model that settings describe; nil: they describe none.
func (c *Checker) described() any {
	if c.model == nil {
		return nil
	}
	return c.model()
}

// Err is nil, or an *Error with every fault.
func (c *Checker) Err() error { return asError(c.faults) }

func (c *Checker) add(f Fault) {
	if c.bad == nil {
		c.bad = map[string]bool{}
	}
	if f.Key != "" {
		c.bad[f.Key] = true
	}
	c.faults = append(c.faults, f)
}

// check applies the choices of every field, then each struct's own rules.
func (c *Checker) check(s *schema, structs []any) {
	for _, f := range s.fields {
		if f.choices == nil {
			continue
		}
		v := f.of(structs)
		if text := f.text(v); !slices.Contains(f.choices, text) {
			c.Require(false, f.key, text, "one of "+strings.Join(f.choices, ", ")+choiceHint(f.key, text, f.choices))
		}
	}
	for _, v := range structs {
		if checked, ok := v.(Checked); ok {
			checked.Check(c)
		}
	}
}

// hint names the choice that was likely meant, if the list is long.
func hint(text string, choices []string) string {
	n := misspelt.Nearest(text, choices)
	if n == "" || len(choices) < 5 {
		return ""
	}
	return "; did you mean " + n + "?"
}
