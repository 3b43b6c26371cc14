// SPDX-License-Identifier: Apache-2.0

package args

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxExact is 2⁵³: up to it a float64 holds every whole number.
const maxExact = 1 << 53

// decode turns a value as a source gave it (a text of a flag or variable, or
// what a JSON or YAML file held) into the field's canonical form: bool, int64,
// uint64, float64, string, []string, map[string]any, or nil for "not set". want
// is empty, or says what was wanted instead.
func (f *field) decode(raw any) (canonical any, want string) {
	if f.kind == reflect.Slice {
		return f.decodeList(raw)
	}
	if list, ok := raw.([]string); ok { // the texts of a repeated flag: the last one counts
		raw = list[len(list)-1]
	}
	if f.isUnset(raw) {
		return nil, ""
	}
	switch f.kind {
	case reflect.Bool:
		canonical, want = decodeBool(raw)
	case reflect.Int, reflect.Int64:
		canonical, want = decodeInt(raw)
	case reflect.Uint64:
		canonical, want = decodeUint(raw)
	case reflect.Float64:
		canonical, want = decodeFloat(raw)
	case reflect.Map:
		if canonical, want = decodeObject(raw, f.plain); want != "" {
			want = f.objectWanted(raw, want)
		}
	default:
		canonical, want = f.decodeString(raw)
	}
	if want != "" && f.optional {
		want += ", or none"
	}
	return canonical, want
}

// isUnset recognizes null in files and the word none in texts.
func (f *field) isUnset(raw any) bool {
	nullable := f.optional || f.kind == reflect.Map
	if text, ok := raw.(string); ok && f.kind != reflect.String {
		word := strings.ToLower(text)
		return nullable && (word == "none" || word == "null" || word != "" && word == f.unset)
	}
	return raw == nil && (nullable || f.kind == reflect.String)
}

func decodeBool(raw any) (any, string) {
	const want = "true or false"
	if b, ok := raw.(bool); ok {
		return b, ""
	}
	b, ok := boolWord(fmt.Sprint(raw))
	if !ok {
		return nil, want
	}
	return b, ""
}

// boolWord reads the words for a boolean of YAML 1.1 and of Go.
func boolWord(s string) (value, ok bool) {
	switch strings.ToLower(s) {
	case "true", "t", "yes", "y", "on", "1":
		return true, true
	case "false", "f", "no", "n", "off", "0":
		return false, true
	}
	return false, false
}

// numberText is the decimal text of a number or of a text; ok is false for
// anything else.
func numberText(raw any) (string, bool) {
	switch v := raw.(type) {
	case string:
		return strings.TrimSpace(v), true
	case json.Number:
		return v.String(), true
	case int, int64, uint64:
		return fmt.Sprint(v), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	}
	return "", false
}

func decodeInt(raw any) (any, string) {
	const want = "a whole number"
	text, ok := numberText(raw)
	if !ok {
		return nil, want
	}
	if i, err := strconv.ParseInt(text, 10, strconv.IntSize); err == nil {
		return i, ""
	}
	if whole, ok := wholeFloat(text); ok {
		return int64(whole), ""
	}
	return nil, want
}

func decodeUint(raw any) (any, string) {
	const want = "a whole number from 0 to 18446744073709551615"
	text, ok := numberText(raw)
	if !ok {
		return nil, want
	}
	if u, err := strconv.ParseUint(text, 10, 64); err == nil {
		return u, ""
	}
	if whole, ok := wholeFloat(text); ok && whole >= 0 {
		return uint64(whole), ""
	}
	return nil, want
}

// wholeFloat reads whole numbers written like 1e3, as far as they are exact.
func wholeFloat(text string) (float64, bool) {
	v, err := strconv.ParseFloat(text, 64)
	limit := min(float64(maxExact), float64(math.MaxInt))
	return v, err == nil && v == math.Trunc(v) && math.Abs(v) < limit
}

func decodeFloat(raw any) (any, string) {
	const want = "a finite number"
	text, ok := numberText(raw)
	if !ok {
		return nil, want
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !finite(v) {
		return nil, want
	}
	return v, ""
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// wantUTF8 is asked of every text, since JSON, which keeps them, can hold no other.
const wantUTF8 = "a text in UTF-8"

func (f *field) decodeString(raw any) (any, string) {
	var text string
	switch v := raw.(type) {
	case string:
		text = v
	case bool:
		text = strconv.FormatBool(v)
	default:
		number, ok := numberText(raw)
		if !ok || !f.number {
			return nil, "a text (in quotes, if it looks like something else)"
		}
		text = number
	}
	if !utf8.ValidString(text) {
		return nil, wantUTF8
	}
	if f.path {
		text = expandHome(text)
	}
	return text, ""
}

// decodeList reads a list, the texts of a repeated flag, or one text.
func (f *field) decodeList(raw any) (any, string) {
	want := "a list of texts"
	if f.toggle {
		want = "true, false or " + want
	}
	var texts []string
	switch v := raw.(type) {
	case nil:
		return nil, ""
	case bool:
		if !f.toggle {
			return nil, want
		}
		texts = []string{strconv.FormatBool(v)}
	case []string:
		for _, s := range v {
			texts = append(texts, f.splitText(s)...)
		}
	case string:
		// a JSON array, which variables need for several values
		if json.Unmarshal([]byte(v), &texts) != nil || texts == nil {
			texts = f.splitText(v)
		}
	case []any:
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil, want
			}
			texts = append(texts, s)
		}
	default:
		return nil, want
	}
	for i, s := range texts {
		if !utf8.ValidString(s) {
			return nil, wantUTF8
		}
		if f.path {
			texts[i] = expandHome(s)
		}
	}
	return texts, ""
}

func (f *field) splitText(s string) []string {
	if f.split == "" {
		return []string{s}
	}
	parts := strings.Split(s, f.split)
	for i, p := range parts {
		parts[i] = strings.TrimSpace(p)
	}
	return parts
}

// wantObject describes the value of a setting that is a group of settings.
const wantObject = "a JSON object of numbers, texts, booleans and lists of numbers"

// decodeObject leaves out the entries of plain, and nulls where there is a plain; nothing else is "not set".
func decodeObject(raw any, plain map[string]any) (any, string) {
	const want = wantObject
	if text, ok := raw.(string); ok {
		m, duplicates, err := parseJSON([]byte(text))
		if err != nil {
			return nil, want + " (" + err.Error() + ")"
		}
		if len(duplicates) > 0 {
			return nil, want + " without the same key twice (" + strings.Join(duplicates, ", ") + ")"
		}
		raw = m
	}
	m, ok := raw.(map[string]any)
	if !ok {
		return nil, want
	}
	out := make(map[string]any, len(m))
	for k, v := range m {
		if plain != nil && v == nil {
			continue
		}
		if _, isObject := v.(map[string]any); isObject && plain != nil { // its key says more than its type
			out[k] = v
			continue
		}
		text, isText := v.(string)
		if !utf8.ValidString(k) || !utf8.ValidString(text) {
			return nil, wantUTF8
		}
		if _, isBool := v.(bool); isBool || isText {
			out[k] = v
			continue
		}
		number, ok := decodeNumbers(v)
		if !ok {
			return nil, fmt.Sprintf("%s; %.40q has none of them", want, k)
		}
		out[k] = number
	}
	if plain == nil {
		return out, ""
	}
	maps.DeleteFunc(out, func(k string, v any) bool { return reflect.DeepEqual(v, plain[k]) })
	if len(out) == 0 {
		return nil, ""
	}
	return out, ""
}

// objectWanted is what is wanted where a text, or something else, is no object.
func (f *field) objectWanted(raw any, want string) string {
	text, isText := raw.(string)
	begun := isText && strings.HasPrefix(strings.TrimSpace(text), "{")
	if f.key == "tp_plan" {
		if begun {
			return planWanted() + "; " + want
		}
		return planWanted()
	}
	if isText && !begun {
		return wantObject + ", or a .json or .yaml file of one"
	}
	return want
}

// decodeNumbers reads a number, or a list of numbers.
func decodeNumbers(v any) (any, bool) {
	list, isList := v.([]any)
	if !isList {
		number, bad := decodeFloat(v)
		return number, bad == ""
	}
	numbers := make([]any, len(list))
	for i, one := range list {
		number, bad := decodeFloat(one)
		if bad != "" {
			return nil, false
		}
		numbers[i] = number
	}
	return numbers, true
}

// text is the field's value as a flag, --help and tables show it.
func (f *field) text(v reflect.Value) string {
	if f.optional {
		if v.IsNil() {
			return "none"
		}
		v = v.Elem()
	}
	switch f.kind {
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	case reflect.Slice:
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = v.Index(i).String()
		}
		return strings.Join(parts, ",")
	case reflect.Map:
		if v.Len() == 0 {
			return cmp.Or(f.unset, "none")
		}
		return jsonText(v.Interface())
	}
	return fmt.Sprint(v.Interface())
}

// masked is text, with what must stay secret replaced by the key's name.
func (f *field) masked(v reflect.Value) string {
	if text := f.text(v); !f.secret() || text == "" || text == "none" {
		return text
	}
	return f.mask()
}

// secret is HuggingFace's rule: keys ending in token are never written.
func (f *field) secret() bool { return strings.HasSuffix(f.key, "token") }

func (f *field) mask() string { return "<" + strings.ToUpper(f.key) + ">" }

// quote shows a value in a fault: texts in quotes, others as JSON writes them.
func quote(v any) string {
	rv := reflect.ValueOf(v)
	for rv.Kind() == reflect.Pointer && !rv.IsNil() {
		rv = rv.Elem()
	}
	switch rv.Kind() {
	case reflect.String:
		if n, ok := v.(json.Number); ok {
			return n.String()
		}
		return strconv.Quote(shorten(rv.String()))
	case reflect.Float64:
		return strconv.FormatFloat(rv.Float(), 'g', -1, 64)
	case reflect.Slice:
		if list, ok := v.([]string); ok && len(list) == 1 {
			return quote(list[0])
		}
	case reflect.Invalid, reflect.Pointer:
		return "null"
	}
	return shorten(jsonText(rv.Interface()))
}

// shorten keeps a fault in one line.
func shorten(s string) string {
	const limit = 200
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
