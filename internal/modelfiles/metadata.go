// SPDX-License-Identifier: Apache-2.0

package modelfiles

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/gguf"
)

// metadata reads the keys of one architecture. It collects what is wrong, and knows what was asked for.
type metadata struct {
	file *gguf.File
	arch string
	used map[string]bool
	bad  []string
}

func (m *metadata) fault(format string, args ...any) {
	m.bad = append(m.bad, fmt.Sprintf(format, args...))
}

// lookup is the value of a key of the architecture.
func (m *metadata) lookup(key string) (name string, v gguf.Value) {
	name = m.arch + "." + key
	m.used[name] = true
	return name, m.file.Metadata[name]
}

// has reports whether the file has a key.
func (m *metadata) has(key string) bool {
	_, v := m.lookup(key)
	return v.Len() > 0
}

// number is a whole number that must be there; of a list with one for each layer, the one that all have.
func (m *metadata) number(key string) int {
	name, v := m.lookup(key)
	n, ok := v.Int()
	if list, isList := v.Ints(); isList && len(list) > 0 {
		n, ok = list[0], true
		for _, other := range list {
			if other != n {
				m.fault("%s differs from layer to layer, which is not supported: want one number", name)
				return 0
			}
		}
	}
	if !ok || n < 0 || n > 1<<40 {
		m.fault("%s is %s: want a whole number", name, v)
	}
	return int(n)
}

// numberOr is number, or otherwise if the key is missing.
func (m *metadata) numberOr(key string, otherwise int) int {
	if !m.has(key) {
		return otherwise
	}
	return m.number(key)
}

// floatOr is a number, or otherwise if the key is missing.
func (m *metadata) floatOr(key string, otherwise float64) float64 {
	if !m.has(key) {
		return otherwise
	}
	return m.float(key)
}

// float is a number that must be there.
func (m *metadata) float(key string) float64 {
	name, v := m.lookup(key)
	x, ok := v.Float()
	if !ok {
		m.fault("%s is %s: want a number", name, v)
	}
	return x
}

// text is a string, "" if the key is missing.
func (m *metadata) text(key string) string {
	name, v := m.lookup(key)
	s, ok := v.Text()
	if !ok && v.Len() > 0 {
		m.fault("%s is %s: want a text", name, v)
	}
	return s
}

// only refuses a key with another number than want.
func (m *metadata) only(key string, want float64, why string) {
	if x := m.floatOr(key, want); x != want {
		m.fault("%s.%s is %g, which is not supported (%s): want %g", m.arch, key, x, why, want)
	}
}

// passOver takes keys for read: what they say changes nothing here.
func (m *metadata) passOver(keys ...string) {
	for _, key := range keys {
		m.used[m.arch+"."+key] = true
	}
}

// err names all that is wrong, and the keys of the architecture that nobody asked for.
func (m *metadata) err() error {
	for _, key := range slices.Sorted(maps.Keys(m.file.Metadata)) {
		if strings.HasPrefix(key, m.arch+".") && !m.used[key] {
			m.fault("%s = %s is unknown, and it may change what is computed", key, m.file.Metadata[key])
		}
	}
	const most = 12
	if n := len(m.bad) - most; n > 0 {
		m.bad = append(m.bad[:most], fmt.Sprintf("and %d more", n))
	}
	if len(m.bad) == 0 {
		return nil
	}
	return errors.New(strings.Join(m.bad, "; "))
}
