// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"math"
	"strconv"
	"strings"
)

// maxRegisters bounds the registers of a function, maxVariable the bytes of a variable, so that a broken text cannot
// ask for all memory.
const (
	maxRegisters = 1 << 20
	maxVariable  = 1 << 30
	maxDepth     = 64
)

// Parse reads PTX text. Errors name the line and what was expected there. What instructions mean is checked when a
// kernel is linked, by [Module.Kernel].
func Parse(src string) (*Module, error) {
	tokens, err := lex(src)
	if err != nil {
		return nil, err
	}
	m := &Module{scope: newScope(nil), functions: map[string]*function{}, linked: map[string]*Kernel{}, src: src}
	p := &parser{tokens: tokens, module: m}
	for p.tok().kind != tokenEnd {
		if err := p.declaration(); err != nil {
			return nil, err
		}
	}
	return m, nil
}

type parser struct {
	tokens []token
	at     int
	module *Module
	fn     *function
	scope  *scope
}

func (p *parser) tok() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokenEnd {
		p.at++
	}
	return t
}

func (p *parser) is(text string) bool {
	t := p.tok()
	return t.text == text && (t.kind == tokenMark || t.kind == tokenWord)
}

func (p *parser) accept(text string) bool {
	if p.is(text) {
		p.at++
		return true
	}
	return false
}

func (p *parser) expect(text string) error {
	if p.accept(text) {
		return nil
	}
	t := p.tok()
	return syntaxError(t.line, "%q where %q was expected", t.text, text)
}

func (p *parser) word() (string, error) {
	t := p.next()
	if t.kind != tokenWord {
		return "", syntaxError(t.line, "%q where a name was expected", t.text)
	}
	return t.text, nil
}

// integer reads a number that is not negative.
func (p *parser) integer() (int, error) {
	t := p.next()
	v, err := strconv.ParseUint(strings.TrimRight(t.text, "U"), 0, 63)
	if t.kind != tokenNumber || err != nil {
		return 0, syntaxError(t.line, "%q where an integer was expected", t.text)
	}
	return int(v), nil
}

// declaration reads one declaration at the module's level.
func (p *parser) declaration() error {
	p.scope = p.module.scope
	for {
		t := p.next()
		if t.kind == tokenMark && t.text == ";" {
			return nil
		}
		if t.kind != tokenWord {
			return syntaxError(t.line, "%q where a directive was expected", t.text)
		}
		switch t.text {
		case ".version", ".address_size":
			p.next()
			return nil
		case ".target":
			p.next()
			for p.accept(",") {
				p.next()
			}
			return nil
		case ".visible", ".weak", ".common", ".extern":
			if t.text == ".extern" && (p.is(".shared") || p.is(".global") || p.is(".const")) {
				kind := p.next()
				_, err := p.variables(kind.text, true)
				return err
			}
		case ".file", ".pragma":
			return p.skipLine(t.line)
		case ".section":
			return p.skipBraces()
		case ".entry", ".func":
			return p.function(t.text == ".entry", t.line)
		case ".global", ".const", ".shared":
			_, err := p.variables(t.text, false)
			return err
		default:
			return syntaxError(t.line, "unknown directive %q", t.text)
		}
	}
}

// skipLine passes over the rest of a directive that matters only to debuggers.
func (p *parser) skipLine(line int) error {
	for p.tok().kind != tokenEnd && p.tok().line == line {
		p.at++
	}
	return nil
}

func (p *parser) skipBraces() error {
	for p.tok().kind != tokenEnd && !p.is("{") {
		p.at++
	}
	depth := 0
	for {
		t := p.next()
		switch {
		case t.kind == tokenEnd:
			return syntaxError(t.line, "a section without end")
		case t.text == "{":
			depth++
		case t.text == "}":
			depth--
			if depth == 0 {
				return nil
			}
		}
	}
}

// variables reads what follows .global, .const, .shared, .local or .param (in a body): ".align 4 .b8 x[16] = {…}, y;".
func (p *parser) variables(space string, extern bool) ([]*symbol, error) {
	kind, ok := map[string]symbolKind{".global": symbolGlobal, ".const": symbolConst, ".shared": symbolShared,
		".local": symbolLocal, ".param": symbolParam}[space]
	if !ok {
		return nil, syntaxError(p.tok().line, "variables of space %s are not known", space)
	}
	t, align, vector, err := p.variableType()
	if err != nil {
		return nil, err
	}
	var made []*symbol
	for {
		s, err := p.variable(kind, t, align, vector)
		if err != nil {
			return nil, err
		}
		s.extn = extern
		if extern && s.size == 0 && kind != symbolShared {
			return nil, syntaxError(s.line, "%s is external: its size is not known here", s.name)
		}
		if err := p.declare(s); err != nil {
			return nil, err
		}
		made = append(made, s)
		if !p.accept(",") {
			return made, p.expect(";")
		}
	}
}

// declare enters a variable into the current scope and the list of its owner.
func (p *parser) declare(s *symbol) error {
	if old := p.scope.symbols[s.name]; old != nil && !old.extn {
		return syntaxError(s.line, "%s is declared twice (first in line %d)", s.name, old.line)
	}
	p.scope.symbols[s.name] = s
	if p.fn != nil {
		p.fn.variables = append(p.fn.variables, s)
	} else {
		p.module.variables = append(p.module.variables, s)
	}
	return nil
}

// variableType reads ".align 4 .v2 .b8" and the modifiers of parameters.
func (p *parser) variableType() (t typ, align, vector int, err error) {
	vector = 1
	pointer := false
	for {
		tok := p.tok()
		if tok.kind != tokenWord || !strings.HasPrefix(tok.text, ".") {
			if t == typNone {
				return 0, 0, 0, syntaxError(tok.line, "%q where a type was expected", tok.text)
			}
			return t, max(align, t.size()*vector), vector, nil
		}
		p.at++
		switch tok.text {
		case ".align":
			n, err := p.integer()
			if err != nil {
				return 0, 0, 0, err
			}
			if n <= 0 || n > 1<<16 || n&(n-1) != 0 {
				return 0, 0, 0, syntaxError(tok.line, "alignment %d is not a power of two", n)
			}
			if !pointer { // else it is that of what the parameter points to
				align = n
			}
		case ".v2":
			vector = 2
		case ".v4":
			vector = 4
		case ".ptr":
			pointer = true
		case ".global", ".shared", ".const", ".local", ".managed":
		default:
			u := typNames[tok.text[1:]]
			if u == typNone || t != typNone {
				return 0, 0, 0, syntaxError(tok.line, "%q where a type was expected", tok.text)
			}
			t = u
		}
	}
}

// variable reads "x[16] = {…}".
func (p *parser) variable(kind symbolKind, t typ, align, vector int) (*symbol, error) {
	line := p.tok().line
	name, err := p.word()
	if err != nil {
		return nil, err
	}
	s := &symbol{kind: kind, name: name, typ: t, line: line, size: t.size() * vector, align: max(align, 1)}
	for p.accept("[") {
		if p.accept("]") {
			s.size = 0
			continue
		}
		n, err := p.integer()
		if err != nil {
			return nil, err
		}
		if n < 0 || n > maxVariable || s.size*n > maxVariable {
			return nil, syntaxError(line, "%s is larger than %d bytes", name, maxVariable)
		}
		s.size *= n
		if err := p.expect("]"); err != nil {
			return nil, err
		}
	}
	if p.accept("=") {
		at := 0
		if err := p.initialiser(s, &at, 0); err != nil {
			return nil, err
		}
		s.size = max(s.size, at)
	}
	return s, nil
}

func (p *parser) initialiser(s *symbol, at *int, depth int) error {
	if depth > maxDepth {
		return syntaxError(p.tok().line, "braces are nested too deeply")
	}
	if p.accept("{") {
		for !p.accept("}") {
			if err := p.initialiser(s, at, depth+1); err != nil {
				return err
			}
			if !p.accept(",") {
				return p.expect("}")
			}
		}
		return nil
	}
	size := s.typ.size()
	line := p.tok().line
	if p.tok().kind == tokenWord {
		name, offset, err := p.initialAddress()
		if err != nil {
			return err
		}
		s.init = append(s.init, initial{offset: *at, size: size, name: name, value: uint64(offset)})
	} else {
		o, err := p.number()
		if err != nil {
			return err
		}
		if o.kind == operandF64 && s.typ == typF32 {
			o.value = uint64(math.Float32bits(float32(math.Float64frombits(o.value))))
		}
		s.init = append(s.init, initial{offset: *at, size: size, value: o.value})
	}
	*at += size
	if *at > max(s.size, 0) && s.size > 0 || *at > maxVariable {
		return syntaxError(line, "%s has more initial values than its %d bytes hold", s.name, s.size)
	}
	return nil
}

// initialAddress reads "x", "x+4" or "generic(x)+4".
func (p *parser) initialAddress() (string, int64, error) {
	name, err := p.word()
	if err != nil {
		return "", 0, err
	}
	if p.accept("(") {
		if name, err = p.word(); err != nil {
			return "", 0, err
		}
		if err := p.expect(")"); err != nil {
			return "", 0, err
		}
	}
	offset := int64(0)
	if p.accept("+") {
		o, err := p.number()
		if err != nil {
			return "", 0, err
		}
		offset = int64(o.value)
	}
	return name, offset, nil
}

// function reads an .entry or a .func with its body, or a declaration of one.
func (p *parser) function(entry bool, line int) error {
	f := &function{entry: entry, line: line}
	p.fn = f
	p.scope = newScope(p.module.scope)
	defer func() { p.fn = nil }()
	var err error
	if p.is("(") {
		if f.results, err = p.parameters(); err != nil {
			return err
		}
	}
	if f.name, err = p.word(); err != nil {
		return err
	}
	if p.is("(") {
		if f.params, err = p.parameters(); err != nil {
			return err
		}
	}
	for !p.is("{") && !p.is(";") {
		if err := p.attribute(f); err != nil {
			return err
		}
	}
	old := p.module.functions[f.name]
	if p.accept(";") {
		if old == nil {
			p.module.functions[f.name] = f
		}
		return nil
	}
	if old != nil && old.defined {
		return syntaxError(line, "%s is defined twice (first in line %d)", f.name, old.line)
	}
	p.next()
	f.defined = true
	p.module.functions[f.name] = f
	p.module.order = append(p.module.order, f)
	return p.body(f)
}

// attribute reads one directive between a function's parameters and its body.
func (p *parser) attribute(f *function) error {
	t := p.next()
	switch t.text {
	case ".maxntid", ".reqntid":
		dims := [3]int{1, 1, 1}
		for i := 0; ; i++ {
			n, err := p.integer()
			if err != nil {
				return err
			}
			if i > 2 || n > 1<<20 {
				return syntaxError(t.line, "%s has three sizes at most", t.text)
			}
			dims[i] = n
			if !p.accept(",") {
				break
			}
		}
		if t.text == ".maxntid" {
			f.maxThreads = dims
		} else {
			f.required = dims
		}
	case ".minnctapersm", ".maxnctapersm", ".maxnreg":
		_, err := p.integer()
		return err
	case ".noreturn":
	default:
		return syntaxError(t.line, "unknown attribute %q of %s", t.text, f.name)
	}
	return nil
}

// parameters reads "(.param .u64 a, .param .align 8 .b8 b[16])".
func (p *parser) parameters() ([]*symbol, error) {
	if err := p.expect("("); err != nil {
		return nil, err
	}
	var list []*symbol
	for !p.accept(")") {
		line := p.tok().line
		if !p.accept(".param") {
			return nil, syntaxError(line, "%q where a .param was expected", p.tok().text)
		}
		t, align, vector, err := p.variableType()
		if err != nil {
			return nil, err
		}
		s, err := p.variable(symbolParam, t, align, vector)
		if err != nil {
			return nil, err
		}
		s.index = len(list)
		list = append(list, s)
		if p.scope.symbols[s.name] != nil {
			return nil, syntaxError(line, "parameter %s is declared twice", s.name)
		}
		p.scope.symbols[s.name] = s
		if !p.accept(",") {
			return list, p.expect(")")
		}
	}
	return list, nil
}

// body reads a function's statements after the opening brace.
func (p *parser) body(f *function) error {
	depth := 1
	for depth > 0 {
		t := p.tok()
		switch {
		case t.kind == tokenEnd:
			return syntaxError(t.line, "the body of %s has no end", f.name)
		case p.accept("{"):
			depth++
			if depth > maxDepth {
				return syntaxError(t.line, "braces are nested too deeply")
			}
			p.scope = newScope(p.scope)
		case p.accept("}"):
			depth--
			p.scope = p.scope.parent
		case p.accept(";"):
		case t.kind == tokenWord && strings.HasPrefix(t.text, "."):
			if err := p.bodyDirective(f); err != nil {
				return err
			}
		case t.kind == tokenWord && p.tokens[p.at+1].text == ":" && p.tokens[p.at+1].kind == tokenMark:
			if err := p.label(f); err != nil {
				return err
			}
		default:
			if err := p.instruction(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// label reads "L:" or "L: .branchtargets A, B;".
func (p *parser) label(f *function) error {
	t := p.next()
	p.next()
	if p.accept(".branchtargets") {
		list, err := p.operands()
		if err != nil {
			return err
		}
		p.scope.tables[t.text] = list
		return p.expect(";")
	}
	if p.is(".callprototype") {
		for !p.is(";") && p.tok().kind != tokenEnd {
			p.at++
		}
		return p.expect(";")
	}
	if _, twice := p.scope.labels[t.text]; twice {
		return syntaxError(t.line, "label %s is declared twice", t.text)
	}
	p.scope.labels[t.text] = len(f.body)
	return nil
}

func (p *parser) bodyDirective(f *function) error {
	t := p.next()
	switch t.text {
	case ".reg":
		return p.registers(f)
	case ".local", ".shared", ".param":
		_, err := p.variables(t.text, false)
		return err
	case ".extern":
		kind := p.next()
		_, err := p.variables(kind.text, true)
		return err
	case ".loc", ".file", ".pragma":
		return p.skipLine(t.line)
	}
	return syntaxError(t.line, "unknown directive %q", t.text)
}

// registers reads what follows .reg: ".b32 %r<10>, %x;".
func (p *parser) registers(f *function) error {
	line := p.tok().line
	t, _, vector, err := p.variableType()
	if err != nil {
		return err
	}
	if vector != 1 || t == typB128 || t == typB8 || t == typU8 || t == typS8 {
		return syntaxError(line, "registers of this type are not known")
	}
	for {
		name, err := p.word()
		if err != nil {
			return err
		}
		if p.accept("<") {
			n, err := p.integer()
			if err != nil {
				return err
			}
			if n < 0 || n > maxRegisters {
				return syntaxError(line, "%d registers are too many", n)
			}
			if err := p.expect(">"); err != nil {
				return err
			}
			p.scope.ranges = append(p.scope.ranges, registerRange{name, t, n})
		} else {
			p.addRegister(p.scope, name, t, line)
		}
		if !p.accept(",") {
			return p.expect(";")
		}
	}
}

func (p *parser) addRegister(s *scope, name string, t typ, line int) *symbol {
	r := &symbol{kind: symbolReg, name: name, typ: t, line: line, index: len(p.fn.registers)}
	s.symbols[name] = r
	p.fn.registers = append(p.fn.registers, r)
	return r
}

// find looks a name up, and makes the register that it names if it belongs to a range.
func (p *parser) find(name string) *symbol {
	digits := len(name)
	for digits > 0 && isDigit(name[digits-1]) {
		digits--
	}
	number, err := strconv.Atoi(name[digits:])
	ranged := err == nil && (name[digits] != '0' || digits == len(name)-1)
	for s := p.scope; s != nil; s = s.parent {
		if found := s.symbols[name]; found != nil {
			return found
		}
		if !ranged {
			continue
		}
		for _, r := range s.ranges {
			if r.prefix == name[:digits] && number < r.count {
				return p.addRegister(s, name, r.typ, p.tok().line)
			}
		}
	}
	return nil
}

// instruction reads "@p add.s32 %r1, %r2, 3;".
func (p *parser) instruction(f *function) error {
	first := p.tok()
	st := statement{line: first.line, pos: first.pos, scope: p.scope}
	if p.accept("@") {
		not := p.accept("!")
		name, err := p.word()
		if err != nil {
			return err
		}
		r := p.find(name)
		if r == nil || r.typ != typPred {
			return syntaxError(first.line, "%q is not a predicate", name)
		}
		st.guard = &operand{kind: operandReg, name: name, reg: r, not: not}
	}
	name, err := p.word()
	if err != nil {
		return err
	}
	parts := strings.Split(name, ".")
	st.op, st.mods = parts[0], parts[1:]
	if st.op == "" || strings.HasPrefix(name, "%") {
		return syntaxError(first.line, "%q where an instruction was expected", name)
	}
	if st.op == "call" {
		st.call, err = p.call()
	} else if !p.is(";") {
		st.args, err = p.operands()
	}
	if err != nil {
		return err
	}
	st.end = p.tok().end
	if err := p.expect(";"); err != nil {
		return err
	}
	f.body = append(f.body, st)
	return nil
}

// call reads "(r), f, (a, b)" with both lists optional.
func (p *parser) call() (*call, error) {
	c := &call{}
	var err error
	list := func() ([]operand, error) {
		if err := p.expect("("); err != nil {
			return nil, err
		}
		if p.accept(")") {
			return nil, nil
		}
		l, err := p.operands()
		if err != nil {
			return nil, err
		}
		return l, p.expect(")")
	}
	if p.is("(") {
		if c.results, err = list(); err != nil {
			return nil, err
		}
		if err := p.expect(","); err != nil {
			return nil, err
		}
	}
	if c.name, err = p.word(); err != nil {
		return nil, err
	}
	if p.accept(",") {
		if p.is("(") {
			if c.args, err = list(); err != nil {
				return nil, err
			}
		}
		if p.accept(",") {
			_, err = p.word()
		}
	}
	return c, err
}

func (p *parser) operands() ([]operand, error) {
	var list []operand
	for {
		o, err := p.operand(0)
		if err != nil {
			return nil, err
		}
		list = append(list, o)
		if !p.accept(",") {
			return list, nil
		}
	}
}

func (p *parser) operand(depth int) (operand, error) {
	t := p.tok()
	if depth > maxDepth {
		return operand{}, syntaxError(t.line, "operands are nested too deeply")
	}
	switch {
	case p.accept("!"):
		o, err := p.operand(depth + 1)
		o.not = true
		return o, err
	case p.accept("["):
		base, err := p.operand(depth + 1)
		if err != nil {
			return operand{}, err
		}
		return operand{kind: operandAddress, elems: []operand{base}, offset: base.offset}, p.expect("]")
	case p.accept("{"):
		o := operand{kind: operandVector}
		for {
			e, err := p.operand(depth + 1)
			if err != nil {
				return operand{}, err
			}
			o.elems = append(o.elems, e)
			if !p.accept(",") {
				return o, p.expect("}")
			}
		}
	case t.kind == tokenNumber || t.text == "-" && t.kind == tokenMark:
		return p.number()
	case t.kind == tokenWord:
		return p.named(depth)
	}
	return operand{}, syntaxError(t.line, "%q where an operand was expected", t.text)
}

// named reads an operand that begins with a name: a register, a symbol with an offset, a pair a|b.
func (p *parser) named(depth int) (operand, error) {
	t := p.next()
	o := operand{name: t.text}
	switch {
	case t.text == "_":
		o.kind = operandSink
	default:
		if r := p.find(t.text); r != nil && r.kind == symbolReg {
			o.kind, o.reg = operandReg, r
		} else if strings.HasPrefix(t.text, "%") {
			if !knownSpecial(t.text) {
				return o, syntaxError(t.line, "register %s is not declared", t.text)
			}
			o.kind = operandSpecial
		} else if t.text == "WARP_SZ" {
			o.kind, o.value = operandImm, 32
		} else {
			o.kind = operandSymbol
		}
	}
	if p.accept("|") {
		second, err := p.operand(depth + 1)
		if err != nil {
			return o, err
		}
		o.second = &second
	}
	if p.accept("+") {
		n, err := p.number()
		if err != nil {
			return o, err
		}
		o.offset = int64(n.value)
	} else if p.is("-") {
		n, err := p.number()
		if err != nil {
			return o, err
		}
		o.offset = int64(n.value)
	}
	return o, nil
}

// number reads an integer or a float with its sign.
func (p *parser) number() (operand, error) {
	negative := false
	for p.accept("-") {
		negative = !negative
	}
	t := p.next()
	bad := syntaxError(t.line, "%q is not a number", t.text)
	if t.kind != tokenNumber {
		return operand{}, bad
	}
	s := t.text
	if len(s) > 2 && s[0] == '0' && (s[1] == 'f' || s[1] == 'F' || s[1] == 'd' || s[1] == 'D') {
		bits, err := strconv.ParseUint(s[2:], 16, 64)
		if err != nil {
			return operand{}, bad
		}
		if s[1] == 'f' || s[1] == 'F' {
			if len(s) != 10 {
				return operand{}, bad
			}
			if negative {
				bits ^= 1 << 31
			}
			return operand{kind: operandF32, value: bits}, nil
		}
		if negative {
			bits ^= 1 << 63
		}
		return operand{kind: operandF64, value: bits}, nil
	}
	if v, err := strconv.ParseUint(strings.TrimRight(s, "U"), 0, 64); err == nil {
		if negative {
			v = -v
		}
		return operand{kind: operandImm, value: v}, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return operand{}, bad
	}
	if negative {
		f = -f
	}
	return operand{kind: operandF64, value: math.Float64bits(f)}, nil
}
