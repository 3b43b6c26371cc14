// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/internal/adapters"
	"github.com/lockstep-ml/lockstep/examples/internal/pairs"
)

// RewardArguments are the settings of the loss, by the names of TRL's RewardConfig.
type RewardArguments struct {
	CenterRewardsCoefficient float64 `json:"center_rewards_coefficient" usage:"weight of the squared sum of a pair's scores, which keeps scores near 0; 0: none"`
}

// Check reports all faults at once.
func (r *RewardArguments) Check(c *args.Checker) {
	c.Require(r.CenterRewardsCoefficient >= 0, "center_rewards_coefficient", r.CenterRewardsCoefficient, "at least 0")
}

// defaults are those of TRL's RewardConfig, except that numbers are float32.
func defaults() (*args.TrainingArguments, *pairs.PreferenceArguments, *RewardArguments, *adapters.AdapterArguments) {
	a, l := args.Default("out/reward"), adapters.Defaults()
	a.LearningRate, a.LoggingSteps = 1e-4, 10
	l.LoraTaskType = "SEQ_CLS" // the head is trained whole
	return a, pairs.Defaults(), &RewardArguments{}, l
}
