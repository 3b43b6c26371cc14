// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"errors"
	"fmt"
	"strings"
)

// Fields of the union LogicalType.
const (
	logicalString    = 1
	logicalMap       = 2
	logicalList      = 3
	logicalEnum      = 4
	logicalDate      = 6
	logicalTimestamp = 8
	logicalInteger   = 10
	logicalUnknown   = 11
	logicalJSON      = 12
)

// convertedLogical are logical types by the older converted type.
var convertedLogical = map[int64]element{
	0: {logical: logicalString}, 1: {logical: logicalMap}, 2: {logical: logicalMap}, 3: {logical: logicalList},
	4: {logical: logicalEnum}, 5: {logical: 5}, 6: {logical: logicalDate}, 7: {logical: 7}, 8: {logical: 7},
	9:  {logical: logicalTimestamp, unit: 1, utc: true},
	10: {logical: logicalTimestamp, unit: 2, utc: true},
	11: {logical: logicalInteger, unsigned: true}, 12: {logical: logicalInteger, unsigned: true},
	13: {logical: logicalInteger, unsigned: true}, 14: {logical: logicalInteger, unsigned: true},
	15: {logical: logicalInteger}, 16: {logical: logicalInteger}, 17: {logical: logicalInteger},
	18: {logical: logicalInteger}, 19: {logical: logicalJSON}, 20: {logical: 13}, 21: {logical: -1},
}

// node is a column, or a group of columns: an object, or a list.
type node struct {
	element
	path     string
	key      []byte // `"name":`
	nodes    []*node
	leaf     int // number of the column, -1 for a group
	def, rep int // levels at which it is there, and at which it repeats
	list     bool
	format   format // of a leaf that is read
	first    int    // number of the first leaf that is read
}

const maxSchemaDepth = 64

// tree makes the schema of its elements. unread are the columns whose types are not read, with the types.
func (m *metadata) tree() (root *node, leaves []*node, unread []Unread, err error) {
	if len(m.elements) == 0 {
		return nil, nil, nil, errors.New("it has no schema")
	}
	b := &builder{elements: m.elements}
	b.elements[0].repetition = required
	root, err = b.build(nil, 0)
	switch {
	case err != nil:
		return nil, nil, nil, err
	case len(b.elements) > 0:
		return nil, nil, nil, fmt.Errorf("the schema has %d elements too many", len(b.elements))
	}
	for i, g := range m.groups {
		if len(g.chunks) != len(b.leaves) {
			return nil, nil, nil, fmt.Errorf("row group %d has %d columns: want %d", i+1, len(g.chunks), len(b.leaves))
		}
	}
	b.prune(root)
	return root, b.leaves, b.unread, nil
}

type builder struct {
	elements []element
	leaves   []*node
	unread   []Unread
}

// build makes a node of the next element and those below it.
func (b *builder) build(parent *node, depth int) (*node, error) {
	if len(b.elements) == 0 || depth > maxSchemaDepth {
		return nil, fmt.Errorf("the schema ends too early, or has more than %d levels", maxSchemaDepth)
	}
	n := &node{element: b.elements[0], leaf: -1}
	b.elements = b.elements[1:]
	n.key = append(appendText(nil, []byte(n.name)), ':')
	if n.logical == 0 {
		if old, ok := convertedLogical[n.converted]; ok {
			n.logical, n.unit, n.utc, n.unsigned = old.logical, old.unit, old.utc, old.unsigned
		}
	}
	if parent != nil {
		n.path, n.def, n.rep = strings.TrimPrefix(parent.path+"."+n.name, "."), parent.def, parent.rep
	}
	switch n.repetition {
	case required:
	case optional:
		n.def++
	case repeated:
		n.def, n.rep = n.def+1, n.rep+1
	default:
		return nil, fmt.Errorf("column %s has repetition %d", n.path, n.repetition)
	}
	if n.physical >= 0 {
		n.leaf = len(b.leaves)
		b.leaves = append(b.leaves, n)
		return n, nil
	}
	if n.children < 1 && parent != nil || n.children < 0 {
		return nil, fmt.Errorf("column %s is a group of %d columns", n.path, n.children)
	}
	for range n.children {
		child, err := b.build(n, depth+1)
		if err != nil {
			return nil, err
		}
		n.nodes = append(n.nodes, child)
	}
	n.list = n.logical == logicalList && len(n.nodes) == 1 && n.nodes[0].repetition == repeated
	return n, nil
}

// prune leaves out the columns below a node whose types are not read, and reports whether any remains.
func (b *builder) prune(n *node) bool {
	if n.leaf >= 0 {
		n.first = n.leaf
		n.format = n.formatOf()
		if n.format == nil {
			b.unread = append(b.unread, Unread{n.path, n.typeName()})
		}
		return n.format != nil
	}
	if n.logical == logicalMap {
		b.unread = append(b.unread, Unread{n.path, "map"})
		return false
	}
	var kept []*node
	for _, child := range n.nodes {
		if b.prune(child) {
			kept = append(kept, child)
		}
	}
	if n.nodes = kept; len(kept) == 0 {
		return false
	}
	n.first = kept[0].first
	return true
}

// typeName names the type of a leaf.
func (n *node) typeName() string {
	logical := map[int]string{5: "decimal", 7: "time", 13: "BSON", 14: "UUID", 15: "float16", 16: "variant",
		-1: "interval"}
	if name := logical[n.logical]; name != "" {
		return name
	}
	names := []string{"bool", "int32", "int64", "int96 timestamp", "float", "double", "bytes", "fixed-length bytes"}
	if n.physical < int64(len(names)) {
		return names[n.physical]
	}
	return fmt.Sprintf("type %d", n.physical)
}

// width is the number of bytes of a value, 0 for those that have their length with them, -1 for those in bits.
func (n *node) width() int {
	switch n.physical {
	case typeBool:
		return -1
	case typeInt32, typeFloat:
		return 4
	case typeInt64, typeDouble:
		return 8
	}
	return 0
}
