// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/nn"
)

// fingerprint is what all ranks must have in common before they train together.
type fingerprint struct {
	Args     json.RawMessage `json:"args"`
	Kernels  string          `json:"kernels"`
	Hook     string          `json:"hook"`
	Versions []string        `json:"versions"` // of the device, which ranks tell each other and need not share
	// LossMemory is the device's, of which all take the least: see tensor.Ctx.LossMemory.
	LossMemory int64          `json:"loss_memory"`
	Settings   []modelSetting `json:"settings"`
	// Claim is the rank's to its model, and Shared has those of ranks of its process to the same tensors.
	Claim  string            `json:"claim"`
	Shared map[string]string `json:"shared,omitempty"`
	pipelined
}

// pipelined is what the ranks of pipelines must have in common besides their settings; empty without pipelines.
type pipelined struct {
	Schedule string `json:"schedule"` // hash of its table, which may be a file
	Model    string `json:"model"`    // hash of the parameters' names, shapes and dtypes
}

// compare checks that all ranks run with the same settings, also of their models, and kernels: with others, bits would
// differ silently.
func (a *Accelerator) compare(ctx context.Context, hook ddp.Hook) error {
	text, err := a.plan.settings()
	if err != nil {
		return err
	}
	shared := a.claim(a.tree)
	mine := fingerprint{text, a.kernels, hook.Name(), a.versions, a.ctx.LossMemory(), settingsOf(a.tree),
		a.claimed.name, shared, a.pipelined()}
	all, err := comm.AllGatherObject(ctx, a.Group(), mine)
	if err != nil {
		return fmt.Errorf("accelerate: comparing the ranks' settings: %w", err)
	}
	if err := disagreement(all); err != nil {
		return err
	}
	if err := oneModel(all); err != nil {
		return err
	}
	a.versions = allVersions(all)
	least := slices.MinFunc(all, func(x, y fingerprint) int { return cmp.Compare(x.LossMemory, y.LossMemory) })
	a.ctx.SetLossMemory(least.LossMemory)
	return nil
}

// disagreement is what the first rank that differs from rank 0 has otherwise.
func disagreement(all []fingerprint) error {
	for rank, f := range all {
		if f.Kernels != all[0].Kernels {
			return fmt.Errorf("accelerate: rank 0 computes with %s kernels, rank %d with %s: set %s to the same "+
				"variant on all ranks", all[0].Kernels, rank, f.Kernels, kernels.EnvVar)
		}
		if f.Hook != all[0].Hook {
			return fmt.Errorf("accelerate: the communication hook is %s on rank 0 and %s on rank %d: want the same "+
				"on all ranks", all[0].Hook, f.Hook, rank)
		}
		if err := sameSettings(all[0].Args, f.Args, rank); err != nil {
			return err
		}
		if err := sameModelSettings(all[0].Settings, f.Settings, rank); err != nil {
			return err
		}
		if f.Model != all[0].Model {
			return fmt.Errorf("accelerate: the model of rank %d has other parameters than that of rank 0 (names, "+
				"shapes or dtypes): want the same model on all ranks", rank)
		}
		if f.Schedule != all[0].Schedule {
			return fmt.Errorf("accelerate: pp_schedule: the file has another table on rank %d than on rank 0: want "+
				"the same on all ranks", rank)
		}
	}
	return nil
}

// pipelined is what the other ranks must have too. What cannot be read is reported behind the comparison.
func (a *Accelerator) pipelined() (p pipelined) {
	if a.PipelineRanks().WorldSize() == 1 {
		return p
	}
	if s, err := a.loadSchedule(); err == nil {
		p.Schedule = hashed(s.Ranks)
	}
	var params []any
	for _, q := range nn.NamedParameters(a.model) {
		params = append(params, q.Name, q.Tensor.Shape(), q.Tensor.DType().String())
	}
	p.Model = hashed(params)
	return p
}

func hashed(v any) string {
	sum := sha256.Sum256(fmt.Append(nil, v))
	return hex.EncodeToString(sum[:16])
}

// reportDiffering says how many parameters had to be overwritten with rank 0's values, and
// makes that an error under ddp_require_equal_init.
func (a *Accelerator) reportDiffering(ctx context.Context, differed, of int) error {
	all, err := comm.AllGatherObject(ctx, a.Group(), differed)
	if err != nil {
		return err
	}
	for rank, n := range all {
		if n == 0 {
			continue
		}
		if a.plan.exchange.equalInit {
			return fmt.Errorf("accelerate: ddp_require_equal_init: %d of %d parameters of rank %d differed from "+
				"rank 0's", n, of, rank)
		}
		if a.IsMain() {
			a.log.Info("parameters were replaced by rank 0's", "rank", rank, "differed", n, "of", of)
		}
	}
	return nil
}
