// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

// ignoreFileSizeSignal does nothing: there is no such limit here.
func ignoreFileSizeSignal() {}
