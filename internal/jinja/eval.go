// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// node is an expression.
type node interface{ eval(s *state) any }

// statement writes to the output.
type statement interface{ run(s *state) }

// state is one rendering.
type state struct {
	limits Limits
	steps  int
	end    time.Time
	depth  int
	line   int

	scope   *scope
	out     *strings.Builder
	nested  int // captures of output that are open
	written int
	spans   [][2]int
}

// scope has the variables of a loop or a macro.
type scope struct {
	vars  map[string]any
	outer *scope
}

func (s *state) fail(format string, args ...any) {
	panic(&Error{s.line, fmt.Sprintf(format, args...)})
}

// tick counts a step.
func (s *state) tick() {
	if s.steps++; s.steps > s.limits.Steps {
		s.fail("the template takes more than %d steps", s.limits.Steps)
	}
	if s.steps%64 == 0 && time.Now().After(s.end) {
		s.fail("the template takes longer than %v", s.limits.Time)
	}
}

// fits refuses texts and lists of more bytes or values than the output may have.
func (s *state) fits(n int) {
	if n > s.limits.Output {
		s.fail("the template makes a value of more than %d bytes", s.limits.Output)
	}
}

func (s *state) write(text string) {
	s.written += len(text)
	s.fits(s.written)
	s.out.WriteString(text)
}

// capture is what f writes.
func (s *state) capture(f func()) string {
	old := s.out
	s.out = &strings.Builder{}
	s.nested++
	f()
	text := s.out.String()
	s.nested--
	s.out = old
	return text
}

func (s *state) lookup(name string) any {
	for sc := s.scope; sc != nil; sc = sc.outer {
		if v, ok := sc.vars[name]; ok {
			return v
		}
	}
	if g, ok := globals[name]; ok {
		return g
	}
	return undefined{name}
}

func (s *state) push() { s.scope = &scope{map[string]any{}, s.scope} }
func (s *state) pop()  { s.scope = s.scope.outer }

// deeper counts a call until the function that it returns is called.
func (s *state) deeper() func() {
	if s.depth++; s.depth > maxDepth {
		s.fail("calls are nested more than %d deep", maxDepth)
	}
	return func() { s.depth-- }
}

func (s *state) runAll(list []statement) {
	for _, n := range list {
		s.tick()
		n.run(s)
	}
}

type (
	textNode  struct{ text string }
	printNode struct {
		line int
		of   node
	}
	doNode struct {
		line int
		of   node
	}
	ifNode struct {
		tests     []node
		bodies    [][]statement
		otherwise []statement
	}
	forNode struct {
		line            int
		targets         []string
		over, filter    node
		body, otherwise []statement
	}
	setNode struct {
		line      int
		names     []string
		attribute string
		value     node
		body      []statement // if value is nil
		filter    node
		hole      *literal
	}
	macroNode struct {
		name     string
		params   []string
		defaults []node
		body     []statement
	}
	generationNode struct{ body []statement }
	filterBlock    struct {
		line   int
		filter node
		hole   *literal
		body   []statement
	}
	jump struct{ breaks bool }
)

func (n *textNode) run(s *state) { s.write(n.text) }

func (n *printNode) run(s *state) {
	s.line = n.line
	s.write(text(n.of.eval(s)))
}

func (n *doNode) run(s *state) {
	s.line = n.line
	n.of.eval(s)
}

func (n *ifNode) run(s *state) {
	for i, test := range n.tests {
		if truth(test.eval(s)) {
			s.runAll(n.bodies[i])
			return
		}
	}
	s.runAll(n.otherwise)
}

// run writes the body, and notes where its output lies.
func (n *generationNode) run(s *state) {
	start := s.out.Len()
	s.runAll(n.body)
	if s.nested == 0 {
		s.spans = append(s.spans, [2]int{start, s.out.Len()})
	}
}

func (n *filterBlock) run(s *state) {
	s.line = n.line
	s.write(text(s.filtered(n.filter, n.hole, s.capture(func() { s.runAll(n.body) }))))
}

// filtered is a text behind the filters of a block; the text is a parameter, and hole where it stands.
func (s *state) filtered(filter node, hole *literal, text string) any {
	s.push()
	defer s.pop()
	s.scope.vars[holeName] = text
	return replaceHole(filter, hole).eval(s)
}

const holeName = "\x00"

// replaceHole puts a variable in place of the literal that filters stand behind.
func replaceHole(n node, hole *literal) node {
	switch n := n.(type) {
	case *literal:
		if n == hole {
			return &name{0, holeName}
		}
	case *filterNode:
		copied := *n
		copied.of = replaceHole(n.of, hole)
		return &copied
	}
	return n
}

func (j *jump) run(*state) { panic(j) }

// body runs the body of a loop, and reports whether the loop continues.
func (s *state) body(list []statement) (on bool) {
	sc, out, nested, depth := s.scope, s.out, s.nested, s.depth
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *jump:
			s.scope, s.out, s.nested, s.depth, on = sc, out, nested, depth, !r.breaks
		default:
			panic(r)
		}
	}()
	s.runAll(list)
	return true
}

func (n *forNode) run(s *state) {
	s.line = n.line
	items := s.iterate(n.over.eval(s))
	defer s.deeper()()
	s.push()
	defer s.pop()
	if n.filter != nil {
		var kept []any
		for _, v := range items {
			s.tick()
			s.assign(n.targets, v)
			if truth(n.filter.eval(s)) {
				kept = append(kept, v)
			}
		}
		items = kept
	}
	for i := range items {
		s.scope.vars = map[string]any{"loop": s.loop(items, i)}
		s.assign(n.targets, items[i])
		if !s.body(n.body) {
			break
		}
	}
	if len(items) == 0 {
		s.scope.vars = map[string]any{}
		s.runAll(n.otherwise)
	}
}

// loop is the variable of that name.
func (s *state) loop(items []any, i int) *Dict {
	n := len(items)
	d := NewDict("index", int64(i+1), "index0", int64(i), "revindex", int64(n-i), "revindex0", int64(n-i-1),
		"first", i == 0, "last", i == n-1, "length", int64(n), "depth", int64(1), "depth0", int64(0))
	if i > 0 {
		d.Set("previtem", items[i-1])
	}
	if i < n-1 {
		d.Set("nextitem", items[i+1])
	}
	d.Set("cycle", function(func(s *state, a arguments) any {
		if len(a.list) == 0 {
			s.fail("loop.cycle without values")
		}
		return a.list[i%len(a.list)]
	}))
	return d
}

func (s *state) assign(names []string, v any) {
	if len(names) == 1 {
		s.scope.vars[names[0]] = v
		return
	}
	items := s.iterate(v)
	if len(items) != len(names) {
		s.fail("%d values for %d names", len(items), len(names))
	}
	for i, n := range names {
		s.scope.vars[n] = items[i]
	}
}

func (n *setNode) run(s *state) {
	s.line = n.line
	var v any
	if n.value != nil {
		v = n.value.eval(s)
	} else {
		v = s.filtered(n.filter, n.hole, s.capture(func() {
			s.push()
			defer s.pop()
			s.runAll(n.body)
		}))
	}
	if n.attribute == "" {
		s.assign(n.names, v)
		return
	}
	ns, ok := s.lookup(n.names[0]).(namespace)
	if !ok {
		s.fail("set %s.%s: %s is not a namespace", n.names[0], n.attribute, n.names[0])
	}
	ns.Set(n.attribute, v)
}

func (n *macroNode) run(s *state) {
	home := s.scope
	s.scope.vars[n.name] = function(func(s *state, a arguments) any {
		defer s.deeper()()
		caller := s.scope
		s.scope = home
		s.push()
		defer func() { s.scope = caller }()
		if len(a.list) > len(n.params) {
			s.fail("the macro %s takes %d arguments, and got %d", n.name, len(n.params), len(a.list))
		}
		for i, p := range n.params {
			v, ok := a.named[p]
			switch {
			case i < len(a.list):
				v = a.list[i]
			case !ok && n.defaults[i] != nil:
				v = n.defaults[i].eval(s)
			case !ok:
				v = undefined{p}
			}
			s.scope.vars[p] = v
		}
		for k := range a.named {
			if !slices.Contains(n.params, k) {
				s.fail("the macro %s has no argument %s", n.name, k)
			}
		}
		return s.capture(func() { s.runAll(n.body) })
	})
}

type (
	literal struct{ value any }
	name    struct {
		line int
		name string
	}
	listNode struct {
		items []node
		tuple bool
	}
	dictNode struct {
		line         int
		keys, values []node
	}
	condition struct {
		line          int
		test, yes, no node
	}
	logic struct {
		and  bool
		a, b node
	}
	notNode    struct{ of node }
	comparison struct {
		line  int
		first node
		ops   []string
		rest  []node
	}
	arithmetic struct {
		line int
		op   string
		a, b node
	}
	attribute struct {
		line int
		of   node
		name string
	}
	item struct {
		line    int
		of, key node
	}
	slice struct {
		line  int
		of    node
		parts [3]node
	}
	call struct {
		line int
		of   node
		args callArguments
	}
	filterNode struct {
		line int
		name string
		of   node
		args callArguments
	}
	testNode struct {
		line int
		name string
		of   node
		args callArguments
		not  bool
	}
	callArguments struct {
		list, named []node
		names       []string
	}
	// arguments are those of a call.
	arguments struct {
		list  []any
		named map[string]any
		names []string // of named, in their order
	}
)

func (n *literal) eval(*state) any { return n.value }

func (n *name) eval(s *state) any {
	s.tick()
	return s.lookup(n.name)
}

func (n *listNode) eval(s *state) any {
	list := &List{tuple: n.tuple}
	for _, e := range n.items {
		list.Items = append(list.Items, e.eval(s))
	}
	return list
}

func (n *dictNode) eval(s *state) any {
	d := NewDict()
	for i, k := range n.keys {
		key, ok := k.eval(s).(string)
		if !ok {
			s.line = n.line
			s.fail("a dict with a key that is not a text is not supported")
		}
		d.Set(key, n.values[i].eval(s))
	}
	return d
}

func (n *condition) eval(s *state) any {
	switch {
	case truth(n.test.eval(s)):
		return n.yes.eval(s)
	case n.no != nil:
		return n.no.eval(s)
	}
	return undefined{"the else of an if"}
}

func (n *logic) eval(s *state) any {
	if a := n.a.eval(s); truth(a) != n.and {
		return a
	}
	return n.b.eval(s)
}

func (n *notNode) eval(s *state) any { return !truth(n.of.eval(s)) }

func (n *comparison) eval(s *state) any {
	a := n.first.eval(s)
	for i, op := range n.ops {
		b := n.rest[i].eval(s)
		s.line = n.line
		if !s.compare(op, a, b) {
			return false
		}
		a = b
	}
	return true
}

func (s *state) compare(op string, a, b any) bool {
	s.tick()
	switch op {
	case "==":
		return equal(a, b)
	case "!=":
		return !equal(a, b)
	case "in":
		return s.contains(b, a)
	case "not in":
		return !s.contains(b, a)
	}
	var c int
	x, xok := number(a)
	y, yok := number(b)
	p, pok := a.(string)
	q, qok := b.(string)
	switch {
	case xok && yok && x < y, pok && qok && p < q:
		c = -1
	case xok && yok && x > y, pok && qok && p > q:
		c = 1
	case xok && yok, pok && qok:
	default:
		s.fail("%s %s %s: want two numbers or two texts", typeName(a), op, typeName(b))
	}
	return op == "<" && c < 0 || op == ">" && c > 0 || op == "<=" && c <= 0 || op == ">=" && c >= 0
}

func (s *state) contains(in, v any) bool {
	switch in := in.(type) {
	case string:
		part, ok := v.(string)
		if !ok {
			s.fail("%s in a text: want a text", typeName(v))
		}
		return strings.Contains(in, part)
	case *List:
		s.steps += len(in.Items)
		return slices.ContainsFunc(in.Items, func(e any) bool { return equal(e, v) })
	case *Dict:
		key, ok := v.(string)
		_, has := in.Values[key]
		return ok && has
	case undefined:
		return false
	}
	s.fail("in %s: want a text, a list or a dict", typeName(in))
	return false
}

func (n *arithmetic) eval(s *state) any {
	a, b := n.a.eval(s), n.b.eval(s)
	s.line = n.line
	s.tick()
	if n.op == "~" {
		return s.join(text(a), text(b))
	}
	switch n.op {
	case "+":
		if p, ok := a.(string); ok {
			if q, ok := b.(string); ok {
				return s.join(p, q)
			}
		}
		if p, ok := a.(*List); ok {
			if q, ok := b.(*List); ok {
				s.fits(16 * (len(p.Items) + len(q.Items)))
				return &List{Items: slices.Concat(p.Items, q.Items)}
			}
		}
	case "*":
		if i, ok := b.(int64); ok {
			switch a := a.(type) {
			case string:
				s.fits(int(min(max(i, 0), math.MaxInt32)) * max(len(a), 1))
				return strings.Repeat(a, int(max(i, 0)))
			case *List:
				s.fits(int(min(max(i, 0), math.MaxInt32)) * max(16*len(a.Items), 1))
				return &List{Items: slices.Repeat(a.Items, int(max(i, 0)))}
			}
		}
	case "%":
		if p, ok := a.(string); ok {
			return s.format(p, b)
		}
	}
	return s.calculate(n.op, a, b)
}

func (s *state) join(parts ...string) string {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	s.fits(n)
	return strings.Join(parts, "")
}

// whole is arithmetic of whole numbers. Python's have any size, these have 64 bits.
func (s *state) whole(op string, i, j int64) int64 {
	a, b, v := big.NewInt(i), big.NewInt(j), new(big.Int)
	switch op {
	case "+":
		v.Add(a, b)
	case "-":
		v.Sub(a, b)
	case "*":
		v.Mul(a, b)
	case "//", "%":
		rest := new(big.Int)
		if v.DivMod(a, b, rest); j < 0 && rest.Sign() != 0 { // Python's rest has the sign of b
			v.Sub(v, big.NewInt(1))
			rest.Add(rest, b)
		}
		if op == "%" {
			v = rest
		}
	case "**":
		if (i > 1 || i < -1) && j > 64 {
			s.fail("%d ** %d: a whole number of more than 64 bits", i, j)
		}
		v.Exp(a, b, nil)
	}
	if !v.IsInt64() {
		s.fail("%d %s %d: a whole number of more than 64 bits", i, op, j)
	}
	return v.Int64()
}

// calculate is arithmetic of numbers.
func (s *state) calculate(op string, a, b any) any {
	x, xok := number(a)
	y, yok := number(b)
	if !xok || !yok {
		s.fail("%s %s %s is not supported", typeName(a), op, typeName(b))
	}
	if y == 0 && (op == "/" || op == "//" || op == "%") {
		s.fail("division by zero")
	}
	_, xf := a.(float64)
	_, yf := b.(float64)
	if whole := !xf && !yf; whole && op != "/" && !(op == "**" && y < 0) {
		i, j := int64(x), int64(y)
		if v, ok := a.(int64); ok {
			i = v
		}
		if v, ok := b.(int64); ok {
			j = v
		}
		return s.whole(op, i, j)
	}
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "/":
		return x / y
	case "//":
		return math.Floor(x / y)
	case "%":
		return x - y*math.Floor(x/y)
	}
	return math.Pow(x, y)
}

func (n *attribute) eval(s *state) any {
	of := n.of.eval(s)
	s.line = n.line
	s.tick()
	if m := method(of, n.name); m != nil {
		return m
	}
	return s.get(of, n.name, n.name)
}

func (n *item) eval(s *state) any {
	of, key := n.of.eval(s), n.key.eval(s)
	s.line = n.line
	s.tick()
	if k, ok := key.(string); ok {
		if d, ok := of.(*Dict); ok {
			if v, ok := d.Values[k]; ok {
				return v
			}
		}
		if m := method(of, k); m != nil {
			return m
		}
	}
	return s.get(of, key, text(key))
}

// get is the value of a key or an index, undefined if there is none.
func (s *state) get(of, key any, shown string) any {
	switch of := of.(type) {
	case undefined:
		s.fail("%s is undefined, and has no %.100s", of.name, shown)
	case *Dict:
		if k, ok := key.(string); ok {
			if v, ok := of.Values[k]; ok {
				return v
			}
		}
	case namespace:
		return s.get(of.Dict, key, shown)
	case *List:
		if i, ok := key.(int64); ok {
			if i < 0 {
				i += int64(len(of.Items))
			}
			if i >= 0 && i < int64(len(of.Items)) {
				return of.Items[i]
			}
			return undefined{fmt.Sprintf("element %d of a list of %d", key, len(of.Items))}
		}
	case string:
		if i, ok := key.(int64); ok {
			runes := []rune(of)
			if i < 0 {
				i += int64(len(runes))
			}
			if i >= 0 && i < int64(len(runes)) {
				return string(runes[i])
			}
		}
	}
	return undefined{shown}
}

func (n *slice) eval(s *state) any {
	of := n.of.eval(s)
	var parts [3]*int64
	for i, p := range n.parts {
		if p == nil {
			continue
		}
		switch v := p.eval(s).(type) {
		case int64:
			parts[i] = &v
		case nil:
		default:
			s.fail("a slice with %s: want integers", typeName(v))
		}
	}
	s.line = n.line
	s.tick()
	switch of := of.(type) {
	case string:
		runes := []rune(of)
		var b strings.Builder
		for _, i := range s.indices(len(runes), parts) {
			b.WriteRune(runes[i])
		}
		return b.String()
	case *List:
		list := &List{}
		for _, i := range s.indices(len(of.Items), parts) {
			list.Items = append(list.Items, of.Items[i])
		}
		return list
	case undefined:
		s.fail("%s is undefined, and has no slices", of.name)
	}
	s.fail("a slice of %s: want a text or a list", typeName(of))
	return nil
}

// indices are those of a slice of n values, as Python's.
func (s *state) indices(n int, parts [3]*int64) (list []int) {
	step := int64(1)
	if parts[2] != nil {
		step = *parts[2]
	}
	if step == 0 {
		s.fail("a slice with a step of 0")
	}
	low, high := int64(0), int64(n)
	if step < 0 {
		low, high = -1, int64(n)-1
	}
	bound := func(p *int64, standard int64) int64 {
		if p == nil {
			return standard
		}
		v := *p
		if v < 0 {
			v += int64(n)
		}
		return min(max(v, low), high)
	}
	if step > 0 {
		for i := bound(parts[0], 0); i < bound(parts[1], int64(n)); i += step {
			list = append(list, int(i))
		}
		return list
	}
	for i := bound(parts[0], int64(n)-1); i > bound(parts[1], -1); i += step {
		list = append(list, int(i))
	}
	return list
}

func (c *callArguments) eval(s *state) (a arguments) {
	for _, e := range c.list {
		a.list = append(a.list, e.eval(s))
	}
	if len(c.names) > 0 {
		a.named, a.names = map[string]any{}, c.names
	}
	for i, k := range c.names {
		a.named[k] = c.named[i].eval(s)
	}
	return a
}

func (n *call) eval(s *state) any {
	of := n.of.eval(s)
	args := n.args.eval(s)
	s.line = n.line
	s.tick()
	f, ok := of.(function)
	if u, missing := of.(undefined); missing {
		s.fail("%s is undefined, and cannot be called", u.name)
	}
	if !ok {
		s.fail("%s cannot be called", typeName(of))
	}
	return f(s, args)
}

func (n *filterNode) eval(s *state) any {
	of := n.of.eval(s)
	args := n.args.eval(s)
	s.line = n.line
	s.tick()
	return filters[n.name](s, of, args)
}

func (n *testNode) eval(s *state) any {
	of := n.of.eval(s)
	args := n.args.eval(s)
	s.line = n.line
	s.tick()
	return tests[n.name](s, of, args) != n.not
}

// iterate lists what a loop over a value goes through.
func (s *state) iterate(v any) []any {
	switch v := v.(type) {
	case *List:
		return v.Items
	case *Dict:
		list := make([]any, len(v.Keys))
		for i, k := range v.Keys {
			list[i] = k
		}
		return list
	case string:
		s.fits(16 * utf8.RuneCountInString(v))
		var list []any
		for _, r := range v {
			list = append(list, string(r))
		}
		return list
	case undefined:
		return nil
	}
	s.fail("%s has no values to go through: want a list, a dict or a text", typeName(v))
	return nil
}
