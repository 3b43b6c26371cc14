// SPDX-License-Identifier: Apache-2.0

package args

import (
	"encoding"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/catalog"
)

// field describes one setting of a struct; the struct's values are read and
// written through reflection, at this edge only.
type field struct {
	key, usage string
	choices    []string
	split      string // separates the values of a list in one text
	path       bool   // a leading ~ is the home folder
	number     bool   // a text that may be written as a number
	toggle     bool   // a list that may be a switch: true, false, or a flag without a value
	unset      string // a word for "not set" besides none
	fixed      bool   // changing it makes it another run
	owner      int    // which struct of the list
	index      []int  // which field of that struct
	optional   bool   // a pointer
	kind       reflect.Kind
	plain      map[string]any // entries of an object that change nothing, as a null does
}

// schema is the settings of a list of structs, in order.
type schema struct {
	fields []*field
	byKey  map[string]*field
}

// newSchema reads the tags of the structs. What is wrong there is the
// programmer's mistake and panics, as pflag does when a flag is defined twice.
func newSchema(structs ...any) *schema {
	s := &schema{byKey: map[string]*field{}}
	for owner, v := range structs {
		t := reflect.TypeOf(v)
		if t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct || reflect.ValueOf(v).IsNil() {
			panic(fmt.Sprintf("args: settings must be a pointer to a struct, not %T", v))
		}
		for _, f := range fieldsOf(t.Elem()) {
			if s.byKey[f.key] != nil {
				panic(fmt.Sprintf("args: two settings have the key %s", f.key))
			}
			f.owner = owner
			s.byKey[f.key] = &f
			s.fields = append(s.fields, &f)
		}
	}
	return s
}

// typeFields holds what fieldsOf returns, by type: the tags of a hundred fields take a while to read.
var typeFields sync.Map

// fieldsOf returns the settings of a struct type.
func fieldsOf(t reflect.Type) []field {
	if known, ok := typeFields.Load(t); ok {
		return known.([]field)
	}
	var fields []field
	for i := range t.NumField() {
		if sf := t.Field(i); sf.Anonymous && sf.Type.Kind() == reflect.Struct {
			fields = append(fields, embedded(t, sf)...)
		} else if f := newField(t, i); f != nil {
			fields = append(fields, *f)
		}
	}
	typeFields.Store(t, fields)
	return fields
}

// embedded are the settings of a struct that another has without a name, as encoding/json sees them.
func embedded(t reflect.Type, sf reflect.StructField) []field {
	if sf.Type == reflect.TypeFor[TrainingArguments]() {
		panic(fmt.Sprintf("args: %s embeds TrainingArguments: want the two beside each other in Bind", t))
	}
	fields := slices.Clone(fieldsOf(sf.Type))
	for i := range fields {
		fields[i].index = slices.Concat(sf.Index, fields[i].index)
	}
	return fields
}

// newField is nil for fields that are not settings.
func newField(t reflect.Type, i int) *field {
	sf := t.Field(i)
	key, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
	if !sf.IsExported() || key == "-" {
		return nil
	}
	if key == "" || strings.ToLower(key) != key || strings.ContainsAny(key, " .=-") {
		panic(fmt.Sprintf("args: %s.%s needs a tag json:\"snake_case_key\"", t, sf.Name))
	}
	f := &field{
		key:    key,
		usage:  sf.Tag.Get("usage") + settingsUsage(key),
		split:  sf.Tag.Get("split"),
		path:   sf.Tag.Get("path") == "true",
		number: sf.Tag.Get("number") == "true",
		toggle: sf.Tag.Get("toggle") == "true",
		unset:  sf.Tag.Get("unset"),
		fixed:  sf.Tag.Get("resume") == "fixed",
		index:  sf.Index,
		kind:   sf.Type.Kind(),
	}
	if f.usage == "" {
		panic(fmt.Sprintf("args: %s.%s needs a tag usage", t, sf.Name))
	}
	if text := sf.Tag.Get("plain"); text != "" {
		object, bad := decodeObject(text, nil)
		if bad != "" {
			panic(fmt.Sprintf("args: %s.%s: its tag plain needs %s", t, sf.Name, bad))
		}
		f.plain = object.(map[string]any)
	}
	if c := sf.Tag.Get("choices"); c != "" {
		f.choices = strings.Split(c, ",")
	}
	if l, ok := reflect.Zero(sf.Type).Interface().(interface{ choices() []string }); ok {
		f.choices = l.choices()
	}
	if f.kind == reflect.Pointer {
		f.optional, f.kind = true, sf.Type.Elem().Kind()
	}
	if !f.supported(sf.Type) {
		panic(fmt.Sprintf("args: %s.%s has type %s, which is no settings type", t, sf.Name, sf.Type))
	}
	return f
}

// settingsUsage lists the settings of each optimizer or schedule, after the usage of the key that takes them.
func settingsUsage(key string) string {
	switch key {
	case "optim_args":
		return " (" + catalog.OptimizerUsage() + ")"
	case "lr_scheduler_kwargs":
		return " (" + catalog.ScheduleUsage() + ")"
	}
	return ""
}

func (f *field) supported(t reflect.Type) bool {
	switch f.kind {
	case reflect.Bool, reflect.Int, reflect.Int64, reflect.Uint64, reflect.Float64, reflect.String:
		return true
	case reflect.Slice:
		return !f.optional && t.Elem().Kind() == reflect.String
	case reflect.Map:
		return !f.optional && t == reflect.TypeFor[map[string]any]()
	}
	return false
}

// namesFile reports whether a value of an object's setting is the name of a file that has the object.
func (f *field) namesFile(raw any) (path string, ok bool) {
	if f.kind != reflect.Map {
		return "", false
	}
	if list, isList := raw.([]string); isList { // of a repeated flag the last text counts
		raw = list[len(list)-1]
	}
	path, _ = raw.(string)
	if strings.HasPrefix(strings.TrimSpace(path), "{") || !isConfigFile(path) {
		return "", false
	}
	return expandHome(path), true
}

// typeName is the kind of value, as --help shows it.
func (f *field) typeName() string {
	switch f.kind {
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int64:
		return "int"
	case reflect.Uint64:
		return "uint"
	case reflect.Float64:
		return "float"
	case reflect.Slice:
		return "list"
	case reflect.Map:
		return "json"
	}
	return "string"
}

// of is the field's value in the list of structs.
func (f *field) of(structs []any) reflect.Value {
	return reflect.ValueOf(structs[f.owner]).Elem().FieldByIndex(f.index)
}

// assign stores what decode made of a value.
func (f *field) assign(structs []any, canonical any) {
	dst := f.of(structs)
	if canonical == nil {
		dst.SetZero()
		return
	}
	if f.optional {
		dst.Set(reflect.New(dst.Type().Elem()))
		dst = dst.Elem()
	}
	switch v := canonical.(type) {
	case bool:
		dst.SetBool(v)
	case int64:
		dst.SetInt(v)
	case uint64:
		dst.SetUint(v)
	case float64:
		dst.SetFloat(v)
	case map[string]any:
		dst.Set(reflect.ValueOf(v))
	case string:
		setString(dst, v)
	case []string:
		dst.Set(reflect.MakeSlice(dst.Type(), len(v), len(v)))
		for i, s := range v {
			setString(dst.Index(i), s)
		}
	}
}

// trainingSchema is that of TrainingArguments alone.
var trainingSchema = sync.OnceValue(func() *schema { return newSchema(Default("")) })

// isDefault reports whether what decode made of a value is the default of a field of TrainingArguments.
func isDefault(key string, canonical any) bool {
	f := trainingSchema().byKey[key]
	if f == nil {
		return false
	}
	standard, filled := []any{Default("")}, []any{Default("")}
	f.assign(filled, canonical)
	return f.text(f.of(filled)) == f.text(f.of(standard))
}

// setString goes through UnmarshalText where the type has it, so that a type can
// accept other spellings. Its error leaves the text, for the check of choices.
func setString(dst reflect.Value, s string) {
	if u, ok := dst.Addr().Interface().(encoding.TextUnmarshaler); ok && u.UnmarshalText([]byte(s)) == nil {
		return
	}
	dst.SetString(s)
}

// expandHome replaces a leading ~ by the home folder, where there is one.
func expandHome(path string) string {
	rest, ok := strings.CutPrefix(path, "~")
	if !ok || rest != "" && !os.IsPathSeparator(rest[0]) {
		return path
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return path
	}
	return filepath.Join(home, rest)
}
