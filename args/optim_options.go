// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// OptimOptions is what optim_args holds, parsed.
type OptimOptions struct {
	// Momentum is the decay rate of SGD's velocity, ≥ 0.
	Momentum float64
	// Dampening is the part of the gradient, in [0, 1], kept out of SGD's velocity.
	Dampening float64
	// Nesterov asks for Nesterov's look-ahead; it needs momentum and no dampening.
	Nesterov bool
}

// optimArgKeys lists the keys of optim_args by optimizer, where it has any.
var optimArgKeys = map[Optim][]string{
	OptimSGD: {"momentum", "dampening", "nesterov"},
}

// Optimizer is Optim without aliases: OptimAdamWFused is OptimAdamW.
func (a *TrainingArguments) Optimizer() Optim {
	if a.Optim == OptimAdamWFused {
		return OptimAdamW
	}
	return a.Optim
}

// OptimOptions parses OptimArgs; the error is an *Error.
func (a *TrainingArguments) OptimOptions() (OptimOptions, error) {
	options, want := parseOptimArgs(a.Optim, a.OptimArgs)
	var c Checker
	c.Require(want == "", "optim_args", a.OptimArgs, want)
	return options, c.Err()
}

// parseOptimArgs reads k=v,k=v. want is empty, or says what was wanted.
func parseOptimArgs(optim Optim, text string) (o OptimOptions, want string) {
	if strings.TrimSpace(text) == "" {
		return o, ""
	}
	keys := optimArgKeys[optim]
	if keys == nil {
		return o, fmt.Sprintf("nothing: %s has no settings of its own", optim)
	}
	var seen []string
	for pair := range strings.SplitSeq(text, ",") {
		k, v, ok := strings.Cut(pair, "=")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		if !ok || !slices.Contains(keys, k) {
			return o, fmt.Sprintf("key=value,… with keys from %s for %s", strings.Join(keys, ", "), optim)
		}
		if slices.Contains(seen, k) {
			return o, k + " once"
		}
		seen = append(seen, k)
		if want := o.set(k, v); want != "" {
			return o, want
		}
	}
	if o.Nesterov && (o.Momentum <= 0 || o.Dampening != 0) {
		return o, "momentum > 0 and dampening 0 with nesterov"
	}
	return o, ""
}

func (o *OptimOptions) set(key, value string) (want string) {
	if key == "nesterov" {
		b, ok := boolWord(value)
		if !ok {
			return "true or false for nesterov"
		}
		o.Nesterov = b
		return ""
	}
	v, err := strconv.ParseFloat(value, 64)
	if err != nil || !finite(v) || v < 0 {
		return "a finite number ≥ 0 for " + key
	}
	if key == "momentum" {
		o.Momentum = v
		return ""
	}
	if v > 1 {
		return "a number in [0, 1] for dampening"
	}
	o.Dampening = v
	return ""
}
