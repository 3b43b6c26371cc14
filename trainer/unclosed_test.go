// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	_ "github.com/lockstep-ml/lockstep/integrations/jsonl"
	"github.com/lockstep-ml/lockstep/trainer"
)

// A program that never closes its trainers loses nothing: the output folder is free, reporters have written all, and no
// goroutine or temporary file is left, also while the trainer goes on to evaluate.
func TestUnclosedTrainers(t *testing.T) {
	for name, set := range map[string]func(*args.TrainingArguments){
		"one rank":  func(*args.TrainingArguments) {},
		"two ranks": func(a *args.TrainingArguments) { a.NumReplicas = 2 },
		"workers":   func(a *args.TrainingArguments) { a.DataloaderNumWorkers, a.NumReplicas = 2, 2 },
		"shared":    func(a *args.TrainingArguments) { a.NumReplicas, a.FSDP = 2, []string{"full_shard"} },
		"gathered": func(a *args.TrainingArguments) {
			a.NumReplicas = 2
			gather(a, "full_shard")
		},
		"offloaded": func(a *args.TrainingArguments) {
			a.OffloadOptimizer, a.OffloadParams = args.OffloadDisk, args.OffloadDisk
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, scratch := t.TempDir(), t.TempDir()
			base := runtime.NumGoroutine()
			for range 3 {
				a := lineArgs(set, func(a *args.TrainingArguments) {
					a.OutputDir, a.OffloadDir, a.OverwriteOutputDir = dir, scratch, true
					a.MaxSteps, a.SaveSteps, a.ReportTo = 3, 2, []string{"jsonl"}
				})
				tr := trainer.New(newMLP(t, 1, 1), a, trainer.WithDisplay(nil),
					trainer.WithTrainData(source(points(64))), trainer.WithEvalData(source(points(8))))
				_, err := tr.Train()
				require.NoError(t, err)
				log, err := os.ReadFile(filepath.Join(dir, "log.jsonl"))
				require.NoError(t, err)
				require.Contains(t, string(log), "train_loss")
				_, err = tr.Evaluate()
				require.NoError(t, err)
				require.NoError(t, tr.SaveModel(""))
				left, err := os.ReadDir(scratch)
				require.NoError(t, err)
				require.Empty(t, left)
			}
			for i := 0; runtime.NumGoroutine() > base+1; i++ { // of the runtime, which runs cleanups
				require.Less(t, i, 2000, "goroutines are left")
				time.Sleep(time.Millisecond)
			}
		})
	}
}
