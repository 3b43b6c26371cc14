// SPDX-License-Identifier: Apache-2.0

package accelerate

import "github.com/lockstep-ml/lockstep/tensor"

// SetHostLimit makes a host's memory so large, until the returned function is called.
func SetHostLimit(bytes uint64) (back func()) {
	before := hostLimit
	hostLimit = func() (uint64, string) { return bytes, "a test" }
	return func() { hostLimit = before }
}

// SetKernels makes the rank say that it computes with other kernels than it does.
func SetKernels(a *Accelerator, name string) { a.kernels = name }

// SetAccelerators makes auto prefer other kinds of devices to the CPU.
func SetAccelerators(kinds ...string) { accelerators = kinds }

// SetRan makes n what the ops of the first window computed in.
func SetRan(a *Accelerator, n *tensor.DTypeCounts) { a.ran = n }

// Disagreement is what the second of two ranks has otherwise whose pipelines have tables with these hashes.
func Disagreement(table, other string) error {
	a := fingerprint{Args: []byte("{}"), pipelined: pipelined{Schedule: table}}
	b := a
	b.Schedule = other
	return disagreement([]fingerprint{a, b})
}

// Claims is how many tensors of the process are claimed.
func Claims() int {
	claims.Lock()
	defer claims.Unlock()
	return len(claims.of)
}
