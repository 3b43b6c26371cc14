// SPDX-License-Identifier: Apache-2.0

// Package optest holds the table of all ops of package tensor and the test suite that every device passes. It
// is for this module's tests and for a package that adds a device: call [Run] and [RunBits] from its tests. A
// program that uses tensors does not need it.
//
// An op is one row of [Table]: its name, sample inputs, attributes, dtypes, which inputs are differentiable, an oracle
// where one is simple, and misuse that it must reject. Run checks each row: results against oracles, gradients against
// finite differences, every dtype against float64, strided and broadcast operands against contiguous ones, misuse,
// memory. RunBits compares devices bit for bit. A test fails if an exported op has no row.
//
// It is not a benchmark, and not the suite of backends, which calls kernels without package tensor
// (internal/backend/backendtest). Composite ops are compared with PyTorch in package tensor's own tests.
package optest
