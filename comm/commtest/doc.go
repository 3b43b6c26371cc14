// SPDX-License-Identifier: Apache-2.0

// Package commtest is the test suite of comm's engines: every operation, dtype and number of ranks against a serial
// oracle, disagreements, ranks that are late or missing, many calls in flight, and leaks. Use it to test an engine of
// your own: call [Run] or [RunProcesses] from its tests. Tests of the packages above start ranks in processes, which
// they kill, by [Play] and [Processes].
//
// It is not for use outside of tests: it imports package testing.
package commtest
