// SPDX-License-Identifier: Apache-2.0

package args

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing wrong with the settings.
type Fault struct {
	// Key is the setting's name; for an unknown one, as the user wrote it.
	Key string
	// Value is the value as given, texts in quotes; empty where there is none.
	Value string
	// Origin says where the value came from: "flag --x", "env LOCKSTEP_X" or
	// "file x.yaml". It is empty for values set by the program.
	Origin string
	// Problem replaces "the value is wrong" for other faults: "unknown key".
	Problem string
	// Want says what was wanted instead.
	Want string
	// Reason takes the place of "want …" where nothing else would do: "not built yet: …".
	Reason string
}

// Error is the fault in one line.
func (f Fault) Error() string {
	if f.Problem == "" {
		return fmt.Sprintf("%s is %s%s; %s", f.Key, f.Value, enclose(" (", f.Origin, ")"),
			cmp.Or(f.Reason, "want "+f.Want))
	}
	return f.Problem + enclose(" ", f.Key, "") + enclose(" in ", f.Origin, "") + enclose("; ", f.Want, "")
}

func enclose(before, text, after string) string {
	if text == "" {
		return ""
	}
	return before + text + after
}

// Error is every fault found in the settings, in the order found.
type Error struct {
	Faults []Fault
}

// Permanent says that a launcher need not start the program again: see accelerate.RecordError.
func (*Error) Permanent() bool { return true }

// Error lists the faults, one a line.
func (e *Error) Error() string {
	if len(e.Faults) == 1 {
		return "arguments: " + e.Faults[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "arguments: %d faults:", len(e.Faults))
	for _, f := range e.Faults {
		b.WriteString("\n  - ")
		b.WriteString(f.Error())
	}
	return b.String()
}

// Unwrap gives the faults to errors.As.
func (e *Error) Unwrap() []error {
	out := make([]error, len(e.Faults))
	for i, f := range e.Faults {
		out[i] = f
	}
	return out
}

// asError is nil for no faults.
func asError(faults []Fault) error {
	if len(faults) == 0 {
		return nil
	}
	return &Error{Faults: faults}
}

// nearest is the candidate with the smallest edit distance to name, else the
// first that has all words of a name of several, or "" where none is near enough
// to be what was meant.
func nearest(name string, candidates []string) string {
	best, bestDistance := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		if max(len(c)-len(name), len(name)-len(c)) >= bestDistance {
			continue // the lengths alone are that far apart
		}
		if d := editDistance(name, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	words := strings.Split(name, "_")
	if best != "" || len(words) < 2 {
		return best
	}
	i := slices.IndexFunc(candidates, func(c string) bool {
		has := strings.Split(c, "_")
		return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(has, w) })
	})
	if i < 0 {
		return ""
	}
	return candidates[i]
}

// meant leads from names that are nobody's to the settings that their users mean.
var meant = map[string]string{
	"train_batch_size": "per_device_train_batch_size",
	"eval_batch_size":  "per_device_eval_batch_size",
}

// didYouMean is the hint for an unknown name, with the prefix that its users
// write before names; otherwise is said when nothing is near.
func didYouMean(name, prefix string, candidates []string, otherwise string) string {
	n := meant[name]
	if !slices.Contains(candidates, n) {
		n = nearest(name, candidates)
	}
	if n != "" {
		return "did you mean " + prefix + n + "?"
	}
	return otherwise
}

// editDistance is the optimal string alignment distance: insertions, deletions,
// substitutions and swaps of neighbours, one each.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
