// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"context"
	"encoding/json"
	"fmt"
)

// MaxObject is the largest size of an object's JSON text, in bytes.
const MaxObject = 64 << 20

// BroadcastObject sends the root's *v to all ranks, as JSON, and decodes it into *v there. The label of its calls is
// "object".
func BroadcastObject[T any](ctx context.Context, g *Group, v *T, root int) error {
	var text []byte
	if g.Rank() == root {
		var err error
		if text, err = encodeObject(v); err != nil {
			return g.reject(err)
		}
	}
	size := []int64{int64(len(text))}
	if err := g.Broadcast(Of(size), root, Label("object")).Wait(ctx); err != nil {
		return err
	}
	if err := checkObject(size[0], root); err != nil {
		return g.reject(err)
	}
	if g.Rank() != root {
		text = make([]byte, size[0])
	}
	if err := g.Broadcast(Of(text), root, Label("object")).Wait(ctx); err != nil {
		return err
	}
	if g.Rank() == root {
		return nil
	}
	return g.decodeObject(text, v, root)
}

// AllGatherObject returns the v of all ranks, in rank order, on every rank; they travel as JSON. The label of its calls
// is "object".
func AllGatherObject[T any](ctx context.Context, g *Group, v T) ([]T, error) {
	text, err := encodeObject(v)
	if err != nil {
		return nil, g.reject(err)
	}
	sizes := make([]int64, g.Size())
	if err := g.AllGather(Of(sizes), Of([]int64{int64(len(text))}), Label("object")).Wait(ctx); err != nil {
		return nil, err
	}
	longest := 0
	for r, n := range sizes {
		if err := checkObject(n, r); err != nil {
			return nil, g.reject(err)
		}
		longest = max(longest, int(n))
	}
	in, out := make([]byte, longest), make([]byte, longest*g.Size())
	copy(in, text)
	if err := g.AllGather(Of(out), Of(in), Label("object")).Wait(ctx); err != nil {
		return nil, err
	}
	list := make([]T, g.Size())
	for r := range list {
		if err := g.decodeObject(out[r*longest:][:sizes[r]], &list[r], r); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func encodeObject(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("comm: object %T: %w", v, err)
	}
	return text, checkObject(int64(len(text)), -1)
}

func checkObject(n int64, rank int) error {
	if n < 0 || n > MaxObject {
		return fmt.Errorf("comm: object of %d bytes from rank %d: want at most %d", n, rank, MaxObject)
	}
	return nil
}

func (g *Group) decodeObject(text []byte, to any, from int) error {
	if err := json.Unmarshal(text, to); err != nil {
		return g.reject(fmt.Errorf("comm: object from rank %d is not a %T: %w", g.JobRank(from), to, err))
	}
	return nil
}
