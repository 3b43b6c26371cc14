// SPDX-License-Identifier: Apache-2.0

//go:build race

package parallel

// Under the race detector a look takes a hundred times as long: with as many as without it, a worker would keep a core
// busy for milliseconds after every loop, of tests of the race detector a quarter of the time. Workers that sleep take
// up more loops there, not fewer: the cores are busy, and who sleeps leaves one to the others.
const spins = 200
