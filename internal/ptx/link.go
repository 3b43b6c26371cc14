// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"strings"
)

const (
	// maxCode bounds the instructions of a kernel after device functions are expanded.
	maxCode = 1 << 20
	// maxLocal is the local memory that a thread has.
	maxLocal = 512 << 10
	// gapBytes lie between variables of shared and local memory, so that an access beyond one is seen.
	gapBytes = 16
)

// frame is one expansion of a function.
type frame struct {
	fn     *function
	parent *frame
	start  []int           // position in the code of each statement, and of the end
	regs   []int           // of fn.registers, in their class's file
	vars   map[*symbol]int // offset of .local and of call parameters in local memory
}

// flat is a statement of an expansion.
type flat struct {
	st *statement
	fr *frame
	// to is set for branches that the linker makes; toEnd is the frame whose end they lead to.
	jump  bool
	to    int
	toEnd *frame
	guard *operand
	not   bool
	trap  string
	// prints marks a call of vprintf, whose result lies in local memory.
	prints bool
	result int
}

// linker makes a Kernel of a function and those that it calls.
type linker struct {
	module *Module
	k      *Kernel
	code   []flat
	top    *frame

	const32 map[uint32]int
	const64 map[uint64]int
	constP  [2]int
	symbols map[string]int
	at      *flat // being decoded
	shared  map[*symbol]int
}

func link(m *Module, f *function) (*Kernel, error) {
	k := &Kernel{name: f.name, module: m, maxThreads: f.maxThreads, required: f.required,
		names: map[byte]map[int]string{'R': {}, 'D': {}, 'P': {}}, idle: map[blockShape][]*block{}, dynamicAt: -1}
	for i := range k.specialRegs {
		k.specialRegs[i] = -1
	}
	k.layoutParams(f)
	l := &linker{module: m, k: k, const32: map[uint32]int{}, const64: map[uint64]int{}, constP: [2]int{-1, -1},
		symbols: map[string]int{}, shared: map[*symbol]int{}}
	var err error
	if l.top, err = l.frame(f, nil); err != nil {
		return nil, err
	}
	if err := l.expand(l.top); err != nil {
		return nil, err
	}
	if err := l.layoutShared(); err != nil {
		return nil, err
	}
	if err := l.assemble(); err != nil {
		return nil, err
	}
	l.finish()
	return k, nil
}

func alignUp(n, align int) int { return (n + align - 1) &^ (align - 1) }

func (k *Kernel) layoutParams(f *function) {
	at := 0
	for _, p := range f.params {
		at = alignUp(at, p.align)
		k.params = append(k.params, Param{Name: p.name, Offset: at, Size: p.size, Align: p.align})
		at += p.size
	}
	k.paramBytes = at
}

// frame allots registers and local memory to an expansion of a function.
func (l *linker) frame(f *function, parent *frame) (*frame, error) {
	fr := &frame{fn: f, parent: parent, vars: map[*symbol]int{}}
	for p := parent; p != nil; p = p.parent {
		if p.fn == f {
			return nil, fmt.Errorf("ptx: line %d: %s calls itself: recursion is not supported", f.line, f.name)
		}
	}
	for _, r := range f.registers {
		class := classOf(r.typ)
		n := l.newRegister(class)
		l.k.names[class][n] = r.name
		fr.regs = append(fr.regs, n)
	}
	for _, v := range f.variables {
		if v.kind == symbolLocal || v.kind == symbolParam {
			if v.size > maxLocal || l.k.localBytes > maxLocal {
				return nil, syntaxError(v.line, "more than %d bytes of local memory", maxLocal)
			}
			fr.vars[v] = l.local(v.size, v.align)
		}
	}
	return fr, nil
}

// local reserves a place in local memory.
func (l *linker) local(size, align int) int {
	k := l.k
	at := alignUp(k.localBytes, max(align, 8))
	k.localBytes = alignUp(at+size+gapBytes, 8)
	for len(k.localGap) < k.localBytes {
		i := len(k.localGap)
		k.localGap = append(k.localGap, i < at || i >= at+size)
	}
	return at
}

func classOf(t typ) byte {
	switch {
	case t == typPred:
		return 'P'
	case t.wide():
		return 'D'
	}
	return 'R'
}

func (l *linker) newRegister(class byte) int {
	n := &l.k.n32
	switch class {
	case 'D':
		n = &l.k.n64
	case 'P':
		n = &l.k.np
	}
	*n++
	return *n - 1
}

// grouped reports whether lanes do the instruction together, or it is a call: a guard on it becomes a branch around it.
func grouped(st *statement) bool {
	switch st.op {
	case "shfl", "vote", "match", "redux", "mma", "ldmatrix", "bar", "barrier", "call":
		return true
	}
	return false
}

// expand appends a function's statements to the code, and those of the functions that it calls in their place.
func (l *linker) expand(fr *frame) error {
	fr.start = make([]int, len(fr.fn.body)+1)
	for i := range fr.fn.body {
		st := &fr.fn.body[i]
		fr.start[i] = len(l.code)
		if len(l.code) > maxCode {
			return syntaxError(st.line, "%s has more than %d instructions with the functions that it calls", l.k.name,
				maxCode)
		}
		around := -1
		if st.guard != nil && grouped(st) {
			around = len(l.code)
			l.code = append(l.code, flat{st: st, fr: fr, jump: true, guard: st.guard, not: !st.guard.not})
		}
		switch {
		case st.op == "call":
			if err := l.call(st, fr); err != nil {
				return err
			}
		case st.op == "ret" && fr.parent != nil:
			f := flat{st: st, fr: fr, jump: true, toEnd: fr, guard: st.guard}
			if st.guard != nil {
				f.not = st.guard.not
			}
			l.code = append(l.code, f)
		default:
			l.code = append(l.code, flat{st: st, fr: fr})
		}
		if around >= 0 {
			l.code[around].to = len(l.code)
		}
	}
	fr.start[len(fr.fn.body)] = len(l.code)
	if fr.parent == nil {
		end := &statement{line: fr.fn.line, scope: l.module.scope, op: "exit"}
		l.code = append(l.code, flat{st: end, fr: fr})
	}
	return nil
}

func (l *linker) call(st *statement, fr *frame) error {
	c := st.call
	callee := l.module.functions[c.name]
	switch {
	case c.name == "__assertfail":
		l.code = append(l.code, flat{st: st, fr: fr, trap: "an assertion failed"})
		return nil
	case c.name == "vprintf": // prints nothing and returns 0
		return l.printf(st, fr)
	case callee == nil || !callee.defined:
		return syntaxError(st.line, "call of %s, which the module does not define", c.name)
	case len(c.args) != len(callee.params) || len(c.results) != len(callee.results):
		return syntaxError(st.line, "call of %s with %d arguments and %d results: it has %d and %d", c.name,
			len(c.args),
			len(c.results), len(callee.params), len(callee.results))
	}
	inner, err := l.frame(callee, fr)
	if err != nil {
		return err
	}
	bind := func(formal *symbol, actual operand) error {
		s := st.scope.find(actual.name)
		if actual.kind != operandSymbol || s == nil || s.kind != symbolParam {
			return syntaxError(st.line, "call of %s: %q is no .param variable", c.name, actual.name)
		}
		at, ok := fr.vars[s]
		if !ok {
			return syntaxError(st.line, "call of %s: %s is a parameter of the kernel", c.name, actual.name)
		}
		if s.size != formal.size {
			return syntaxError(st.line, "call of %s: %s has %d bytes, %s has %d", c.name, s.name, s.size, formal.name,
				formal.size)
		}
		inner.vars[formal] = at
		return nil
	}
	for i, a := range c.args {
		if err := bind(callee.params[i], a); err != nil {
			return err
		}
	}
	for i, r := range c.results {
		if err := bind(callee.results[i], r); err != nil {
			return err
		}
	}
	return l.expand(inner)
}

// printf stands for a call of vprintf.
func (l *linker) printf(st *statement, fr *frame) error {
	f := flat{st: st, fr: fr, result: -1}
	for i := range st.call.results {
		s := st.scope.find(st.call.results[i].name)
		at, ok := fr.vars[s]
		if !ok || s.size != 4 {
			return syntaxError(st.line, "the result of vprintf is an integer")
		}
		f.result = at
	}
	f.prints = true
	l.code = append(l.code, f)
	return nil
}

// layoutShared places the variables of shared memory that the code names.
func (l *linker) layoutShared() error {
	k := l.k
	var dynamic []*symbol
	var err error
	device := 0
	place := func(s *symbol) {
		if _, done := l.shared[s]; done || s.kind != symbolShared {
			return
		}
		l.shared[s] = 0
		if s.extn {
			dynamic = append(dynamic, s)
			return
		}
		if s.size > maxShared || k.sharedBytes > 2*maxShared {
			err = syntaxError(s.line, "more than %d bytes of shared memory", maxShared)
			return
		}
		at := alignUp(k.sharedBytes, max(s.align, gapBytes))
		l.shared[s] = at
		k.sharedBytes = at + s.size + gapBytes
		k.sharedNames = append(k.sharedNames, placed{s.name, at, s.size})
		for len(k.sharedShadow) < k.sharedBytes {
			i := len(k.sharedShadow)
			v := byte(gapByte)
			if i >= at && i < at+s.size {
				v = undefinedByte
			}
			k.sharedShadow = append(k.sharedShadow, v)
		}
		device = alignUp(device, s.align) + s.size
	}
	for i := range l.code {
		st := l.code[i].st
		walk(st.args, func(o *operand) {
			if o.kind == operandSymbol {
				if s := st.scope.find(o.name); s != nil {
					place(s)
				}
			}
		})
	}
	k.staticShared = device
	if len(dynamic) > 0 {
		k.dynamicAt = alignUp(k.sharedBytes, 128)
		for len(k.sharedShadow) < k.dynamicAt {
			k.sharedShadow = append(k.sharedShadow, gapByte)
		}
		for _, s := range dynamic {
			l.shared[s] = k.dynamicAt
		}
		k.sharedNames = append(k.sharedNames, placed{"dynamic shared memory", k.dynamicAt, 0})
	}
	return err
}

func walk(list []operand, visit func(*operand)) {
	for i := range list {
		visit(&list[i])
		walk(list[i].elems, visit)
	}
}

// text is the instruction as written, with single spaces.
func (l *linker) text(st *statement) string {
	return strings.Join(strings.Fields(l.module.src[st.pos:st.end]), " ")
}

// decoded is an instruction ready to run.
type decoded struct {
	do    exec
	end   ending // fall if it ends no stretch
	guard int
	not   bool
	to    int
	table []int
	index int
	sync  syncFunc
	meets *meetOp
}

// assemble decodes the code and cuts it into stretches.
func (l *linker) assemble() error {
	list := make([]decoded, len(l.code))
	leads := make([]bool, len(l.code)+1)
	leads[0] = true
	for i := range l.code {
		f := &l.code[i]
		l.at = f
		l.k.code = append(l.k.code, codeLine{f.st.line, l.text(f.st)})
		d, err := l.decode(f)
		if err != nil {
			return fmt.Errorf("ptx: line %d: `%s`: %w", f.st.line, l.text(f.st), err)
		}
		list[i] = d
		switch d.end {
		case branch:
			leads[d.to] = true
		case brx:
			for _, t := range d.table {
				leads[t] = true
			}
		case meet, warpOp:
			leads[i] = true
		}
		if d.end != fall {
			leads[i+1] = true
		}
	}
	of := make([]int32, len(list)+1)
	n := int32(-1)
	for i := range list {
		if leads[i] {
			n++
		}
		of[i] = n
	}
	of[len(list)] = n + 1
	for i, d := range list {
		if leads[i] {
			l.k.stretches = append(l.k.stretches, stretch{first: i, guard: -1})
		}
		s := &l.k.stretches[len(l.k.stretches)-1]
		if d.end == fall {
			s.code = append(s.code, d.do)
			continue
		}
		s.end, s.guard, s.not, s.index, s.sync, s.meets = d.end, d.guard, d.not, d.index, d.sync, d.meets
		if d.end == branch {
			s.to = of[d.to]
		}
		for _, t := range d.table {
			s.table = append(s.table, of[t])
		}
	}
	return nil
}

// finish makes the tables that a block starts with.
func (l *linker) finish() {
	k := l.k
	k.initial32, k.initial64 = make([]uint32, k.n32), make([]uint32, k.n64)
	k.initialP = make([]uint32, k.np)
	for v, r := range l.const32 {
		k.consts32 = append(k.consts32, constant{r, uint64(v)})
		k.initial32[r] = fullMask
	}
	for v, r := range l.const64 {
		k.consts64 = append(k.consts64, constant{r, v})
		k.initial64[r] = fullMask
	}
	for _, r := range k.specialRegs {
		if r >= 0 {
			k.initial32[r] = fullMask
		}
	}
	for _, s := range k.symbols {
		k.initial64[s.reg] = fullMask
	}
	for v, r := range l.constP {
		if r >= 0 {
			k.initialP[r] = -uint32(v)
			k.definedP = append(k.definedP, r)
		}
	}
}

// label is the position in the code that a name stands for.
func (l *linker) label(o *operand) (int, error) {
	if o.kind != operandSymbol {
		return 0, fmt.Errorf("want a label")
	}
	for s := l.at.st.scope; s != nil; s = s.parent {
		if i, ok := s.labels[o.name]; ok {
			return l.at.fr.start[i], nil
		}
	}
	return 0, fmt.Errorf("no label %s", o.name)
}
