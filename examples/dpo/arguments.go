// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/models/preference"
)

// DPOArguments are the settings of the loss and its reference, by the names of TRL's DPOConfig.
type DPOArguments struct {
	Beta           float64             `json:"beta" usage:"weight of the deviation from the reference; tau for ipo"`
	LossType       preference.LossType `json:"loss_type" usage:"sigmoid, hinge, ipo or robust"`
	LabelSmoothing float64             `json:"label_smoothing" usage:"assumed probability that the chosen answer is the wrong one, for the losses sigmoid and robust"`
	TruncationMode chat.TruncationMode `json:"truncation_mode" usage:"part to keep of texts longer than max_length: keep_start or keep_end"`

	// RefModelNameOrPath is the model as it is before the training, if it is empty.
	RefModelNameOrPath string `json:"ref_model_name_or_path" path:"true" usage:"folder of the reference model; empty for the model before its training"`
	// PrecomputeRefLogProbs needs no reference in memory while training.
	PrecomputeRefLogProbs  bool `json:"precompute_ref_log_probs" usage:"compute the reference's log probabilities of all rows once, before training"`
	PrecomputeRefBatchSize int  `json:"precompute_ref_batch_size" usage:"batch size for precompute_ref_log_probs; 0: per_device_train_batch_size"`
}

// defaults are those of TRL's DPOConfig, except that numbers are float32.
func defaults() (*args.TrainingArguments, *DPOArguments) {
	a := args.Default("out/dpo")
	a.LearningRate, a.LoggingSteps = 1e-6, 10
	return a, &DPOArguments{Beta: 0.1, LossType: preference.Sigmoid, TruncationMode: chat.KeepStart}
}

// loss is the loss that the settings say, without its reference.
func (d *DPOArguments) loss() *preference.DPO {
	return &preference.DPO{Beta: d.Beta, Loss: d.LossType, LabelSmoothing: d.LabelSmoothing}
}

// Check reports all faults at once.
func (d *DPOArguments) Check(c *args.Checker) {
	c.Require(d.Beta > 0, "beta", d.Beta, "a positive number")
	c.Require(slices.Contains(preference.LossTypes(), d.LossType), "loss_type", d.LossType,
		fmt.Sprint("one of ", preference.LossTypes()))
	smoothed := d.LossType == preference.Sigmoid || d.LossType == preference.Robust
	c.Require(d.LabelSmoothing == 0 || d.LabelSmoothing > 0 && d.LabelSmoothing < 0.5 && smoothed, "label_smoothing",
		d.LabelSmoothing, "a number from 0 to below 0.5, and 0 with other losses than sigmoid and robust")
	c.Require(d.TruncationMode == chat.KeepStart || d.TruncationMode == chat.KeepEnd, "truncation_mode",
		d.TruncationMode, "keep_start or keep_end")
	c.Require(d.PrecomputeRefBatchSize >= 0, "precompute_ref_batch_size", d.PrecomputeRefBatchSize, "at least 0")
}
