// SPDX-License-Identifier: Apache-2.0

//go:build !race

package parallel

const spins = 20_000
