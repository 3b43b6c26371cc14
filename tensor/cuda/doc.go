// SPDX-License-Identifier: Apache-2.0

// Package cuda gives programs NVIDIA's devices. A program that imports it for its effect, and is built with the tag
// cuda, has the devices cuda:0, cuda:1 and so on:
//
//	import _ "github.com/lockstep-ml/lockstep/tensor/cuda"
//
// The argument device takes them: auto, which is the default, and cuda give each rank of a host a device of its own.
// The driver and cuBLASLt are opened when the program runs. Where they are not there, the program has one device,
// cuda, and opening it says what is missing: then auto means the CPU.
//
// Without the tag the package is empty, and the program stays static.
package cuda
