// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// fingerprint is what all ranks must have in common before they train together.
type fingerprint struct {
	Args     json.RawMessage `json:"args"`
	Kernels  string          `json:"kernels"`
	Hook     string          `json:"hook"`
	Versions []string        `json:"versions"` // of the device, which ranks tell each other and need not share
}

// compare checks that all ranks run with the same settings and kernels: with others, bits
// would differ silently.
func (a *Accelerator) compare(ctx context.Context, hook ddp.Hook) error {
	text, err := a.plan.settings()
	if err != nil {
		return err
	}
	all, err := comm.AllGatherObject(ctx, a.Group(), fingerprint{text, a.kernels, hook.Name(), a.versions})
	if err != nil {
		return fmt.Errorf("accelerate: comparing the ranks' settings: %w", err)
	}
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
	}
	a.versions = allVersions(all)
	return nil
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
