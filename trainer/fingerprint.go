// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/args"
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

// dataset is what ranks compare of a data set before the first step.
type dataset struct {
	Name    string
	Samples int64  // -1: not known
	Print   string // "": not known
}

// sameData refuses ranks with different data. Ranks divide the samples of one data set, so each would train on a part
// of other data, and the ranks that share a model, by its layers, matrices or tokens, would mix different samples.
// These compare fingerprints, the others numbers of samples and what data.Fingerprinter returns, which read no sample.
// A data loader of the program may divide the data itself.
func (r *run) sameData() error {
	if r.acc.WorldSize() == 1 || r.args.NumReplicas > 1 {
		return nil
	}
	all, err := comm.AllGatherObject(r.ctx, r.acc.Group(), r.datasets())
	if err != nil {
		return fmt.Errorf("trainer: comparing the ranks' data: %w", err)
	}
	for rank, sets := range all {
		if len(sets) != len(all[0]) {
			return fmt.Errorf("trainer: rank %d has %d evaluation sets, rank 0 has %d: want the same data on all ranks",
				rank, len(sets)-1, len(all[0])-1)
		}
		for i, set := range sets {
			if err := set.differs(rank, all[:rank], i); err != nil {
				return err
			}
		}
	}
	return nil
}

// differs is an error if set i of a rank is not that of the ranks before it.
func (d dataset) differs(rank int, before [][]dataset, i int) error {
	const want = "want the same data on all ranks, or trainer.WithTrainDataloader where a program divides them"
	for other, sets := range before {
		switch o := sets[i]; {
		case d.Name != o.Name:
			return fmt.Errorf("trainer: evaluation set %d of rank %d is %s, that of rank %d %s: want the same sets in "+
				"the same order", i, rank, d.Name, other, o.Name)
		case d.Samples >= 0 && o.Samples >= 0 && d.Samples != o.Samples:
			return fmt.Errorf("trainer: %s of rank %d have %d samples, those of rank %d %d: %s", d.Name, rank,
				d.Samples, other, o.Samples, want)
		case d.Print != "" && o.Print != "" && d.Print != o.Print:
			return fmt.Errorf("trainer: %s of rank %d have fingerprint %s, those of rank %d %s: %s", d.Name, rank,
				d.Print, other, o.Print, want)
		}
	}
	return nil
}

// datasets are this rank's: the training data, and the evaluation data that the run may use.
func (r *run) datasets() []dataset {
	share := r.acc.ModelRanks().WorldSize() > 1
	train := dataset{Name: "the training data", Samples: -1}
	switch {
	case share:
		train.Print = r.fingerprint()
	case r.train != nil:
		train.Samples, train.Print = int64(r.train.Len()), declared(r.train)
	case r.stream != nil:
		train.Print = declared(r.stream)
	}
	sets := []dataset{train}
	if !share && r.args.EvalStrategy == args.StrategyNo && !r.args.EvalOnStart {
		return sets
	}
	for _, set := range r.evals {
		d := dataset{Name: "the evaluation data (" + set.prefix() + "loss)", Samples: -1}
		switch {
		case set.src == nil: // a stream
		case share:
			_ = tensor.Recover(func() { d.Print, _ = data.Fingerprint(r.acc.Ctx(), set.src) }) // evaluations report it
		default:
			d.Samples, d.Print = int64(set.src.Len()), declared(set.src)
		}
		sets = append(sets, d)
	}
	return sets
}

// declared is the fingerprint that data say they have.
func declared(src any) string {
	if f, ok := src.(data.Fingerprinter); ok {
		return f.Fingerprint()
	}
	return ""
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
