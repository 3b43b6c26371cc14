// SPDX-License-Identifier: Apache-2.0

// Package preference trains models on pairs of a chosen and a rejected answer: [DPO] trains a language model itself
// (direct preference optimization, Rafailov et al. 2023, arXiv:2305.18290), [Reward] a model that scores texts. Use it
// with the rows and batches of package data/chat (chat.ReadPairs, chat.CollatePairs). Losses and figures are those of
// TRL's DPOTrainer and RewardTrainer.
//
// The method Step of both is a trainer.StepFunc, and Figures are logged beside the loss:
//
//	d := &preference.DPO{Beta: 0.1, Loss: preference.Sigmoid, Reference: preference.WithoutAdapter(adapter)}
//	t := trainer.New(m, args, trainer.WithAdapter(adapter), trainer.WithStep(d.Step),
//		trainer.WithFigures(preference.DPOFigures()...),
//		trainer.WithTrainData(data.NewSource(samples, chat.CollatePairs(pad))))
//
// The loss terms are pairs: on several ranks and with gradient accumulation the loss is the mean over the pairs of the
// optimizer step.
package preference
