// SPDX-License-Identifier: Apache-2.0

//go:build unix

package env

import (
	"errors"
	"fmt"
	"syscall"
)

// maxToken is the longest token that is read, in bytes.
const maxToken = 4 << 10

// takeFile returns the text of a file without a name, and closes it. Another descriptor of that number is left alone.
func takeFile(fd int) (string, error) {
	var info syscall.Stat_t
	if err := syscall.Fstat(fd, &info); err != nil {
		return "", err
	}
	if info.Mode&syscall.S_IFMT != syscall.S_IFREG || info.Nlink != 0 {
		return "", fmt.Errorf("it is a file of mode %o with %d names: want a plain file without a name", info.Mode,
			info.Nlink)
	}
	text := make([]byte, maxToken)
	n, err := syscall.Pread(fd, text, 0) // its place is shared with other programs that have inherited it
	if err == nil && n == 0 {
		err = errors.New("it has 0 bytes: want a token")
	}
	if err != nil {
		return "", err
	}
	return string(text[:n]), syscall.Close(fd)
}
