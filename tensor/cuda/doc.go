// SPDX-License-Identifier: Apache-2.0

// Package cuda adds NVIDIA's devices. A program that imports it for its effect, and is built with the tag cuda, has the
// devices cuda:0, cuda:1 and so on:
//
//	import _ "github.com/lockstep-ml/lockstep/tensor/cuda"
//
// The argument device takes them: auto, which is the default, and cuda give each rank of a host its own device. The
// driver and cuBLASLt are opened when the program runs. Without them the program has one device, cuda; opening it is an
// error that names the missing library, and auto selects the CPU.
//
// Without the tag the package is empty, and the program stays static.
package cuda
