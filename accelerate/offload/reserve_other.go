// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package offload

import (
	"os"

	"github.com/lockstep-ml/lockstep/internal/mapped"
)

// reserve takes the disk's space now: a file with holes would end the process once the disk is full.
func reserve(f *os.File, n int) error { return mapped.Zeros(f, n) }
