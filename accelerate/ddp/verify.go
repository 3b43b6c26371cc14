// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// describe is what ranks must agree on about a parameter.
func describe(p tensor.Named) string {
	frozen := ""
	if !p.IsLeaf() {
		frozen = " (frozen)"
	}
	return fmt.Sprintf("%s %v%v%s", p.Name, p.DType(), p.Shape(), frozen)
}

// Verify checks that all ranks have the same parameters, by name, shape, dtype and whether
// they are trained, and gives every rank rank 0's values. It returns how many parameters
// differed in value here. The error, on every rank alike, names the first parameter that
// does not agree and both sides. It is collective. It is for package accelerate.
func Verify(ctx context.Context, c *tensor.Ctx, g *comm.Group, params []tensor.Named) (differed int, err error) {
	mine := make([]string, len(params))
	for i, p := range params {
		mine[i] = describe(p)
	}
	all, err := comm.AllGatherObject(ctx, g, mine)
	if err != nil {
		return 0, fmt.Errorf("ddp: comparing parameters: %w", err)
	}
	for rank, theirs := range all {
		if diff := difference(all[0], theirs, g.JobRank(0), g.JobRank(rank)); diff != "" {
			return 0, fmt.Errorf("ddp: the models of ranks %d and %d differ: %s", g.JobRank(0), g.JobRank(rank), diff)
		}
	}
	for _, p := range params {
		changed, err := Adopt(ctx, c.NoGrad(), g.CountsOnly(), p, func(b comm.Buffer) *comm.Handle {
			return g.Broadcast(b, 0, comm.Label(p.Name))
		})
		if err != nil {
			return differed, fmt.Errorf("ddp: broadcasting %s: %w", p.Name, err)
		}
		if changed {
			differed++
		}
	}
	return differed, nil
}

// difference describes the first place in which the lists of parameters of two ranks differ.
func difference(one, other []string, r, rank int) string {
	for i := range min(len(one), len(other)) {
		if one[i] != other[i] {
			return fmt.Sprintf("parameter %d is %s on rank %d and %s on rank %d", i, one[i], r, other[i], rank)
		}
	}
	switch n, m := len(one), len(other); {
	case n > m:
		return fmt.Sprintf("%d parameters on rank %d and %d on rank %d, which lacks %s", n, r, m, rank, one[m])
	case n < m:
		return fmt.Sprintf("%d parameters on rank %d and %d on rank %d, which has %s besides", n, r, m, rank,
			other[n])
	}
	return ""
}

// adoptBytes is how much of a parameter is in host memory at a time, twice.
const adoptBytes = 16 << 20

// Adopt overwrites p with the values that bring gives, and reports whether that changed a bit. bring is called with a
// copy of p, piece by piece; with uncompared, once with p itself. It is for packages that ranks agree by.
func Adopt(ctx context.Context, c *tensor.Ctx, uncompared bool, p tensor.Named,
	bring func(comm.Buffer) *comm.Handle) (changed bool, err error) {
	if p.Unloaded() { // it goes again, if it is as it would be made
		defer func() {
			if !changed && err == nil {
				p.Unload()
			}
		}()
	}
	if uncompared {
		return false, errors.Join(tensor.Try(func() { err = bring(comm.OfTensor(c, p.Tensor)).Wait(ctx) }), err)
	}
	n, step := p.Numel(), adoptBytes/p.DType().Size()
	after := comm.Aligned(min(n, step) * p.DType().Size())
	for lo := 0; lo < n; lo += step {
		var part *tensor.Tensor
		var before []byte
		if err := tensor.Try(func() {
			part = tensor.Slice(c, tensor.Reshape(c, p.Tensor, n), 0, lo, min(lo+step, n))
			before = tensor.ReadBytes(c, part)
		}); err != nil {
			return changed, err
		}
		after = after[:len(before)]
		copy(after, before)
		if err := bring(comm.Bytes(after, p.DType())).Wait(ctx); err != nil {
			return changed, err
		}
		if bytes.Equal(before, after) {
			continue
		}
		changed = true
		if err := tensor.Try(func() { tensor.WriteBytes(c, part, after) }); err != nil {
			return changed, err
		}
	}
	return changed, nil
}
