// SPDX-License-Identifier: Apache-2.0

// Package checkpointtest kills the processes of a job inside saves, and checks what they leave. Use it to test your own
// save: its processes call [SaveForever], and the test calls [Kills.Run].
//
// It is not for use outside of tests: it imports package testing.
package checkpointtest
