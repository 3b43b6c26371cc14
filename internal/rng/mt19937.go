// SPDX-License-Identifier: Apache-2.0

package rng

// MT19937 is the Mersenne Twister with 19937 bits of state, the generator of torch's CPU: M. Matsumoto and T.
// Nishimura, "Mersenne Twister", ACM Transactions on Modeling and Computer Simulation 8 (1998). It serves orders of
// samples that must equal torch's; everything else here is counted (Philox).
type MT19937 struct {
	state [624]uint32
	next  int // 624: the state is used up
}

// NewMT19937 seeds a generator as torch.Generator.manual_seed does, which uses the lower 32 bits of a seed.
func NewMT19937(seed uint64) *MT19937 {
	m := &MT19937{next: len(MT19937{}.state)}
	m.state[0] = uint32(seed)
	for i := 1; i < len(m.state); i++ {
		before := m.state[i-1]
		m.state[i] = 1812433253*(before^before>>30) + uint32(i)
	}
	return m
}

// Uint32 draws 32 bits.
func (m *MT19937) Uint32() uint32 {
	if m.next == len(m.state) {
		m.twist()
	}
	y := m.state[m.next]
	m.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

func (m *MT19937) twist() {
	const n, ahead = len(MT19937{}.state), 397
	for i := range m.state {
		y := m.state[i]&0x80000000 | m.state[(i+1)%n]&0x7fffffff
		m.state[i] = m.state[(i+ahead)%n] ^ y>>1 ^ -(y&1)&0x9908b0df
	}
	m.next = 0
}
