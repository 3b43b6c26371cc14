// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Encodings of values.
const (
	encodingPlain           = 0
	encodingPlainDictionary = 2
	encodingRuns            = 3
	encodingDeltas          = 5
	encodingDeltaLengths    = 6
	encodingDeltaBytes      = 7
	encodingDictionary      = 8
	encodingByteStreamSplit = 9
)

// values reads the values of a page, those that are not null, one after the other. A value is valid until the next.
type values interface{ next() ([]byte, error) }

// valuesOf reads a page with at most count values. dict is the column's dictionary, if there is one.
func (n *node) valuesOf(encoding int64, page []byte, count int, dict *dictionary) (values, error) {
	width := n.width()
	switch encoding {
	case encodingPlain:
		return n.plain(page), nil
	case encodingPlainDictionary, encodingDictionary:
		if dict == nil {
			return nil, errors.New("a page refers to a dictionary that is not there")
		}
		if len(page) == 0 {
			return &indexed{newRuns(nil, 1), dict}, nil
		}
		if page[0] > 32 {
			return nil, errShortPage
		}
		return &indexed{newRuns(page[1:], int(page[0])), dict}, nil
	case encodingRuns:
		if n.physical == typeBool && len(page) >= 4 {
			return &bools{runs: newRuns(page[4:], 1)}, nil
		}
	case encodingDeltas:
		if n.physical == typeInt32 || n.physical == typeInt64 {
			d, err := newDeltas(page)
			return &integers{deltas: d}, err
		}
	case encodingDeltaLengths:
		if n.physical == typeBytes {
			return newDeltaLengths(page, count)
		}
	case encodingDeltaBytes:
		if n.physical == typeBytes {
			return newDeltaBytes(page, count)
		}
	case encodingByteStreamSplit:
		if width > 0 {
			return &split{page: page, stride: len(page) / width, value: make([]byte, width)}, nil
		}
	}
	return nil, fmt.Errorf("values of %s in encoding %d, which is not read", n.typeName(), encoding)
}

func (n *node) plain(page []byte) values {
	switch width := n.width(); {
	case width > 0:
		return &fixed{page, width}
	case width < 0:
		return &packedBools{page: page}
	}
	return &lengthed{page}
}

// fixed are values of one width.
type fixed struct {
	page  []byte
	width int
}

func (f *fixed) next() ([]byte, error) {
	if len(f.page) < f.width {
		return nil, errShortPage
	}
	v := f.page[:f.width]
	f.page = f.page[f.width:]
	return v, nil
}

// lengthed are values with their lengths before them.
type lengthed struct{ page []byte }

func (l *lengthed) next() ([]byte, error) {
	if len(l.page) < 4 {
		return nil, errShortPage
	}
	n := binary.LittleEndian.Uint32(l.page)
	if uint64(n) > uint64(len(l.page)-4) {
		return nil, errShortPage
	}
	v := l.page[4 : 4+n]
	l.page = l.page[4+n:]
	return v, nil
}

var boolValues = [2][]byte{{0}, {1}}

// packedBools are bits, the lowest of a byte first.
type packedBools struct {
	page []byte
	at   int
}

func (p *packedBools) next() ([]byte, error) {
	b, err := bitsAt(p.page, p.at, 1)
	p.at++
	return boolValues[b], err
}

type bools struct{ *runs }

func (b *bools) next() ([]byte, error) {
	v, err := b.runs.next()
	return boolValues[v&1], err
}

// integers are numbers of 32 or 64 bits: the lower half comes first.
type integers struct {
	*deltas
	value [8]byte
}

func (i *integers) next() ([]byte, error) {
	v, err := i.deltas.next()
	binary.LittleEndian.PutUint64(i.value[:], uint64(v))
	return i.value[:], err
}

// split are numbers whose bytes lie apart: first all first bytes, then all second ones.
type split struct {
	page       []byte
	stride, at int
	value      []byte
}

func (s *split) next() ([]byte, error) {
	if s.at >= s.stride {
		return nil, errShortPage
	}
	for i := range s.value {
		s.value[i] = s.page[i*s.stride+s.at]
	}
	s.at++
	return s.value, nil
}

// deltaLengths are texts behind the list of their lengths.
type deltaLengths struct {
	lengths *deltas
	texts   []byte
}

func newDeltaLengths(page []byte, count int) (*deltaLengths, error) {
	lengths, texts, err := listed(page, count)
	return &deltaLengths{lengths, texts}, err
}

// listed are the numbers that a page begins with, at most count, and what follows them.
func listed(page []byte, count int) (*deltas, []byte, error) {
	ahead, err := newDeltas(page)
	if err != nil {
		return nil, nil, err
	}
	if ahead.left > uint64(count) {
		return nil, nil, errShortPage
	}
	again := *ahead
	for range ahead.left {
		if _, err := ahead.next(); err != nil {
			return nil, nil, err
		}
	}
	return &again, ahead.rest(), nil
}

func (l *deltaLengths) next() ([]byte, error) {
	n, err := l.lengths.next()
	if err != nil || n < 0 || n > int64(len(l.texts)) {
		return nil, errShortPage
	}
	v := l.texts[:n]
	l.texts = l.texts[n:]
	return v, nil
}

// deltaBytes are texts each of which begins as the one before.
type deltaBytes struct {
	same  *deltas // bytes in common with the one before
	rest  *deltaLengths
	value []byte
}

func newDeltaBytes(page []byte, count int) (*deltaBytes, error) {
	same, page, err := listed(page, count)
	if err != nil {
		return nil, err
	}
	rest, err := newDeltaLengths(page, count)
	return &deltaBytes{same: same, rest: rest, value: []byte{}}, err
}

func (b *deltaBytes) next() ([]byte, error) {
	n, err := b.same.next()
	if err != nil || n < 0 || n > int64(len(b.value)) {
		return nil, errShortPage
	}
	end, err := b.rest.next()
	if err != nil {
		return nil, err
	}
	b.value = append(b.value[:n], end...)
	return b.value, nil
}

// dictionary is the values that pages refer to by number.
type dictionary struct {
	page   []byte
	width  int      // 0: at has the place of each
	at     []uint32 // in page
	number int
}

// newDictionary reads a page with count values.
func (n *node) newDictionary(page []byte, count int) (*dictionary, error) {
	d := &dictionary{page: page, width: n.width(), number: count}
	switch {
	case d.width < 0:
		return nil, errors.New("a dictionary of bools")
	case d.width > 0:
		if len(page)/d.width < count {
			return nil, errShortPage
		}
		return d, nil
	case len(page)/4 < count || uint64(len(page)) > 1<<32-1:
		return nil, errShortPage
	}
	d.at = make([]uint32, count)
	all := &lengthed{page}
	for i := range d.at {
		d.at[i] = uint32(len(page) - len(all.page))
		if _, err := all.next(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *dictionary) value(i uint64) ([]byte, error) {
	if i >= uint64(d.number) {
		return nil, fmt.Errorf("value %d of a dictionary of %d", i, d.number)
	}
	if d.width > 0 {
		return d.page[int(i)*d.width : (int(i)+1)*d.width], nil
	}
	one := &lengthed{d.page[d.at[i]:]}
	return one.next()
}

// indexed are values of a dictionary.
type indexed struct {
	*runs
	dict *dictionary
}

func (x *indexed) next() ([]byte, error) {
	i, err := x.runs.next()
	if err != nil {
		return nil, err
	}
	return x.dict.value(i)
}

// levelBits is the number of bits of levels up to most.
func levelBits(most int) int { return bits.Len(uint(most)) }
