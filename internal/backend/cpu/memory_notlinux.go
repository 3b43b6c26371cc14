//go:build unix && !linux

package cpu

// wantHugePages does nothing: these systems decide by themselves.
func wantHugePages([]byte) {}
