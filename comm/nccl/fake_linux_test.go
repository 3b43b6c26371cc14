// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package nccl

import (
	"errors"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/lacking"
	"github.com/lockstep-ml/lockstep/internal/nccl"
)

// fakeLibrary is testdata/libnccl.c, opened as NCCL.
type fakeLibrary struct {
	*library
	finish func() // lets the initialisation of the last communicator end
	looks  func() int
}

func openFake(t *testing.T) *fakeLibrary {
	cc, err := exec.LookPath("cc")
	if err != nil {
		lacking.Skip(t, lacking.Tools, "cc", "no C compiler")
	}
	file := filepath.Join(t.TempDir(), "libnccl.so.2")
	said, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-pthread", "-o", file,
		"testdata/libnccl.c").CombinedOutput()
	require.NoError(t, err, "%s", said)
	t.Setenv(EnvLibrary, file)
	lib, err := openLibrary()
	require.NoError(t, err)
	own, err := clib.Open(file)
	require.NoError(t, err)
	var finish, looks uintptr
	require.NoError(t, own.Bind(map[string]*uintptr{"fake_finish": &finish, "fake_looks": &looks}))
	return &fakeLibrary{lib.(*library), func() { clib.Call(finish) }, func() int { return int(clib.Call(looks)) }}
}

// communicator is a communicator that is ready.
func (l *fakeLibrary) communicator(t *testing.T) nccl.Comm {
	t.Helper()
	id, err := l.UniqueID()
	require.NoError(t, err)
	c, err := l.Init(host{}, 2, 1, id, func() error { l.finish(); return nil })
	require.NoError(t, err)
	return c
}

// stream is one that nothing is queued on.
type stream struct{ cuda.Stream }

func (stream) Handle() uintptr { return 1 }

// While the library initialises a communicator, the program allocates numbers: the library writes to none of them.
func TestTheLibraryWritesToNoMemoryOfOthers(t *testing.T) {
	lib := openFake(t)
	id, err := lib.UniqueID()
	require.NoError(t, err)
	var numbers []*uint64
	allocate := func() {
		runtime.GC()
		for range 1 << 14 {
			n := new(uint64)
			*n = 42
			numbers = append(numbers, n)
		}
	}
	rounds := 0
	c, err := lib.Init(host{}, 2, 1, id, func() error {
		if rounds++; rounds <= 20 {
			allocate()
		} else {
			lib.finish()
		}
		return nil
	})
	require.NoError(t, err)
	for _, n := range numbers {
		require.Equal(t, uint64(42), *n, "a number is now the communicator's address")
	}
	require.Equal(t, c.(*communicator).handle, *c.(*communicator).cell)
	require.NoError(t, c.Close())
	require.Empty(t, lib.open)
}

// An initialisation that is given up leaves nothing behind.
func TestInitThatIsGivenUp(t *testing.T) {
	lib := openFake(t)
	id, err := lib.UniqueID()
	require.NoError(t, err)
	late := errors.New("rank 1 is lost")
	_, err = lib.Init(host{}, 2, 1, id, func() error { return late })
	require.ErrorIs(t, err, late)
	require.Empty(t, lib.open)
	_, err = lib.Init(host{}, 2, 1, nccl.ID{}, func() error { return nil })
	require.ErrorContains(t, err, "invalid argument")
	require.Empty(t, lib.open)
}

// A goroutine is in a group whose connections are still being made; another one aborts, as a group does when a rank is
// lost. The process lives, and the first goroutine returns.
func TestAbortFromAnotherGoroutine(t *testing.T) {
	lib := openFake(t)
	t.Run("while a group is in progress", func(t *testing.T) {
		c := lib.communicator(t)
		before := lib.looks()
		var aborting sync.WaitGroup
		aborting.Go(func() {
			for lib.looks() < before+2 {
				runtime.Gosched()
			}
			_ = c.Abort()
		})
		err := c.Group(func() error { return c.Send(stream{}, 1, 1, nccl.Uint8, 0) })
		require.ErrorIs(t, err, errGivenUp)
		aborting.Wait()
		require.ErrorIs(t, c.AsyncError(), errGivenUp)
		require.ErrorIs(t, c.AllReduce(stream{}, 1, 1, 1, nccl.Float32, nccl.Sum), errGivenUp)
		require.ErrorIs(t, c.Group(func() error { return nil }), errGivenUp)
		require.NoError(t, c.Abort())
		require.NoError(t, c.Close())
		require.Empty(t, lib.open)
	})
	t.Run("inside a group", func(t *testing.T) {
		c := lib.communicator(t)
		var aborting sync.WaitGroup
		err := c.Group(func() error {
			begun := make(chan struct{})
			aborting.Go(func() { close(begun); _ = c.Abort() })
			<-begun
			for range 1000 { // the other goroutine gets as far as it can
				runtime.Gosched()
			}
			return c.Send(stream{}, 1, 1, nccl.Uint8, 0)
		})
		require.ErrorIs(t, err, errGivenUp)
		aborting.Wait()
	})
	t.Run("while it is asked for errors", func(t *testing.T) {
		c := lib.communicator(t)
		var asking sync.WaitGroup
		asked := make(chan struct{})
		asking.Go(func() {
			for first := true; c.AsyncError() == nil; first = false {
				if first {
					close(asked)
				}
			}
		})
		<-asked
		require.NoError(t, c.Abort())
		asking.Wait()
	})
}
