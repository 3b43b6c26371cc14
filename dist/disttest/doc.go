// Package disttest is the conformance suite of dist's engines: every operation, dtype and number of ranks against a serial oracle, disagreements, ranks that are
// late or missing, many calls in flight, and nothing left behind.
//
// It is NOT for use outside of tests: it imports package testing.
package disttest
