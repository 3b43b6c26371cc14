// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package flight

import (
	"context"
	"errors"
	"log/slog"
)

// answer does nothing: sockets without a file are Linux's.
func answer(*slog.Logger) (hangUp func()) { return func() {} }

// Ask needs Linux.
func Ask(context.Context, int) (Written, error) {
	return Written{},
		errors.New("flight: asking a process needs Linux; send it SIGUSR2 instead, and read what its log names")
}

// Descendants needs Linux.
func Descendants(int) []int { return nil }
