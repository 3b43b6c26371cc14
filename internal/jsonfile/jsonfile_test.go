// SPDX-License-Identifier: Apache-2.0

package jsonfile_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/stretchr/testify/require"
)

// pair reads ["a", 1].
type pair struct {
	Name string
	N    int
}

func (p *pair) UnmarshalJSON(text []byte) error {
	list := []any{&p.Name, &p.N}
	if err := json.Unmarshal(text, &list); err != nil || len(list) != 2 {
		return fmt.Errorf("want a name and a number")
	}
	return nil
}

type base struct {
	Size int `json:"hidden_size"`
}

type settings struct {
	base
	Rate   float64            `json:"rate"`
	Small  int8               `json:"small"`
	Name   string             `json:"name"`
	On     bool               `json:"on"`
	List   []int              `json:"list" max:"3"`
	Heads  int                `json:"heads" null:"ok"`
	Window *int               `json:"window"`
	Raw    json.RawMessage    `json:"raw"`
	Any    any                `json:"any"`
	Table  map[string]float64 `json:"table"`
	Inner  []struct{ Factor float64 }
	Pairs  []pair `json:"pairs"`
}

func TestErrorsNameKeyAndValue(t *testing.T) {
	deep := strings.Repeat("[", 5000)
	for _, c := range []struct{ text, want string }{
		{``, "it is empty: want JSON"},
		{" \n", "it is empty: want JSON"},
		{"\ufeff{}", "byte order mark"},
		{`[]`, "it is a list: want an object"},
		{`{"hidden_size": "64"}`, `hidden_size is "64": want a whole number`},
		{`{"hidden_size": null}`, `hidden_size is null: want a whole number`},
		{`{"hidden_size": 6.5}`, `hidden_size is 6.5: want a whole number`},
		{`{"hidden_size": 1e400}`, `hidden_size is 1e400: want a whole number`},
		{`{"small": 300}`, `small is 300: want a whole number that 8 bits can hold`},
		{`{"rate": 1e400}`, `rate is 1e400: want a number that 64 bits can hold`},
		{`{"rate": NaN}`, `line 1, column 10, rate: NaN is not a number in JSON`},
		{`{"rate": -Infinity}`, `rate: -Infinity is not a number in JSON`},
		{`{"rate": 01}`, `rate: 01 is not a number in JSON`},
		{`{"rate": {"a": 1}}`, `rate is an object: want a number`},
		{`{"name": 3}`, `name is 3: want a text`},
		{`{"on": "yes"}`, `on is "yes": want true or false`},
		{`{"list": [1, 2, "x"]}`, `list[2] is "x": want a whole number`},
		{`{"list": [1, 2, 3, 4]}`, `list has more than 3 values`},
		{`{"table": {"a b": "x"}}`, `table["a b"] is "x": want a number`},
		{`{"inner": [{"factor": 1}, {"factor": []}]}`, `inner[1].factor is a list: want a number`},
		{`{"pairs": [["a", 1], ["b"]]}`, `pairs[1] is ["b"]: want a name and a number`},
		{`{"name": "a", "name": "b"}`, `it has the key "name" twice`},
		{`{"raw": {"x": {"y": 1, "y": 2}}}`, `raw.x has the key "y" twice`},
		{`{"Hidden_Size": 3}`, `it has the key "Hidden_Size": want "hidden_size"`},
		{"{\"name\": \"a\",\n \"on\" true}", "line 2, column 7: want a colon behind the key \"on\""},
		{`{"name": "a",}`, "a comma before }: want none"},
		{`{"name": "a" "on": true}`, `want a comma or }`},
		{`{name: 1}`, `want a key in quotes`},
		{`{"name": 'a'}`, `name: '\'': want a value`},
		{`{"on": True}`, `on: True: want a value in JSON`},
		{`{"name": "a`, `name: a text whose closing quote is missing`},
		{`{"name": "a"`, `the text ends too early: want }`},
		{`{"name": "a\xff"}`, `name: a text with an escape that JSON does not have`},
		{"{\"name\": \"a\xff\"}", `name: a text that is not UTF-8`},
		{`{"name": "\ud800"}`, `not half of a pair`},
		{"{\"name\": \"a\nb\"}", `a control character in a text`},
		{`{} {}`, `there is more behind the end`},
		{deep, "line 1, column 102: brackets are nested more than 100 deep"},
	} {
		err := jsonfile.Unmarshal([]byte(c.text), &settings{})
		require.ErrorContains(t, err, c.want, "%.60s", c.text)
		require.NotRegexp(t, `Go |json:|jsonfile|settings`, err.Error())
	}
	err := jsonfile.Unmarshal([]byte(`{"rate": "x", "on": 1}`), &settings{})
	require.EqualError(t, err, `rate is "x": want a number; on is 1: want true or false`)
	err = jsonfile.Strict([]byte(`{"table": {"x": 1}, "rat": 1}`), &settings{})
	require.EqualError(t, err, `it has the key "rat", which is unknown`)
}

func TestValuesAreThoseOfEncodingJSON(t *testing.T) {
	text := `{"hidden_size": 3, "rate": 1e-5, "name": "\u00e9\ud83d\ude00\"", "on": true, "list": [1], "heads": null,
		"window": null, "raw": {"a": [1, {}]}, "any": [null, "x"], "table": {"a": 2}, "inner": [{"factor": 0.5}],
		"pairs": [["a", 1]], "other": []}`
	var got, want settings
	require.NoError(t, jsonfile.Unmarshal([]byte(text), &got))
	require.NoError(t, json.Unmarshal([]byte(text), &want))
	require.Equal(t, want, got)

	kept := settings{Rate: 2}
	require.NoError(t, jsonfile.Options{Nulls: true}.Unmarshal([]byte(`{"rate": null}`), &kept))
	require.EqualValues(t, 2, kept.Rate)
	var object map[string]any
	require.NoError(t, jsonfile.Options{Numbers: true}.Unmarshal([]byte(`{"seed": 12345678901234567890}`), &object))
	require.Equal(t, json.Number("12345678901234567890"), object["seed"])
}

// FuzzUnmarshal: what is read is JSON, and means what encoding/json says.
func FuzzUnmarshal(f *testing.F) {
	for _, text := range []string{`{"hidden_size": 3}`, `[1, {"a": null}]`, `"\u00e9"`, `-0.5e+7`,
		`{"pairs": [["a", 1]]}`, `{"a": 1, "a": 2}`, `nul`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var got, want any
		err := jsonfile.Unmarshal(text, &got)
		if err == nil {
			require.NoError(t, json.Unmarshal(text, &want))
			require.Equal(t, want, got)
		}
		var s settings
		if err := jsonfile.Unmarshal(text, &s); err != nil {
			require.NotContains(t, err.Error(), "Go ")
		}
	})
}
