// SPDX-License-Identifier: Apache-2.0

package cp

// Contiguous gives each rank neighbouring chunks instead of pairs from both ends.
func (p *Passes) Contiguous() { p.layout.contiguous = true }
