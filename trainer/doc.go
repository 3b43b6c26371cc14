// SPDX-License-Identifier: Apache-2.0

// Package trainer trains and evaluates a model as HuggingFace's Trainer does. Use it whenever the usual loop fits:
// batches, a loss, and an optimizer with a schedule, with logging, evaluation and checkpoints. Start with [New] and
// [Trainer.Train]:
//
//	t := trainer.New(model, args.Default("out/line"), trainer.WithTrainData(train))
//	res, err := t.Train()
//
// The model comes from a package below models or implements [models.Model]. Settings that are plain data are
// fields of [args.TrainingArguments]; the rest are options, such as [WithEvalData], [WithMetrics],
// [WithIterableTrainData] (data without a length),
// [WithCallbacks], [WithLoss] and [WithOptimizer]. [Trainer.Evaluate] and [Trainer.Predict] run the model on
// other data, and [Trainer.SaveModel] writes it as transformers does.
//
// Methods that programs override in HuggingFace's Trainer are options here: compute_loss, training_step and
// prediction_step ([WithStep], or [WithLoss] for the loss alone), get_train_dataloader ([WithTrainDataloader], or
// [WithSampler] for the order alone), create_optimizer ([WithOptimizer]), log ([WithLog]), compute_metrics and
// preprocess_logits_for_metrics ([WithComputeMetrics], [WithLogitsForMetrics]). The rest are callbacks.
//
// The package is only the loop. For your own loop, use package accelerate. To run a saved model without training it,
// [models.LoadPretrained] is enough.
//
// Three things differ from HuggingFace's Trainer on purpose:
//
//   - A loss is a sum with a count. It is divided once, over all micro-batches and ranks of a step.
//   - A loss that is not finite is logged and counted as such, and never reaches the weights.
//   - A resumed run ends with the same bits as an uninterrupted one.
package trainer
