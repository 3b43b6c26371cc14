// SPDX-License-Identifier: Apache-2.0

// Package hashes records hashes of what each step of a run reads and computes, and finds where two runs diverge.
// A run with the argument record_hashes writes a line for each step and rank into the folder hashes of its output
// folder ([Create]); the command lockstep diff compares two of them ([Load], [Compare]).
//
// Hashes of parts add up to that of the whole (see [Sum]), so runs can be compared whose ranks differ in number, or
// have other parts of the model.
package hashes
