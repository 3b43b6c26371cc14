// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// CommHook names what happens to gradients on their way between ranks.
type CommHook string

// The communication hooks, with the names of HuggingFace accelerate where it has them.
const (
	CommHookNo       CommHook = "no"        // the exact sum, with the same bits on any number of ranks
	CommHookFP16     CommHook = "fp16"      // rounded to float16 for the way
	CommHookBF16     CommHook = "bf16"      // rounded to bfloat16 for the way
	CommHookInt8     CommHook = "int8"      // rounded to blocks of 8-bit numbers for the way
	CommHookPowerSGD CommHook = "power_sgd" // matrices of low rank, with error feedback
	CommHookTopK     CommHook = "top_k"     // the largest numbers, with error feedback
)

// commHooks is the table of the values of ddp_comm_hook, each with what ddp_comm_state_option may hold for it. Each has
// a file in accelerate/ddp.
var commHooks = []struct {
	name     CommHook
	settings map[string]kwargRule // a zero rule: true or false
}{
	{CommHookNo, nil}, {CommHookFP16, nil}, {CommHookBF16, nil},
	{CommHookInt8, map[string]kwargRule{"block_size": wholeCycles}},
	{CommHookPowerSGD, map[string]kwargRule{"matrix_approximation_rank": wholeCycles, "start_powerSGD_iter": wholeSteps,
		"min_compression_rate": anyPositive, "use_error_feedback": {}, "warm_start": {}, "random_seed": wholeSteps}},
	{CommHookTopK, map[string]kwargRule{"density": {ok: func(v float64) bool { return v > 0 && v <= 1 },
		want: "a number in (0, 1]"}, "use_error_feedback": {}}},
}

// choices lists the names of the table.
func (CommHook) choices() []string {
	var names []string
	for _, h := range commHooks {
		names = append(names, string(h.name))
	}
	return names
}

// CommHookSettings lists what ddp_comm_state_option may hold for each value of ddp_comm_hook. It is for package
// accelerate.
func CommHookSettings() map[CommHook][]string {
	names := map[CommHook][]string{}
	for _, h := range commHooks {
		names[h.name] = slices.Sorted(maps.Keys(h.settings))
	}
	return names
}

// commHookFault says what was wanted of ddp_comm_state_option, or nothing.
func (a *TrainingArguments) commHookFault() (want string) {
	var rules map[string]kwargRule
	for _, h := range commHooks {
		if h.name == a.DDPCommHook {
			rules = h.settings
		}
	}
	for _, key := range slices.Sorted(maps.Keys(a.DDPCommStateOption)) {
		rule, known := rules[key]
		value := a.DDPCommStateOption[key]
		_, isBool := value.(bool)
		switch {
		case len(rules) == 0:
			return fmt.Sprintf("none, since the communication hook %s has no settings", a.DDPCommHook)
		case !known:
			return fmt.Sprintf("keys from %s for %s, not %s", strings.Join(slices.Sorted(maps.Keys(rules)), ", "),
				a.DDPCommHook, key)
		case rule.ok == nil && !isBool:
			return key + " to be true or false"
		case rule.ok != nil:
			if want := rule.fault(key, value); want != "" {
				return want
			}
		}
	}
	return ""
}

// checkLocalSGD checks the settings of ranks that step on their own.
func (a *TrainingArguments) checkLocalSGD(c *Checker) {
	between(c, "local_sgd_steps", a.LocalSGDSteps, 0, math.MaxInt32)
	if between(c, "start_local_sgd_iter", a.StartLocalSGDIter, 0, math.MaxInt32) {
		c.Require(a.StartLocalSGDIter == 0 || a.LocalSGDSteps > 0, "start_local_sgd_iter", a.StartLocalSGDIter,
			"0, or local_sgd_steps of at least 1: they say what begins there")
	}
	if a.LocalSGDSteps > 0 && c.OK("ddp_comm_hook") {
		c.Require(a.DDPCommHook == CommHookNo, "ddp_comm_hook", a.DDPCommHook,
			"no with local_sgd_steps: ranks that step on their own exchange no gradients")
	}
}
