// SPDX-License-Identifier: Apache-2.0

package jsontext

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
)

// Record is one object of a file.
type Record struct {
	Text   []byte // valid until the next record
	Line   int    // where it begins, from 1
	Offset int64  // of its first byte
}

// byteOrderMark begins files of some programs.
const byteOrderMark = "\ufeff"

// Records yields the records of a file: its lines that are not blank, if the first of them is a whole JSON value and no
// array; else the objects of the array that the file is, or objects over several lines one after the other. Records
// have any length, and one is in memory at a time. A byte order mark is skipped.
//
// A record that is a line may be anything, of which [Fields] says what is wrong. The sequence ends after an error,
// which names the line if the file is at fault.
func Records(r io.Reader) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		s := &scanner{in: bufio.NewReaderSize(r, 1<<16), line: 1}
		mark, err := s.in.Peek(len(byteOrderMark))
		switch {
		case string(mark) == byteOrderMark:
			_, _ = s.in.Discard(len(mark)) // they are there
			s.offset = int64(len(mark))
		case err != nil && err != io.EOF:
			yield(Record{}, err)
			return
		}
		if err := s.blanks(); err != nil {
			if err != io.EOF {
				yield(Record{}, err)
			}
			return
		}
		if c, err := s.peek(); err == nil && c == '[' {
			s.objects(true, yield)
			return
		}
		first, err := s.readLine()
		switch {
		case err != nil:
			yield(Record{}, err)
		case first.Text[0] == '{' && unfinished(first.Text):
			s.line, s.offset = first.Line, first.Offset
			s.in = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(bytes.Clone(first.Text)), s.in), 1<<16)
			s.objects(false, yield)
		default:
			s.lines(first, yield)
		}
	}
}

// scanner reads a file and knows its place.
type scanner struct {
	in     *bufio.Reader
	line   int
	offset int64
	text   []byte // the record
}

// peek is the next byte.
func (s *scanner) peek() (byte, error) {
	b, err := s.in.Peek(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// advance passes over the next byte, which peek returned.
func (s *scanner) advance(c byte) {
	_, _ = s.in.Discard(1) // peek saw it
	s.offset++
	if c == '\n' {
		s.line++
	}
}

// blanks passes over white space. The error is io.EOF at the end.
func (s *scanner) blanks() error {
	for {
		c, err := s.peek()
		if err != nil {
			return err
		}
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return nil
		}
		s.advance(c)
	}
}

// readLine reads up to the end of the line, and leaves that out.
func (s *scanner) readLine() (Record, error) {
	r := Record{Line: s.line, Offset: s.offset}
	s.text = s.text[:0]
	for err := bufio.ErrBufferFull; errors.Is(err, bufio.ErrBufferFull); {
		var part []byte
		part, err = s.in.ReadSlice('\n')
		s.text, s.offset = append(s.text, part...), s.offset+int64(len(part))
		if err != nil && err != io.EOF && !errors.Is(err, bufio.ErrBufferFull) {
			return r, err
		}
	}
	if bytes.HasSuffix(s.text, []byte("\n")) {
		s.line++
	}
	r.Text = s.text
	return r, nil
}

// lines yields the first line and the others that are not blank.
func (s *scanner) lines(first Record, yield func(Record, error) bool) {
	for record, err := first, error(nil); yield(record, err) && err == nil; {
		if err = s.blanks(); err == io.EOF {
			return
		}
		if err == nil {
			record, err = s.readLine()
		}
	}
}

// unfinished reports whether text ends within the JSON object that it begins with.
func unfinished(text []byte) bool {
	var object json.RawMessage
	err := json.NewDecoder(bytes.NewReader(Finite(text))).Decode(&object)
	return errors.Is(err, io.ErrUnexpectedEOF)
}

// objects yields the objects of an array, or those that follow each other.
func (s *scanner) objects(inArray bool, yield func(Record, error) bool) {
	if inArray {
		s.advance('[')
	}
	for n := 0; ; n++ {
		more, err := s.next(inArray, n)
		if err != nil {
			yield(Record{Line: s.line}, err)
			return
		}
		if !more {
			return
		}
		record, err := s.object()
		if !yield(record, err) || err != nil {
			return
		}
	}
}

// next passes over what is between the objects, and reports whether there is another one after n.
func (s *scanner) next(inArray bool, n int) (more bool, err error) {
	end := func(err error) (bool, error) {
		switch {
		case err != io.EOF:
			return false, err
		case inArray:
			return false, fmt.Errorf("line %d: the JSON array ends too early", s.line)
		}
		return false, nil
	}
	if err := s.blanks(); err != nil {
		return end(err)
	}
	c, err := s.peek()
	switch {
	case err != nil:
		return end(err)
	case inArray && c == ']':
		s.advance(c)
		if err := s.blanks(); err != io.EOF {
			return false, errors.Join(err, fmt.Errorf("line %d: there is more after the JSON array", s.line))
		}
		return false, nil
	case inArray && n > 0:
		if c != ',' {
			return false, fmt.Errorf("line %d: the JSON array has %q: want a comma or ]", s.line, c)
		}
		s.advance(c)
		if err := s.blanks(); err != nil {
			return end(err)
		}
		if c, err = s.peek(); err != nil {
			return end(err)
		}
	}
	if c != '{' {
		return false, fmt.Errorf("line %d has %q: want a JSON object", s.line, c)
	}
	return true, nil
}

// object reads an object up to the bracket that ends it. What is in it is for encoding/json to judge.
func (s *scanner) object() (Record, error) {
	r := Record{Line: s.line, Offset: s.offset}
	s.text = s.text[:0]
	quoted, escape, depth := false, false, 0
	for {
		c, err := s.in.ReadByte()
		if err == io.EOF {
			return r, fmt.Errorf("line %d: the JSON object that begins here ends too early", r.Line)
		}
		if err != nil {
			return r, err
		}
		if s.offset++; c == '\n' {
			s.line++
		}
		s.text = append(s.text, c)
		switch {
		case escape:
			escape = false
		case quoted:
			escape, quoted = c == '\\', c != '"'
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				r.Text = s.text
				return r, nil
			}
		}
	}
}
