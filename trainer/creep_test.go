// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// counter counts, at chosen steps, what lives while all ranks of the process stand still between two steps.
type counter struct {
	callbacks.Base
	ranks   int
	at      map[int64]bool
	mu      sync.Mutex
	waiting int
	release chan struct{}
	objects []uint64 // of the Go heap
	tensors []int64  // bytes
}

// EveryRank makes it wait for all ranks.
func (*counter) EveryRank() {}

func (c *counter) OnStepEnd(e *callbacks.Event) error {
	if !c.at[e.State.GlobalStep] {
		return nil
	}
	c.mu.Lock()
	release := c.release
	if c.waiting++; c.waiting == c.ranks {
		c.count()
		c.waiting, c.release = 0, make(chan struct{})
		close(release)
	}
	c.mu.Unlock()
	<-release
	return nil
}

func (c *counter) count() {
	tensor.CPU().Collect()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	c.objects = append(c.objects, m.HeapObjects)
	c.tensors = append(c.tensors, tensor.CPU().MemStats().InUse)
}

// A step of several ranks leaves nothing behind: neither an object of the Go heap nor a tensor. (Records are kept, as
// HuggingFace's are: this run logs none.)
func TestStepsOfManyRanksKeepNoMemory(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, to which 300 steps are no more than a few
	}
	const ranks, n = 8, 100
	c := &counter{ranks: ranks, at: map[int64]bool{n: true, 2 * n: true, 3 * n: true}, release: make(chan struct{})}
	a := rankArgs(ranks)
	a.EvalStrategy, a.SaveStrategy, a.LoggingStrategy, a.MaxSteps = args.StrategyNo, args.StrategyNo, args.StrategyNo,
		3*n
	tr := newTrainer(vfs.NewMem(), newGPT2(t, 0.2), a, trainer.WithTrainData(texts(64)), trainer.WithCallbacks(c))
	_, err := tr.Train()
	require.NoError(t, err)
	require.Len(t, c.objects, 3)
	require.Less(t, c.objects[2], c.objects[0]+ranks*n/2,
		"%d steps of %d ranks leave fewer objects than every fourth one would: %v",
		2*n, ranks, c.objects)
	require.Equal(t, []int64{c.tensors[0], c.tensors[0], c.tensors[0]}, c.tensors)
}

// histories is how many records the ranks keep.
type histories struct {
	callbacks.Base
	mu   sync.Mutex
	kept []int
}

// EveryRank makes it look at all of them.
func (*histories) EveryRank() {}

func (h *histories) OnTrainEnd(e *callbacks.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = append(h.kept, len(e.State.LogHistory))
	return nil
}

// Of many ranks in a process one keeps the records.
func TestOneRankOfAProcessKeepsTheRecords(t *testing.T) {
	h := &histories{}
	a := rankArgs(4)
	a.EvalStrategy, a.SaveStrategy, a.MaxSteps = args.StrategyNo, args.StrategyNo, 6
	tr := newTrainer(vfs.NewMem(), newGPT2(t, 0.2), a, trainer.WithTrainData(texts(64)), trainer.WithCallbacks(h))
	_, err := tr.Train()
	require.NoError(t, err)
	require.ElementsMatch(t, []int{7, 1, 1, 1}, h.kept)
	require.Len(t, tr.State().LogHistory, 7)
}
