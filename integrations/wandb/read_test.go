// SPDX-License-Identifier: Apache-2.0

package wandb_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

// content is what a file of a run says.
type content struct {
	facts   map[string]string
	config  map[string]string
	rows    []map[string]string
	summary map[string]string
}

// read decodes a file, checking its frames.
func read(t *testing.T, path string) content {
	c := content{facts: map[string]string{}, config: map[string]string{}, summary: map[string]string{}}
	for i, record := range records(t, path) {
		for _, f := range fields(t, record) {
			switch m := f.bytes; f.number {
			case 1: // num
				require.EqualValues(t, i+1, f.varint)
			case 21: // header
				require.NotEmpty(t, m)
			case 17: // run
				c.run(t, m)
			case 12: // metric
				for _, f := range fields(t, m) {
					if name := map[protowire.Number]string{2: "of", 4: "axis"}[f.number]; name != "" {
						c.facts[name] = string(f.bytes)
					}
				}
			case 2: // history
				row := map[string]string{}
				items(t, m, row)
				c.rows = append(c.rows, row)
			case 3: // summary
				items(t, m, c.summary)
			case 18: // exit
				c.facts["exit"] = "0"
				for _, f := range fields(t, m) {
					c.facts["exit"] = fmt.Sprint(f.varint)
				}
			default:
				require.Fail(t, "a record of an unknown kind", "%d", f.number)
			}
		}
	}
	return c
}

func (c content) run(t *testing.T, m []byte) {
	for _, f := range fields(t, m) {
		switch name := map[protowire.Number]string{2: "entity", 3: "project", 8: "name", 10: "tags"}[f.number]; {
		case name != "":
			c.facts[name] = strings.TrimSpace(c.facts[name] + " " + string(f.bytes))
		case f.number == 24:
			c.facts["resume"] = fmt.Sprint(f.varint)
		case f.number == 4:
			items(t, f.bytes, c.config)
		}
	}
}

// items decodes entries of names and JSON.
func items(t *testing.T, m []byte, to map[string]string) {
	for _, f := range fields(t, m) {
		if f.number != 1 {
			continue
		}
		var name, text string
		for _, f := range fields(t, f.bytes) {
			if f.number == 16 {
				text = string(f.bytes)
			} else {
				name = string(f.bytes)
			}
		}
		to[name] = text
	}
}

type field struct {
	number protowire.Number
	varint uint64
	bytes  []byte
}

func fields(t *testing.T, b []byte) (list []field) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		require.NoError(t, protowire.ParseError(n))
		b = b[n:]
		f := field{number: number}
		if kind == protowire.VarintType {
			f.varint, n = protowire.ConsumeVarint(b)
		} else {
			f.bytes, n = protowire.ConsumeBytes(b)
		}
		require.NoError(t, protowire.ParseError(n))
		list, b = append(list, f), b[n:]
	}
	return list
}

// records reads LevelDB's frames.
func records(t *testing.T, path string) (list [][]byte) {
	const block = 32 << 10
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, ":W&B\xe1\xbe\x00", string(b[:7]))
	var open []byte
	for at := 7; at < len(b); {
		if left := block - at%block; left < 7 {
			require.Equal(t, make([]byte, left), b[at:at+left])
			at += left
			continue
		}
		n := int(binary.LittleEndian.Uint16(b[at+4:]))
		body := b[at+6 : at+7+n]
		require.Equal(t, binary.LittleEndian.Uint32(b[at:]), crc32.ChecksumIEEE(body))
		require.LessOrEqual(t, at%block+7+n, block)
		open = append(open, body[1:]...)
		if kind := body[0]; kind == 1 || kind == 4 {
			list, open = append(list, open), nil
		}
		at += 7 + n
	}
	require.Nil(t, open)
	return list
}
