// SPDX-License-Identifier: Apache-2.0

// Package faults holds no code but tests: they kill and interrupt whole training processes,
// which the packages' own tests, with their simulated disks, cannot. They need signals, and
// so a Unix.
package faults
