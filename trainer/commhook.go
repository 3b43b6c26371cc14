// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Names of what holds the state of the communication hook in a checkpoint, if it has one.
const (
	commHookTensors = "comm_hook" // the set of tensors; in comm_hook.safetensors in older checkpoints
	commHookFile    = "comm_hook.json"
	commHookShared  = "shared" // in place of a rank's number
)

// commHookState is comm_hook.json. A tensor is called rank/parameter.
type commHookState struct {
	Name  string `json:"name"`
	Steps int64  `json:"steps"`
	Ranks int    `json:"ranks"`
}

// hookTensors are the communication hook's state as each rank writes its own into a checkpoint, with the file that rank
// 0 adds. ok is false on all ranks if there is none to save.
func (r *run) hookTensors() (head checkpoint.Part, placed []checkpoint.Placed, ok bool, err error) {
	name, own, ok := accelerate.OwnHookState(r.acc)
	if !ok || r.args.SaveOnlyModel {
		return head, nil, false, nil
	}
	rank := r.acc.Data().Rank()
	text, err := json.MarshalIndent(commHookState{name, own.Steps, r.acc.Data().Size()}, "", "  ")
	if err != nil {
		return head, nil, true, fmt.Errorf("trainer: %s: %w", commHookFile, err)
	}
	add := func(where string, of map[string][]float32) {
		for _, name := range sortedKeys(of) {
			placed = append(placed, hookVector(where+"/"+name, of[name]))
		}
	}
	if rank == 0 {
		add(commHookShared, own.Shared)
	}
	add(strconv.Itoa(rank), own.Own)
	return checkpoint.BytesPart(commHookFile, append(text, '\n')), placed, true, nil
}

// hookVector is a vector of the hook's as a whole tensor.
func hookVector(name string, x []float32) checkpoint.Placed {
	return checkpoint.Placed{Set: commHookTensors, Placement: tensor.WholePlacement(name, len(x)),
		DType: tensor.Float32, Write: func(w io.Writer) error {
			buf := make([]byte, 0, 1<<16)
			for i, v := range x {
				buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(v))
				if len(buf) == cap(buf) || i == len(x)-1 {
					if _, err := w.Write(buf); err != nil {
						return err
					}
					buf = buf[:0]
				}
			}
			return nil
		}}
}

// writeWithHook writes a checkpoint to which each rank adds what its communication hook carries from step to step:
// nothing of it is gathered. It is collective, and if one rank fails, all do.
func (r *run) writeWithHook(ctx context.Context, head checkpoint.Part, placed []checkpoint.Placed) (checkpoint.Info,
	error) {
	content := checkpoint.Sharded{RunID: r.progress.RunID, Placed: placed}
	if r.acc.IsMain() {
		parts, err := r.checkpointParts()
		if err != nil {
			return checkpoint.Info{}, err
		}
		content.Parts = append(parts, head)
	}
	return r.store.SaveShards(ctx, r.acc.Data().Group(), r.state.GlobalStep, content)
}

// restoreHook gives the communication hook the state that was saved, if there is one. A rank reads what it takes over.
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
		return fmt.Errorf("%s: %d ranks and %d steps: want 1 to %d ranks and no fewer than 0 steps", commHookFile,
			head.Ranks, head.Steps, most)
	}
	state := &accelerate.HookState{Name: head.Name, Ranks: make([]ddp.State, head.Ranks)}
	shared := map[string][]float32{}
	for i := range state.Ranks {
		state.Ranks[i] = ddp.State{Steps: head.Steps, Own: map[string][]float32{}, Shared: shared}
	}
	set, err := ck.OpenTensors(commHookTensors)
	if errors.Is(err, fs.ErrNotExist) { // the manifest names no such file: the hook has not begun
		return accelerate.SetHookState(r.acc, state)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	me, ranks := r.acc.Data().Rank(), r.acc.Data().Size()
	for _, key := range set.Names() {
		where, name, _ := strings.Cut(key, "/")
		into := shared
		if where != commHookShared {
			rank, e := strconv.Atoi(where)
			if e != nil || rank < 0 || rank >= head.Ranks {
				return fmt.Errorf("%s: tensor %q: want names like 0/parameter of %d ranks", commHookTensors, key,
					head.Ranks)
			}
			if rank%ranks != me {
				continue
			}
			into = state.Ranks[rank].Own
		}
		e, _ := set.Lookup(key)
		if into[name], err = readVector(e); err != nil {
			return fmt.Errorf("%s: tensor %q: %w", commHookTensors, key, err)
		}
	}
	return accelerate.SetHookState(r.acc, state)
}

// readVector reads the elements of a tensor of float32.
func readVector(e *safetensors.Array) ([]float32, error) {
	if e.DType != tensor.Float32 {
		return nil, fmt.Errorf("%v: want float32", e.DType)
	}
	x := make([]float32, e.Numel())
	section, err := e.Section(e.Placement())
	if err != nil {
		return nil, err
	}
	return x, binary.Read(section, binary.LittleEndian, x)
}
