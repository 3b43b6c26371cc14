// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package shm

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lockstep-ml/lockstep/internal/mapped"
)

const preferred = named

const mapFlags = unix.MAP_SHARED

func makeAnonymous(int) (*segment, string, error) {
	return nil, "", errors.New("anonymous segments exist on Linux only")
}

// reserve writes zeros: a sparse file would end the process when its disk is full.
func reserve(f *os.File, n int) error { return mapped.Zeros(f, n) }
