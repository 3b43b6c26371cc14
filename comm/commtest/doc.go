// SPDX-License-Identifier: Apache-2.0

// Package commtest is the test suite of comm's engines: every operation, dtype and number of ranks against a serial
// oracle, disagreements, ranks that are late or missing, many calls in flight, and leaks. To test your own engine, call
// [Run] or [RunProcesses] from its tests. Tests of the packages above use [Play] and [Processes] to start and kill rank
// processes.
//
// It is not for use outside of tests: it imports package testing.
package commtest
