// SPDX-License-Identifier: Apache-2.0

// Package usertemp is the temporary folder that processes of one user share on a host: rendezvous files and flight
// records. Other users can neither read nor write it.
package usertemp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// Path returns the folder's path, below TMPDIR. It may not exist.
func Path() string {
	name := "lockstep"
	if id := os.Geteuid(); id >= 0 { // not on Windows, where each user has a temporary folder
		name += "-" + strconv.Itoa(id)
	}
	return filepath.Join(os.TempDir(), name)
}

// Make makes the folder if it does not exist, and returns its path.
func Make() (string, error) {
	dir := Path()
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, Check()
}

// Check returns an error if the folder does not exist, if it is a link, or if another user made it or can look into it.
func Check() error {
	dir := Path()
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || !ownedByUs(info) {
		return fmt.Errorf("%s is not a folder of this user with mode 0700: remove it, or set TMPDIR to another folder",
			dir)
	}
	return nil
}
