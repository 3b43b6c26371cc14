// SPDX-License-Identifier: Apache-2.0

package pp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// spread is how stages are sharded.
type spread struct {
	mesh    comm.Mesh
	options shard.Options
	short   int // micro-batches that a window lacks
}

// pieces are the results of all ranks, put together from what each owns.
type pieces struct {
	mu    sync.Mutex
	whole bits
	seen  map[string]map[int][]byte
}

func (p *pieces) put(key string, at tensor.Placement, piece []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := tensor.WholePlacement(at.Name, at.Shape...)
	width := len(piece) / at.Numel()
	if p.whole[key] == nil {
		p.whole[key], p.seen[key] = make([]byte, all.Numel()*width), map[int][]byte{}
	}
	if old, ok := p.seen[key][at.Flat.Start]; ok && !bytes.Equal(old, piece) {
		return fmt.Errorf("%s from element %d differs between two ranks", key, at.Flat.Start)
	}
	p.seen[key][at.Flat.Start] = piece
	placement.Copy(p.whole[key], all, piece, at, width)
	return nil
}

// member is a rank of a mesh.
type member struct {
	*rank
	layout   samplers.WindowLayout
	groups   []*comm.Group
	sharders []*shard.Sharder
	job      int // rank of the job
}

// member makes one. s.window are the micro-batches of a whole window over all ranks.
func (s settings) member(g *comm.Group, name string, how spread) (*member, error) {
	mesh, err := how.mesh.Of(g.Size())
	if err != nil {
		return nil, err
	}
	dp := comm.DPReplicate | comm.DPShard
	groups, err := mesh.Groups(g, comm.PP, dp, comm.DPShard, comm.DPReplicate)
	if err != nil {
		return nil, err
	}
	n := mesh.Size(dp)
	m := &member{groups: groups, job: g.Rank(), layout: samplers.WindowLayout{AccumulationSteps: s.window / n,
		WorldSize: n, Rank: mesh.Coord(g.Rank(), dp), Interleaved: how.options.Strategy.ShardsGradients(),
		Replicas: mesh.Size(comm.DPReplicate)}}
	peers := strategy.Peers{Data: groups[1], Loss: groups[1], Shards: groups[2]}
	if mesh.Size(comm.DPReplicate) > 1 {
		peers.Replicas = groups[3]
	}
	s.job = func(j *strategy.Job, model nn.Module) {
		j.Layout, j.Peers, j.Main, j.Log = m.layout, peers, g.Rank() == 0, slog.New(slog.DiscardHandler)
		j.BucketBytes = 1 << 20
		j.Units = model.(interface{ RecomputeUnits() []nn.Module }).RecomputeUnits()
	}
	how.options.Lower = s.lower
	s.strategy = func(j strategy.Job) (strategy.Strategy, error) {
		o := how.options
		o.Projected = j.Tree.Projected()
		sharder, err := shard.New(j, o)
		m.sharders = append(m.sharders, sharder)
		if err == nil && s.wrap != nil {
			return s.wrap(j, sharder), nil
		}
		return sharder, err
	}
	for _, h := range groups {
		go comm.EndTogether(g, h, s.ended)
	}
	s.micro = s.window / n
	m.rank, err = s.rank(groups[0], name, 0)
	return m, err
}

// batches are those of this rank, and what each repeats of another's if it lacks one.
func (m *member) batches(all []*data.Batch) (mine []*data.Batch) {
	rounds := (len(all) + m.layout.WorldSize - 1) / m.layout.WorldSize
	if !m.layout.Interleaved {
		rounds = m.layout.AccumulationSteps
	}
	for i := range rounds {
		switch n := m.layout.MicroBatch(i); {
		case n < len(all):
			mine = append(mine, all[n])
		case m.layout.Interleaved:
			again := *all[0]
			again.MicroBatch = -1
			mine = append(mine, &again)
		}
	}
	return mine
}

// sharded runs the steps on the ranks of a mesh.
func (s settings) sharded(t *testing.T, name string, how spread) (bits, error) {
	out := &pieces{whole: bits{}, seen: map[string]map[int][]byte{}}
	err := s.members(name, how, func(m *member) error {
		opt := adamW(m.c, m.Trained())
		for step := range s.steps {
			if err := m.step(step, s.batches(m.c, step), opt, out); err != nil {
				return err
			}
		}
		err := m.Close(true)
		for _, p := range m.Params() {
			if e := out.put("weights at the end "+p.Name, p.Placed().Placement,
				tensor.ReadBytes(m.c.NoGrad(), p.Tensor)); err == nil {
				err = e
			}
		}
		return err
	})
	return out.whole, err
}

// members runs body on all ranks of a mesh.
func (s settings) members(name string, how spread, body func(*member) error) error {
	s.ended = make(chan struct{})
	defer close(s.ended)
	run := s.on
	if run == nil {
		run = local.Run
	}
	n := how.mesh.PP * max(how.mesh.DPReplicate, 1) * how.mesh.DPShard
	return run(n, comm.Options{}, func(g *comm.Group) error {
		m, err := s.member(g, name, how)
		if err != nil {
			return err
		}
		return body(m)
	})
}

// step is a training step with clipping.
func (m *member) step(step int, all []*data.Batch, opt *optim.Optimizer, out *pieces) error {
	ctx, c := context.Background(), m.c.NoGrad()
	losses, err := m.Step(ctx, m.batches(all), scale)
	if err != nil {
		return err
	}
	for i, loss := range losses {
		if b := m.batches(all)[i]; b.MicroBatch >= 0 {
			out.mu.Lock()
			out.whole[fmt.Sprintf("step %d loss %d", step, b.MicroBatch)] = fmt.Append(nil, loss.Sum)
			out.mu.Unlock()
		}
	}
	norm, err := m.Norm(ctx)
	if err != nil {
		return err
	}
	out.mu.Lock()
	key := fmt.Sprintf("step %d norm", step)
	if old, ok := out.whole[key]; ok && string(old) != fmt.Sprint(norm) {
		err = fmt.Errorf("norm %v on rank %d: want %s", norm, m.layout.Rank, old)
	}
	out.whole[key] = fmt.Append(nil, norm)
	out.mu.Unlock()
	if err != nil {
		return err
	}
	opt.ScaleGrads(optim.ClipFactor(norm, norm/2))
	put := func(what string, of func(tensor.Named) *tensor.Tensor) error {
		for _, p := range m.Trained() {
			at, ok := m.Placement(p.Name)
			if !ok {
				return fmt.Errorf("%s has no placement", p.Name)
			}
			if err := out.put(fmt.Sprintf("step %d %s%s", step, what, p.Name), at,
				tensor.ReadBytes(c, of(p))); err != nil {
				return err
			}
		}
		return nil
	}
	if err := put("", func(p tensor.Named) *tensor.Tensor { return p.Grad() }); err != nil {
		return err
	}
	opt.Step(m.c)
	if err := put("weights ", func(p tensor.Named) *tensor.Tensor { return p.Tensor }); err != nil {
		return err
	}
	return m.Stepped(ctx, true)
}

// sameSharded compares a mesh with one process.
func (s settings) sameSharded(t *testing.T, name string, how spread) {
	t.Helper()
	s.window = s.micro
	s.micro -= how.short
	s.clip = true
	want := s.alone(t)
	got, err := s.sharded(t, name, how)
	require.NoError(t, err)
	last := fmt.Sprintf("step %d weights ", s.steps-1)
	for key, b := range want {
		require.Equal(t, b, got[key], "%s on %v by %s, %+v: %s", name, how.mesh, how.options.Strategy, s, key)
		if p, ok := strings.CutPrefix(key, last); ok {
			require.Equal(t, b, got["weights at the end "+p], p)
		}
	}
	require.Greater(t, len(want), 20)
}

// Stages whose parameters, gradients or optimizer states are sharded have the bits of one process, with clipping, under
// every schedule, also in windows that are not full.
func TestBitsOfShardedStages(t *testing.T) {
	strategies := []shard.Strategy{shard.Full, shard.Gradients, shard.GradOp, shard.Optimizer, shard.Full}
	i := 0
	for _, mesh := range []comm.Mesh{{PP: 2, DPShard: 2}, {PP: 2, DPReplicate: 2, DPShard: 2}} {
		for _, name := range []string{"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "zb_h1", "zbv", "dualpipev"} {
			n := mesh.DPShard * max(mesh.DPReplicate, 1)
			s := settings{layers: 2, tied: i%3 != 2, recompute: i%2 == 1, deterministic: n, steps: 2, micro: 4 * n,
				logits: i%5 == 4}
			how := spread{mesh: mesh, options: shard.Options{Strategy: strategies[i%5], Gather: i%5 != 4,
				Prefetch: i%2 == 0}}
			if i%4 == 1 {
				s.lower = tensor.BFloat16
			}
			if i%3 == 1 {
				how.short = 1
			}
			i++
			t.Run(fmt.Sprintf("%v/%s/%s", mesh, name, how.options.Strategy), func(t *testing.T) {
				s.sameSharded(t, name, how)
			})
		}
	}
}

// The parameters of each unit of a stage are gathered once in a step and once in an evaluation, and the gradients of
// each micro-batch are exchanged, whatever the order of the passes.
func TestStagesGatherOnce(t *testing.T) {
	for _, name := range schedule.Names() {
		for _, strategy := range []shard.Strategy{shard.GradOp, shard.Full} {
			const local = 4
			s := settings{layers: 2, tied: true, recompute: true, deterministic: 2, micro: local, window: 2 * local}
			how := spread{mesh: comm.Mesh{PP: 2, DPShard: 2}, options: shard.Options{Strategy: strategy, Gather: true,
				Prefetch: true}}
			require.NoError(t, s.members(name, how, func(m *member) error {
				units := map[string]int{} // gathers by label
				count := func() (gradients int) {
					clear(units)
					for _, e := range m.groups[2].Flight().Entries {
						switch {
						case e.Op == comm.AllGather:
							units[e.Label]++
						case strings.HasPrefix(e.Label, "gradients"):
							gradients++
						}
					}
					return gradients
				}
				count()
				before := maps.Clone(units)
				batches := m.batches(settings{micro: s.window}.batches(m.c, 0))
				if _, err := m.Step(t.Context(), batches, scale); err != nil {
					return err
				}
				gradients := count()
				for label, n := range units {
					if n -= before[label]; n != 1 {
						return fmt.Errorf("%s, %s: %s %d times in a step: want once", name, strategy, label, n)
					}
				}
				// a tied table is gathered on both ranks, and its gradients are exchanged on the first stage's
				if want := local * len(units); gradients != want && gradients != want-local || len(units) < 2 {
					return fmt.Errorf("%s, %s: %d units, gradients exchanged %d times: want %d", name, strategy,
						len(units), gradients, want)
				}
				if _, err := m.Evaluate(t.Context(), batches); err != nil {
					return err
				}
				count()
				for label, n := range units {
					if n -= before[label]; n != 2 {
						return fmt.Errorf("%s, %s: %s %d times in a step and an evaluation: want twice", name, strategy,
							label, n)
					}
				}
				return m.Close(false)
			}))
		}
	}
}

// A table decides when a stage gathers: again in front of its first backward pass, or not at all, so that each
// parameter comes when a pass uses it. Without REDUCE_GRAD gradients are complete at the end of the step.
func TestTablesDecideWhenStagesGather(t *testing.T) {
	again := func(s *schedule.Schedule) {
		for r, list := range s.Ranks {
			var changed []schedule.Action
			seen := map[int]bool{}
			for _, a := range list {
				if (a.Op == schedule.I || a.Op == schedule.B) && !seen[a.Stage] {
					seen[a.Stage] = true
					changed = append(changed, schedule.Action{Op: schedule.Reshard, Stage: a.Stage},
						schedule.Action{Op: schedule.Unshard, Stage: a.Stage})
				}
				changed = append(changed, a)
			}
			s.Ranks[r] = changed
		}
	}
	never := func(s *schedule.Schedule) {
		for r := range s.Ranks {
			s.Ranks[r] = slices.DeleteFunc(s.Ranks[r], func(a schedule.Action) bool {
				return a.Op >= schedule.Unshard
			})
		}
	}
	for i, table := range []func(*schedule.Schedule){again, never, again, never} {
		s := settings{layers: 2, tied: true, deterministic: 2, steps: 2, micro: 8, table: table,
			recompute: i > 1}
		name, how := []string{"1f1b", "zbv"}[i/2], spread{mesh: comm.Mesh{PP: 2, DPShard: 2},
			options: shard.Options{Strategy: shard.Full, Gather: true}}
		s.sameSharded(t, name, how)
		if i%2 == 1 {
			continue
		}
		s.window = s.micro
		require.NoError(t, s.members(name, how, func(m *member) error {
			if _, err := m.Step(t.Context(), m.batches(settings{micro: s.window}.batches(m.c, 0)), scale); err != nil {
				return err
			}
			gathers := map[string]int{}
			for _, e := range m.groups[2].Flight().Entries {
				if e.Op == comm.AllGather && strings.Contains(e.Label, ".h.") {
					gathers[e.Label]++
				}
			}
			for label, n := range gathers {
				if n != 2 {
					return fmt.Errorf("%s %d times: want twice", label, n)
				}
			}
			return m.Close(false)
		}))
	}
}

// A rank never holds more than its shards, the whole parameters of its stages, and gradients of a few units: what other
// ranks have, and what is not cut yet, is never there as a whole.
func TestPeaksOfShardedStages(t *testing.T) {
	if testing.Short() {
		t.Skip("large matrices: not under the race detector")
	}
	for _, name := range []string{"1f1b", "zbv"} {
		for _, strategy := range []shard.Strategy{shard.Gradients, shard.Full} {
			s := settings{layers: 8, width: 256, deterministic: 2, micro: 2, window: 4}
			how := spread{mesh: comm.Mesh{PP: 2, DPShard: 2}, options: shard.Options{Strategy: strategy, Gather: true}}
			require.NoError(t, s.members(name, how, func(m *member) error {
				opt := adamW(m.c, m.Trained())
				batches := m.batches(settings{micro: s.window}.batches(m.c, 0))
				for range 2 {
					if _, err := m.Step(t.Context(), batches, scale); err != nil {
						return err
					}
					opt.Step(m.c)
					if err := m.Stepped(t.Context(), true); err != nil {
						return err
					}
				}
				var together, params float64
				for _, q := range m.Params() {
					params += float64(q.Numel())
				}
				for _, sharder := range m.sharders {
					together += float64(sharder.Memory().Together)
				}
				for _, q := range m.Trained() {
					together += float64(8 * q.Numel())
				}
				peak := float64(m.dev.MemStats().Peak + m.groups[2].Allocated())
				t.Logf("%s, %s, rank %d: %.1f bytes per parameter of its stages, %.3f of the formula", name, strategy,
					m.layout.Rank, peak/params, peak/together)
				if peak > 1.05*together {
					return fmt.Errorf("%s, %s: a peak of %.0f bytes: want at most %.0f", name, strategy, peak, together)
				}
				return m.Close(false)
			}))
		}
	}
}

// failing fails as it gathers parameters.
type failing struct{ strategy.Strategy }

func (f failing) Parameters() strategy.Parameters { return unread{f.Strategy.Parameters()} }

type unread struct{ strategy.Parameters }

func (unread) Unshard() { panic(errors.New("no more paper")) }

// A rank that fails before a gather ends those that gather with it, and those of the other stages. Their errors name
// actions and ranks of the job.
func TestFailureInAGather(t *testing.T) {
	for _, name := range []string{"1f1b", "zbv"} {
		s := settings{layers: 2, tied: true, deterministic: 2, micro: 2, window: 4}
		s.wrap = func(j strategy.Job, of strategy.Strategy) strategy.Strategy {
			if j.Peers.Shards.JobRank(j.Peers.Shards.Rank()) == 3 {
				return failing{of}
			}
			return of
		}
		errs := make([]error, 4)
		err := s.members(name, spread{mesh: comm.Mesh{PP: 2, DPShard: 2}, options: shard.Options{Strategy: shard.Full,
			Gather: true}}, func(m *member) error {
			_, err := m.Step(t.Context(), m.batches(settings{micro: s.window}.batches(m.c, 0)), scale)
			errs[m.job] = err
			return err
		})
		require.Error(t, err)
		for r, err := range errs {
			require.Regexp(t, fmt.Sprintf(`^pp: rank %d, .*1UNSHARD: panic: no more paper`, r), err.Error())
			require.ErrorContains(t, err, "rank 3, ")
		}
	}
}
