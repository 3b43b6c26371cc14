// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Optim names an optimizer.
type Optim string

// The optimizers that code names. OptimAdamW and OptimAdamWFused are the same AdamW: HuggingFace tells two
// implementations apart, of which Lockstep has one.
const (
	OptimAdamW      Optim = "adamw_torch"
	OptimAdamWFused Optim = "adamw_torch_fused"
	OptimAdam       Optim = "adam"
	OptimSGD        Optim = "sgd"
)

// optimizers is the table of the values of optim. Each optimizer has a file in package optim, with a Config of the
// settings that are listed here and of those adam_beta1, adam_beta2 and adam_epsilon that it reads.
var optimizers = []optimizer{
	{name: OptimAdamW},      // Loshchilov and Hutter 2019: decoupled weight decay
	{name: OptimAdamWFused}, // HuggingFace's default
	{name: OptimAdam},       // Kingma and Ba 2015: weight decay joins the gradient
	{name: OptimSGD, fault: nesterovFault,
		settings: []setting{{"momentum", anyNonNegative}, {"dampening", unitRatio}, {"nesterov", kwargRule{}}}},
}

// optimizer is a row of the table.
type optimizer struct {
	name     Optim
	settings []setting                         // of optim_args
	fault    func(given map[string]any) string // says what else was wanted of them, or nothing; nil: nothing is
}

// setting is one that optim_args may hold.
type setting struct {
	key  string
	rule kwargRule // none: true or false
}

// nesterovFault: as in torch.optim.SGD.
func nesterovFault(given map[string]any) string {
	momentum, _ := given["momentum"].(float64)
	dampening, _ := given["dampening"].(float64)
	if given["nesterov"] == true && (momentum <= 0 || dampening != 0) {
		return "momentum > 0 and dampening 0 with nesterov"
	}
	return ""
}

// choices lists the names of the table.
func (Optim) choices() []string {
	var names []string
	for _, o := range optimizers {
		names = append(names, string(o.name))
	}
	return names
}

// OptimSettings is what OptimArgs holds, numbers and booleans by name; the error is an *Error.
func (a *TrainingArguments) OptimSettings() (map[string]any, error) {
	given, want := parseOptimArgs(a.Optim, a.OptimArgs)
	var c Checker
	c.Require(want == "", "optim_args", a.OptimArgs, want)
	return given, c.Err()
}

// OptimSettingNames lists what optim_args may hold for each value of optim. It is for package trainer.
func OptimSettingNames() map[Optim][]string {
	names := map[Optim][]string{}
	for _, o := range optimizers {
		names[o.name] = o.keys()
	}
	return names
}

func (o optimizer) keys() (keys []string) {
	for _, s := range o.settings {
		keys = append(keys, s.key)
	}
	return keys
}

// parseOptimArgs reads k=v,k=v. want is empty, or says what was wanted.
func parseOptimArgs(name Optim, text string) (given map[string]any, want string) {
	given = map[string]any{}
	at := slices.IndexFunc(optimizers, func(o optimizer) bool { return o.name == name })
	if strings.TrimSpace(text) == "" || at < 0 {
		return given, ""
	}
	o := optimizers[at]
	if o.settings == nil {
		return given, fmt.Sprintf("nothing: %s has no settings of its own", name)
	}
	for pair := range strings.SplitSeq(text, ",") {
		k, v, ok := strings.Cut(pair, "=")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		i := slices.Index(o.keys(), k)
		if !ok || i < 0 {
			return given, fmt.Sprintf("key=value,… with keys from %s for %s", strings.Join(o.keys(), ", "), name)
		}
		if _, twice := given[k]; twice {
			return given, k + " once"
		}
		if given[k], want = o.settings[i].read(v); want != "" {
			return given, want
		}
	}
	if o.fault != nil {
		want = o.fault(given)
	}
	return given, want
}

// read decodes a value of the setting. want is empty, or says what was wanted.
func (s setting) read(text string) (value any, want string) {
	if s.rule.ok == nil {
		b, ok := boolWord(text)
		if !ok {
			return nil, "true or false for " + s.key
		}
		return b, ""
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !finite(v) || !s.rule.ok(v) {
		return nil, s.rule.want + " for " + s.key
	}
	return v, ""
}
