// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package env

import "errors"

// takeFile returns an error: the launcher runs on Unix alone.
func takeFile(int) (string, error) { return "", errors.ErrUnsupported }
