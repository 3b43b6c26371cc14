// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Names of what holds the state of the communication hook in a checkpoint, if it has one.
const (
	hookTensorSet = "comm_hook" // the set of tensors; in comm_hook.safetensors in older checkpoints
	hookFile      = "comm_hook.json"
	hookShared    = "shared" // in place of a rank's number
)

// Hook is what ranks do to the gradients that they exchange.
type Hook interface {
	// HookState is the hook's name and this rank's state of it; ok is false on all ranks if it has none.
	HookState() (name string, own ddp.HookState, ok bool)
	// SetHookState gives the hook this rank's part of what all ranks of a run saved, on any number of ranks.
	SetHookState(name string, ranks []ddp.HookState) error
}

// hookState is comm_hook.json. A tensor is called rank/parameter.
type hookState struct {
	Name  string `json:"name"`
	Steps int64  `json:"steps"`
	Ranks int    `json:"ranks"`
}

// hookTensors are the communication hook's state as each rank writes its own into a checkpoint, with the file that rank
// 0 adds; nil on all ranks if there is none to save.
func (c *Checkpointer) hookTensors() (*checkpoint.Content, error) {
	name, own, ok := c.Hook.HookState()
	if !ok || c.Args.SaveOnlyModel {
		return nil, nil
	}
	head, err := checkpoint.JSONPart(hookFile, hookState{name, own.Steps, c.Data.WorldSize()})
	if err != nil {
		return nil, err
	}
	content := &checkpoint.Content{Parts: []checkpoint.Part{head}}
	add := func(where string, of map[string][]float32) {
		for _, name := range sortedKeys(of) {
			content.Placed = append(content.Placed, hookVector(where+"/"+name, of[name]))
		}
	}
	if c.Data.Rank() == 0 {
		add(hookShared, own.Shared)
	}
	add(strconv.Itoa(c.Data.Rank()), own.Own)
	return content, nil
}

// hookVector is a vector of the hook's as a whole tensor.
func hookVector(name string, x []float32) checkpoint.Placed {
	return checkpoint.Placed{Set: hookTensorSet, Placement: tensor.WholePlacement(name, len(x)),
		DType: tensor.Float32, Write: func(w io.Writer) error {
			for part := range slices.Chunk(x, 1<<14) {
				if err := binary.Write(w, binary.LittleEndian, part); err != nil {
					return err
				}
			}
			return nil
		}}
}

// restoreHook gives the communication hook the state that was saved, if there is one. A rank reads what it takes over.
func (c *Checkpointer) restoreHook(ck *checkpoint.Checkpoint) (err error) {
	if !ck.Has(hookFile) {
		return nil
	}
	var head hookState
	if err := ck.ReadJSON(hookFile, &head); err != nil {
		return err
	}
	const most = 1 << 20
	if head.Ranks < 1 || head.Ranks > most || head.Steps < 0 {
		return fmt.Errorf("%s: %d ranks and %d steps: want 1 to %d ranks and at least 0 steps", hookFile,
			head.Ranks, head.Steps, most)
	}
	states, shared := make([]ddp.HookState, head.Ranks), map[string][]float32{}
	for i := range states {
		states[i] = ddp.HookState{Steps: head.Steps, Own: map[string][]float32{}, Shared: shared}
	}
	set, err := ck.OpenTensors(hookTensorSet)
	if errors.Is(err, fs.ErrNotExist) { // the manifest names no such file: the hook has not begun
		return c.Hook.SetHookState(head.Name, states)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	me, ranks := c.Data.Rank(), c.Data.WorldSize()
	for _, key := range set.Names() {
		where, name, _ := strings.Cut(key, "/")
		into := shared
		if where != hookShared {
			rank, e := strconv.Atoi(where)
			if e != nil || rank < 0 || rank >= head.Ranks {
				return fmt.Errorf("%s: tensor %q: want names like 0/parameter of %d ranks", hookTensorSet, key,
					head.Ranks)
			}
			if rank%ranks != me {
				continue
			}
			into = states[rank].Own
		}
		e, _ := set.Lookup(key)
		if into[name], err = readVector(e); err != nil {
			return fmt.Errorf("%s: tensor %q: %w", hookTensorSet, key, err)
		}
	}
	return c.Hook.SetHookState(head.Name, states)
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
