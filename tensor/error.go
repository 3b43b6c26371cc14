// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// Error is the panic value of every misuse of a tensor. It carries what is needed to fix
// the call without a debugger.
type Error struct {
	Op     string   // the op that refused
	Inputs []string // the operands, as "float32[2 3]"
	Msg    string   // what was wrong and what was wanted
	Where  string   // the module path or other scope, innermost last; may be empty
	Cause  error    // what made it happen elsewhere, such as a lost rank in a hook; nil otherwise
}

// Unwrap gives Cause.
func (e *Error) Unwrap() error { return e.Cause }

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("tensor.")
	b.WriteString(e.Op)
	if len(e.Inputs) > 0 {
		fmt.Fprintf(&b, "(%s)", strings.Join(e.Inputs, ", "))
	}
	b.WriteString(": ")
	b.WriteString(e.Msg)
	if e.Where != "" {
		b.WriteString(" (in ")
		b.WriteString(e.Where)
		b.WriteString(")")
	}
	return b.String()
}

// describe is the form in which operands appear in errors.
func describe(t *Tensor) string {
	if t == nil {
		return "nil"
	}
	return fmt.Sprintf("%s%v", t.dtype, t.Shape())
}

// fail panics with an *Error that describes the operands.
func (c *Ctx) fail(op string, ins []*Tensor, format string, args ...any) {
	e := &Error{Op: op, Msg: fmt.Sprintf(format, args...), Where: c.where()}
	for _, t := range ins {
		e.Inputs = append(e.Inputs, describe(t))
	}
	panic(e)
}

// Try runs f and returns the misuse or kernel fault that it panicked with as an error: a
// *Error or a *backend fault. Any other panic continues.
func Try(f func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *Error:
			err = p
		case *backend.Fault:
			err = p
		default:
			panic(p)
		}
	}()
	f()
	return nil
}
