// SPDX-License-Identifier: Apache-2.0

package args

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Status says what happens to a name that a program knows without having a setting for it.
type Status string

// The statuses.
const (
	// StatusPlanned is a name whose feature is not built yet: an error that says so.
	StatusPlanned Status = "not built yet"
	// StatusNoEffect is a name that changes no result here: accepted with a notice.
	StatusNoEffect Status = "no effect"
	// StatusRefused is a name that would change the result: an error with the reason.
	StatusRefused Status = "refused"
	// StatusRenamed is another name of a setting, which takes the value, with a notice.
	StatusRenamed Status = "renamed"
)

// Type is the kind of value that a known name takes.
type Type string

// The types, under the names that --help shows for settings.
const (
	TypeBool   Type = "bool"
	TypeInt    Type = "int"
	TypeFloat  Type = "float"
	TypeString Type = "string"
	TypeList   Type = "list"
	TypeAny    Type = "any" // a value of several types: a switch, text, list or JSON object
)

// Known is a name that a program accepts on its command line, in variables and in files though none of its settings
// has it: a name of HuggingFace's that Lockstep has not built, has no use for, or calls otherwise. Its default value
// changes nothing, so it is always accepted.
type Known struct {
	Name string
	Type Type
	// Default is the value that changes nothing, as a flag's text. Empty is "none", which every name accepts too.
	Default string
	// Same holds further values that change nothing, as texts; those of a JSON object are its harmless entries.
	Same   []string
	Status Status
	// Reason completes "not built yet: …", "no effect: …" or, for a refused name, "want …".
	Reason string
	// Target is the setting or known name that stands for a renamed one.
	Target string
	// Values turns the value into Target's. Without it Target takes the value as it is.
	Values map[string]string

	check func(value any) (want string) // what a value must fulfil, nil for nothing
	// rare says that nobody who misspells a name means this one.
	rare bool
}

// Notice is one line about a name that was accepted without being a setting.
type Notice struct {
	// Key is the name, Origin where it was set: "flag --x", "env LOCKSTEP_X" or "file x.yaml".
	Key, Origin string
	// Text says what happens to it: "has no effect: …" or "is taken as …".
	Text string
}

// String is the notice in one line.
func (n Notice) String() string {
	if n.Origin == "flag --"+n.Key {
		return "--" + n.Key + " " + n.Text
	}
	return n.Key + enclose(" (", n.Origin, ") ") + n.Text
}

// known is a Known with the field that reads its values.
type known struct {
	Known
	field *field
}

var knownKinds = map[Type]reflect.Kind{
	TypeBool: reflect.Bool, TypeInt: reflect.Int, TypeFloat: reflect.Float64, TypeString: reflect.String,
	TypeList: reflect.Slice, TypeAny: reflect.Invalid,
}

// Know makes names known to the loader, so that they are never "unknown". A name that is a setting of the loader's
// structs, or a flag of its FlagSet, stays that; of two rows with one name the later counts. Bind has made the names
// of HuggingFace's TrainingArguments known if TrainingArguments is among its structs.
func (l *Loader) Know(rows ...Known) {
	for _, k := range rows {
		kind, ok := knownKinds[k.Type]
		if !ok || k.Name == "" || k.Status == "" || (k.Status == StatusRenamed) != (k.Target != "") {
			panic(fmt.Sprintf("args: the known name %q needs a type and a status, and a target if it is renamed",
				k.Name))
		}
		if l.schema.byKey[k.Name] == nil {
			l.known[k.Name] = &known{Known: k, field: &field{key: k.Name, kind: kind, optional: kind != reflect.Slice}}
		}
	}
}

// decode reads a value. It is nil for none, and plain if it is one that changes nothing.
func (k *known) decode(raw any) (value any, plain bool, want string) {
	if k.Type == TypeAny {
		value = anyValue(raw)
	} else if value, want = k.field.decode(raw); want != "" {
		return nil, false, want
	}
	text := valueText(value)
	if text == "none" || k.Type == TypeAny && text == "false" || k.field.secret() && text == k.field.mask() {
		return nil, true, ""
	}
	if m, ok := value.(map[string]any); ok && k.harmless(m) {
		return value, true, ""
	}
	return value, text == k.Default || slices.Contains(k.Same, text), ""
}

// harmless reports whether every entry of an object is null or one of Same's.
func (k *known) harmless(m map[string]any) bool {
	same := map[string]any{}
	for _, text := range k.Same {
		if object, ok := anyValue(text).(map[string]any); ok {
			same = object
		}
	}
	for key, v := range m {
		if v != nil && valueText(v) != valueText(same[key]) {
			return false
		}
	}
	return true
}

// anyValue is a text, a list, an object, a number or true, as they stand in raw or in its text.
func anyValue(raw any) any {
	switch v := raw.(type) {
	case []string:
		if len(v) == 1 {
			return anyValue(v[0])
		}
	case string:
		if strings.HasPrefix(v, "{") {
			if m, _, err := parseJSON([]byte(v)); err == nil {
				return m
			}
		}
		if b, ok := boolWord(v); ok && (v == "true" || v == "True" || !b) {
			return b
		}
	}
	return raw
}

// valueText is the text that Default and Same are compared with.
func valueText(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case string:
		if v == "" || v == "[]" || strings.EqualFold(v, "none") || strings.EqualFold(v, "null") {
			return "none"
		}
		return v
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return v.String()
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	if rv := reflect.ValueOf(v); (rv.Kind() == reflect.Slice || rv.Kind() == reflect.Map) && rv.Len() == 0 {
		return "none"
	}
	return jsonText(v)
}

// flag takes the words of --name, --name=value or --no_name of a known name off the command line.
func (k *known) flag(c *commandLine, shown string, value *string, rest []string) []string {
	set := func(texts ...string) {
		if c.known[k.Name] == nil {
			c.known[k.Name] = &knownFlag{}
		}
		c.known[k.Name].shown, c.known[k.Name].texts = shown, append(c.known[k.Name].texts, texts...)
	}
	if value != nil {
		set(*value)
		return rest
	}
	n := 0
	switch k.Type {
	case TypeBool:
		if len(rest) > 0 {
			if _, ok := boolWord(rest[0]); ok {
				n = 1
			}
		}
	case TypeList, TypeAny:
		for n < len(rest) && !strings.HasPrefix(rest[n], "-") {
			n++
		}
	default:
		if len(rest) > 0 && !strings.HasPrefix(rest[0], "--") {
			n = 1
		}
	}
	switch {
	case n > 0:
		set(rest[:n]...)
	case k.Type == TypeBool || k.Type == TypeAny:
		set("true")
	default:
		c.faults = append(c.faults, Fault{Problem: "missing value of flag", Key: shown, Want: "want " + string(k.Type)})
	}
	return rest[n:]
}

// knownFlag is what the command line says of a known name.
type knownFlag struct {
	shown string // the flag as it was written
	texts []string
}

// given is a known name's value, from the last source that has one.
type given struct {
	value  any
	origin string
	target string // the setting that a renamed one went to, "" for others
	text   string // Target's value
	plain  bool   // HuggingFace's default
}

// setKnown takes a known name's value from a source, whose real settings have been set already.
func (m *merge) setKnown(dest, src map[string]any, name string, raw any, origin string) {
	k := m.loader.known[name]
	value, plain, want := k.decode(raw)
	if want != "" {
		m.knownFault(k, raw, origin, want, "")
		return
	}
	old := m.given[name]
	delete(m.given, name)
	if value == nil || plain && (k.Status != StatusRenamed || src[k.Target] != nil) {
		if old != nil && old.target != "" && m.origins[old.target] == old.origin { // what an earlier source gave
			delete(dest, old.target)
			delete(m.origins, old.target)
		}
		return
	}
	if k.check != nil {
		if want := k.check(value); want != "" {
			m.knownFault(k, value, origin, want, "")
			return
		}
	}
	m.given[name] = &given{value: value, origin: origin, plain: plain}
	if k.Status == StatusRenamed {
		m.rename(dest, src, k, value, origin)
	}
}

// rename gives a renamed name's value to the name that stands for it.
func (m *merge) rename(dest, src map[string]any, k *known, value any, origin string) {
	text := valueText(value)
	if k.Values != nil {
		var ok bool
		if text, ok = k.Values[text]; !ok {
			return
		}
	}
	if m.loader.schema.byKey[k.Target] == nil {
		delete(m.given, k.Name)
		if m.loader.known[k.Target] == nil {
			m.knownFault(k, value, origin, "", string(StatusPlanned)+": "+k.Target)
			return
		}
		m.setKnown(dest, src, k.Target, text, origin)
		return
	}
	if m.settled(src, k, text, origin) {
		return
	}
	m.set(dest, k.Target, text, origin)
	m.given[k.Name].target, m.given[k.Name].text = k.Target, text
}

// settled reports whether the source sets the target itself. It is a fault if it says something else, unless what it
// says is HuggingFace's default: files that hold every argument have old and new names.
func (m *merge) settled(src map[string]any, k *known, text, origin string) bool {
	raw, ok := src[k.Target]
	if !ok || raw == nil {
		return false
	}
	f := m.loader.schema.byKey[k.Target]
	ours, want := f.decode(raw)
	if want != "" {
		return true // told already
	}
	theirs, want := f.decode(text)
	if want == "" && reflect.DeepEqual(ours, theirs) {
		delete(m.given, k.Name)
		return true
	}
	if isDefault(k.Target, ours) {
		return false
	}
	m.knownFault(k, m.given[k.Name].value, origin,
		fmt.Sprintf("%s alone, which has its place and is %s here", k.Target, quote(ours)), "")
	return true
}

func (m *merge) knownFault(k *known, value any, origin, want, reason string) {
	f := Fault{Key: k.Name, Value: quote(value), Origin: origin, Want: want, Reason: reason}
	if k.field.secret() {
		f.Value = k.field.mask()
	}
	m.checker.add(f)
}

// judge turns what was given for known names into faults and notices, by name.
func (m *merge) judge() (notices []Notice) {
	for _, name := range sortedKeys(m.given) {
		k, g := m.loader.known[name], m.given[name]
		if m.checker.bad[name] {
			continue
		}
		switch k.Status {
		case StatusPlanned:
			m.knownFault(k, g.value, g.origin, "", string(StatusPlanned)+": "+k.Reason)
		case StatusRefused:
			m.knownFault(k, g.value, g.origin, k.Reason, "")
		case StatusNoEffect:
			notices = append(notices, Notice{name, g.origin, "has no effect: " + k.Reason})
		case StatusRenamed:
			if g.target != "" && !g.plain && m.origins[g.target] == g.origin {
				notices = append(notices, Notice{name, g.origin, "is taken as " + g.target + " " + g.text})
			}
		}
	}
	return notices
}
