package disttest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Combine is the specification of a reduction, computed serially: per element, partners at distance 1, 2, 4, …; one without a partner is carried up. inputs are the
// ranks' buffers in rank order.
func Combine(inputs [][]byte, d dtype.DType, op dist.ReduceOp) []byte {
	count := len(inputs[0]) / d.Size()
	out := make([]byte, len(inputs[0]))
	values := make([]value, len(inputs))
	for i := range count {
		for r, in := range inputs {
			values[r] = decode(in[i*d.Size():], d)
		}
		for distance := 1; distance < len(values); distance *= 2 {
			for r := 0; r+distance < len(values); r += 2 * distance {
				values[r] = values[r].combine(values[r+distance], d, op)
			}
		}
		encode(out[i*d.Size():], values[0], d)
	}
	return out
}

// value is one element: float32 for the types that are added in it, float64, or an integer.
type value struct {
	single  float32
	double  float64
	integer int64
}

func decode(b []byte, d dtype.DType) value {
	le := binary.LittleEndian
	switch d {
	case dtype.Float32:
		return value{single: math.Float32frombits(le.Uint32(b))}
	case dtype.BFloat16:
		return value{single: dtype.BF16(le.Uint16(b)).Float32()}
	case dtype.Float16:
		return value{single: dtype.F16(le.Uint16(b)).Float32()}
	case dtype.Float64:
		return value{double: math.Float64frombits(le.Uint64(b))}
	case dtype.Int32:
		return value{integer: int64(int32(le.Uint32(b)))}
	case dtype.Int64:
		return value{integer: int64(le.Uint64(b))}
	}
	return value{integer: int64(b[0])}
}

func encode(b []byte, v value, d dtype.DType) {
	le := binary.LittleEndian
	switch d {
	case dtype.Float32:
		le.PutUint32(b, math.Float32bits(v.single))
	case dtype.BFloat16:
		le.PutUint16(b, uint16(dtype.ToBF16(v.single)))
	case dtype.Float16:
		le.PutUint16(b, uint16(dtype.ToF16(v.single)))
	case dtype.Float64:
		le.PutUint64(b, math.Float64bits(v.double))
	case dtype.Int32:
		le.PutUint32(b, uint32(v.integer))
	case dtype.Int64:
		le.PutUint64(b, uint64(v.integer))
	default:
		b[0] = byte(v.integer)
	}
}

func (v value) combine(w value, d dtype.DType, op dist.ReduceOp) value {
	var to value
	switch op {
	case dist.Sum:
		to = value{v.single + w.single, v.double + w.double, v.integer + w.integer}
	case dist.Product:
		to = value{v.single * w.single, v.double * w.double, v.integer * w.integer}
	case dist.Min:
		to = value{min(v.single, w.single), min(v.double, w.double), min(v.integer, w.integer)}
	case dist.Max:
		to = value{max(v.single, w.single), max(v.double, w.double), max(v.integer, w.integer)}
	}
	switch d { // integers wrap around at their own width
	case dtype.Int32:
		to.integer = int64(int32(to.integer))
	case dtype.Uint8, dtype.Bool:
		to.integer = int64(uint8(to.integer))
	}
	return to
}

var magnitudes = [...]float64{1e-4, 1e-3, 1e-2, 1e-1, 1, 1e1, 1e2}

// fill writes random elements over many magnitudes, so that the order of additions shows; a zero of each sign is among them, NaN and infinity are not.
func fill(b []byte, d dtype.DType, rng *rand.Rand) {
	for i := 0; i < len(b); i += d.Size() {
		sign := float64(1 - 2*rng.IntN(2))
		x := sign * (1 + rng.Float64()) * magnitudes[rng.IntN(len(magnitudes))]
		if rng.IntN(50) == 0 {
			x = math.Copysign(0, sign)
		}
		v := value{single: float32(x), double: x, integer: int64(rng.Uint64())}
		if d == dtype.Bool {
			v.integer &= 1
		}
		encode(b[i:], v, d)
	}
}
