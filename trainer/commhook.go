// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Names of the parts of a checkpoint that hold the state of the communication hook, if it has one.
const (
	commHookTensors = "comm_hook" // .safetensors
	commHookFile    = "comm_hook.json"
	commHookShared  = "shared" // in place of a rank's number
)

// commHookState is comm_hook.json. In comm_hook.safetensors a tensor is called rank/parameter.
type commHookState struct {
	Name  string `json:"name"`
	Steps int64  `json:"steps"`
	Ranks int    `json:"ranks"`
}

// hookParts are the files of the communication hook's state; none on other ranks than 0. It is collective.
func (r *run) hookParts(ctx context.Context) ([]checkpoint.Part, error) {
	if r.args.SaveOnlyModel {
		return nil, nil
	}
	state, err := accelerate.GatherHookState(ctx, r.acc)
	if state == nil || err != nil {
		return nil, err
	}
	head, err := json.MarshalIndent(commHookState{state.Name, state.Ranks[0].Steps, len(state.Ranks)}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("trainer: %s: %w", commHookFile, err)
	}
	return []checkpoint.Part{
		checkpoint.BytesPart(commHookFile, append(head, '\n')),
		{Name: commHookTensors + ".safetensors", Write: func(w io.Writer) error {
			var err error
			c := tensor.NewCtx(tensor.CPU()).NoGrad()
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				all := map[string]*tensor.Tensor{}
				add := func(where string, of map[string][]float32) {
					for name, x := range of {
						all[where+"/"+name] = tensor.FromSlice(c, x, len(x))
					}
				}
				add(commHookShared, state.Ranks[0].Shared)
				for rank, s := range state.Ranks {
					add(strconv.Itoa(rank), s.Own)
				}
				err = checkpoint.SaveTensors(c, w, named(all))
				return nil
			})
			return err
		}}}, nil
}

// restoreHook gives the communication hook the state that was saved, if there is one.
func (r *run) restoreHook(ck *checkpoint.Checkpoint) (err error) {
	if !ck.Has(commHookFile) {
		return nil
	}
	var head commHookState
	if err := ck.ReadJSON(commHookFile, &head); err != nil {
		return err
	}
	const most = 1 << 20
	if head.Ranks < 1 || head.Ranks > most || head.Steps < 0 {
		return fmt.Errorf("%s: %d ranks and %d steps, want 1 to %d ranks and no fewer than 0 steps", commHookFile,
			head.Ranks, head.Steps, most)
	}
	state := &accelerate.HookState{Name: head.Name, Ranks: make([]ddp.State, head.Ranks)}
	shared := map[string][]float32{}
	for i := range state.Ranks {
		state.Ranks[i] = ddp.State{Steps: head.Steps, Own: map[string][]float32{}, Shared: shared}
	}
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		var list []tensor.Named
		if list, err = ck.ReadTensors(c, commHookTensors); err != nil {
			return nil
		}
		for _, t := range list {
			where, name, _ := strings.Cut(t.Name, "/")
			into := shared
			if where != commHookShared {
				rank, e := strconv.Atoi(where)
				if e != nil || rank < 0 || rank >= head.Ranks {
					err = fmt.Errorf("%s.safetensors: tensor %q, want names like 0/parameter of %d ranks",
						commHookTensors, t.Name, head.Ranks)
					return nil
				}
				into = state.Ranks[rank].Own
			}
			if t.DType() != tensor.Float32 {
				err = fmt.Errorf("%s.safetensors: tensor %q is %v, want float32", commHookTensors, t.Name, t.DType())
				return nil
			}
			into[name] = tensor.ToSlice[float32](c, t.Tensor)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return accelerate.SetHookState(r.acc, state)
}
