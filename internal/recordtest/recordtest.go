// SPDX-License-Identifier: Apache-2.0

// Package recordtest reads what programs print in the form of records: pairs "key value" with two spaces between them,
// in logs behind the time, the level and the message. Use it in tests, in place of a pattern for the text of a line.
package recordtest

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Record is the pairs of a line.
type Record map[string]string

var (
	between = regexp.MustCompile(` {2,}`)
	isKey   = regexp.MustCompile(`^[a-z][a-z0-9_.]*$`)
)

// Parse reads a line. What is no pair is left out.
func Parse(line string) Record {
	r := Record{}
	for _, pair := range between.Split(strings.TrimSpace(line), -1) {
		if key, value, ok := strings.Cut(pair, " "); ok && isKey.MatchString(key) {
			r[key] = value
		}
	}
	return r
}

// Having are the records of a text's lines that have all keys.
func Having(text string, keys ...string) (list []Record) {
lines:
	for line := range strings.Lines(text) {
		r := Parse(line)
		for _, key := range keys {
			if _, ok := r[key]; !ok {
				continue lines
			}
		}
		list = append(list, r)
	}
	return list
}

// Last is the last record that has all keys, with these alone: two are equal if they have the same values.
func Last(t testing.TB, text string, keys ...string) Record {
	t.Helper()
	all := Having(text, keys...)
	require.NotEmpty(t, all, "no line has %q: %s", keys, text)
	r := Record{}
	for _, key := range keys {
		r[key] = all[len(all)-1][key]
	}
	return r
}

// Number is a value that is a number.
func (r Record) Number(t testing.TB, key string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(r[key], 64)
	require.NoError(t, err, key)
	return v
}
