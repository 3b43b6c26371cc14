// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mapped

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// MapPrivate is for Linux: elsewhere a file that is mapped cannot be replaced, or its disk is not known.
func MapPrivate(*os.File) (*Private, error) {
	return nil, fmt.Errorf("on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
