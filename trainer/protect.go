// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// called runs a function of the program that option passed. Its panic is an error that names the option.
func called(option string, f func() error) (err error) {
	if p := tensor.Recover(func() { err = f() }); p != nil {
		return fmt.Errorf("trainer: the function passed to %s: %w", option, p)
	}
	return err
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
