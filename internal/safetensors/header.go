// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/internal/jsontext"
)

// maxHeader is the largest JSON header that the format allows, in bytes.
const maxHeader = 100_000_000

// What a header may hold besides: a file of many names would take ten times its size as a map.
const (
	maxMetadata = 10_000  // keys
	maxEntries  = 200_000 // arrays
	maxDims     = 64      // of one
)

const metadataKey = "__metadata__"

// header is a parsed JSON header.
type header struct {
	metadata map[string]string
	entries  []Entry // in the order of their bytes
}

// parseHeader reads the JSON. It does not know how long the data is.
func parseHeader(text []byte) (*header, error) {
	switch {
	case len(text) == 0 || text[0] != '{':
		return nil, fmt.Errorf("header begins with %.8q: want '{'", text)
	case !utf8.Valid(text):
		return nil, errors.New("header is not UTF-8")
	case jsontext.LoneSurrogate(text): // two names of tensors could become one
		return nil, errors.New(`header has an escape \uD800 to \uDFFF that is not half of a pair`)
	}
	p := parser{dec: json.NewDecoder(bytes.NewReader(text))}
	p.dec.UseNumber()
	h := &header{}
	err := p.object("header", func(name string) (err error) {
		if name == metadataKey {
			h.metadata, err = p.metadata()
			return err
		}
		if len(h.entries) == maxEntries {
			return fmt.Errorf("header describes more than %d tensors", maxEntries)
		}
		e, err := p.entry(name)
		h.entries = append(h.entries, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	rest := bytes.TrimRight(text[p.dec.InputOffset():], " ")
	if len(rest) > 0 {
		return nil, fmt.Errorf("header has %q after its end", clip(string(rest)))
	}
	return h, h.checkLayout()
}

// checkLayout sorts the entries by their bytes, which must follow each other.
func (h *header) checkLayout() error {
	slices.SortStableFunc(h.entries, func(a, b Entry) int {
		if a.Begin != b.Begin {
			return compare(a.Begin, b.Begin)
		}
		return compare(a.End, b.End)
	})
	var end int64
	for i, e := range h.entries {
		switch {
		case e.Begin < end:
			return fmt.Errorf("tensor %q at bytes [%d, %d) overlaps %q, which ends at %d",
				clip(e.Name), e.Begin, e.End, clip(h.entries[i-1].Name), end)
		case e.Begin > end:
			return fmt.Errorf("tensor %q begins at byte %d: nothing uses bytes [%d, %d)", clip(e.Name), e.Begin, end,
				e.Begin)
		}
		end = e.End
	}
	return nil
}

// dataSize is the number of bytes behind the header.
func (h *header) dataSize() int64 {
	if len(h.entries) == 0 {
		return 0
	}
	return h.entries[len(h.entries)-1].End
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// clip shortens what an unknown file says, for messages.
func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

// parser reads JSON token by token, so that a repeated key is seen.
type parser struct{ dec *json.Decoder }

func (p parser) token() (json.Token, error) {
	t, err := p.dec.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("header is not JSON: %w", err)
	}
	return t, nil
}

func (p parser) delim(what string, want json.Delim) error {
	t, err := p.token()
	if err == nil && t != want {
		err = fmt.Errorf("%s has %v: want %v", what, clip(fmt.Sprint(t)), want)
	}
	return err
}

// object calls value for each key, which reads what follows it.
func (p parser) object(what string, value func(key string) error) error {
	if err := p.delim(what, '{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.dec.More() {
		t, err := p.token()
		if err != nil {
			return err
		}
		key := t.(string) // the decoder lets nothing else be a key
		if seen[key] {
			return fmt.Errorf("%s has the key %q twice", what, clip(key))
		}
		seen[key] = true
		if err := value(key); err != nil {
			return err
		}
	}
	return p.delim(what, '}')
}

// ints reads an array of integers from 0 to math.MaxInt64.
func (p parser) ints(what string) ([]int64, error) {
	if err := p.delim(what, '['); err != nil {
		return nil, err
	}
	list := []int64{}
	for p.dec.More() {
		t, err := p.token()
		if err != nil {
			return nil, err
		}
		num, ok := t.(json.Number)
		n, err := strconv.ParseUint(string(num), 10, 63)
		if !ok || err != nil {
			return nil, fmt.Errorf("%s is %s: want an integer from 0 to %d", what, clip(fmt.Sprint(t)),
				int64(math.MaxInt64))
		}
		if len(list) == maxDims {
			return nil, fmt.Errorf("%s: more than %d numbers", what, maxDims)
		}
		list = append(list, int64(n))
	}
	return list, p.delim(what, ']')
}

func (p parser) string(what string) (string, error) {
	t, err := p.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("%s is %s: want a string", what, clip(fmt.Sprint(t)))
	}
	return s, nil
}

func (p parser) metadata() (map[string]string, error) {
	m := map[string]string{}
	return m, p.object(metadataKey, func(key string) (err error) {
		if len(m) == maxMetadata {
			return fmt.Errorf("%s has more than %d keys", metadataKey, maxMetadata)
		}
		m[key], err = p.string(metadataKey + "." + clip(key))
		return err
	})
}

// entry reads the description of one array and checks it for itself.
func (p parser) entry(name string) (Entry, error) {
	e := Entry{Name: name}
	what := fmt.Sprintf("tensor %q", clip(name))
	var shape, offsets []int64
	err := p.object(what, func(key string) (err error) {
		switch key {
		case "dtype":
			e.Raw, err = p.string(what + ": dtype")
		case "shape":
			shape, err = p.ints(what + ": shape")
		case "data_offsets":
			offsets, err = p.ints(what + ": data_offsets")
		default:
			err = fmt.Errorf("%s: unknown key %q", what, clip(key))
		}
		return err
	})
	if err != nil {
		return e, err
	}
	el, ok := elementOf(e.Raw)
	switch {
	case !ok:
		return e, fmt.Errorf("%s: unknown dtype %q", what, clip(e.Raw))
	case shape == nil:
		return e, fmt.Errorf("%s: no shape", what)
	case len(offsets) != 2 || offsets[0] > offsets[1]:
		return e, fmt.Errorf("%s: data_offsets %v: want [begin, end]", what, offsets)
	}
	e.DType, e.Begin, e.End = el.dtype, offsets[0], offsets[1]
	for _, s := range shape {
		if s > math.MaxInt {
			return e, fmt.Errorf("%s: shape %v does not fit this machine", what, shape)
		}
		e.Shape = append(e.Shape, int(s))
	}
	size, err := el.size(e.Shape)
	if err != nil {
		return e, fmt.Errorf("%s: %w", what, err)
	}
	if size != e.Bytes() {
		return e, fmt.Errorf("%s: data_offsets %v hold %d bytes, but shape %v of %s needs %d", what, offsets, e.Bytes(),
			shape, el.name(), size)
	}
	return e, nil
}
