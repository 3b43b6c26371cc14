// SPDX-License-Identifier: Apache-2.0

//go:build mpi

package mpi

import (
	"errors"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A container's filter forbids the call, as Docker's does.
func TestContainersMayForbidCopiesBetweenProcesses(t *testing.T) {
	type outcome struct {
		err    error
		copies bool
	}
	outcomes := make(chan outcome)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, and its filter with it
		err := forbid(unix.SYS_PROCESS_VM_READV)
		outcomes <- outcome{err, copiesBetweenProcesses()}
	}()
	got := <-outcomes
	require.NoError(t, got.err)
	require.False(t, got.copies)
}

// forbid makes a system call fail with EPERM in this thread.
func forbid(call uint32) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		err = errors.Join(err, errno)
	}
	return err
}
