// SPDX-License-Identifier: Apache-2.0

package data

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

func newCtx() *tensor.Ctx { return tensor.NewCtx(tensor.CPU()) }

// number is the sample of most tests: one number.
type number struct{ Inputs float32 }

func numbers(n int) Slice[number] {
	s := make(Slice[number], n)
	for i := range s {
		s[i].Inputs = float32(i)
	}
	return s
}

// faulty is a dataset that calls a function before it answers.
type faulty struct {
	Slice[number]
	before func(i int) error
}

func (f faulty) Get(i int) (number, error) {
	if err := f.before(i); err != nil {
		return number{}, err
	}
	return f.Slice.Get(i)
}

func TestSource(t *testing.T) {
	c := newCtx()
	src := NewSource(numbers(10), Stack[number])
	require.Equal(t, 10, src.Len())
	var b *Batch
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		var err error
		b, err = src.Batch(c, []int64{7, 2, 7})
		require.NoError(t, err)
		return nil
	})
	require.Equal(t, []float32{7, 2, 7}, tensor.ToSlice[float32](c, b.Tensors[Inputs]), "the batch outlives the scope")
	require.Equal(t, 3, b.Size)
	require.EqualValues(t, 3, b.Count)
	require.Equal(t, []int64{7, 2, 7}, b.Indices)
	b.Free()
	b.Free()
	require.Error(t, tensor.Try(func() { tensor.ToSlice[float32](c, b.Tensors[Inputs]) }))
}

func TestSourceNamesTheSample(t *testing.T) {
	c := newCtx()
	broken := errors.New("disk on fire")
	src := NewSource(faulty{numbers(10), func(i int) error {
		switch i {
		case 3:
			return broken
		case 4:
			panic(fmt.Errorf("wrapped: %w", broken))
		case 5:
			var none []int
			_ = none[i]
		}
		return nil
	}}, Stack[number])
	for index, want := range map[int64]string{
		3:  "data: sample 3: disk on fire",
		4:  "data: sample 4: panic: wrapped: disk on fire",
		5:  "data: sample 5: panic: runtime error: index out of range",
		10: "data: sample 10: data: index 10 is outside a dataset of 10",
	} {
		_, err := src.Batch(c, []int64{1, index})
		require.ErrorContains(t, err, want)
		var sample *SampleError
		require.ErrorAs(t, err, &sample)
		require.Equal(t, index, sample.Index)
		require.Equal(t, index == 3 || index == 4, errors.Is(err, broken))
	}
	var p *tensor.PanicError
	_, err := src.Batch(c, []int64{5})
	require.ErrorAs(t, err, &p)
	require.Contains(t, string(p.Stack), "source_test.go")
}

func TestSourceNamesTheBatch(t *testing.T) {
	c := newCtx()
	for want, collate := range map[string]Collator[number]{
		"collating samples [1 2]: odd one": func(*tensor.Ctx, []number) (*Batch, error) {
			return nil, errors.New("odd one")
		},
		"returned nil and no error": func(*tensor.Ctx, []number) (*Batch, error) { return nil, nil },
		"tensor.FromSlice": func(c *tensor.Ctx, _ []number) (*Batch, error) {
			tensor.FromSlice(c, []float32{1}, 2)
			return nil, nil
		},
		"an operand is nil": func(*tensor.Ctx, []number) (*Batch, error) {
			return &Batch{Tensors: map[string]*tensor.Tensor{"x": nil}}, nil
		},
	} {
		_, err := NewSource(numbers(3), collate).Batch(c, []int64{1, 2})
		require.ErrorContains(t, err, want)
		var e *CollateError
		require.ErrorAs(t, err, &e)
	}
	var misuse *tensor.Error
	_, err := NewSource(numbers(3), func(c *tensor.Ctx, _ []number) (*Batch, error) {
		tensor.FromSlice(c, []float32{1}, 2)
		return nil, nil
	}).Batch(c, []int64{0})
	require.ErrorAs(t, err, &misuse)
}
