// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
	"github.com/lockstep-ml/lockstep/tensor"
)

// together runs f as n ranks and returns their errors. It fails the test if they hang.
func together(t testing.TB, n int, f func(g *comm.Group) error) []error {
	t.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	for r, g := range local.New(n, comm.Options{Timeout: time.Minute}) {
		all.Go(func() {
			defer func() { _ = g.Close() }() // of a group that may have failed
			errs[r] = f(g)
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		require.Fail(t, "the ranks hang")
	}
	return errs
}

// The tensors of the sharded tests: of the model a [5,7], b [3], a fused projection and one without elements, and
// moments.
var shapes = map[[2]string][]int{{"model", "a"}: {5, 7}, {"model", "b"}: {3}, {"optimizer", "a.exp_avg"}: {5, 7},
	{"model", "none"}: {0, 2}, {"model", "fused"}: {4, 24}, {"optimizer", "fused.exp_avg"}: {4, 24}}

// element is the value at i of a tensor of a state.
func (s state) element(key [2]string, i int) uint32 {
	h := uint32(2166136261)
	for _, c := range fmt.Sprint(s, key, i) {
		h = (h ^ uint32(c)) * 16777619
	}
	return h
}

func (s state) elements(key [2]string, lo, hi int) (data []byte) {
	for i := lo; i < hi; i++ {
		data = binary.LittleEndian.AppendUint32(data, s.element(key, i))
	}
	return data
}

// part is what a placement has of a tensor.
func (s state) part(key [2]string, p tensor.Placement) []byte {
	whole := tensor.WholePlacement(key[1], shapes[key]...)
	data := make([]byte, 4*p.Numel())
	placement.Copy(data, p, s.elements(key, 0, whole.Numel()), whole, 4)
	return data
}

func numel(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// partOf is rank r's of n: an equal range of a tensor's elements, but b whole on the last rank, and of fused
// projections an equal range of the columns of either tensor-parallel rank, if there are two.
func partOf(key [2]string, r, n int) tensor.Placement {
	p := tensor.WholePlacement(key[1], shapes[key]...)
	switch {
	case key[1] == "b":
		return p.Slice(0, p.Numel()*((r+1)/n))
	case strings.HasPrefix(key[1], "fused") && n%2 == 0:
		tp := r / (n / 2)
		var columns []tensor.Range
		for at := 0; at < 24; at += 8 {
			columns = append(columns, tensor.Range{Start: at + 4*tp, Stop: at + 4*tp + 4})
		}
		p, r, n = p.Along(1, columns...), r%(n/2), n/2
	}
	return p.Slice(p.Numel()*r/n, p.Numel()*(r+1)/n)
}

// placed are rank r's parts of n.
func (s state) placed(r, n int) (list []checkpoint.Placed) {
	for key := range shapes {
		p := partOf(key, r, n)
		list = append(list, checkpoint.Placed{Placement: p, Set: key[0], DType: tensor.Int32,
			Write: func(w io.Writer) error {
				_, err := w.Write(s.part(key, p))
				return err
			}})
	}
	return list
}

func (s state) sharded(r, n int) checkpoint.Content {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	c := checkpoint.Content{Placed: s.placed(r, n)}
	if r == 0 { // the others' count for nothing
		c.RunID, c.Parts = run, []checkpoint.Part{checkpoint.BytesPart("trainer_state.json", text)}
	}
	return c
}

// savingShards saves on n ranks; fsys gives a rank's file system.
func savingShards(t testing.TB, n int, st state, fsys func(rank int) vfs.FS) []error {
	return together(t, n, func(g *comm.Group) error {
		_, err := quiet(fsys(g.Rank()), "out").SaveShards(ctx, g, st.Step, st.sharded(g.Rank(), n))
		return err
	})
}

func same(fsys vfs.FS) func(int) vfs.FS { return func(int) vfs.FS { return fsys } }

// requireNone requires that no rank had an error.
func requireNone(t testing.TB, errs []error) {
	t.Helper()
	for r, err := range errs {
		require.NoError(t, err, "rank %d", r)
	}
}

// wholeShards requires that the checkpoint is one of the states in every element, and returns it.
func wholeShards(t testing.TB, ck *checkpoint.Checkpoint) state {
	t.Helper()
	var st state
	require.NoError(t, ck.ReadJSON("trainer_state.json", &st))
	require.Equal(t, st.Step, ck.Step)
	for key, shape := range shapes {
		set, err := ck.OpenTensors(key[0])
		require.NoError(t, err)
		a, ok := set.Lookup(key[1])
		require.True(t, ok)
		require.Equal(t, shape, a.Shape)
		data, err := a.Read()
		require.NoError(t, err)
		require.Equal(t, st.elements(key, 0, numel(shape)), append([]byte(nil), data...), "%v", key)
		require.NoError(t, set.Close())
	}
	return st
}

func TestSaveShards(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8} {
		m := vfs.NewMem()
		st := state{5, fmt.Sprint(n)}
		infos := make([]checkpoint.Info, n)
		requireNone(t, together(t, n, func(g *comm.Group) (err error) {
			infos[g.Rank()], err = quiet(m, "out").SaveShards(ctx, g, 5, st.sharded(g.Rank(), n))
			return err
		}))
		require.Equal(t, "LATEST checkpoint-5", names(t, m, "out"))
		var want []string
		for k := range n {
			want = append(want, fmt.Sprintf("shard-%05d-of-%05d.safetensors", k+1, n))
		}
		require.Equal(t, "manifest.json pieces.json "+strings.Join(want, " ")+" trainer_state.json",
			names(t, m, "out/checkpoint-5"))
		ck, err := quiet(m, "out").Latest(ctx)
		require.NoError(t, err)
		require.Equal(t, st, wholeShards(t, ck))
		for _, info := range infos {
			require.Equal(t, ck.Info, info, "all ranks get what was saved")
		}
		for _, readers := range []int{1, 2, 3, 8} {
			requireNone(t, together(t, readers, func(g *comm.Group) error {
				ck, err := quiet(m, "out").Latest(ctx)
				if err != nil {
					return err
				}
				for _, p := range st.placed(g.Rank(), readers) {
					if err := compare(ck, st, p); err != nil {
						return err
					}
				}
				return nil
			}))
		}
	}
}

// Save is SaveShards of one rank.
func TestSaveWritesPlacedTensors(t *testing.T) {
	m, st := vfs.NewMem(), state{5, "one"}
	info, err := quiet(m, "out").Save(ctx, 5, st.sharded(0, 1))
	require.NoError(t, err)
	require.Equal(t, "manifest.json pieces.json shard-00001-of-00001.safetensors trainer_state.json",
		names(t, m, info.Path))
	ck, err := quiet(m, "out").Latest(ctx)
	require.NoError(t, err)
	require.Equal(t, st, wholeShards(t, ck))
}

// compare reads a part of a tensor from a checkpoint.
func compare(ck *checkpoint.Checkpoint, st state, p checkpoint.Placed) error {
	set, err := ck.OpenTensors(p.Set)
	if err != nil {
		return err
	}
	a, _ := set.Lookup(p.Name)
	section, err := a.Section(p.Placement)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(section)
	if err == nil && string(data) != string(st.part([2]string{p.Set, p.Name}, p.Placement)) {
		err = fmt.Errorf("%s of %s: other elements", p.Name, p.Set)
	}
	return errors.Join(err, set.Close())
}

func TestRanksReadNothingBesideTheirParts(t *testing.T) {
	m := vfs.NewMem()
	requireNone(t, savingShards(t, 4, state{5, "x"}, same(m)))
	var mu sync.Mutex
	read := map[string]int{}
	watch := errorfs.Wrap(m, func(op errorfs.Op) error {
		if strings.Contains(op.String(), "shard-") && op.Kind == errorfs.Read {
			mu.Lock()
			defer mu.Unlock()
			read[filepath.Base(op.Path)]++
		}
		return nil
	})
	set, err := safetensors.OpenSet(watch, "out/checkpoint-5", "model")
	require.NoError(t, err)
	headers := len(read)
	require.Equal(t, 4, headers)
	clear(read)
	a, _ := set.Lookup("a")
	section, err := a.Section(a.Placement().Slice(17, 26)) // the third rank's
	require.NoError(t, err)
	_, err = io.ReadAll(section)
	require.NoError(t, err)
	require.Len(t, read, 1)
	require.NotZero(t, read["shard-00003-of-00004.safetensors"])
	require.NoError(t, set.Close())
}

func TestPartsThatDoNotFitAreRefusedOnAllRanks(t *testing.T) {
	part := func(p tensor.Placement) checkpoint.Placed {
		return checkpoint.Placed{Set: "model", DType: tensor.Uint8, Placement: p,
			Write: func(w io.Writer) error { _, err := w.Write(make([]byte, p.Numel())); return err }}
	}
	a, b, w := tensor.WholePlacement("a", 4), tensor.WholePlacement("b", 4), tensor.WholePlacement("w", 2, 4)
	ints, silent := part(a.Slice(2, 4)), part(b)
	ints.DType, silent.Write = tensor.Int32, nil
	left := part(w.Along(1, tensor.Range{Stop: 2}))
	for _, c := range []struct {
		zero, one checkpoint.Placed
		want      string
	}{
		{part(a.Slice(0, 2)), part(a.Slice(3, 4)), `tensor "a" of model: nobody has the elements [2, 3) of a[0:4]`},
		{part(a.Slice(0, 2)), part(a.Slice(1, 4)), `tensor "a" of model: two parts have the elements [1, 2) of a[0:4]`},
		{part(a.Slice(0, 2)), part(b), `nobody has the elements [2, 4) of a[0:4]`},
		{part(a.Slice(0, 2)), part(a.Slice(2, 5)), "a of model: elements [2, 5) of 4: want a range inside"},
		{left, part(w.Along(1, tensor.Range{Start: 2, Stop: 5})), "range [2, 5) of dim 1: want one in [0, 4)"},
		{left, part(w.Along(1, tensor.Range{Start: 1, Stop: 4})),
			"the boxes w[0:2,0:2][0:4] and w[0:2,1:4][0:6] have elements in common"},
		{left, part(w.Along(1, tensor.Range{Start: 3, Stop: 4})), `tensor "w" of model: nobody has 2 of 8 elements`},
		{part(a.Slice(0, 2)), ints, "rank 1: a of model is int32[4] here, uint8[4]"},
		{part(a), silent, "b[0:4] of model has no Write"},
	} {
		m := vfs.NewMem()
		errs := together(t, 2, func(g *comm.Group) error {
			_, err := quiet(m, "out").SaveShards(ctx, g, 5,
				checkpoint.Content{Placed: []checkpoint.Placed{[]checkpoint.Placed{c.zero, c.one}[g.Rank()]}})
			return err
		})
		for _, err := range errs {
			require.ErrorContains(t, err, c.want)
		}
		require.Empty(t, names(t, m, "out"), "nothing is left")
	}

	errs := together(t, 2, func(g *comm.Group) error {
		_, err := quiet(vfs.NewMem(), "out").SaveShards(ctx, g, int64(g.Rank()), state{}.sharded(g.Rank(), 2))
		return err
	})
	for _, err := range errs {
		require.ErrorContains(t, err, "want the same")
	}
}

// Ranks whose stores are not one folder learn it before they save.
func TestCheckShared(t *testing.T) {
	look := func(fsys func(int) vfs.FS) []error {
		return together(t, 3, func(g *comm.Group) error { return quiet(fsys(g.Rank()), "a/out").CheckShared(ctx, g) })
	}
	m := vfs.NewMem()
	requireNone(t, look(same(m)))
	left, err := m.ReadDir("a/out")
	require.NoError(t, err)
	require.Empty(t, left)
	for _, err := range look(func(r int) vfs.FS { return []vfs.FS{m, vfs.NewMem(), m}[r] }) {
		require.ErrorContains(t, err, "a folder that rank 0 made in a/out is not here: want the same output folder on "+
			"all hosts")
	}
	bad := errorfs.Wrap(vfs.NewMem(), func(errorfs.Op) error { return errorfs.ErrNoSpace })
	for _, err := range look(same(bad)) {
		require.ErrorContains(t, err, "no space left on device")
	}
}

// What fails on one rank fails on all, which name it; nothing is left, and the next save works.
func TestFailureOfOneRankIsEveryRanks(t *testing.T) {
	boom := errors.New("boom")
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	for _, c := range []struct {
		name string
		do   func(s *checkpoint.Store, g *comm.Group, content checkpoint.Content) error
		want string
	}{
		{"error", func(s *checkpoint.Store, g *comm.Group, content checkpoint.Content) error {
			content.Placed[0].Write = func(io.Writer) error { return boom }
			_, err := s.SaveShards(ctx, g, 10, content)
			return err
		}, "boom"},
		{"panic", func(s *checkpoint.Store, g *comm.Group, content checkpoint.Content) (err error) {
			defer func() { err = recover().(error) }()
			content.Placed[0].Write = func(io.Writer) error { panic(boom) }
			_, _ = s.SaveShards(ctx, g, 10, content)
			return nil
		}, "panic: boom"},
		{"cancelled", func(s *checkpoint.Store, g *comm.Group, content checkpoint.Content) error {
			_, err := s.SaveShards(cancelled, g, 10, content)
			return err
		}, "context canceled"},
		{"too few bytes", func(s *checkpoint.Store, g *comm.Group, content checkpoint.Content) error {
			content.Placed[0].Write = func(io.Writer) error { return nil }
			_, err := s.SaveShards(ctx, g, 10, content)
			return err
		}, "bytes were not given"},
	} {
		for _, bad := range []int{0, 2} {
			t.Run(fmt.Sprint(c.name, " on rank ", bad), func(t *testing.T) {
				m := vfs.NewMem()
				requireNone(t, savingShards(t, 3, state{5, "old"}, same(m)))
				errs := together(t, 3, func(g *comm.Group) error {
					s, content := quiet(m, "out"), state{10, "new"}.sharded(g.Rank(), 3)
					slices.SortFunc(content.Placed, func(a, b checkpoint.Placed) int {
						return b.Numel() - a.Numel()
					})
					if g.Rank() == bad {
						return c.do(s, g, content)
					}
					_, err := s.SaveShards(ctx, g, 10, content)
					return err
				})
				for r, err := range errs {
					if r == bad {
						require.Error(t, err)
						continue
					}
					var rank *checkpoint.RankError
					require.ErrorAs(t, err, &rank, "rank %d", r)
					require.Equal(t, bad, rank.Rank)
					require.ErrorContains(t, err, "saving "+filepath.Join("out", "checkpoint-10"))
					require.ErrorContains(t, err, c.want)
				}
				require.Equal(t, "LATEST checkpoint-5", names(t, m, "out"), "nothing is left")
				requireNone(t, savingShards(t, 3, state{10, "new"}, same(m)))
			})
		}
	}
}

// A rank that is lost ends the save of the others, and what they had written goes.
func TestLostRankEndsTheSave(t *testing.T) {
	for _, lost := range []int{0, 1, 2} {
		m := vfs.NewMem()
		requireNone(t, savingShards(t, 3, state{5, "old"}, same(m)))
		errs := together(t, 3, func(g *comm.Group) error {
			content := state{10, "new"}.sharded(g.Rank(), 3)
			for i, p := range content.Placed {
				content.Placed[i].Write = func(w io.Writer) error {
					if g.Rank() == lost {
						g.Abort(errors.New("lost its power"))
					}
					return p.Write(w)
				}
			}
			_, err := quiet(m, "out").SaveShards(ctx, g, 10, content)
			return err
		})
		for _, err := range errs {
			require.ErrorContains(t, err, "lost its power")
		}
		ck, err := quiet(m, "out").Latest(ctx)
		require.NoError(t, err)
		require.Equal(t, state{5, "old"}, wholeShards(t, ck))
		requireNone(t, savingShards(t, 3, state{10, "new"}, same(m)))
		require.Equal(t, "LATEST checkpoint-10 checkpoint-5", names(t, m, "out"))
	}
}

// checkShards requires that the folder holds one of the states, and can be saved into.
func checkShards(t *testing.T, m *vfs.Mem, errs []error, old, now state, when string) {
	t.Helper()
	ck, err := quiet(m, "out").Latest(ctx)
	require.NoError(t, err, when)
	got := wholeShards(t, ck)
	if !slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		require.Equal(t, now, got, when)
	}
	require.Contains(t, []state{old, now}, got, when)
	for _, name := range list(m) {
		if strings.HasPrefix(name, "checkpoint-") {
			_, err := quiet(m, "out").Open(ctx, name)
			require.NoError(t, err, "%s: what has a checkpoint's name is one", when)
		}
	}
	requireNone(t, savingShards(t, 2, state{20, "after"}, same(m)))
	for _, name := range list(m) {
		require.False(t, strings.HasPrefix(name, "."), "%s: %s is left over", when, name)
	}
}

func TestEachOperationOfEachRankFailsInTurn(t *testing.T) {
	const ranks = 2
	old := state{5, "old"}
	for _, now := range []state{{10, "new"}, {5, "new"}} { // beside it, and in its place
		for _, fault := range []struct {
			name   string
			inject func(n int) (errorfs.Injector, func() bool)
		}{
			{"EIO", func(n int) (errorfs.Injector, func() bool) { return errorfs.Nth(n, nil, errorfs.ErrIO) }},
			{"dead disk", func(n int) (errorfs.Injector, func() bool) { return errorfs.From(n, nil, errorfs.ErrIO) }},
			{"crash", func(n int) (errorfs.Injector, func() bool) {
				return errorfs.From(n, errorfs.Kind.Changes, errorfs.ErrCrashed)
			}},
		} {
			for bad := range ranks {
				t.Run(fmt.Sprintf("step %d/%s/rank %d", now.Step, fault.name, bad), func(t *testing.T) {
					failed := 0
					for n := 1; ; n++ {
						m := vfs.NewMem()
						requireNone(t, savingShards(t, ranks, old, same(m)))
						inject, reached := fault.inject(n)
						disks := []vfs.FS{m, m}
						disks[bad] = errorfs.Wrap(m, inject)
						errs := savingShards(t, ranks, now, func(r int) vfs.FS { return disks[r] })
						require.Equal(t, errs[0] == nil, errs[1] == nil, "operation %d: all ranks or none: %v", n, errs)
						if errs[0] != nil {
							failed++
							var rank *checkpoint.RankError
							require.ErrorAs(t, errs[1-bad], &rank)
							require.Equal(t, bad, rank.Rank)
						}
						when := fmt.Sprintf("operation %d (%v)", n, errs)
						if fault.name == "crash" {
							checkShards(t, m.CrashClone(nil), errs, old, now, when+", all unsynced lost")
							r := rand.New(rand.NewPCG(1, uint64(n)))
							checkShards(t, m.CrashClone(r), errs, old, now, when+", some unsynced lost")
						}
						checkShards(t, m, errs, old, now, when)
						if !reached() {
							requireNone(t, errs)
							break
						}
					}
					require.Greater(t, failed, 2, "the faults make saves fail")
				})
			}
		}
	}
}

// Ranks of one process may share a Store.
func TestRanksMayShareAStore(t *testing.T) {
	m := vfs.NewMem()
	s := quiet(m, "out")
	requireNone(t, together(t, 3, func(g *comm.Group) error {
		_, err := s.SaveShards(ctx, g, 5, state{5, "x"}.sharded(g.Rank(), 3))
		return err
	}))
	ck, err := s.Latest(ctx)
	require.NoError(t, err)
	require.Equal(t, state{5, "x"}, wholeShards(t, ck))
}

func TestScatteredTensors(t *testing.T) {
	m := vfs.NewMem()
	requireNone(t, together(t, 2, func(g *comm.Group) error {
		c := tensor.NewCtx(tensor.CPU())
		half := tensor.FromSlice(c, [][]float32{{1, 2, 3}, {4, 5, 6}}[g.Rank()], 3)
		_, err := quiet(m, "out").SaveShards(ctx, g, 5, checkpoint.Content{RunID: run,
			Placed: []checkpoint.Placed{checkpoint.NewPlaced(c, "model", tensor.Placed{
				Placement: tensor.WholePlacement("w", 2, 3).Slice(3*g.Rank(), 3*g.Rank()+3), Tensor: half})}})
		return err
	}))
	ck, err := quiet(m, "out").Latest(ctx)
	require.NoError(t, err)
	c := tensor.NewCtx(tensor.CPU())
	want := []tensor.Named{{Name: "w", Tensor: tensor.FromSlice(c, []float32{1, 2, 3, 4, 5, 6}, 2, 3)}}
	require.Equal(t, bits(c, want), savedBits(t, ck, "model"))
}

// A shard of another run, or of another save, is no part of a checkpoint, even if its names and shapes fit and somebody
// has made the hashes fit. Shards that name no save, as older ones, are read.
func TestShardsOfAnotherRun(t *testing.T) {
	write := func(dir, runID string) (*vfs.Mem, map[string][]byte) {
		m, files := vfs.NewMem(), map[string][]byte{}
		requireNone(t, together(t, 2, func(g *comm.Group) error {
			c := tensor.NewCtx(tensor.CPU())
			half := tensor.FromSlice(c, [][]float32{{1, 2, 3}, {4, 5, 6}}[g.Rank()], 3)
			_, err := quiet(m, dir).SaveShards(ctx, g, 5, checkpoint.Content{RunID: runID,
				Placed: []checkpoint.Placed{checkpoint.NewPlaced(c, "model", tensor.Placed{
					Placement: tensor.WholePlacement("w", 2, 3).Slice(3*g.Rank(), 3*g.Rank()+3), Tensor: half})}})
			return err
		}))
		for r := range 2 {
			name := fmt.Sprintf("shard-%05d-of-00002.safetensors", r+1)
			text, err := vfs.ReadFile(m, filepath.Join(dir, "checkpoint-5", name), 1<<20)
			require.NoError(t, err)
			files[name] = text
		}
		return m, files
	}
	_, others := write("other", "another run")
	nameless := map[string][]byte{}
	for name, text := range others {
		nameless[name] = withoutMetadata(t, text)
	}
	both := []string{"shard-00001-of-00002.safetensors", "shard-00002-of-00002.safetensors"}
	for _, row := range []struct {
		name, want string
		from       map[string][]byte
		replace    []string
	}{
		{"one", `want files of one save`, others, both[1:]},
		{"both", `its shards are of save 1 of run "another run": want save 1 of run "` + run + `"`, others, both},
		{"one that names none", `want files of one save`, nameless, both[:1]},
		{"older ones", "", nameless, both},
	} {
		t.Run(row.name, func(t *testing.T) {
			m, _ := write("out", run)
			ck, err := quiet(m, "out").Latest(ctx)
			require.NoError(t, err)
			overwrite := func(name string, text []byte) {
				require.NoError(t, m.Remove(filepath.Join(ck.Path, name)))
				require.NoError(t, vfs.WriteFile(m, filepath.Join(ck.Path, name), text))
			}
			for i, f := range ck.Files {
				if slices.Contains(row.replace, f.Name) {
					text := row.from[f.Name]
					overwrite(f.Name, text)
					sum := sha256.Sum256(text)
					ck.Files[i].Size, ck.Files[i].SHA256 = int64(len(text)), hex.EncodeToString(sum[:])
				}
			}
			sealed, err := checkpoint.EncodeManifest(&ck.Manifest)
			require.NoError(t, err)
			overwrite(checkpoint.ManifestFile, sealed)
			ck, err = quiet(m, "out").Latest(ctx)
			require.NoError(t, err)
			set, err := ck.OpenTensors("model")
			if row.want == "" {
				require.NoError(t, err)
				require.NoError(t, set.Close())
				return
			}
			require.ErrorContains(t, err, row.want)
		})
	}
}

// withoutMetadata is a file of tensors whose header has no free-form strings.
func withoutMetadata(t *testing.T, file []byte) []byte {
	t.Helper()
	n := binary.LittleEndian.Uint64(file)
	var header map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(file[8:8+n], &header))
	require.Contains(t, header, "__metadata__")
	delete(header, "__metadata__")
	text, err := json.Marshal(header)
	require.NoError(t, err)
	text = append(text, strings.Repeat(" ", (8-len(text)%8)%8)...)
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), file[8+n:]...)
}
