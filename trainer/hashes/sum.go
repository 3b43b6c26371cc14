// SPDX-License-Identifier: Apache-2.0

package hashes

import (
	"encoding/binary"
	"hash/fnv"
	"runtime"
	"strconv"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Sum is the hash of elements: the sum of their bits, each times a random odd factor of its place (multilinear hashing,
// modulo 2⁶⁴). The sums of the parts of an array add up to that of the array, whichever ranks have them. A bit that
// differs changes the sum; other differences leave it equal with a probability of 2⁻³².
type Sum uint64

// blockSize is the number of places that share a factor of their block; their own factors repeat in every block.
const blockSize = 1 << 10

var factors = func() (f [blockSize]uint64) {
	for i := range f {
		f[i] = mix(uint64(i)) | 1
	}
	return f
}()

// mix is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Of is the hash of a tensor that holds a part of an array.
func Of(c *tensor.Ctx, t *tensor.Tensor, part tensor.Placement) (s Sum) {
	c = c.NoGrad()
	defer runtime.KeepAlive(t) // whose memory it reads
	mem, ok := tensor.HostBytes(c, t)
	if !ok {
		mem = tensor.ReadBytes(c, t)
	}
	width := t.DType().Size()
	if part.Numel() != t.Numel() { // a state of another shape
		return ofBytes(mem, width, 0)
	}
	for run := range part.Intersect(tensor.WholePlacement(part.Name, part.Shape...)) {
		s += ofBytes(mem[run.At*width:(run.At+run.Len)*width], width, run.Other)
	}
	return s
}

// Whole is the hash of a whole tensor.
func Whole(c *tensor.Ctx, t *tensor.Tensor) Sum {
	return Of(c, t, tensor.WholePlacement("", t.Shape()...))
}

// ofBytes is the hash of elements, the first of which is at a place of the array.
func ofBytes(mem []byte, width, at int) (s Sum) {
	for len(mem) > 0 {
		j := at % blockSize
		n := min(len(mem)/width, blockSize-j)
		s += Sum(ofBlock(mem[:n*width], width, factors[j:j+n]) * (mix(^uint64(at/blockSize)) | 1))
		mem, at = mem[n*width:], at+n
	}
	return s
}

// ofBlock is the hash of elements with their own factors.
func ofBlock(mem []byte, width int, factors []uint64) (s uint64) {
	switch width {
	case 4:
		var t, u, v uint64 // sums beside s, which need not wait for it
		for len(mem) >= 32 && len(factors) >= 8 {
			m, f := mem[:32:32], factors[:8:8]
			a, b := binary.LittleEndian.Uint64(m), binary.LittleEndian.Uint64(m[8:])
			c, d := binary.LittleEndian.Uint64(m[16:]), binary.LittleEndian.Uint64(m[24:])
			s += uint64(uint32(a))*f[0] + a>>32*f[1]
			t += uint64(uint32(b))*f[2] + b>>32*f[3]
			u += uint64(uint32(c))*f[4] + c>>32*f[5]
			v += uint64(uint32(d))*f[6] + d>>32*f[7]
			mem, factors = mem[32:], factors[8:]
		}
		for i, f := range factors {
			s += uint64(binary.LittleEndian.Uint32(mem[4*i:])) * f
		}
		return s + t + u + v
	case 8:
		for i, f := range factors {
			s += binary.LittleEndian.Uint64(mem[8*i:]) * f
		}
	case 2:
		for i, f := range factors {
			s += uint64(binary.LittleEndian.Uint16(mem[2*i:])) * f
		}
	default:
		for i, f := range factors {
			s += uint64(mem[i]) * f
		}
	}
	return s
}

// Add adds the hash of an array of a name to those of others.
func (s Sum) Add(name string, of Sum) Sum {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return s + of*Sum(mix(h.Sum64())|1)
}

// String is the sum in hexadecimal.
func (s Sum) String() string { return strconv.FormatUint(uint64(s), 16) }

// MarshalText implements encoding.TextMarshaler.
func (s Sum) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Sum) UnmarshalText(text []byte) error {
	x, err := strconv.ParseUint(string(text), 16, 64)
	*s = Sum(x)
	return err
}
