// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/misspelt"
)

// Module is a parsed PTX text: kernels, device functions and variables. It is not modified after [Parse] and may be
// used from several goroutines.
type Module struct {
	scope     *scope // the module's symbols
	functions map[string]*function
	order     []*function
	variables []*symbol // .global and .const
	src       string

	mutex  sync.Mutex
	linked map[string]*Kernel
}

// Kernels names the kernels (.entry) in the order of the text.
func (m *Module) Kernels() []string {
	var names []string
	for _, f := range m.order {
		if f.entry && f.defined {
			names = append(names, f.name)
		}
	}
	return names
}

// Kernel links a kernel: device functions that it calls are expanded, instructions are decoded. The result is kept, so
// that the second call is cheap. The error names the line and the instruction that the interpreter does not know, or
// the kernels whose names are nearest.
func (m *Module) Kernel(name string) (*Kernel, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if k := m.linked[name]; k != nil {
		return k, nil
	}
	f := m.functions[name]
	if f == nil || !f.entry || !f.defined {
		return nil, fmt.Errorf("ptx: no kernel %q: the module has %s", name, nearest(name, m.Kernels()))
	}
	k, err := link(m, f)
	if err != nil {
		return nil, err
	}
	m.linked[name] = k
	return k, nil
}

// nearest lists up to five names, those that resemble name first.
func nearest(name string, names []string) string {
	if len(names) == 0 {
		return "none"
	}
	sorted := slices.Clone(names)
	slices.SortStableFunc(sorted, func(a, b string) int {
		return misspelt.Distance(name, a) - misspelt.Distance(name, b)
	})
	if len(sorted) > 5 {
		return strings.Join(sorted[:5], ", ") + fmt.Sprintf(" and %d more", len(sorted)-5)
	}
	return strings.Join(sorted, ", ")
}

// symbolKind says what a name stands for.
type symbolKind uint8

const (
	symbolReg symbolKind = iota
	symbolParam
	symbolLocal
	symbolShared
	symbolGlobal
	symbolConst
)

// symbol is a declared register or variable.
type symbol struct {
	kind  symbolKind
	name  string
	typ   typ
	line  int
	size  int // bytes; of variables
	align int
	init  []initial
	index int  // of registers: in the function's list; of parameters: position
	extn  bool // .extern: for shared, the launch decides the size
}

// initial is an element of a variable's initialiser: a value of some bytes, or a variable's address.
type initial struct {
	offset int
	size   int
	value  uint64
	name   string
}

// scope holds the names declared between braces.
type scope struct {
	parent  *scope
	symbols map[string]*symbol
	ranges  []registerRange
	labels  map[string]int // position in the function's statements
	tables  map[string][]operand
}

// registerRange stands for the registers %r0 … of ".reg .b32 %r<10>", which are made when they are named.
type registerRange struct {
	prefix string
	typ    typ
	count  int
}

func newScope(parent *scope) *scope {
	return &scope{parent: parent, symbols: map[string]*symbol{}, labels: map[string]int{},
		tables: map[string][]operand{}}
}

func (s *scope) find(name string) *symbol {
	for ; s != nil; s = s.parent {
		if found := s.symbols[name]; found != nil {
			return found
		}
	}
	return nil
}

// function is an .entry or a .func.
type function struct {
	name       string
	line       int
	entry      bool
	defined    bool
	params     []*symbol
	results    []*symbol
	body       []statement
	registers  []*symbol
	variables  []*symbol // .local, .shared and .param of the body
	maxThreads [3]int    // of .maxntid; zero if absent
	required   [3]int    // of .reqntid
}

// statement is one instruction.
type statement struct {
	line     int
	pos, end int // in the text
	scope    *scope
	guard    *operand // a predicate; nil if absent
	op       string   // the first part of the opcode
	mods     []string // the others
	args     []operand
	call     *call
}

// has reports whether the opcode has a modifier.
func (s *statement) has(mod string) bool { return slices.Contains(s.mods, mod) }

// opcode is the instruction's full name.
func (s *statement) opcode() string {
	if len(s.mods) == 0 {
		return s.op
	}
	return s.op + "." + strings.Join(s.mods, ".")
}

// call holds the operands of a call instruction.
type call struct {
	results, args []operand
	name          string
}

type operandKind uint8

const (
	operandReg     operandKind = iota
	operandSpecial             // %tid.x and others
	operandImm                 // integer in value
	operandF32                 // bits in value
	operandF64
	operandSymbol  // a variable, a label, a function; offset added
	operandAddress // [base+offset]
	operandVector
	operandSink // _
)

// operand is an operand as written.
type operand struct {
	kind   operandKind
	name   string
	not    bool // !p
	reg    *symbol
	value  uint64
	offset int64
	elems  []operand // of a vector; of an address: its base
	second *operand  // the b of a|b
}
