// SPDX-License-Identifier: Apache-2.0

package args

import (
	"math"

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

func (CommHook) choices() (names []string) {
	for _, h := range catalog.CommHooks {
		names = append(names, h.Name)
	}
	return names
}

// commHookFault says what was wanted of ddp_comm_state_option, or nothing.
func (a *TrainingArguments) commHookFault() (want string) {
	for _, h := range catalog.CommHooks {
		if wants := h.Settings.Wants(h.Name, a.DDPCommStateOption); h.Name == string(a.DDPCommHook) && len(wants) > 0 {
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
			"0, or local_sgd_steps of at least 1, which begin there")
	}
	if a.LocalSGDSteps > 0 && c.OK("ddp_comm_hook") {
		c.Require(a.DDPCommHook == CommHookNo, "ddp_comm_hook", a.DDPCommHook,
			"no with local_sgd_steps: ranks that step independently exchange no gradients")
	}
}
