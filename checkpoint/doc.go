// Package checkpoint keeps the state of a training run in folders that a crash, a full
// disk or a kill at any moment cannot tear.
//
//	store := &checkpoint.Store{Dir: "out/line"}
//	info, err := store.Save(ctx, 500, checkpoint.Content{RunID: run, Parts: parts})
//	...
//	ck, err := store.Latest(ctx)
//	err = ck.ReadJSON("trainer_state.json", &state)
//
// A checkpoint is a set of named parts, files of a folder checkpoint-<step> with
// HuggingFace's names. It is written into a temporary folder beside its place, each file
// synced, then manifest.json with the size and SHA-256 of each, then the folder is
// synced, renamed and the parent synced; last comes LATEST, a pointer that is replaced
// in the same way. A checkpoint of the same step is set aside first and deleted last, so
// that at every moment one of the two can be loaded. Opening verifies every byte.
//
// Newer and older are told by the save id inside the manifest, which grows with every
// save into the folder, never by times of files or by step numbers: a run that is started
// again in the same folder counts steps from zero.
//
// State is kept in global terms (positions in the stream of samples, whole parameters by
// name), never per rank. Parts are JSON and safetensors alone; nothing that is read is
// executed. One process at a time writes into a folder (in a run of many, rank 0): a lock
// file keeps others out, see [Store.Acquire]. What another run wrote is never deleted.
//
// The package does not decide when to save or what: the trainer does.
package checkpoint
