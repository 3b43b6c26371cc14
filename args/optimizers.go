// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/catalog"
)

// Optim names an optimizer. --help lists all names, and what OptimArgs may hold for each.
type Optim string

// The optimizers that code names. OptimAdamW and OptimAdamWFused are the same AdamW: HuggingFace has names for
// implementations, of which Lockstep has one.
const (
	OptimAdamW      Optim = "adamw_torch"
	OptimAdamWFused Optim = "adamw_torch_fused"
	OptimAdam       Optim = "adam"
	OptimSGD        Optim = "sgd"
)

func (Optim) choices() []string { return catalog.OptimizerNames() }

// sameOptimizer reports whether two values of optim mean one optimizer.
func sameOptimizer(a, b any) bool {
	x, known := catalog.OptimizerNamed(fmt.Sprint(a))
	y, _ := catalog.OptimizerNamed(fmt.Sprint(b))
	return known && x.Name == y.Name
}

// OptimSettings is what OptimArgs holds, numbers, texts and booleans by name; the error is an *Error.
func (a *TrainingArguments) OptimSettings() (map[string]any, error) {
	given, want := a.optimSettings()
	var c Checker
	c.Require(want == "", "optim_args", a.OptimArgs, want)
	return given, c.Err()
}

// optimSettings reads k=v,k=v. want is empty, or says what was wanted.
func (a *TrainingArguments) optimSettings() (given catalog.Values, want string) {
	given = catalog.Values{}
	o, known := catalog.OptimizerNamed(string(a.Optim))
	if !known || strings.TrimSpace(a.OptimArgs) == "" {
		return given, ""
	}
	for pair := range strings.SplitSeq(a.OptimArgs, ",") {
		k, v, ok := strings.Cut(pair, "=")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		if _, twice := given[k]; twice {
			return given, k + " once"
		}
		if !ok {
			return given, "key=value,…, not " + k
		}
		given[k] = optimValue(o.Settings, k, v)
	}
	if wants := o.Wants(string(a.Optim), given); len(wants) > 0 {
		return given, wants[0]
	}
	return given, ""
}

// optimValue is what a setting may be, or the text itself, which then is wrong.
func optimValue(settings catalog.Settings, key, text string) any {
	s, _ := settings.Lookup(key)
	switch {
	case s.Rule.Switch:
		if b, ok := boolWord(text); ok {
			return b
		}
	case s.Rule.OK != nil:
		if v, err := strconv.ParseFloat(text, 64); err == nil {
			return v
		}
	}
	return text
}
