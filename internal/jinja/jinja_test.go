// SPDX-License-Identifier: Apache-2.0

package jinja_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-ml/lockstep/internal/jinja"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// render renders a template with variables in JSON.
func render(t testing.TB, template string, vars map[string]json.RawMessage) (string, [][2]int, error) {
	parsed, err := jinja.Parse(template)
	if err != nil {
		return "", nil, err
	}
	values := map[string]any{}
	for k, v := range vars {
		values[k], err = jinja.FromJSON(v)
		require.NoError(t, err)
	}
	return parsed.Render(values, jinja.Limits{Output: 1 << 20, Steps: 200_000, Time: time.Minute})
}

type golden struct {
	Vars  map[string]json.RawMessage
	Cases []struct {
		Template, Text, Error string
		Spans                 [][2]int
	}
}

func readGolden(t testing.TB) (g golden) {
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &g))
	return g
}

// Templates give what transformers renders, and fail where it fails.
func TestRendersAsTransformers(t *testing.T) {
	g := readGolden(t)
	require.Greater(t, len(g.Cases), 50)
	for _, c := range g.Cases {
		text, spans, err := render(t, c.Template, g.Vars)
		if c.Error != "" {
			require.Error(t, err, c.Template)
			continue
		}
		if !assert.NoError(t, err, c.Template) {
			continue
		}
		assert.Equal(t, c.Text, text, c.Template)
		assert.Equal(t, c.Spans, spans, c.Template)
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	for template, want := range map[string]string{
		"a\n{{ raise_exception('only two roles') }}": "the template refuses it: only two roles",
		"a\nb\n{{ missing.x }}":                      "line 3 of the template: missing is undefined, and has no x",
		"\n{% include 'x' %}":                        "line 2 of the template: the statement include is not supported",
		"{{ [1] | tojsn }}":                          "there is no filter tojsn",
		"{{ 1 is nice }}":                            "there is no test nice",
		"{% for x in [] %}":                          "the template ends: want {% endfor %}",
		"{% break %}":                                "break outside of a loop",
		"{{ 'a }}":                                   "a text without its closing quote",
		"{# a":                                       "a comment without #}",
		"{{ [1].append(2) }}":                        "a list cannot be changed by append: want list + [value]",
	} {
		_, _, err := render(t, template, nil)
		require.ErrorContains(t, err, want, template)
	}
}

// A template is a program of a stranger.
func TestTemplatesAreBounded(t *testing.T) {
	nest := func(open, inside, end string, n int) string {
		return strings.Repeat(open, n) + inside + strings.Repeat(end, n)
	}
	const namespace, loop = "{% set ns = namespace(s='ab', l=[1]) %}", "{% for i in range(40) %}"
	for template, want := range map[string]string{
		strings.Repeat("{% for a in range(1000) %}", 2) + strings.Repeat("{% endfor %}", 2): "more than 200000 steps",
		namespace + loop + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}":                       "1048576 bytes",
		namespace + loop + "{% set ns.l = ns.l + ns.l %}{% endfor %}":                       "1048576 bytes",
		"{{ 'a' * 99999999999 }}":                                "1048576 bytes",
		"{{ [1, 2] * 999999999 }}":                               "1048576 bytes",
		"{{ ('a' * 1000).replace('a', 'b' * 10000) }}":           "1048576 bytes",
		"{{ ('a' * 100000) | list | join('x' * 1000) }}":         "bytes",
		"{{ '%99999d' % 1 }}":                                    "is not supported",
		"{{ range(100001) | list }}":                             "a range of more than 100000 values",
		"{% for i in range(9999) %}{{ 'x' * 1000 }}{% endfor %}": "1048576 bytes",
		"{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}": "nested more than 200 deep",
		"{{ " + nest("(", "1", ")", 100_000) + " }}":             "nested more than 200 deep",
		"{{ " + strings.Repeat("not ", 100_000) + "1 }}":         "nested more than 200 deep",
		"{{ " + strings.Repeat("-", 100_000) + "1 }}":            "nested more than 200 deep",
		nest("{% if 1 %}", "x", "{% endif %}", 10_000):           "nested more than 200 deep",
		"{{ " + nest("[", "", "]", 10_000) + " }}":               "nested more than 200 deep",
	} {
		_, _, err := render(t, template, nil)
		require.ErrorContains(t, err, want, "%.80s", template)
	}
	_, err := jinja.Parse(strings.Repeat("x", 1<<21))
	require.ErrorContains(t, err, "want at most 1048576")
	slow, err := jinja.Parse("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
	require.NoError(t, err)
	_, _, err = slow.Render(nil, jinja.Limits{Steps: 1 << 40, Time: 20 * time.Millisecond})
	require.ErrorContains(t, err, "takes longer than 20ms")
}

func FuzzTemplate(f *testing.F) {
	g := readGolden(f)
	for _, c := range g.Cases {
		f.Add(c.Template)
	}
	f.Fuzz(func(t *testing.T, template string) {
		parsed, err := jinja.Parse(template)
		if err != nil {
			return
		}
		vars := map[string]any{}
		for k, v := range g.Vars {
			vars[k], _ = jinja.FromJSON(v)
		}
		text, spans, err := parsed.Render(vars, jinja.Limits{Output: 1 << 16, Steps: 20_000})
		if err != nil {
			return
		}
		for _, s := range spans {
			require.LessOrEqual(t, s[0], s[1])
			require.LessOrEqual(t, s[1], len(text))
		}
	})
}

// TestWholeNumbers: those of 64 bits are Python's, and larger ones are an error.
func TestWholeNumbers(t *testing.T) {
	run := func(source string) (string, error) {
		parsed, err := jinja.Parse(source)
		if err != nil {
			return "", err
		}
		text, _, err := parsed.Render(nil, jinja.Limits{})
		return text, err
	}
	for source, want := range map[string]string{
		"7 // 2": "3", "-7 // 2": "-4", "7 // -2": "-4", "-7 // -2": "3", "7 % -2": "-1", "-7 % 2": "1", "6 % -2": "0",
		"3 ** 39": "4052555153018976267", "(-1) ** 1000001": "-1", "0 ** 0": "1",
		"2 ** 62 - 1 + 2 ** 62": "9223372036854775807",
		"9007199254740993 // 1": "9007199254740993",
	} {
		got, err := run("{{ " + source + " }}")
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
	for _, source := range []string{"2 ** 63", "9 ** 9 ** 9", "10 ** 18 * 10", "9223372036854775807 + 1",
		"0 - 2 ** 62 - 2 ** 62 - 1"} {
		_, err := run("{{ " + source + " }}")
		require.ErrorContains(t, err, "a whole number of more than 64 bits", source)
	}
	_, err := jinja.Parse("text \xff{{ 1 }}")
	require.EqualError(t, err, "byte 6 of the template is no UTF-8")
	_, err = jinja.Parse("a \ufffd is a character")
	require.NoError(t, err)
}
