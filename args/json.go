// SPDX-License-Identifier: Apache-2.0

package args

import (
	"bytes"
	"encoding/json"
)

// JSON is the content of training_args.json: one object with every key, in the
// order of the fields. Values of keys that end in token are replaced by <KEY>, as
// HuggingFace does. It fails for values that JSON cannot hold, which Validate
// refuses: NaN and infinities.
func (a *TrainingArguments) JSON() ([]byte, error) { return MarshalJSON(a) }

// MarshalJSON is JSON for any list of settings structs, in one object.
func MarshalJSON(structs ...any) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range newSchema(structs...).fields {
		if i > 0 {
			b.WriteByte(',')
		}
		v := f.of(structs)
		var value any = v.Interface()
		if text := f.masked(v); f.secret() && text == f.mask() {
			value = text
		}
		if err := appendJSON(&b, f.key); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := appendJSON(&b, value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	var out bytes.Buffer
	err := json.Indent(&out, b.Bytes(), "", "  ")
	out.WriteByte('\n')
	return out.Bytes(), err
}

// appendJSON leaves <, > and & as they are, unlike json.Marshal.
func appendJSON(b *bytes.Buffer, v any) error {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// FromJSON reads what JSON wrote. Keys that are missing keep their default, so
// that files of earlier versions can be read; unknown keys and bad values are
// reported together in an *Error. The values are not judged: see Validate.
func FromJSON(data []byte) (*TrainingArguments, error) {
	a := Default("")
	err := UnmarshalJSON(data, a)
	if err != nil {
		return nil, err
	}
	return a, nil
}

// UnmarshalJSON reads one JSON object into a list of settings structs. They are
// changed only if there is no fault.
func UnmarshalJSON(data []byte, structs ...any) error {
	m, duplicates, err := parseJSON(data)
	if err != nil {
		return &Error{Faults: []Fault{{Problem: "cannot read arguments", Want: err.Error()}}}
	}
	s := newSchema(structs...)
	var faults []Fault
	for _, key := range duplicates {
		faults = append(faults, Fault{Problem: "duplicate key", Key: key, Want: "want it once"})
	}
	canonical := map[string]any{}
	for _, key := range sortedKeys(m) {
		f := s.byKey[key]
		if f == nil {
			faults = append(faults, Fault{Problem: "unknown key", Key: key,
				Want: didYouMean(key, "", sortedKeys(s.byKey), "this version has no such setting")})
			continue
		}
		v, want := f.decode(m[key])
		if want != "" {
			faults = append(faults, Fault{Key: key, Value: quote(m[key]), Want: want})
			continue
		}
		canonical[key] = v
	}
	if len(faults) > 0 {
		return asError(faults)
	}
	for key, v := range canonical {
		s.byKey[key].assign(structs, v)
	}
	return nil
}
