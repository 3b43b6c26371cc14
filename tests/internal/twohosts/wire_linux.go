// SPDX-License-Identifier: Apache-2.0

package twohosts

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Fate decides what becomes of a frame that host from sends: whether it is lost, or else how much longer it takes. It
// is called by several goroutines.
type Fate func(from int) (lost bool, delay time.Duration)

// Wire hands frames on between two links.
type Wire struct {
	delay time.Duration
	ends  [2]*os.File // packet sockets, one on each link
	fate  atomic.Pointer[Fate]
	tap   func(frame []byte)

	running sync.WaitGroup
}

// Lose loses every frame.
func Lose(int) (lost bool, delay time.Duration) { return true, 0 }

// Set changes what becomes of frames from now on, also of those on their way; nil for a good wire.
func (w *Wire) Set(f Fate) {
	if f == nil {
		w.fate.Store(nil)
		return
	}
	w.fate.Store(&f)
}

func (w *Wire) decide(from int) (lost bool, delay time.Duration) {
	if f := w.fate.Load(); f != nil {
		return (*f)(from)
	}
	return false, 0
}

// newWire joins two links of a network namespace.
func newWire(namespace string, links [2]string, delay time.Duration, tap func([]byte)) (*Wire, error) {
	w := &Wire{delay: delay, tap: tap}
	if err := In(namespace, func() error { return w.open(links) }); err != nil {
		return nil, errors.Join(fmt.Errorf("packet sockets in namespace %s: %w", namespace, err), w.close())
	}
	for i := range w.ends {
		w.running.Go(func() { w.carry(i) })
	}
	return w, nil
}

// In calls f in a network namespace. Sockets that f opens itself stay there.
func In(namespace string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread, which is in the namespace now, ends with the goroutine
		ns, err := unix.Open("/run/netns/"+namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Setns(ns, unix.CLONE_NEWNET), unix.Close(ns))
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// open opens the sockets.
func (w *Wire) open(links [2]string) error {
	for i, name := range links {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8) // in the network's byte order
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all))
		if err != nil {
			return err
		}
		w.ends[i] = os.NewFile(uintptr(fd), name)
		for option, value := range map[int]int{unix.PACKET_IGNORE_OUTGOING: 1, unix.PACKET_VNET_HDR: 1} {
			if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, option, value); err != nil {
				return err
			}
		}
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		if errors.Is(err, unix.EPERM) { // root of a user namespace gets what all get, and a wire that loses more
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 16<<20)
		}
		if err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}); err != nil {
			return err
		}
	}
	return nil
}

// close ends the wire.
func (w *Wire) close() error {
	var err error
	for _, end := range w.ends {
		if end != nil {
			err = errors.Join(err, end.Close())
		}
	}
	w.running.Wait()
	return err
}

// offload is the length of what stands before a frame: which checksums and cuts the hosts' kernels have left to the
// device. It continues as it came.
const offload = 10

// held is a frame on its way.
type held struct {
	due   time.Time
	frame []byte
}

// carry hands frames of one host on until the sockets are closed.
func (w *Wire) carry(from int) {
	line := make(chan held, 1<<14)
	w.running.Go(func() {
		for h := range line {
			time.Sleep(time.Until(h.due))
			lost, longer := w.decide(from)
			if !lost {
				time.Sleep(longer)
				_, _ = w.ends[1-from].Write(h.frame) // what a wire loses is sent again
			}
		}
	})
	defer close(line)
	buffer := make([]byte, offload+1<<17)
	for {
		n, err := w.ends[from].Read(buffer)
		if errors.Is(err, unix.ENETDOWN) { // told once when the link goes down
			continue
		}
		if err != nil {
			return
		}
		h := held{due: time.Now().Add(w.delay), frame: append([]byte(nil), buffer[:n]...)}
		if w.tap != nil {
			w.tap(h.frame[offload:])
		}
		line <- h
	}
}
