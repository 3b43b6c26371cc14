//go:build !unix

package vfs

func syncDir(string) error { return nil }
