// SPDX-License-Identifier: Apache-2.0

package args

import (
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/catalog"
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
	settings catalog.Settings
}{
	{CommHookNo, nil}, {CommHookFP16, nil}, {CommHookBF16, nil},
	{CommHookInt8, catalog.Settings{{Key: "block_size", Rule: catalog.PositiveInt}}},
	{CommHookPowerSGD, catalog.Settings{{Key: "matrix_approximation_rank", Rule: catalog.PositiveInt},
		{Key: "start_powerSGD_iter", Rule: catalog.Count}, {Key: "min_compression_rate", Rule: catalog.Positive},
		{Key: "use_error_feedback", Rule: catalog.Switch}, {Key: "warm_start", Rule: catalog.Switch},
		{Key: "random_seed", Rule: catalog.Count}}},
	{CommHookTopK, catalog.Settings{{Key: "density", Rule: catalog.PositivePart},
		{Key: "use_error_feedback", Rule: catalog.Switch}}},
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
		names[h.name] = slices.Sorted(slices.Values(h.settings.Keys()))
	}
	return names
}

// commHookFault says what was wanted of ddp_comm_state_option, or nothing.
func (a *TrainingArguments) commHookFault() (want string) {
	for _, h := range commHooks {
		if h.name != a.DDPCommHook {
			continue
		}
		if wants := h.settings.Wants(string(h.name), a.DDPCommStateOption); len(wants) > 0 {
			return wants[0]
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
