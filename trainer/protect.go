// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// blaming runs a function or method of the program. Its panic continues as an error that says whose it is, unless it is
// a failure that only came up there, as of a rank that was lost.
func blaming(whose string, f func()) {
	err := tensor.Recover(f)
	if err == nil {
		return
	}
	if fault, ok := errors.AsType[*tensor.Error](err); ok && fault.Cause != nil && fault.Cause != tensor.ErrNilOperand {
		panic(err)
	}
	panic(fmt.Errorf("%s: %w", whose, err))
}

// passedTo is the function of the program that option passed.
func passedTo(option string) string { return "the function passed to " + option }

// called runs a function of the program that option passed. Its error, or panic, is an error that names the option.
func called(option string, f func() error) (err error) {
	if p := tensor.Recover(func() { err = f() }); p != nil {
		err = p
	}
	if err != nil {
		return fmt.Errorf("trainer: %s: %w", passedTo(option), err)
	}
	return nil
}

// protect runs f and returns its panic as an error: a misuse, or a mistake in the program's own functions. It stands
// around whatever calls them (models, datasets, metrics, optimizers), so that no method of Trainer panics and each can
// tidy up. The error is a *tensor.PanicError with the stack.
func protect(f func() error) (err error) {
	if p := tensor.Recover(func() { err = f() }); p != nil {
		return fmt.Errorf("trainer: %w", p)
	}
	return err
}
