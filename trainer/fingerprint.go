// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
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
	parts, err := r.changedParts(ck)
	if err != nil {
		return err
	}
	if changed = append(changed, parts...); len(changed) == 0 {
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
	if r.stream != nil {
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

// changedParts lists the parts of WithParts, those of SidecarNames, that the checkpoint has with other contents.
func (r *run) changedParts(ck *checkpoint.Checkpoint) (changed []string, err error) {
	for _, p := range r.parts {
		i := slices.IndexFunc(ck.Files, func(f checkpoint.File) bool { return f.Name == p.Name })
		if i < 0 || !slices.Contains(models.SidecarNames, p.Name) {
			continue
		}
		h := sha256.New()
		if err := p.Write(h); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		if hex.EncodeToString(h.Sum(nil)) != ck.Files[i].SHA256 {
			changed = append(changed, p.Name)
		}
	}
	return changed, nil
}
