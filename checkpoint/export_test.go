// SPDX-License-Identifier: Apache-2.0

package checkpoint

import "time"

// EncodeManifest seals a manifest that Save would not write.
func EncodeManifest(m *Manifest) ([]byte, error) { return m.encode() }

// SetBeat sets the time between signs of life in the lock file.
func (s *Store) SetBeat(d time.Duration) { s.beatInterval = d }
