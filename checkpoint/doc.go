// SPDX-License-Identifier: Apache-2.0

// Package checkpoint saves the state of a training run on disk, so that the run can be resumed after a crash, a full
// disk or a kill at any moment. Package trainer uses it. Use it in your own training loop, starting with [Store.Save]
// and [Store.Latest], or to read a saved checkpoint, with [Open].
//
//	store := &checkpoint.Store{Dir: "out/line"}
//	info, err := store.Save(ctx, 500, checkpoint.Content{RunID: run, Parts: parts})
//	...
//	ck, err := store.Latest(ctx)
//	err = ck.ReadJSON("trainer_state.json", &state)
//
// A checkpoint is a folder checkpoint-<step> with files named as HuggingFace names them: each is a [Part].
// [SaveTensors] writes tensors, which [Checkpoint.OpenTensors] finds, and [BytesPart] holds bytes in memory. State is
// kept in global terms (positions in the stream of samples, whole parameters by name), never per rank, so a run can
// resume on another number of ranks. The trainer's parts are only JSON and safetensors; loading executes nothing.
//
// The package does not decide when or what to save. trainer.Trainer.SaveModel saves a model for inference.
//
// # How a save survives a crash
//
// A checkpoint is written into a temporary folder beside its place. Each file is synced, then manifest.json
// with the size and SHA-256 of each; then the folder is synced and renamed, and the parent synced. Last comes
// LATEST, a pointer that is replaced in the same way. A checkpoint of the same step is set aside first and
// deleted last, so that at every moment one of the two can be loaded. Opening a checkpoint verifies every byte.
//
// The save id in the manifest, which grows with every save into the folder, decides which checkpoint is newer. File
// times and step numbers do not: a run that is started again in the same folder counts steps from zero.
//
// One process at a time writes into a folder (in a run of many, rank 0): a lock file keeps others out, see
// [Store.Acquire]. Files of another run are never deleted.
package checkpoint
