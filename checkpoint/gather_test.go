// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
)

// counted are parts that count how often each is written.
func counted(parts []checkpoint.Placed, mu *sync.Mutex, n map[string]int) []checkpoint.Placed {
	parts = slices.Clone(parts)
	for i, p := range parts {
		parts[i].Write = func(w io.Writer) error {
			mu.Lock()
			n[p.Set+"/"+p.String()]++
			mu.Unlock()
			return p.Write(w)
		}
	}
	return parts
}

// Two replicas of two ranks have the same parts: each is written, or sent, by one of them.
func TestPartsOfSeveralRanksAreWrittenOnce(t *testing.T) {
	m, st := vfs.NewMem(), state{5, "replicas"}
	var mu sync.Mutex
	written, sent := map[string]int{}, map[string]int{}
	requireNone(t, together(t, 4, func(g *comm.Group) error {
		content := st.sharded(g.Rank()%2, 2)
		content.Placed = counted(content.Placed, &mu, written)
		_, err := quiet(m, "out").SaveShards(ctx, g, 5, content)
		return err
	}))
	ck, err := quiet(m, "out").Latest(ctx)
	require.NoError(t, err)
	require.Equal(t, st, wholeShards(t, ck))
	require.Equal(t, "manifest.json pieces.json shard-00001-of-00002.safetensors shard-00002-of-00002.safetensors "+
		"trainer_state.json", names(t, m, ck.Path))

	requireNone(t, together(t, 4, func(g *comm.Group) error {
		all, err := checkpoint.Gather(ctx, g, counted(st.placed(g.Rank()%2, 2), &mu, sent))
		if err != nil {
			return err
		}
		for _, set := range []string{"model", "optimizer"} {
			for _, name := range all.Names(set) {
				key := [2]string{set, name}
				dt, shape, ok := all.Describe(set, name)
				if !ok || fmt.Sprint(shape) != fmt.Sprint(shapes[key]) {
					return fmt.Errorf("%v%v of %v: want shape %v", dt, shape, key, shapes[key])
				}
				got, err := all.Read(ctx, set, name)
				if err != nil {
					return err
				}
				var want []byte
				if g.Rank() == 0 {
					want = st.elements(key, 0, numel(shape))
				}
				if string(got) != string(want) {
					return fmt.Errorf("rank %d: %v has other elements", g.Rank(), key)
				}
			}
		}
		return nil
	}))
	require.Equal(t, written, sent)
	require.Len(t, written, 9)
	for part, n := range written {
		require.Equal(t, 1, n, part)
	}
}

func TestGatherRefusesWhatIsNotWhole(t *testing.T) {
	errFails := errors.New("the device is lost")
	for _, err := range together(t, 2, func(g *comm.Group) error {
		_, err := checkpoint.Gather(ctx, g, state{}.placed(g.Rank(), 3))
		return err
	}) {
		require.ErrorContains(t, err, "nobody has the elements")
	}
	errs := together(t, 2, func(g *comm.Group) error {
		parts := state{}.placed(g.Rank(), 2)
		for i := range parts {
			if g.Rank() == 1 {
				parts[i].Write = func(io.Writer) error { return errFails }
			}
		}
		all, err := checkpoint.Gather(ctx, g, parts)
		if err == nil {
			_, err = all.Read(ctx, "model", "a")
		}
		return err
	})
	require.ErrorIs(t, errs[1], errFails)
	require.ErrorContains(t, errs[0], "gathering a of model")
}

// A rank that opens what another has verified reads the manifest alone, and sees if it is not the same checkpoint.
func TestOpenVerifiedReadsNoFiles(t *testing.T) {
	m, st := vfs.NewMem(), state{5, "one"}
	info, err := quiet(m, "out").Save(ctx, 5, st.sharded(0, 1))
	require.NoError(t, err)
	read := map[string]bool{}
	watch := errorfs.Wrap(m, func(op errorfs.Op) error {
		if op.Kind == errorfs.Read {
			read[filepath.Base(op.Path)] = true
		}
		return nil
	})
	ck, err := quiet(watch, "out").OpenVerified(info.Name(), info.SHA256)
	require.NoError(t, err)
	require.Equal(t, map[string]bool{"manifest.json": true}, read)
	require.Equal(t, st, wholeShards(t, ck))

	_, err = quiet(m, "out").OpenVerified(info.Name(), strings.Repeat("0", 64))
	require.ErrorContains(t, err, "want that of the checkpoint that was verified, 0000")
	require.NoError(t, m.Remove("out/checkpoint-5/shard-00001-of-00001.safetensors"))
	_, err = quiet(m, "out").OpenVerified(info.Name(), info.SHA256)
	require.ErrorContains(t, err, "shard-00001-of-00001.safetensors: missing")
}
