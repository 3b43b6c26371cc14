// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/lockstep-ml/lockstep/integrations/internal/protobuf"
)

// Field numbers of histogram.proto.
const (
	valueHistogram = 5

	histogramMin         = 1 // max, num, sum and sum_squares follow
	histogramBucketLimit = 6
	histogramBucket      = 7
)

// bucketLimits are the limits of TensorFlow's buckets, which grow by a tenth: ±1e-12 to below ±1e20, and 0.
var bucketLimits = sync.OnceValue(func() []float64 {
	limits := []float64{0}
	for v := 1e-12; v < 1e20; v *= 1.1 {
		limits = append(limits, v, -v)
	}
	slices.Sort(limits)
	return limits
})

// AddHistogram writes how values of one step are distributed, such as those of a weight, in TensorFlow's buckets.
// Values that are NaN, infinite or beyond ±1e20 are an error, since no bucket has them.
func (w *Writer) AddHistogram(at time.Time, step int64, tag string, values []float64) error {
	h, err := histogramOf(values)
	if err != nil {
		return fmt.Errorf("tensorboard: histogram %s: %w", tag, err)
	}
	b := protobuf.String(nil, valueTag, tag)
	return w.add(summaryEvent(at, step, protobuf.Bytes(b, valueHistogram, h.encode())))
}

// histogram counts values. Bucket i has those from limit i-1, inclusive, to limit i.
type histogram struct {
	min, max, num, sum, squares float64
	limits, counts              []float64
}

func histogramOf(values []float64) (*histogram, error) {
	if len(values) == 0 {
		return nil, errors.New("there are no values: want at least one")
	}
	limits := bucketLimits()
	h := &histogram{min: values[0], max: values[0], num: float64(len(values))}
	counts := make([]float64, len(limits)) // of what lies between a limit and the next
	first, last := len(limits), -1
	for _, x := range values {
		if math.IsNaN(x) || x < limits[0] || x > limits[len(limits)-1] {
			return nil, fmt.Errorf("a value is %g: want finite values between ±1e20", x)
		}
		i, found := slices.BinarySearch(limits, x)
		if !found {
			i--
		}
		i = min(i, len(limits)-2)
		counts[i]++
		first, last = min(first, i), max(last, i)
		h.min, h.max, h.sum, h.squares = min(h.min, x), max(h.max, x), h.sum+x, h.squares+x*x
	}
	// TensorBoard takes the right limits of buckets; an empty bucket has the leftmost.
	h.limits = limits[first : last+2]
	h.counts = append([]float64{0}, counts[first:last+1]...)
	return h, nil
}

func (h *histogram) encode() (b []byte) {
	for i, x := range []float64{h.min, h.max, h.num, h.sum, h.squares} {
		b = protobuf.Double(b, protowire.Number(histogramMin+i), x)
	}
	b = protobuf.Bytes(b, histogramBucketLimit, packed(h.limits))
	return protobuf.Bytes(b, histogramBucket, packed(h.counts))
}

// packed encodes the elements of a repeated field of doubles.
func packed(xs []float64) (b []byte) {
	for _, x := range xs {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	}
	return b
}
