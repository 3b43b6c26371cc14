// SPDX-License-Identifier: Apache-2.0

package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Fingerprinter is a Source with its own fingerprint of its data, such as the hash of a file. Equal data must have
// equal fingerprints, on all ranks and in a resumed run: a path or a time is none. An empty one means that there is
// none.
type Fingerprinter interface {
	Fingerprint() string
}

// fingerprintSamples is how many samples a fingerprint reads.
const fingerprintSamples = 16

// Fingerprint distinguishes a source's data from others of the same length, cheaply: it is the fingerprint of a
// Fingerprinter, or else a hash of the number of samples and of 16 of them, from the first to the last, each collated
// separately. It is empty for data without samples, or with samples that differ each time they are read. It is for
// package trainer, which compares the data of a resumed run with it.
func Fingerprint(c *tensor.Ctx, src Source) (string, error) {
	if f, ok := src.(Fingerprinter); ok {
		return f.Fingerprint(), nil
	}
	if src.Len() == 0 {
		return "", nil
	}
	first, err := hashSamples(c, src)
	if err != nil {
		return "", err
	}
	again, err := hashSamples(c, src)
	if err != nil || again != first {
		return "", err
	}
	return first, nil
}

func hashSamples(c *tensor.Ctx, src Source) (string, error) {
	h, n := sha256.New(), int64(src.Len())
	hashNumbers(h, n)
	count := min(n, fingerprintSamples)
	for i := range count {
		index := i * (n - 1) / max(count-1, 1)
		b, err := src.Batch(c, []int64{index})
		if err != nil {
			return "", err
		}
		hashNumbers(h, index, countBits(b.Count))
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			ts := unshifted(c, b.Tensors)
			for _, name := range slices.Sorted(maps.Keys(ts)) {
				t := ts[name]
				h.Write([]byte(name + " " + t.DType().String()))
				for _, d := range t.Shape() {
					hashNumbers(h, int64(d))
				}
				h.Write(tensor.ReadBytes(c, t))
			}
			return nil
		})
		b.Free()
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// unshifted are the tensors of a batch with labels in place of shift_labels: checkpoints have fingerprints of labels as
// collators made them when models shifted them. The first label, which no loss term had, was the first token.
func unshifted(c *tensor.Ctx, ts map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	ids, shifted := ts[InputIDs], ts[ShiftLabels]
	if shifted == nil || ids == nil || ts[Labels] != nil || ids.DType() != shifted.DType() || ids.Dim() != 2 ||
		!slices.Equal(ids.Shape(), shifted.Shape()) {
		return ts
	}
	ts = maps.Clone(ts)
	delete(ts, ShiftLabels)
	ts[Labels] = tensor.Concat(c, 1, tensor.Slice(c, ids, 1, 0, 1), tensor.Slice(c, shifted, 1, 0, shifted.Size(1)-1))
	return ts
}

// countBits is a count of loss terms as a whole number, or the bits of a fraction.
func countBits(count float64) int64 {
	if n := int64(count); float64(n) == count {
		return n
	}
	return int64(math.Float64bits(count))
}

func hashNumbers(h hash.Hash, xs ...int64) {
	for _, x := range xs {
		_ = binary.Write(h, binary.LittleEndian, x) // a hash takes everything
	}
}
