// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// Bounds of the footer. Files with thousands of columns in hundreds of row groups have some ten MiB.
const (
	maxFooter  = 64 << 20
	maxColumns = 1 << 16 // and groups of columns
	maxName    = 1 << 12
)

// element is a node of the schema, as the footer has it.
type element struct {
	physical   int64 // -1: it is a group
	length     int64 // of fixed-length values
	repetition int64
	name       string
	children   int64
	converted  int64 // -1: none
	logical    int   // field of the union LogicalType; 0: none
	unit       int   // of timestamps: 1 is ms, 2 µs, 3 ns
	utc        bool
	unsigned   bool
}

// Physical types.
const (
	typeBool = iota
	typeInt32
	typeInt64
	typeInt96
	typeFloat
	typeDouble
	typeBytes
	typeFixed
)

// Kinds of repetition.
const (
	required = iota
	optional
	repeated
)

// chunk is where the values of a column in a row group are.
type chunk struct {
	physical      int64
	codec         int64
	values        int64
	start, length int64
	elsewhere     bool // in another file, or encrypted
}

// group is a row group.
type group struct {
	rows   int64
	chunks []chunk
}

type metadata struct {
	elements []element
	rows     int64
	groups   []group
}

// readMetadata reads the footer of a file.
func readMetadata(r io.ReaderAt, size int64) (*metadata, error) {
	const least = 12 // the magic twice, and the length of the footer
	if size < least {
		return nil, fmt.Errorf("it has %d bytes: want a Parquet file", size)
	}
	tail := make([]byte, 8)
	if _, err := r.ReadAt(tail, size-8); err != nil {
		return nil, err
	}
	switch string(tail[4:]) {
	case "PAR1":
	case "PARE":
		return nil, errors.New("it is encrypted: want a Parquet file that is not")
	default:
		return nil, errors.New("it does not end as a Parquet file does: it is cut off, or none")
	}
	n := int64(uint32(tail[0]) | uint32(tail[1])<<8 | uint32(tail[2])<<16 | uint32(tail[3])<<24)
	if n > size-least || n > maxFooter {
		return nil, fmt.Errorf("its footer has %d bytes: want one that lies in the file, of at most %d", n, maxFooter)
	}
	t := &thrift{in: bufio.NewReaderSize(io.NewSectionReader(r, size-8-n, n), 1<<16), left: n}
	m := t.metadata()
	if t.err == nil {
		t.err = m.check(size)
	}
	if t.err != nil {
		return nil, fmt.Errorf("its footer: %w", t.err)
	}
	return m, nil
}

func (t *thrift) metadata() *metadata {
	m := &metadata{}
	t.object(func(id int, kind byte) bool {
		switch id {
		case 2:
			return t.list(kind, func(kind byte) {
				if len(m.elements) == maxColumns {
					t.fail("more than %d columns", maxColumns)
					return
				}
				m.elements = append(m.elements, t.element(kind))
			})
		case 3:
			return t.number(kind, &m.rows)
		case 4:
			return t.list(kind, func(kind byte) { m.groups = append(m.groups, t.group(kind)) })
		case 8:
			t.fail("it is encrypted: want a Parquet file that is not")
		}
		return false
	})
	return m
}

// nested is object for an element of a list, which must be a struct.
func (t *thrift) nested(kind byte, each func(id int, kind byte) bool) {
	if kind != thriftStruct {
		t.fail("a list of something else than structs")
		return
	}
	t.object(each)
}

func (t *thrift) element(kind byte) element {
	e := element{physical: -1, converted: -1}
	t.nested(kind, func(id int, kind byte) bool {
		switch id {
		case 1:
			return t.number(kind, &e.physical)
		case 2:
			return t.number(kind, &e.length)
		case 3:
			return t.number(kind, &e.repetition)
		case 4:
			if kind == thriftBinary {
				e.name = t.text(maxName)
				return true
			}
		case 5:
			return t.number(kind, &e.children)
		case 6:
			return t.number(kind, &e.converted)
		case 10:
			if kind == thriftStruct {
				t.logical(&e)
				return true
			}
		}
		return false
	})
	return e
}

// logical reads the union LogicalType.
func (t *thrift) logical(e *element) {
	t.object(func(id int, kind byte) bool {
		e.logical = id
		if kind != thriftStruct || id != logicalTimestamp && id != logicalInteger {
			return false
		}
		t.object(func(field int, kind byte) bool {
			switch {
			case id == logicalTimestamp && field == 1:
				e.utc = kind == thriftTrue
			case id == logicalInteger && field == 2:
				e.unsigned = kind == thriftFalse
			case id == logicalTimestamp && field == 2 && kind == thriftStruct:
				t.object(func(unit int, _ byte) bool {
					e.unit = unit
					return false
				})
				return true
			}
			return false
		})
		return true
	})
}

func (t *thrift) group(kind byte) (g group) {
	t.nested(kind, func(id int, kind byte) bool {
		switch id {
		case 1:
			return t.list(kind, func(kind byte) { g.chunks = append(g.chunks, t.chunk(kind)) })
		case 3:
			return t.number(kind, &g.rows)
		}
		return false
	})
	return g
}

func (t *thrift) chunk(kind byte) (c chunk) {
	c.physical = -1
	t.nested(kind, func(id int, kind byte) bool {
		switch {
		case id == 3 && kind == thriftStruct:
			t.columnMetadata(&c)
			return true
		case id == 1, id == 8, id == 9:
			c.elsewhere = true
		}
		return false
	})
	return c
}

func (t *thrift) columnMetadata(c *chunk) {
	data, dictionary := int64(0), int64(0)
	t.object(func(id int, kind byte) bool {
		switch id {
		case 1:
			return t.number(kind, &c.physical)
		case 4:
			return t.number(kind, &c.codec)
		case 5:
			return t.number(kind, &c.values)
		case 7:
			return t.number(kind, &c.length)
		case 9:
			return t.number(kind, &data)
		case 11:
			return t.number(kind, &dictionary)
		}
		return false
	})
	if c.start = data; dictionary > 0 && dictionary < data {
		c.start = dictionary
	}
}

// check compares what the footer says with the file.
func (m *metadata) check(size int64) error {
	if m.rows < 0 {
		return fmt.Errorf("%d rows", m.rows)
	}
	sum := int64(0)
	for i, g := range m.groups {
		if g.rows < 0 || g.rows > m.rows-sum {
			return fmt.Errorf("row group %d has %d rows, where %d are left", i+1, g.rows, m.rows-sum)
		}
		sum += g.rows
		for _, c := range g.chunks {
			if c.elsewhere || c.values == 0 && c.start == 0 {
				continue // an error when the column is read, or nothing to read
			}
			if c.start < 4 || c.length < 0 || c.start > size || c.length > size-c.start || c.values < 0 {
				return fmt.Errorf("row group %d has a column at byte %d of %d bytes: the file has %d", i+1, c.start,
					c.length, size)
			}
		}
	}
	if sum != m.rows {
		return fmt.Errorf("row groups of %d rows: want %d, as it says", sum, m.rows)
	}
	return nil
}
