// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/args"
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

// shared are the settings that ranks must share although a run may be resumed with others:
// their calls depend on them.
var shared = []string{"ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_require_equal_init", "ddp_static_graph",
	"fsdp", "fsdp_state_dict_type", "zero_stage", "load_best_model_at_end", "per_device_eval_batch_size",
	"prediction_loss_only"}

// compare checks that all ranks run with the same settings and kernels: with others, bits
// would differ silently.
func (r *Ranks) compare(ctx context.Context, hook ddp.Hook) error {
	text, err := r.args.JSON()
	if err != nil {
		return err
	}
	all, err := comm.AllGatherObject(ctx, r.group, fingerprint{text, r.kernels, hook.Name(), r.versions})
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
		if err := sameArgs(all[0].Args, f.Args, rank); err != nil {
			return err
		}
	}
	r.versions = allVersions(all)
	return nil
}

// reportDiffering says how many parameters had to be overwritten with rank 0's values, and
// makes that an error under ddp_require_equal_init.
func (r *Ranks) reportDiffering(ctx context.Context, differed, of int) error {
	all, err := comm.AllGatherObject(ctx, r.group, differed)
	if err != nil {
		return err
	}
	for rank, n := range all {
		if n == 0 {
			continue
		}
		if r.args.DDPRequireEqualInit {
			return fmt.Errorf("accelerate: ddp_require_equal_init: %d of %d parameters of rank %d differed from "+
				"rank 0's", n, of, rank)
		}
		if r.IsMain() {
			r.log.Info("parameters were replaced by rank 0's", "rank", rank, "differed", n, "of", of)
		}
	}
	return nil
}

// sameArgs names the first setting that matters and differs.
func sameArgs(zero, other json.RawMessage, rank int) error {
	a, err := args.FromJSON(zero)
	if err != nil {
		return err
	}
	b, err := args.FromJSON(other)
	if err != nil {
		return err
	}
	for _, d := range a.Diff(b) {
		if d.Fixed || slices.Contains(shared, d.Key) {
			return fmt.Errorf("accelerate: %s is %s on rank 0 and %s on rank %d: want the same value on all ranks",
				d.Key, d.Old, d.New, rank)
		}
	}
	return nil
}
