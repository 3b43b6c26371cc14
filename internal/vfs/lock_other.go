// SPDX-License-Identifier: Apache-2.0

//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly || windows)

package vfs

import "errors"

// Lock implements FS: there are no locks.
func (osFS) Lock(string) (Lock, error) { return nil, errors.ErrUnsupported }
