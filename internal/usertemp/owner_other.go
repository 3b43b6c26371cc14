// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package usertemp

import "io/fs"

// ownedByUs takes the temporary folder for the user's own, as it is on Windows.
func ownedByUs(fs.FileInfo) bool { return true }
