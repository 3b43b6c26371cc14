// SPDX-License-Identifier: Apache-2.0

package args

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/misspelt"
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
		return f.Key + " is " + f.Value + enclose(" (", f.Origin, ")") + behind(cmp.Or(f.Reason, "want "+f.Want))
	}
	return f.Problem + enclose(" ", f.Key, "") + enclose(" in ", f.Origin, "") + behind(f.Want)
}

// behind joins what is wanted with a colon, and other remarks with a semicolon.
func behind(remark string) string {
	if strings.HasPrefix(remark, "want ") {
		return ": " + remark
	}
	return enclose("; ", remark, "")
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

// Unwrap returns the faults to errors.As.
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

// meant leads from names that are nobody's to the settings that their users mean.
var meant = map[string]string{
	"train_batch_size": "per_device_train_batch_size",
	"eval_batch_size":  "per_device_eval_batch_size",
}

// didYouMean is the hint for an unknown name, with the prefix that its users
// write before names; otherwise is said when nothing is near.
func didYouMean(name, prefix string, candidates []string, otherwise string) string {
	if n := meant[name]; slices.Contains(candidates, n) {
		name = n
	}
	return misspelt.Suggestion(name, prefix, candidates, otherwise)
}
