// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/checkpoint"
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
	if was, now := r.progress.Data, r.fingerprint(); was != "" && now != "" && was != now {
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
	return fmt.Errorf("changed since the checkpoint: %s: want what it was saved with, or resume_on_other_data true",
		strings.Join(changed, ", "))
}

// fingerprint tells the training data from others, "" where nothing can be said. It is computed when it is first asked
// for: a run that neither saves nor resumes reads no sample twice.
func (r *run) fingerprint() string {
	if r.print != nil {
		return *r.print
	}
	var print string
	var err error
	if r.train == nil {
		if f, ok := r.stream.(data.Fingerprinter); ok {
			print = f.Fingerprint()
		}
		r.print = &print
		return print
	}
	if p := tensor.Recover(func() { print, err = data.Fingerprint(r.acc.Ctx().NoGrad(), r.train) }); p != nil {
		err = p
	}
	if err != nil { // a sample that cannot be read ends the run when its turn comes
		r.log.Debug("the training data have no fingerprint", "err", err)
	}
	r.print = &print
	return print
}
