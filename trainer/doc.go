// Package trainer trains a model the way HuggingFace's Trainer does:
//
//	t := trainer.New(model, args.Default("out/line"), trainer.WithTrainData(train))
//	res, err := t.Train()
//
// It holds the loop and nothing else. Where and on how many ranks a step runs is
// accelerate's, the order of samples samplers', when to log, evaluate and save is decided by
// callbacks.Flow from the arguments, and a checkpoint is put on disk by checkpoint.
//
// Three things differ from HuggingFace on purpose. A loss is a sum with a count, and is
// divided once, over all micro-batches and ranks of a step. Nothing is invented in logs: a
// loss that is not finite is shown and counted, and never reaches the weights. A run that is
// resumed ends with the bits of one that was never interrupted.
package trainer
