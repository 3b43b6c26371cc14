// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/leaves"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Options are the settings of a Sharder; all ranks must give the same.
type Options struct {
	// Gradients makes ranks exchange gradients after each backward pass and keep the sum of their shard alone (ZeRO-2).
	// Otherwise each rank adds up its own leaves, and the sums are exchanged once (ZeRO-1).
	Gradients bool
	// Parameters makes whole parameters come for the pass of their unit and go after it (ZeRO-3, FSDP's FULL_SHARD). It
	// includes Gradients.
	Parameters bool
	// Shared keeps the parameters in memory that all ranks have together, whole and once: a step's shards are written
	// where the others read them, and nothing is gathered. The group must be able to (comm.Group.SharesMemory), and the
	// device compute in host memory. It includes Gradients and leaves no sense to Parameters.
	Shared bool
	// KeepAfterForward keeps them from the forward pass until the backward pass is done (FSDP's SHARD_GRAD_OP).
	KeepAfterForward bool
	// Zeros makes this rank's shards of parameters that come and go, in memory of the caller's choice; nil: in the
	// device's.
	Zeros optim.Zeros
	// Stay reports of a parameter that others would come and go with whether it stays whole on every rank; nil: none
	// does. Its gradients and the optimizer's state are sharded all the same.
	Stay func(p tensor.Named) bool
	// Lower is the dtype in which a training step computes products, Invalid if that is the parameters'; Projected are
	// the parameters that products alone read: their rounded copies are gathered, or shared, in their place.
	Lower     tensor.DType
	Projected map[string]bool
	// Reduce is the dtype in which gradients travel; they are added in float32. Invalid leaves them as they are.
	Reduce tensor.DType
	// Prefetch gathers the parameters of the next unit while one computes.
	Prefetch bool
	// Leaves is the number of leaves of a window over all ranks, and DeterministicRanks the argument: they say how
	// gradients are added.
	Leaves, DeterministicRanks int
	// All are the ranks of all replicas, and Replicas those that own the same shard as this one, over which sums of
	// gradients are added; nil where the group's ranks are all.
	All, Replicas *comm.Group
	// Usage are the options of ddp that say which gradients may be missing.
	Usage ddp.Options
}

// Sharder keeps the shards of a rank. It belongs to one goroutine. The life of a step under Options.Gradients: for each
// of the rank's leaves BeginPass, a backward pass during which Ready is called, and EndPass; then Finish. Without it
// there is one such pass, the last. The local tensors have the sums as gradients afterwards; Publish follows their
// change, and Reset ends the window.
type Sharder struct {
	c       *tensor.Ctx // without a Scope
	group   *comm.Group
	tree    *nn.Tree
	options Options
	host    bool // the device computes in host memory

	params []tensor.Named   // trained, in registration order
	slots  []slot           // of params
	local  []*tensor.Tensor // what this rank owns of each of params; nil: nothing
	placed []tensor.Placed  // see Placed; nil until it is called
	units  []*unit
	flats  []*flat // in the order in which their gradients are sent
	usage  *ddp.Usage
	unhook []func()
	old    []*tensor.Tensor // the parameters' memory before they moved

	round   int  // of the pass under way: leaf / ranks
	next    int  // first flat whose gradients are not sent
	took    bool // this rank had a backward pass in this window
	phantom bool // the pass under way repeats another's leaf, and counts nowhere
	checked bool // that all ranks train the same parameters in this window
	alone   bool // this rank runs what the others do not, see Alone
	flying  []*exchange
	guests  []*unit // that something used outside of their passes
	write   bool    // what is given up was changed, and the shard takes it
	order   []*unit // in which units were first entered
	seen    map[*unit]int
}

// slot is where a trained parameter lies.
type slot struct {
	flat *flat
	at   int
}

// unit is a Unit with its buffers.
type unit struct {
	Unit
	flats []*flat
	users int          // passes that need its parameters now
	lower tensor.DType // in which its last forward pass computes products
	root  bool
}

// exchange is the gradients of a flat on their way.
type exchange struct {
	flat   *flat
	round  int
	handle *comm.Handle
	grads  *tensor.Tensor // the buffer, that of the flat no more; nil where it stays
	parts  *tensor.Tensor // what all ranks sent for this rank's shard, leaf by leaf; nil: their sum is in grads
}

// GathersParameters reports whether all ranks must compute at the same time, since they gather parameters: a rank
// without a batch of its own then repeats another.
func (s *Sharder) GathersParameters() bool { return s.options.Parameters }

// Units is the number of units whose parameters come and go together; 0 where none do.
func (s *Sharder) Units() int {
	if !s.options.Parameters {
		return 0
	}
	return len(s.units)
}

// New moves the parameters of the units into flat buffers and cuts them into shards. All ranks have the same parameters
// with the same values. tree is that of the model, whose modules get hooks. It is collective.
func New(c *tensor.Ctx, g *comm.Group, tree *nn.Tree, units []Unit, o Options) (*Sharder, error) {
	o.Parameters = o.Parameters && !o.Shared
	if o.All == nil {
		o.All = g
	}
	o.Gradients = o.Gradients || o.Parameters || o.Shared
	s := &Sharder{c: c.NoGrad(), group: g, tree: tree, options: o, seen: map[*unit]int{},
		host: c.Device().HostMemory()}
	for _, p := range tree.Parameters() {
		if p.IsLeaf() {
			s.params = append(s.params, p)
		}
	}
	s.slots, s.local = make([]slot, len(s.params)), make([]*tensor.Tensor, len(s.params))
	s.usage = ddp.NewUsage(s.params, o.Usage)
	for i, u := range units {
		if err := s.add(u, i == 0 && u.Module != nil); err != nil {
			return nil, err
		}
		s.freeOld() // so that never more than one unit is there twice
	}
	if err := tensor.Try(s.cut); err != nil {
		return nil, err
	}
	switch {
	case o.Parameters:
		s.watch()
	case o.Shared:
		if err := s.shareAll(); err != nil {
			return nil, err
		}
		if err := s.roundAll(); err != nil {
			return nil, err
		}
	}
	s.begin()
	return s, nil
}

// stays reports whether a parameter is whole on every rank where others come and go.
func (s *Sharder) stays(p tensor.Named) bool {
	return s.options.Parameters && s.options.Stay != nil && s.options.Stay(p)
}

// add makes the buffers of a unit.
func (s *Sharder) add(from Unit, root bool) error {
	u := &unit{Unit: from, root: root}
	kinds := map[string][]tensor.Named{}
	var names []string
	for _, p := range from.Params {
		stays := s.stays(p)
		if !p.IsLeaf() && (stays || !s.options.Parameters && !s.options.Shared) {
			continue
		}
		name := fmt.Sprintf("%s %v", from.Name, p.DType())
		if !p.IsLeaf() {
			name += " frozen"
		}
		if stays {
			name += " whole"
		}
		if s.rounds(p) {
			name += fmt.Sprintf(" as %v", s.options.Lower)
		}
		if kinds[name] == nil {
			names = append(names, name)
		}
		kinds[name] = append(kinds[name], p)
	}
	for _, name := range names {
		f, err := newFlat(s, u, name, kinds[name], kinds[name][0].IsLeaf())
		if err != nil {
			return err
		}
		u.flats = append(u.flats, f)
		if f.comes {
			f.leave(s)
		}
		if s.rounds(f.params[0]) {
			if err := f.makeLow(s, u); err != nil {
				return err
			}
		}
	}
	s.units = append(s.units, u)
	return nil
}

// cut makes the local tensors, and the sums of gradients.
func (s *Sharder) cut() {
	number := map[*tensor.Tensor]int{}
	for i, p := range s.params {
		number[p.Tensor] = i
	}
	for _, u := range s.units {
		for _, f := range u.flats {
			if f.number == nil {
				continue
			}
			s.flats = append(s.flats, f)
			for i, p := range f.params {
				n := number[p.Tensor]
				f.number[i], s.slots[n] = n, slot{f, i}
				if own := f.local(s, f.own, i); own != nil {
					s.local[n] = own.SetRequiresGrad(true)
				}
			}
			if s.options.Gradients {
				f.sum = s.newSum()
			}
		}
	}
	if s.options.Parameters { // modules come in the order of the forward pass, and the root's gradients last
		slices.Reverse(s.flats)
	}
}

// newSum makes the sum of a flat's gradients.
func (s *Sharder) newSum() *leaves.Shard {
	if s.summed() {
		return leaves.NewShard(s.c, s.options.Leaves/s.group.Size(), s.options.Leaves/s.group.Size())
	}
	return leaves.NewShard(s.c, s.options.Leaves, s.options.DeterministicRanks)
}

// summed reports whether the group's own tree over the ranks is the part of the leaves' tree that a round makes: then
// gradients are summed on their way.
func (s *Sharder) summed() bool {
	n, m := s.group.Size(), s.options.Leaves
	return !s.options.Reduce.IsHalf() && n&(n-1) == 0 && m%n == 0 && leaves.Groups(m, s.options.DeterministicRanks) == m
}

// freeOld frees the memory that the parameters had before, if nothing of the model lies there any more.
func (s *Sharder) freeOld() {
	for _, old := range s.old {
		if !slices.ContainsFunc(s.tree.State(), func(t tensor.Named) bool { return t.SharesMemory(old) }) {
			old.Free()
		}
	}
	s.old = nil
}

// Local lists what this rank owns of the trained parameters, under their names, in registration order. They are
// vectors; a parameter of which the rank owns nothing is not there.
func (s *Sharder) Local() []tensor.Named {
	var list []tensor.Named
	for i, t := range s.local {
		if t != nil {
			list = append(list, tensor.Named{Name: s.params[i].Name, Tensor: t})
		}
	}
	return list
}

// Views are the buffers of the parameters' gradients, between windows, for whoever adds up this rank's leaves; they are
// there without Options.Gradients.
func (s *Sharder) Views() ([]*tensor.Tensor, error) {
	views := make([]*tensor.Tensor, len(s.params))
	for _, f := range s.flats {
		if f.grads == nil {
			var err error
			if f.gmemory, f.grads, err = alloc(s, f.params[0].GradDType(), f.pack.numel()); err != nil {
				return nil, err
			}
		}
		if err := tensor.Try(func() { f.point(s) }); err != nil {
			return nil, err
		}
		for i, n := range f.number {
			views[n] = f.views[i]
		}
	}
	return views, nil
}

func (s *Sharder) index(name string) int {
	return slices.IndexFunc(s.params, func(p tensor.Named) bool { return p.Name == name })
}

// Gather implements strategy.Shards.
func (s *Sharder) Gather(ctx context.Context, name string, dt tensor.DType, mine *tensor.Tensor) (whole []byte,
	err error) {
	i := s.index(name)
	if i < 0 {
		return nil, fmt.Errorf("shard: there is no trained parameter %q", name)
	}
	var parts []tensor.Placement // of the ranks
	longest := 0
	for r := range s.group.Size() {
		parts = append(parts, s.slots[i].flat.placement(s.slots[i].at, r))
		longest = max(longest, parts[r].Numel())
	}
	in := comm.Aligned(longest * dt.Size())
	if mine != nil {
		if err := tensor.Try(func() { copy(in, tensor.ReadBytes(s.c, mine)) }); err != nil {
			return nil, err
		}
	}
	var out []byte
	if s.group.Rank() == 0 {
		out = comm.Aligned(len(in) * len(parts))
	}
	if err := s.group.Gather(comm.Bytes(out, dt), comm.Bytes(in, dt), 0,
		comm.Label("state of "+name)).Wait(ctx); err != nil {
		return nil, fmt.Errorf("shard: gathering the state of %s: %w", name, err)
	}
	all := tensor.WholePlacement(name, s.params[i].Shape()...)
	whole = make([]byte, all.Numel()*dt.Size())
	if out == nil {
		return whole, nil
	}
	for r, p := range parts {
		placement.Copy(whole, all, out[r*len(in):], p, dt.Size())
	}
	return whole, nil
}

// begin readies the next pass.
func (s *Sharder) begin() {
	s.next = 0
	for _, f := range s.flats {
		f.begin()
	}
}

// BeginPass readies the backward pass of this rank's leaf number round. A phantom repeats a leaf of another rank: it
// makes this rank take part in what the others exchange, and leaves no gradient.
func (s *Sharder) BeginPass(round int, phantom bool) {
	if s.options.Parameters && !s.checked { // backward passes that differ would gather other parameters than the others
		s.checked = true
		if err := ddp.CheckFrozen(context.Background(), s.options.All, s.params); err != nil {
			panic(&tensor.Error{Op: "shard", Msg: err.Error(), Cause: err})
		}
	}
	s.round, s.phantom = round, phantom
	s.begin()
	s.openNext()
}

// openNext makes the buffers that gradients come to next, where no unit's pass does so.
func (s *Sharder) openNext() {
	if !s.options.Gradients || s.options.Parameters {
		return
	}
	for _, f := range s.flats[s.next:min(s.next+ring, len(s.flats))] {
		f.open(s)
	}
}

// Ready announces that the gradient of parameter i is complete in this pass, or that the pass has none for it. When all
// of a buffer are, and those before it are on their way, it is sent.
func (s *Sharder) Ready(i int) {
	p := s.slots[i]
	if s.params[i].Grad() != nil && !s.phantom {
		s.usage.Here[i] = true
	}
	p.flat.fill(s, p.at, s.phantom)
	for s.next < len(s.flats) && s.flats[s.next].left == 0 {
		s.send(s.flats[s.next])
		s.next++
		s.openNext()
	}
}

// EndPass announces what the pass left without a gradient, and gives up what is not needed until the next.
func (s *Sharder) EndPass() {
	for i := range s.params {
		if p := s.slots[i]; !p.flat.filled[p.at] {
			s.Ready(i)
		}
	}
	s.took = s.took || !s.phantom
	s.phantom = false
	for _, u := range s.units {
		u.users = 0
	}
	s.leaveAll()
}

// ring is how many buffers of gradients are on their way at most.
const ring = 2

// send begins the exchange of a buffer.
func (s *Sharder) send(f *flat) {
	for len(s.flying) >= ring*len(f.unit.flats) && s.options.Gradients {
		s.land()
	}
	x := &exchange{flat: f, round: s.round}
	label := comm.Label(fmt.Sprintf("gradients %s", f.name))
	switch {
	case s.options.Reduce.IsHalf():
		s.sendRounded(x, label)
	case f.sum == nil || s.summed():
		x.handle = s.group.ReduceScatter(comm.OfTensor(s.c, f.shard(s, f.grads)), comm.OfTensor(s.c, f.grads), comm.Sum,
			label)
	default:
		x.parts = tensor.Empty(s.c, f.grads.DType(), f.pack.numel())
		x.handle = s.group.AllToAll(comm.OfTensor(s.c, x.parts), comm.OfTensor(s.c, f.grads), label)
	}
	if f.sum != nil && x.grads == nil {
		x.grads, f.grads = f.grads, nil
	}
	s.flying = append(s.flying, x)
}

// sendRounded begins an exchange in the dtype of Options.Reduce.
func (s *Sharder) sendRounded(x *exchange, label comm.CallOption) {
	f, dt := x.flat, s.options.Reduce
	x.grads, x.parts = tensor.Empty(s.c, dt, f.pack.numel()), tensor.Empty(s.c, dt, f.pack.numel())
	tensor.CopyInto(s.c, x.grads, f.grads)
	if f.sum != nil {
		f.grads.Free()
		f.grads = nil
	}
	x.handle = s.group.AllToAll(comm.OfTensor(s.c, x.parts), comm.OfTensor(s.c, x.grads), label)
}

// land waits for the oldest exchange and adds what it brought.
func (s *Sharder) land() {
	x := s.flying[0]
	s.flying = s.flying[1:]
	err := x.handle.Wait(context.Background())
	if err != nil {
		x.free()
		fail("gradients "+x.flat.name, err)
	}
	switch f := x.flat; {
	case f.sum == nil && x.parts != nil:
		sum := leaves.NewShard(s.c, s.group.Size(), s.group.Size())
		s.addParts(sum, 0, x)
		total := sum.Total()
		f.total = f.shard(s, f.grads)
		tensor.CopyInto(s.c, f.total, total)
		total.Free()
	case f.sum == nil:
		f.total = f.shard(s, f.grads)
	case x.parts == nil:
		f.sum.Add(x.round, f.shard(s, x.grads))
	default:
		s.addParts(f.sum, x.round*s.group.Size(), x)
	}
	x.free()
}

// addParts adds what the ranks sent for this rank's shard, one after the other, in float32.
func (s *Sharder) addParts(sum *leaves.Shard, first int, x *exchange) {
	for r := range s.group.Size() {
		lo := r * x.flat.pack.shard
		part := tensor.Slice(s.c, x.parts, 0, lo, lo+x.flat.pack.shard)
		if !s.options.Reduce.IsHalf() {
			sum.Add(first+r, part)
			continue
		}
		exact := tensor.Cast(s.c, part, tensor.Float32)
		sum.Add(first+r, exact)
		exact.Free()
	}
}

func (x *exchange) free() {
	for _, t := range []*tensor.Tensor{x.grads, x.parts} {
		if t != nil {
			t.Free()
		}
	}
}

// Finish waits until all gradients are exchanged and makes the sums those of the local tensors. A parameter that had a
// gradient on no rank has none. It is collective.
func (s *Sharder) Finish(ctx context.Context) error {
	if err := s.usage.Send(s.options.All, s.took); err != nil {
		return err
	}
	if err := tensor.Try(func() {
		for len(s.flying) > 0 {
			s.land()
		}
	}); err != nil {
		return err
	}
	if err := s.usage.Agree(ctx); err != nil {
		return err
	}
	if err := s.meet("gradients are complete"); err != nil { // and nobody reads parameters any more
		return err
	}
	if err := s.totals(ctx); err != nil {
		return err
	}
	return tensor.Try(func() {
		for _, f := range s.flats {
			for i, n := range f.number {
				if own := s.local[n]; own != nil && s.usage.All[n] {
					own.SwapGrad(f.local(s, f.total, i), true)
				}
			}
		}
	})
}

// totals completes the sums of this rank's shards, over all replicas.
func (s *Sharder) totals(ctx context.Context) error {
	var handles []*comm.Handle
	if err := tensor.Try(func() {
		for _, f := range s.flats {
			if f.sum != nil {
				f.total = f.sum.Total()
			}
			if s.options.Replicas != nil {
				handles = append(handles, s.options.Replicas.AllReduce(comm.OfTensor(s.c, f.total), comm.Sum,
					comm.Label("gradients of replicas "+f.name)))
			}
		}
	}); err != nil {
		return err
	}
	var first error
	for _, h := range handles {
		if err := h.Wait(ctx); err != nil && first == nil {
			first = fmt.Errorf("shard: adding gradients of replicas: %w", err)
		}
	}
	return first
}

// cellsAtATime bounds what Squares holds at once: 8 bytes for each cell, 8 MiB.
const cellsAtATime = 1 << 20

// Squares adds up the squares of the local gradients over all ranks, with the bits of one rank. It is collective.
func (s *Sharder) Squares(ctx context.Context) (float64, error) {
	sum := 0.0
	for lo := 0; lo < len(s.params); {
		hi, cells := lo+1, cellsOf(s.params[lo])
		for hi < len(s.params) && cells+cellsOf(s.params[hi]) <= cellsAtATime {
			cells += cellsOf(s.params[hi])
			hi++
		}
		partials, err := s.partials(lo, hi, cells)
		if err != nil {
			return 0, err
		}
		h := s.group.AllReduce(comm.Of(partials), comm.Sum, comm.Label("norms of gradients"))
		if err := h.Wait(ctx); err != nil {
			return 0, err
		}
		for _, x := range partials {
			sum += x
		}
		lo = hi
	}
	return sum, nil
}

func cellsOf(p tensor.Named) int { return up(p.Numel(), Cell) / Cell }

// partials are the sums of squares of each cell of the parameters lo to hi, which have so many cells: of this rank's
// local tensors, and 0 elsewhere.
func (s *Sharder) partials(lo, hi, cells int) ([]float64, error) {
	all, begin := make([]float64, cells), 0 // where a parameter's partials begin
	err := tensor.Try(func() {
		s.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			var grads []*tensor.Tensor
			var at []int
			for i := lo; i < hi; i++ {
				if own := s.local[i]; own != nil && own.Grad() != nil {
					p := s.slots[i]
					first := p.flat.pack.within(p.at, s.group.Rank()).Start
					grads, at = append(grads, own.Grad()), append(at, begin+first/Cell)
				}
				begin += cellsOf(s.params[i])
			}
			sums := tensor.ToSlice[float64](c, tensor.SumSquaresAll(c, grads))
			for i, g := range grads {
				n := up(g.Numel(), Cell) / Cell
				copy(all[at[i]:], sums[:n])
				sums = sums[n:]
			}
			return nil
		})
	})
	return all, err
}

// Publish implements strategy.Shards: the whole parameters on every rank become what the ranks made of their local
// tensors.
func (s *Sharder) Publish(ctx context.Context) error {
	var handles []*comm.Handle
	for _, f := range s.flats {
		if err := tensor.Try(func() { f.written(s) }); err != nil {
			return err
		}
		if !f.comes && !s.options.Shared {
			if err := tensor.Try(func() {
				handles = append(handles, s.group.AllGather(comm.OfTensor(s.c, f.whole.Tensor),
					comm.OfTensor(s.c, f.own), comm.Label("gather "+f.name)))
			}); err != nil {
				return err
			}
		}
	}
	for _, h := range handles {
		if err := h.Wait(ctx); err != nil {
			return fmt.Errorf("shard: gathering parameters: %w", err)
		}
	}
	return s.meet("parameters are written")
}

// Reset ends a window, or gives one up: the gradients are forgotten and their memory is freed. Exchanges that are under
// way are waited for.
func (s *Sharder) Reset() {
	for _, x := range s.flying {
		_ = x.handle.Wait(context.Background()) // the memory is theirs until then; the error came, or does not matter
		x.free()
	}
	s.flying, s.took, s.phantom, s.checked = nil, false, false, false
	clear(s.usage.Here)
	for _, own := range s.local {
		if own != nil {
			own.SwapGrad(nil, false)
		}
	}
	for _, f := range s.flats {
		if f.sum == nil {
			f.total = nil // part of grads
			continue
		}
		f.sum.Reset()
		for _, t := range []**tensor.Tensor{&f.total, &f.grads} {
			if *t != nil {
				(*t).Free()
				*t = nil
			}
		}
		for _, p := range f.params {
			if old := p.SwapGrad(nil, false); old != nil {
				old.Free()
			}
		}
	}
	s.guests = nil
	for _, u := range s.units {
		u.users = 0
		_ = tensor.Try(func() { s.release(u) }) // fails with the group; what was on its way is gone
	}
	s.begin()
}

// Close gives the parameters memory of their own and takes the hooks away. With whole it is collective, and all ranks
// have the whole parameters then; without it what other ranks own of those that are away is NaN: nothing is computed
// with a model of which parts are lost.
func (s *Sharder) Close(whole bool) error {
	s.Reset()
	for _, f := range s.unhook {
		f()
	}
	var errs []error
	for _, u := range s.units {
		for _, f := range u.flats {
			errs = append(errs, s.restore(f, whole))
		}
	}
	return errors.Join(errs...)
}

// restore gives the parameters of a buffer memory of their own.
func (s *Sharder) restore(f *flat, whole bool) error {
	err := tensor.Try(func() {
		if f.low.is() {
			for _, p := range f.params {
				p.LendLowered(nil)
			}
			f.low.OnMissing(nil)
		}
		f.whole.OnMissing(nil)
		switch {
		case !f.whole.Unloaded():
		case whole:
			f.arrive(s, &f.whole)
		default:
			f.whole.Reload(tensor.Full(s.c, f.dtype, math.NaN(), f.pack.numel()))
			tensor.CopyInto(s.c, f.shard(s, f.whole.Tensor), f.own)
		}
		for _, p := range f.params {
			if f.number != nil {
				p.SwapGrad(nil, false)
			}
			p.Rehome(s.c, tensor.Empty(s.c, f.dtype, p.Shape()...))
		}
		s.c.Sync()
		f.whole.Free()
		if f.low.is() {
			f.low.Free()
		}
	})
	for _, m := range []*comm.Memory{f.memory, f.lmemory, f.gmemory} {
		if m != nil {
			err = errors.Join(err, m.Free())
		}
	}
	return err
}
