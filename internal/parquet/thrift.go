// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Kinds of values in Thrift's compact protocol.
const (
	thriftTrue   = 1
	thriftFalse  = 2
	thriftI16    = 4
	thriftI64    = 6
	thriftDouble = 7
	thriftBinary = 8
	thriftList   = 9
	thriftSet    = 10
	thriftMap    = 11
	thriftStruct = 12
)

// thrift reads structs in Thrift's compact protocol, in which Parquet has its metadata. After the first error, which
// err keeps, everything it reads is 0.
type thrift struct {
	in   *bufio.Reader
	left int64 // bytes that may still be read
	err  error
}

func (t *thrift) fail(format string, values ...any) {
	if t.err == nil {
		t.err = fmt.Errorf(format, values...)
	}
}

// take accounts for n bytes, and reports whether they may be read.
func (t *thrift) take(n int64) bool {
	if t.left -= n; t.left < 0 || n < 0 {
		t.fail("the metadata end too early")
	}
	return t.err == nil
}

// ReadByte implements io.ByteReader.
func (t *thrift) ReadByte() (byte, error) {
	if !t.take(1) {
		return 0, t.err
	}
	b, err := t.in.ReadByte()
	t.check(err)
	return b, t.err
}

func (t *thrift) check(err error) {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && t.err == nil {
		t.err = err
	}
}

func (t *thrift) uvarint() uint64 {
	n, err := binary.ReadUvarint(t)
	t.check(err)
	if t.err != nil {
		return 0
	}
	return n
}

func (t *thrift) varint() int64 {
	n := t.uvarint()
	return int64(n>>1) ^ -int64(n&1)
}

// text reads a binary value of at most limit bytes.
func (t *thrift) text(limit int) string {
	n := t.uvarint()
	if n > uint64(limit) {
		t.fail("a name of %d bytes: want at most %d", n, limit)
	}
	if !t.take(int64(n)) {
		return ""
	}
	text := make([]byte, n)
	_, err := io.ReadFull(t.in, text)
	t.check(err)
	return string(text)
}

// object reads a struct: each reads the value of a field, or returns false for one to be skipped.
func (t *thrift) object(each func(id int, kind byte) (read bool)) {
	t.fields(0, each)
}

const maxThriftDepth = 32

func (t *thrift) fields(depth int, each func(id int, kind byte) (read bool)) {
	if depth > maxThriftDepth {
		t.fail("metadata of more than %d levels", maxThriftDepth)
	}
	for id := 0; t.err == nil; {
		head, _ := t.ReadByte() // err keeps the error
		kind := head & 15
		if kind == 0 {
			return
		}
		if delta := head >> 4; delta != 0 {
			id += int(delta)
		} else {
			id = int(int16(t.varint()))
		}
		if t.err == nil && !each(id, kind) {
			t.skip(kind, depth+1)
		}
	}
}

// number reads an integer field, if that is what the field is.
func (t *thrift) number(kind byte, to *int64) bool {
	if kind < thriftI16 || kind > thriftI64 {
		return false
	}
	*to = t.varint()
	return true
}

// list reads a list field, if that is what the field is; each reads an element of a kind.
func (t *thrift) list(kind byte, each func(kind byte)) bool {
	if kind != thriftList {
		return false
	}
	n, element := t.listHead()
	for i := uint64(0); i < n && t.err == nil; i++ {
		each(element)
	}
	return true
}

func (t *thrift) listHead() (n uint64, element byte) {
	head, _ := t.ReadByte() // err keeps the error
	if n = uint64(head >> 4); n == 15 {
		n = t.uvarint()
	}
	if int64(n) > t.left || int64(n) < 0 { // an element takes a byte at least
		t.fail("a list of %d elements ends too early", n)
	}
	return n, head & 15
}

func (t *thrift) skip(kind byte, depth int) {
	switch kind {
	case thriftTrue, thriftFalse:
	case 3:
		t.discard(1)
	case thriftI16, 5, thriftI64:
		t.uvarint()
	case thriftDouble:
		t.discard(8)
	case thriftBinary:
		t.discard(int64(t.uvarint()))
	case thriftList, thriftSet:
		n, element := t.listHead()
		for i := uint64(0); i < n && t.err == nil; i++ {
			t.skipElement(element, depth)
		}
	case thriftMap:
		t.skipMap(depth)
	case thriftStruct:
		t.fields(depth, func(int, byte) bool { return false })
	default:
		t.fail("a value of the unknown kind %d in the metadata", kind)
	}
}

// skipElement skips an element of a list. A bool takes a byte there.
func (t *thrift) skipElement(kind byte, depth int) {
	if depth > maxThriftDepth {
		t.fail("metadata of more than %d levels", maxThriftDepth)
		return
	}
	if kind == thriftTrue || kind == thriftFalse {
		t.discard(1)
		return
	}
	t.skip(kind, depth+1)
}

func (t *thrift) skipMap(depth int) {
	n := t.uvarint()
	if n == 0 {
		return
	}
	kinds, _ := t.ReadByte() // err keeps the error
	for i := uint64(0); i < n && t.err == nil; i++ {
		t.skipElement(kinds>>4, depth)
		t.skipElement(kinds&15, depth)
	}
}

func (t *thrift) discard(n int64) {
	if !t.take(n) {
		return
	}
	_, err := t.in.Discard(int(n))
	t.check(err)
}
