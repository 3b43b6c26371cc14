// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"encoding/binary"
	"errors"
)

var errShortPage = errors.New("a page ends too early")

// runs reads numbers in Parquet's hybrid of runs and packed bits, one after the other. Without bits all are 0.
type runs struct {
	in     []byte
	bits   int
	repeat uint64 // how many more of value there are
	value  uint64
	packed uint64 // how many more there are in in, from bit at on
	at     int
}

func newRuns(in []byte, bits int) *runs { return &runs{in: in, bits: bits} }

func (r *runs) next() (uint64, error) {
	for {
		switch {
		case r.bits == 0:
			return 0, nil
		case r.repeat > 0:
			r.repeat--
			return r.value, nil
		case r.packed > 0:
			return r.unpack()
		}
		if err := r.head(); err != nil {
			return 0, err
		}
	}
}

// unpack is the next number of a packed run. The last ones of a page may be cut off.
func (r *runs) unpack() (uint64, error) {
	v, err := bitsAt(r.in, r.at, r.bits)
	if err != nil {
		return 0, err
	}
	r.packed--
	if r.at += r.bits; r.packed == 0 {
		r.in = r.in[min(len(r.in), (r.at+7)/8):]
	}
	return v, nil
}

// head reads the head of a run.
func (r *runs) head() error {
	head, n := binary.Uvarint(r.in)
	if n <= 0 {
		return errShortPage
	}
	r.in = r.in[n:]
	if head&1 != 0 {
		r.packed, r.at = head>>1<<3, 0
		if head>>1 > uint64(len(r.in)) { // a group of 8 takes a byte at least
			return errShortPage
		}
		return nil
	}
	r.repeat, r.value = head>>1, 0
	width := (r.bits + 7) / 8
	if len(r.in) < width {
		return errShortPage
	}
	for i := range width {
		r.value |= uint64(r.in[i]) << (8 * i)
	}
	r.in = r.in[width:]
	return nil
}

// bitsAt is the number of the given bits, at most 64, that starts at a bit.
func bitsAt(in []byte, at, bits int) (uint64, error) {
	if bits == 0 {
		return 0, nil
	}
	first, last := at/8, (at+bits-1)/8
	if last >= len(in) {
		return 0, errShortPage
	}
	shift := at % 8
	v := uint64(0)
	for i := first; i <= last && i < first+8; i++ {
		v |= uint64(in[i]) << (8 * (i - first))
	}
	v >>= shift
	if last == first+8 {
		v |= uint64(in[last]) << (64 - shift)
	}
	if bits < 64 {
		v &= 1<<bits - 1
	}
	return v, nil
}

// deltas reads numbers in the encoding DELTA_BINARY_PACKED.
type deltas struct {
	in       []byte
	block    int    // numbers in a block
	mini     int    // and in each of its parts
	left     uint64 // numbers that are still to come
	value    int64
	first    bool
	least    int64 // of the block's deltas
	widths   []byte
	bits, at int // of the part that is being read
	unread   int // numbers in it
}

const maxDeltaBlock = 1 << 20

func newDeltas(in []byte) (*deltas, error) {
	d := &deltas{in: in, first: true}
	block, parts, count := d.uvarint(), d.uvarint(), d.uvarint()
	value, n := binary.Varint(d.in)
	if n <= 0 || block == 0 || block > maxDeltaBlock || parts == 0 || parts > block/8 || block%parts != 0 ||
		block/parts%8 != 0 {
		return nil, errShortPage
	}
	d.in, d.value, d.left = d.in[n:], value, count
	d.block, d.mini = int(block), int(block/parts)
	return d, nil
}

func (d *deltas) uvarint() uint64 {
	v, n := binary.Uvarint(d.in)
	if n <= 0 {
		d.in = nil
		return 0
	}
	d.in = d.in[n:]
	return v
}

func (d *deltas) next() (int64, error) {
	if d.left == 0 {
		return 0, errShortPage
	}
	d.left--
	if d.first {
		d.first = false
		return d.value, nil
	}
	if d.unread == 0 {
		if err := d.part(); err != nil {
			return 0, err
		}
	}
	delta, err := bitsAt(d.in, d.at, d.bits)
	if err != nil {
		return 0, err
	}
	d.at += d.bits
	if d.unread--; d.unread == 0 {
		d.in = d.in[d.bits*d.mini/8:]
	}
	d.value += d.least + int64(delta)
	return d.value, nil
}

// part goes to the next part of a block, or to the next block.
func (d *deltas) part() error {
	if len(d.widths) == 0 {
		least, n := binary.Varint(d.in)
		parts := d.block / d.mini
		if n <= 0 || len(d.in) < n+parts {
			return errShortPage
		}
		d.least, d.widths, d.in = least, d.in[n:n+parts], d.in[n+parts:]
	}
	d.bits, d.at, d.unread = int(d.widths[0]), 0, d.mini
	d.widths = d.widths[1:]
	if d.bits > 64 || len(d.in) < d.bits*d.mini/8 {
		return errShortPage
	}
	return nil
}

// rest is what follows the numbers, once all are read.
func (d *deltas) rest() []byte {
	if d.unread > 0 {
		return d.in[d.bits*d.mini/8:]
	}
	return d.in
}
