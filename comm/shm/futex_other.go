// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package shm

import (
	"sync/atomic"
	"time"
)

// park sleeps for a moment: there is no portable way to sleep on a word that processes share.
func park(_ *atomic.Uint32, _ uint32, d time.Duration) { time.Sleep(min(d, 50*time.Microsecond)) }

func unpark(*atomic.Uint32) {}
