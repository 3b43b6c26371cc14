//go:build !linux

package main

// wantHugePages does nothing: these systems decide by themselves.
func wantHugePages([]byte) {}
