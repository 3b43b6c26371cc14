// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package offload

import (
	"errors"
	"fmt"
	"runtime"
)

func mapFile(string, int) ([]byte, error) {
	return nil, fmt.Errorf("on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func unmapFile([]byte) error { return nil }
