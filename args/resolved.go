// SPDX-License-Identifier: Apache-2.0

package args

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Resolved is the outcome of Loader.Parse: every setting with its value and
// where that came from.
type Resolved struct {
	// Notices are the lines for the user about names that were accepted without being settings.
	Notices []Notice

	schema  *schema
	structs []any
	origins map[string]string
	chosen  map[string]string // origins of defaults that the program chose
}

// Origin says where a setting's value came from: "flag --x", "env LOCKSTEP_X",
// "file x.yaml", what the function given to Loader.Defaults returned, or "" for a default.
func (r *Resolved) Origin(key string) string { return cmp.Or(r.origins[key], r.chosen[key]) }

// Table lists key, value and origin ("default" for a default) of every setting,
// in the order of the structs' fields. Values of keys that end in token are
// masked. Values are the structs' present ones.
func (r *Resolved) Table() [][3]string {
	rows := make([][3]string, 0, len(r.schema.fields))
	for _, f := range r.schema.fields {
		origin := r.Origin(f.key)
		if f.key == configKey && origin == "" {
			continue
		}
		rows = append(rows, [3]string{f.key, f.masked(f.of(r.structs)), cmp.Or(origin, "default")})
	}
	return rows
}

// WriteTable writes Table in aligned columns.
func (r *Resolved) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	clean := strings.NewReplacer("\t", " ", "\n", " ", "\r", " ", "\v", " ", "\f", " ")
	for _, row := range r.Table() {
		if _, err := fmt.Fprintf(tw, "%s\t%s\t%s\n", row[0], clean.Replace(row[1]), clean.Replace(row[2])); err != nil {
			return err
		}
	}
	return tw.Flush()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
