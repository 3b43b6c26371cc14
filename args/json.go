// SPDX-License-Identifier: Apache-2.0

package args

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
)

// JSON is the content of training_args.json: one object with every key, in the order of the fields. HuggingFace's
// HfArgumentParser reads it too (parse_json_file with allow_extra_keys): where its TrainingArguments have None, the
// value is null, as for an empty text and for ddp_backend auto, and do_eval follows eval_strategy. Values of keys that
// end in token are replaced by <KEY>, as HuggingFace does. It fails for values that JSON cannot hold, which Validate
// refuses: NaN and infinities. The error names the setting.
func (a *TrainingArguments) JSON() ([]byte, error) {
	c := a.Clone()
	c.followEvalStrategy()
	return MarshalJSON(c)
}

// asNone lists the texts of values that are None in HuggingFace's TrainingArguments.
var asNone = map[string]string{"ddp_backend": string(BackendAuto), "ddp_bucket_cap_mb": "0"}

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
		switch text := f.masked(v); {
		case f.secret() && text == f.mask():
			value = text
		case f.kind == reflect.String && text == "", asNone[f.key] != "" && text == asNone[f.key]:
			value = nil
		}
		if err := appendJSON(&b, f.key); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := appendJSON(&b, value); err != nil {
			return nil, fmt.Errorf("args: %s is %s: %w", f.key, f.text(v), err)
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

// FromJSON reads what JSON wrote, or what transformers did (TrainingArguments.to_json_string). Keys that are missing
// keep their default, so that files of earlier versions can be read. HuggingFace's names that are no field here are
// understood as a Loader understands them, without notices. Unknown keys and bad values are reported together in an
// *Error. The values are not judged: see Validate. The files that deepspeed and fsdp_config name are not read: see
// ReadConfigs.
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
	g := newMerge(newLoader(structs), "this version has no such setting")
	for _, key := range duplicates {
		g.fault(Fault{Problem: "duplicate key", Key: key, Want: "want it once"})
	}
	g.mustLoad(settings(m), func(string) string { return "" })
	g.judge()
	if err := g.checker.Err(); err != nil {
		return err
	}
	g.assign(structs)
	if a := g.loader.training(structs); a != nil {
		a.followEvalStrategy()
	}
	return nil
}
