// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// Error is the panic value of every misuse of a tensor. It has what you need to fix the call without a debugger.
type Error struct {
	Op     string   // the op that refused; of another package with its name, as "nn.Walk"
	Inputs []string // the operands, as "float32[2 3]"
	Msg    string   // what was wrong and what was wanted
	Where  string   // the module path or other scope, innermost last; may be empty
	Cause  error    // what made it happen elsewhere, such as a lost rank in a hook; nil otherwise
}

// Unwrap gives Cause.
func (e *Error) Unwrap() error { return e.Cause }

func (e *Error) Error() string {
	var b strings.Builder
	if !strings.Contains(e.Op, ".") { // an op of this package
		b.WriteString("tensor.")
	}
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

// ErrNilOperand is the Cause of the Error for an operand that is nil, as the tensor of a name is that a batch lacks.
var ErrNilOperand = errors.New("an operand is nil")

// OutOfMemoryError is a cause of the error of an allocation that a device has no memory for: a GPU whose memory is used
// up, or the CPU at its limit (see Device.SetMemoryLimit).
type OutOfMemoryError = backend.OutOfMemoryError

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

// failNil panics for a nil operand of an op or a method. It is not inlined, so that Shape and DType are.
//
//go:noinline
func failNil(op, where string) {
	panic(&Error{Op: op, Msg: ErrNilOperand.Error() + ", as the tensor of a name that a batch lacks is", Where: where,
		Cause: ErrNilOperand})
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

// PanicError is a panic, of the program's own code or a misuse, that was handed over as an error.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine that panicked, as runtime/debug.Stack gives it
}

// Error is the text of a misuse or kernel fault, and of any other value the text after "panic: ".
func (e *PanicError) Error() string {
	switch v := e.Value.(type) {
	case *Error:
		return v.Error()
	case *backend.Fault:
		return v.Error()
	}
	return fmt.Sprintf("panic: %v", e.Value)
}

// Unwrap returns the panic's value if it is an error, as *Error is.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Recover is Try for every panic: it runs f and returns its panic as a *PanicError. Code that calls a program's
// functions, such as a model's Forward, uses it to return their panics as errors. A panic with an error that wraps a
// *PanicError, raised again with more words, returns this error: its stack is the first one.
func Recover(f func()) (err error) {
	defer func() {
		p := recover()
		if again, ok := p.(error); ok {
			if _, ok := errors.AsType[*PanicError](again); ok {
				err = again
				return
			}
		}
		if p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	f()
	return nil
}
