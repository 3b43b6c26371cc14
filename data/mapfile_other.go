// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package data

import "os"

// mapFile reads the file by position, where there is no mapping.
func mapFile(file *os.File, _ int64) (byteReader, error) { return file, nil }
