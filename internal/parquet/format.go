// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// format appends a value as JSON.
type format func(to, value []byte) ([]byte, error)

// formatOf is how the values of a leaf are written; nil: its type is not read.
func (n *node) formatOf() format {
	switch n.logical {
	case 0, logicalUnknown:
		return plainFormat(n.physical)
	case logicalInteger:
		return integerFormat(n)
	case logicalString, logicalEnum, logicalJSON:
		if n.physical == typeBytes {
			return textFormat
		}
	case logicalDate:
		if n.physical == typeInt32 {
			return dateFormat
		}
	case logicalTimestamp:
		if n.physical == typeInt64 && n.unit > 0 && n.unit <= len(ticks) {
			return timestampFormat(ticks[n.unit-1], n.utc)
		}
	}
	return nil
}

func plainFormat(physical int64) format {
	switch physical {
	case typeBool:
		return func(to, v []byte) ([]byte, error) { return strconv.AppendBool(to, v[0] != 0), nil }
	case typeInt32:
		return int32Format
	case typeInt64:
		return int64Format
	case typeFloat:
		return func(to, v []byte) ([]byte, error) {
			return appendFloat(to, float64(math.Float32frombits(binary.LittleEndian.Uint32(v))), 32), nil
		}
	case typeDouble:
		return func(to, v []byte) ([]byte, error) {
			return appendFloat(to, math.Float64frombits(binary.LittleEndian.Uint64(v)), 64), nil
		}
	}
	return nil
}

func int32Format(to, v []byte) ([]byte, error) {
	return strconv.AppendInt(to, int64(int32(binary.LittleEndian.Uint32(v))), 10), nil
}

func int64Format(to, v []byte) ([]byte, error) {
	return strconv.AppendInt(to, int64(binary.LittleEndian.Uint64(v)), 10), nil
}

func integerFormat(n *node) format {
	switch {
	case n.physical == typeInt32 && n.unsigned:
		return func(to, v []byte) ([]byte, error) {
			return strconv.AppendUint(to, uint64(binary.LittleEndian.Uint32(v)), 10), nil
		}
	case n.physical == typeInt64 && n.unsigned:
		return func(to, v []byte) ([]byte, error) {
			return strconv.AppendUint(to, binary.LittleEndian.Uint64(v), 10), nil
		}
	case n.physical == typeInt32:
		return int32Format
	case n.physical == typeInt64:
		return int64Format
	}
	return nil
}

// appendFloat writes a number as Python does, NaN and Infinity too.
func appendFloat(to []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(to, "NaN"...)
	case math.IsInf(f, 1):
		return append(to, "Infinity"...)
	case math.IsInf(f, -1):
		return append(to, "-Infinity"...)
	}
	before := len(to)
	to = strconv.AppendFloat(to, f, 'g', -1, bits)
	if !bytes.ContainsAny(to[before:], ".e") {
		to = append(to, ".0"...)
	}
	return to
}

func textFormat(to, v []byte) ([]byte, error) {
	if !utf8.Valid(v) {
		return nil, fmt.Errorf("%.40q: want UTF-8", v)
	}
	return appendText(to, v), nil
}

// appendText writes a JSON string.
func appendText(to, text []byte) []byte {
	const hex = "0123456789abcdef"
	to = append(to, '"')
	done := 0
	for i, c := range text {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		to = append(to, text[done:i]...)
		done = i + 1
		switch c {
		case '"', '\\':
			to = append(to, '\\', c)
		case '\n':
			to = append(to, `\n`...)
		default:
			to = append(to, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(to, text[done:]...), '"')
}

func dateFormat(to, v []byte) ([]byte, error) {
	day := time.Unix(int64(int32(binary.LittleEndian.Uint32(v)))*24*60*60, 0).UTC()
	return day.AppendFormat(to, `"2006-01-02"`), nil
}

// ticks are the units of timestamps.
var ticks = []time.Duration{time.Millisecond, time.Microsecond, time.Nanosecond}

func timestampFormat(tick time.Duration, utc bool) format {
	layout := `"2006-01-02T15:04:05.999999999"`
	if utc {
		layout = `"2006-01-02T15:04:05.999999999Z"`
	}
	second := int64(time.Second / tick)
	return func(to, v []byte) ([]byte, error) {
		n := int64(binary.LittleEndian.Uint64(v))
		seconds, rest := n/second, n%second
		return time.Unix(seconds, rest*int64(tick)).UTC().AppendFormat(to, layout), nil
	}
}
