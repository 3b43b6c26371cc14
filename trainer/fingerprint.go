// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

// checkData refuses to resume with other training data, or with other files beside the weights (a tokenizer, say), than
// the checkpoint was saved with, unless resume_on_other_data allows it: then it only says so. The progress has been
// read.
func (r *run) checkData(ck *checkpoint.Checkpoint) error {
	if !r.acc.IsMain() {
		return nil
	}
	var changed []string
	switch was, now := r.progress.Data, r.fingerprint(); {
	case now == "":
		r.log.Info("the training data have no fingerprint (data.Fingerprinter): a resume cannot detect changed data")
	case was != "" && was != now:
		changed = append(changed, fmt.Sprintf("the training data (fingerprint %s, now %s)", was, now))
	}
	files, err := r.checkpointer().ChangedFiles(ck)
	if err != nil {
		return err
	}
	if changed = append(changed, files...); len(changed) == 0 {
		return nil
	}
	if r.args.ResumeOnOtherData {
		r.log.Warn("resume changes the run", "checkpoint", ck.Path, "changed", strings.Join(changed, ", "))
		return nil
	}
	return fmt.Errorf("changed since the checkpoint: %s: want unchanged data and files, or resume_on_other_data true",
		strings.Join(changed, ", "))
}

// sameData refuses ranks with different data. Ranks divide the samples of one data set, so each would train on part of
// a different one; ranks that share a model, by its layers, matrices or tokens, would mix different samples. A data
// loader of the program may divide the data itself, where ranks share no model.
func (r *run) sameData() error {
	if r.acc.WorldSize() == 1 || r.args.NumReplicas > 1 {
		return nil
	}
	names, mine := []string{"the training data"}, []string{""}
	if r.dataloader == nil || r.acc.ModelRanks().WorldSize() > 1 {
		mine[0] = r.fingerprint()
	}
	for _, set := range r.evals {
		print := ""
		if set.src != nil {
			_ = tensor.Recover(func() { print, _ = data.Fingerprint(r.acc.Ctx(), set.src) }) // evaluations report it
		}
		names, mine = append(names, "the evaluation data ("+set.prefix()+"loss)"), append(mine, print)
	}
	all, err := comm.AllGatherObject(r.ctx, r.acc.Group(), mine)
	if err != nil {
		return fmt.Errorf("trainer: comparing the ranks' data: %w", err)
	}
	for rank, prints := range all {
		if len(prints) != len(all[0]) {
			return fmt.Errorf("trainer: rank %d has %d evaluation sets, rank 0 has %d: want the same data on all ranks",
				rank, len(prints)-1, len(all[0])-1)
		}
		for i, print := range prints {
			if other := all[0][i]; print != other && print != "" && other != "" {
				return fmt.Errorf("trainer: %s of rank %d have fingerprint %s, those of rank 0 %s: want the same data "+
					"on all ranks", names[i], rank, print, other)
			}
		}
	}
	return nil
}

// fingerprint tells the training data from others, "" where nothing can be said. It is computed when it is first asked
// for: a run that neither saves nor resumes reads no sample twice.
func (r *run) fingerprint() string {
	if r.print == nil {
		r.print = new(string)
		if err := tensor.Recover(func() { *r.print = r.windows.Fingerprint() }); err != nil {
			r.log.Debug("the training data have no fingerprint", "err", err)
		}
	}
	return *r.print
}
