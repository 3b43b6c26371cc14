// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	insideVariable = "CHAOS_INSIDE" // the folder of the harness, in the process that runs the scenarios
	runVariable    = "CHAOS_RUN"    // in the environment of that process and all that it starts
	failedFolder   = "failed"       // of what is kept
)

type exitError = exec.ExitError

// inNamespaces prepares the program in its own namespaces for mounts, network and processes, or, where these cannot be
// made, without. When the caller ends, the program does, and with it all that it has started.
func inNamespaces(program, work string, environ []string) *exec.Cmd {
	const flags = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID
	attributes := &syscall.SysProcAttr{Cloneflags: flags}
	if os.Geteuid() != 0 {
		attributes = &syscall.SysProcAttr{
			Cloneflags:  flags | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
	}
	attributes.Pdeathsig = syscall.SIGKILL
	try := exec.Command(program, "enter", work)
	try.SysProcAttr = attributes
	if out, err := try.CombinedOutput(); err != nil {
		environ = append(environ, fmt.Sprintf("%s=%v: %s", noNamespaces, err, bytes.TrimSpace(out)))
		attributes = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	cmd := exec.Command(program)
	attributes.Setpgid = true // Ctrl-C comes through the outer process
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = environ, os.Stdout, os.Stderr, attributes
	return cmd
}

// noNamespaces says why there are none.
const noNamespaces = "CHAOS_NO_NAMESPACES"

// private is where the harness's folder is seen inside.
const private = "/run/chaos"

// enter makes the private folders: /proc shows this namespace's processes, /tmp and /dev/shm are empty, /run holds the
// harness's folder and what ip makes, and the loopback is up. What is mounted later reaches network namespaces that ip
// makes.
func enter(work string) error {
	if why := os.Getenv(noNamespaces); why != "" {
		return errors.New("no namespaces can be made: " + why)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("shared mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	held, err := os.Open(work) // /run may be where it is
	if err != nil {
		return err
	}
	defer held.Close()
	for _, dir := range []string{"/run", "/tmp", "/dev/shm"} {
		if err := unix.Mount("none", dir, "tmpfs", 0, "size=64m,mode=1777"); err != nil {
			return fmt.Errorf("mounting %s: %w", dir, err)
		}
	}
	if err := os.Mkdir(private, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", held.Fd()), private, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", private, err)
	}
	return loopbackUp()
}

// loopbackUp does what ip link set lo up does.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}

// disk is a small file system of a job's own.
type disk struct{ dir string }

// mountDisk makes one.
func mountDisk(dir string) (*disk, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=32m,mode=0755"); err != nil {
		return nil, fmt.Errorf("mounting %s: %w", dir, err)
	}
	return &disk{dir}, nil
}

// unmount ends it.
func (d *disk) unmount() error { return unix.Unmount(d.dir, unix.MNT_DETACH) }

// filler is a file that takes all room in a file system, and what is given back while it is there.
type filler struct {
	f    *os.File
	done chan struct{}
	over chan struct{}
}

// inflate fills the file system of a folder.
func inflate(dir string) (*filler, error) {
	f, err := os.OpenFile(filepath.Join(dir, "chaos-fills-this-disk"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	b := &filler{f: f, done: make(chan struct{}), over: make(chan struct{})}
	b.fill()
	go func() {
		defer close(b.over)
		for {
			select {
			case <-b.done:
				return
			case <-time.After(time.Millisecond):
				b.fill()
			}
		}
	}()
	return b, nil
}

// fill writes until there is no room for a single byte.
func (b *filler) fill() {
	for zeros := make([]byte, 1<<16); len(zeros) > 0; {
		if _, err := b.f.Write(zeros); err != nil {
			zeros = zeros[:len(zeros)/2]
		}
	}
}

// free gives all room back.
func (b *filler) free() error {
	close(b.done)
	<-b.over
	return errors.Join(b.f.Close(), os.Remove(b.f.Name()))
}

// readOnly covers a folder with itself, read-only; free takes the cover off.
func readOnly(dir string) (free func() error, err error) {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	free = func() error { return unix.Unmount(dir, unix.MNT_DETACH) }
	for range 1000 { // somebody may just be writing through the cover
		if err = unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err == nil {
			return free, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	return nil, errors.Join(err, free())
}
