// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxDepth bounds the nesting of expressions, statements and calls.
const maxDepth = 200

// parser reads tokens into nodes.
type parser struct {
	tokens []token
	at     int
	depth  int
	loops  int
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != endToken {
		p.at++
	}
	return t
}

func (p *parser) fail(format string, args ...any) {
	panic(&Error{p.peek().line, fmt.Sprintf(format, args...)})
}

func (p *parser) is(k kind, texts ...string) bool {
	t := p.peek()
	return t.kind == k && (len(texts) == 0 || slices.Contains(texts, t.text))
}

func (p *parser) take(k kind, texts ...string) bool {
	if p.is(k, texts...) {
		p.at++
		return true
	}
	return false
}

func (p *parser) want(k kind, text string) token {
	if !p.is(k) || text != "" && p.peek().text != text {
		what := text
		if what == "" {
			what = "a name"
		}
		p.fail("%q: want %s", p.peek().text, what)
	}
	return p.next()
}

// deeper counts one level until the function that it returns is called.
func (p *parser) deeper() func() {
	if p.depth++; p.depth > maxDepth {
		p.fail("nested more than %d deep", maxDepth)
	}
	return func() { p.depth-- }
}

// body reads statements up to a block that begins with one of the names, which it leaves.
func (p *parser) body(ends ...string) []statement {
	defer p.deeper()()
	var list []statement
	for {
		t := p.next()
		switch t.kind {
		case textToken:
			list = append(list, &textNode{t.text})
		case printBegin:
			e := p.tuple()
			p.want(printEnd, "")
			list = append(list, &printNode{t.line, e})
		case blockBegin:
			name := p.want(nameToken, "")
			if slices.Contains(ends, name.text) {
				p.at--
				return list
			}
			list = append(list, p.statement(name))
		default:
			if len(ends) > 0 {
				p.fail("the template ends: want {%% %s %%}", ends[len(ends)-1])
			}
			return list
		}
	}
}

// end reads the rest of the block that ends a body.
func (p *parser) end() {
	p.next()
	p.want(blockEnd, "")
}

func (p *parser) statement(name token) statement {
	switch name.text {
	case "if":
		return p.ifStatement()
	case "for":
		return p.forStatement(name.line)
	case "set":
		return p.setStatement(name.line)
	case "macro":
		return p.macro()
	case "generation":
		p.want(blockEnd, "")
		body := p.body("endgeneration")
		p.end()
		return &generationNode{body}
	case "filter":
		f := &filterNode{line: name.line, of: &literal{""}}
		e := p.filterOn(f.of)
		p.want(blockEnd, "")
		body := p.body("endfilter")
		p.end()
		return &filterBlock{name.line, e, f.of.(*literal), body}
	case "break", "continue":
		if p.loops == 0 {
			p.fail("%s outside of a loop", name.text)
		}
		p.want(blockEnd, "")
		return &jump{name.text == "break"}
	case "do":
		e := p.tuple()
		p.want(blockEnd, "")
		return &doNode{name.line, e}
	}
	p.at--
	p.fail("the statement %s is not supported: want if, for, set, macro, filter, generation, break or continue",
		name.text)
	return nil
}

func (p *parser) ifStatement() statement {
	n := &ifNode{}
	for {
		n.tests = append(n.tests, p.tuple())
		p.want(blockEnd, "")
		n.bodies = append(n.bodies, p.body("elif", "else", "endif"))
		switch p.next().text {
		case "elif":
			continue
		case "else":
			p.want(blockEnd, "")
			n.otherwise = p.body("endif")
			p.next()
		}
		p.want(blockEnd, "")
		return n
	}
}

func (p *parser) forStatement(line int) statement {
	n := &forNode{line: line, targets: p.targets()}
	p.want(nameToken, "in")
	n.over = p.or()
	if p.is(operator, ",") {
		n.over = p.tupleFrom(n.over)
	}
	if p.take(nameToken, "if") {
		n.filter = p.expression()
	}
	if p.is(nameToken, "recursive") {
		p.fail("recursive loops are not supported")
	}
	p.want(blockEnd, "")
	p.loops++
	n.body = p.body("else", "endfor")
	p.loops--
	if p.next().text == "else" {
		p.want(blockEnd, "")
		n.otherwise = p.body("endfor")
		p.next()
	}
	p.want(blockEnd, "")
	return n
}

// targets are the names of an assignment.
func (p *parser) targets() (names []string) {
	paren := p.take(operator, "(")
	for {
		names = append(names, p.want(nameToken, "").text)
		if !p.take(operator, ",") {
			break
		}
	}
	if paren {
		p.want(operator, ")")
	}
	return names
}

func (p *parser) setStatement(line int) statement {
	n := &setNode{line: line, names: p.targets()}
	if len(n.names) == 1 && p.take(operator, ".") {
		n.attribute = p.want(nameToken, "").text
	}
	if p.take(operator, "=") {
		n.value = p.tuple()
		p.want(blockEnd, "")
		return n
	}
	hole := &literal{""}
	n.filter, n.hole = p.filterOn(hole), hole
	p.want(blockEnd, "")
	n.body = p.body("endset")
	p.end()
	return n
}

func (p *parser) macro() statement {
	n := &macroNode{name: p.want(nameToken, "").text}
	p.want(operator, "(")
	for !p.take(operator, ")") {
		n.params = append(n.params, p.want(nameToken, "").text)
		var standard node
		if p.take(operator, "=") {
			standard = p.expression()
		}
		n.defaults = append(n.defaults, standard)
		if !p.take(operator, ",") {
			p.want(operator, ")")
			break
		}
	}
	p.want(blockEnd, "")
	loops := p.loops
	p.loops = 0
	n.body = p.body("endmacro")
	p.loops = loops
	p.end()
	return n
}

// tuple is an expression, or several with commas between.
func (p *parser) tuple() node {
	e := p.expression()
	if p.is(operator, ",") {
		return p.tupleFrom(e)
	}
	return e
}

func (p *parser) tupleFrom(first node) node {
	list := &listNode{[]node{first}, true}
	for p.take(operator, ",") {
		if p.is(blockEnd) || p.is(printEnd) || p.is(operator, ")") {
			break
		}
		list.items = append(list.items, p.expression())
	}
	return list
}

func (p *parser) expression() node {
	defer p.deeper()()
	e := p.or()
	for p.is(nameToken, "if") {
		line := p.next().line
		c := &condition{line: line, test: p.or(), yes: e}
		if p.take(nameToken, "else") {
			c.no = p.expression()
		}
		e = c
	}
	return e
}

func (p *parser) or() node {
	e := p.and()
	for p.take(nameToken, "or") {
		e = &logic{false, e, p.and()}
	}
	return e
}

func (p *parser) and() node {
	e := p.not()
	for p.take(nameToken, "and") {
		e = &logic{true, e, p.not()}
	}
	return e
}

func (p *parser) not() node {
	if p.take(nameToken, "not") {
		defer p.deeper()()
		return &notNode{p.not()}
	}
	return p.compare()
}

func (p *parser) compare() node {
	line := p.peek().line
	first := p.sum()
	c := &comparison{line: line, first: first}
	for {
		op := p.peek()
		switch {
		case p.take(operator, "==", "!=", "<", ">", "<=", ">="):
		case p.take(nameToken, "in"):
		case p.is(nameToken, "not") && p.tokens[p.at+1].kind == nameToken && p.tokens[p.at+1].text == "in":
			p.at += 2
			op.text = "not in"
		default:
			if len(c.ops) == 0 {
				return first
			}
			return c
		}
		c.ops, c.rest = append(c.ops, op.text), append(c.rest, p.sum())
	}
}

func (p *parser) binary(operand func() node, ops ...string) node {
	e := operand()
	for p.is(operator, ops...) {
		op := p.next()
		e = &arithmetic{op.line, op.text, e, operand()}
	}
	return e
}

func (p *parser) sum() node     { return p.binary(p.concat, "+", "-") }
func (p *parser) concat() node  { return p.binary(p.product, "~") }
func (p *parser) product() node { return p.binary(p.power, "*", "/", "//", "%") }
func (p *parser) power() node   { return p.binary(func() node { return p.unary(true) }, "**") }

func (p *parser) unary(filters bool) node {
	var e node
	if p.is(operator, "-", "+") {
		defer p.deeper()()
		op := p.next()
		e = &arithmetic{op.line, op.text, &literal{int64(0)}, p.unary(false)}
	} else {
		e = p.postfix(p.primary())
	}
	if filters {
		e = p.filters(e)
	}
	return e
}

func (p *parser) primary() node {
	t := p.next()
	switch t.kind {
	case nameToken:
		switch t.text {
		case "true", "True":
			return &literal{true}
		case "false", "False":
			return &literal{false}
		case "none", "None":
			return &literal{nil}
		}
		return &name{t.line, t.text}
	case stringToken:
		s := t.text
		for p.is(stringToken) {
			s += p.next().text
		}
		return &literal{s}
	case intToken:
		if i, err := strconv.ParseInt(t.text, 10, 64); err == nil {
			return &literal{i}
		}
	case floatToken:
		if f, err := strconv.ParseFloat(t.text, 64); err == nil {
			return &literal{f}
		}
	case operator:
		switch t.text {
		case "(":
			return p.parenthesis()
		case "[":
			list := &listNode{}
			for !p.take(operator, "]") {
				if len(list.items) > 0 {
					p.want(operator, ",")
					if p.take(operator, "]") {
						break
					}
				}
				list.items = append(list.items, p.expression())
			}
			return list
		case "{":
			return p.dict(t.line)
		}
	}
	p.at = max(p.at-1, 0)
	p.fail("unexpected %q: want an expression", t.text)
	return nil
}

func (p *parser) parenthesis() node {
	if p.take(operator, ")") {
		return &listNode{tuple: true}
	}
	e := p.tuple()
	p.want(operator, ")")
	return e
}

func (p *parser) dict(line int) node {
	d := &dictNode{line: line}
	for !p.take(operator, "}") {
		if len(d.keys) > 0 {
			p.want(operator, ",")
			if p.take(operator, "}") {
				break
			}
		}
		d.keys = append(d.keys, p.expression())
		p.want(operator, ":")
		d.values = append(d.values, p.expression())
	}
	return d
}

func (p *parser) postfix(e node) node {
	for {
		line := p.peek().line
		switch {
		case p.take(operator, "."):
			t := p.next()
			if t.kind == intToken {
				i, _ := strconv.ParseInt(t.text, 10, 64)
				e = &item{line, e, &literal{i}}
				continue
			}
			if t.kind != nameToken {
				p.fail("%q behind a dot: want a name", t.text)
			}
			e = &attribute{line, e, t.text}
		case p.take(operator, "["):
			e = p.subscript(line, e)
		case p.take(operator, "("):
			e = &call{line, e, p.arguments()}
		default:
			return e
		}
	}
}

func (p *parser) subscript(line int, of node) node {
	var parts [3]node
	n := 0
	for !p.take(operator, "]") {
		switch {
		case p.take(operator, ":"):
			if n++; n > 2 {
				p.fail("a slice of more than three parts")
			}
		default:
			parts[n] = p.expression()
		}
	}
	if n == 0 {
		if parts[0] == nil {
			p.fail("an empty subscript")
		}
		return &item{line, of, parts[0]}
	}
	return &slice{line, of, parts}
}

// arguments are read up to the closing parenthesis.
func (p *parser) arguments() (a callArguments) {
	for n := 0; !p.take(operator, ")"); n++ {
		if n > 0 {
			p.want(operator, ",")
			if p.take(operator, ")") {
				break
			}
		}
		if p.is(nameToken) && p.tokens[p.at+1].kind == operator && p.tokens[p.at+1].text == "=" {
			a.names = append(a.names, p.next().text)
			p.next()
			a.named = append(a.named, p.expression())
			continue
		}
		if p.is(operator, "*", "**") {
			p.fail("arguments with %s are not supported", p.peek().text)
		}
		a.list = append(a.list, p.expression())
	}
	return a
}

// filters reads filters and tests behind an expression.
func (p *parser) filters(e node) node {
	for {
		switch {
		case p.is(operator, "|"):
			e = p.filterOn(e)
		case p.is(nameToken, "is"):
			e = p.test(e)
		case p.is(operator, "("):
			line := p.next().line
			e = &call{line, e, p.arguments()}
		default:
			return e
		}
	}
}

// filterOn reads filters, each behind a bar; that of a filter block comes first without one.
func (p *parser) filterOn(e node) node {
	for first := true; p.take(operator, "|") || first && p.is(nameToken); first = false {
		t := p.want(nameToken, "")
		f := &filterNode{line: t.line, name: t.text, of: e}
		if filters[t.text] == nil {
			p.at--
			p.fail("there is no filter %s", t.text)
		}
		if p.take(operator, "(") {
			f.args = p.arguments()
		}
		e = f
	}
	return e
}

func (p *parser) test(e node) node {
	line := p.next().line
	not := p.take(nameToken, "not")
	t := p.next()
	n := &testNode{line: line, name: t.text, of: e, not: not}
	if op := t.text; t.kind == operator && slices.Contains([]string{"==", "!=", "<", ">", "<=", ">="}, op) {
		t.kind = nameToken
	}
	if t.kind != nameToken || tests[t.text] == nil {
		p.at--
		p.fail("there is no test %s", t.text)
	}
	switch {
	case p.take(operator, "("):
		n.args = p.arguments()
	case p.is(stringToken), p.is(intToken), p.is(floatToken), p.is(operator, "[", "{"),
		p.is(nameToken) && !slices.Contains(strings.Fields("else or and is if in not"), p.peek().text):
		n.args.list = []node{p.postfix(p.primary())}
	}
	return n
}
