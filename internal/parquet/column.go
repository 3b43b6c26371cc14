// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// column reads a column of a row group: the entries of a page one after the other, each with its levels and, if it is
// not null, its value.
type column struct {
	rows  *Rows
	leaf  *node
	chunk chunk
	in    *bufio.Reader
	left  int64 // bytes of the chunk
	rest  int64 // entries of the chunk that no page was read of
	held  int   // bytes of the page

	dict       *dictionary
	entries    int // that are left in the page
	reps, defs *runs
	values     values

	loaded   bool // rep and def are those of the entry at hand
	rep, def int
}

func (r *Rows) openColumn(leaf *node, c chunk) (*column, error) {
	switch {
	case c.elsewhere:
		return nil, errors.New("it is encrypted, or lies in another file")
	case c.physical != leaf.physical:
		return nil, fmt.Errorf("it has values of type %d: want %d, as the schema says", c.physical, leaf.physical)
	}
	in := bufio.NewReaderSize(io.NewSectionReader(r.file.in, c.start, c.length), r.readAhead())
	return &column{rows: r, leaf: leaf, chunk: c, in: in, left: c.length, rest: c.values}, checkCodec(c.codec)
}

// readAhead is how many bytes of a column are read at a time.
func (r *Rows) readAhead() int { return min(1<<14, MinExpanded/len(r.file.leaves)) }

// peek makes rep and def those of the next entry. At the end of the row group rep is 0 and def -1.
func (c *column) peek() error {
	for !c.loaded {
		if c.entries == 0 {
			if c.rest == 0 {
				c.rep, c.def, c.loaded = 0, -1, true
				return nil
			}
			if _, err := c.page(0); err != nil {
				return err
			}
			continue
		}
		rep, err := c.reps.next()
		if err != nil {
			return err
		}
		def, err := c.defs.next()
		if err != nil {
			return err
		}
		if rep > uint64(c.leaf.rep) || def > uint64(c.leaf.def) {
			return fmt.Errorf("an entry of levels %d and %d: want at most %d and %d", rep, def, c.leaf.rep, c.leaf.def)
		}
		c.entries--
		c.rep, c.def, c.loaded = int(rep), int(def), true
	}
	return nil
}

// take is the value of the next entry, nil if it is null, and continues to the one after it.
func (c *column) take() ([]byte, error) {
	if err := c.peek(); err != nil {
		return nil, err
	}
	if c.def < 0 {
		return nil, errors.New("it has fewer values than rows")
	}
	c.loaded = false
	if c.def < c.leaf.def {
		return nil, nil
	}
	return c.values.next()
}

// skip passes over rows.
func (c *column) skip(n int64) error {
	for n > 0 {
		if c.entries == 0 && !c.loaded && c.leaf.rep == 0 && c.rest > 0 {
			skipped, err := c.page(n)
			if err != nil {
				return err
			}
			n -= skipped
			if skipped > 0 {
				continue
			}
		}
		if _, err := c.take(); err != nil {
			return err
		}
		for {
			if err := c.peek(); err != nil {
				return err
			}
			if c.rep == 0 {
				break
			}
			if _, err := c.take(); err != nil {
				return err
			}
		}
		n--
	}
	return nil
}

// pageHead is the header of a page.
type pageHead struct {
	kind                int64
	size, compressed    int64
	crc                 int64
	hasCRC              bool
	values, encoding    int64
	defEncoding         int64
	repEncoding         int64
	defLength, repBytes int64
	plain               bool // its values are not compressed
}

// Kinds of pages.
const (
	pageData       = 0
	pageIndex      = 1
	pageDictionary = 2
	pageDataV2     = 3
)

const maxPageHead = 16 << 20

func (c *column) head() (h pageHead, err error) {
	limit := min(c.left, maxPageHead)
	t := &thrift{in: c.in, left: limit}
	h.defEncoding, h.repEncoding = encodingRuns, encodingRuns
	t.object(func(id int, kind byte) bool {
		switch id {
		case 1:
			return t.number(kind, &h.kind)
		case 2:
			return t.number(kind, &h.size)
		case 3:
			return t.number(kind, &h.compressed)
		case 4:
			h.hasCRC = true
			return t.number(kind, &h.crc)
		case 5, 7, 8:
			if kind == thriftStruct {
				t.pageFields(&h, id)
				return true
			}
		}
		return false
	})
	c.left -= limit - t.left
	if t.err != nil {
		return h, fmt.Errorf("the header of a page: %w", t.err)
	}
	const most = 1<<31 - 1
	if h.size < 0 || h.compressed < 0 || h.compressed > c.left || h.size > most || h.values < 0 || h.values > most {
		return h, fmt.Errorf("a page of %d bytes and %d values: the column has %d bytes left", h.compressed, h.values,
			c.left)
	}
	return h, nil
}

// pageFields reads the part of a header that is of the page's kind.
func (t *thrift) pageFields(h *pageHead, part int) {
	const v2 = 8
	t.object(func(id int, kind byte) bool {
		switch {
		case id == 1:
			return t.number(kind, &h.values)
		case part == v2 && id == 4, part != v2 && id == 2:
			return t.number(kind, &h.encoding)
		case part == v2 && id == 5:
			return t.number(kind, &h.defLength)
		case part == v2 && id == 6:
			return t.number(kind, &h.repBytes)
		case part == v2 && id == 7:
			h.plain = kind == thriftFalse
		case part == 5 && id == 3:
			return t.number(kind, &h.defEncoding)
		case part == 5 && id == 4:
			return t.number(kind, &h.repEncoding)
		}
		return false
	})
}

// page reads the next page, or passes over one of at most skippable entries and returns how many it had.
func (c *column) page(skippable int64) (skipped int64, err error) {
	h, err := c.head()
	if err != nil {
		return 0, err
	}
	data := h.kind == pageData || h.kind == pageDataV2
	if data && (h.values > c.rest || h.values > c.rows.file.most()) {
		return 0, fmt.Errorf("a page of %d values: want at most %d", h.values, min(c.rest, c.rows.file.most()))
	}
	if h.kind == pageIndex || data && h.values <= skippable {
		c.left -= h.compressed
		if data {
			skipped = h.values
			c.rest -= skipped
		}
		_, err = c.in.Discard(int(h.compressed))
		return skipped, err
	}
	raw := make([]byte, h.compressed)
	c.left -= h.compressed
	if _, err := io.ReadFull(c.in, raw); err != nil {
		return 0, err
	}
	if h.hasCRC && crc32.ChecksumIEEE(raw) != uint32(h.crc) {
		return 0, errors.New("a page has another checksum than it says: the file is damaged")
	}
	switch h.kind {
	case pageDictionary:
		return 0, c.dictionary(h, raw)
	case pageData:
		return 0, c.dataPage(h, raw)
	case pageDataV2:
		return 0, c.dataPageV2(h, raw)
	}
	return 0, fmt.Errorf("a page of the unknown kind %d", h.kind)
}

// expanded decompresses a page in place of the one that c holds.
func (c *column) expanded(raw []byte, size int64, plain bool) ([]byte, error) {
	if err := c.rows.hold(int(size) - c.held); err != nil {
		return nil, err
	}
	c.held = int(size)
	codec := c.chunk.codec
	if plain {
		codec = codecNone
	}
	return c.rows.expand(codec, raw, int(size))
}

func (c *column) dictionary(h pageHead, raw []byte) error {
	page, err := c.expanded(raw, h.size, false)
	if err != nil {
		return err
	}
	if h.encoding != encodingPlain && h.encoding != encodingPlainDictionary {
		return fmt.Errorf("a dictionary in encoding %d, which is not read", h.encoding)
	}
	c.dict, err = c.leaf.newDictionary(page, int(h.values))
	c.held = 0 // the rows hold it until the end of the group
	return err
}

func (c *column) dataPage(h pageHead, raw []byte) error {
	page, err := c.expanded(raw, h.size, false)
	if err != nil {
		return err
	}
	levels := func(most int, encoding int64) *runs {
		if most == 0 || err != nil {
			return newRuns(nil, 0)
		}
		if encoding != encodingRuns {
			err = fmt.Errorf("levels in encoding %d, which is not read", encoding)
			return nil
		}
		if len(page) < 4 || uint64(binary.LittleEndian.Uint32(page)) > uint64(len(page)-4) {
			err = errShortPage
			return nil
		}
		n := 4 + int(binary.LittleEndian.Uint32(page))
		in := page[4:n]
		page = page[n:]
		return newRuns(in, levelBits(most))
	}
	c.reps = levels(c.leaf.rep, h.repEncoding)
	c.defs = levels(c.leaf.def, h.defEncoding)
	if err != nil {
		return err
	}
	return c.open(h, page)
}

func (c *column) dataPageV2(h pageHead, raw []byte) error {
	if h.repBytes < 0 || h.defLength < 0 || h.repBytes > int64(len(raw)) || h.defLength > int64(len(raw))-h.repBytes ||
		h.size < h.repBytes+h.defLength {
		return errShortPage
	}
	rep, def, in := raw[:h.repBytes], raw[h.repBytes:h.repBytes+h.defLength], raw[h.repBytes+h.defLength:]
	size := h.size - h.repBytes - h.defLength
	page, err := c.expanded(in, size, h.plain || size == 0 && len(in) == 0)
	if err != nil {
		return err
	}
	c.reps, c.defs = newRuns(rep, levelBits(c.leaf.rep)), newRuns(def, levelBits(c.leaf.def))
	return c.open(h, page)
}

// open begins to read the values of a page.
func (c *column) open(h pageHead, page []byte) (err error) {
	c.values, err = c.leaf.valuesOf(h.encoding, page, int(h.values), c.dict)
	c.entries = int(h.values)
	c.rest -= h.values
	return err
}
