// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/kernels"
)

// freeShared is the dynamic shared memory that a kernel may have without asking.
const freeShared = 48 << 10

// modules are the families of kernels that a device has loaded: each when one of its kernels is first launched, or all
// that are compiled for the device at once.
type modules struct {
	d         *Device
	mu        sync.RWMutex
	families  map[string]cuda.Module
	functions map[string]*function
	refused   bool // a cubin was: guarded by mu
}

// function is a kernel that is loaded.
type function struct {
	f cuda.Function

	mu     sync.Mutex
	shared int // dynamic shared memory that it may have
}

// errNoKernel says that a name is none of a kernel.
type errNoKernel string

func (e errNoKernel) Error() string { return "no kernel " + string(e) }

// find returns the kernel of a name.
func (m *modules) find(name string) (*function, error) {
	m.mu.RLock()
	f := m.functions[name]
	m.mu.RUnlock()
	if f != nil {
		return f, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	family := kernels.Find(name)
	if family == nil {
		return nil, errNoKernel(name)
	}
	return m.load(family, name)
}

// all loads every kernel that is compiled for the device. A driver may keep a kernel of a loaded module for when it is
// asked for: so each is. Source: NVIDIA, "CUDA C++ Programming Guide", version 12.2, section on lazy loading.
func (m *modules) all() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, family := range kernels.Families() {
		for _, name := range family.Kernels {
			if m.refused || family.ArchitectureFor(m.d.info.Capability) == 0 {
				break // the driver would compile it, for seconds
			}
			if _, err := m.load(family, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// load returns a kernel of a family, and loads what is not loaded yet. m.mu is held.
func (m *modules) load(family *kernels.Family, name string) (*function, error) {
	if f := m.functions[name]; f != nil {
		return f, nil
	}
	mod := m.families[family.Name]
	if mod == nil {
		var err error
		if mod, err = m.module(family); err != nil {
			return nil, fmt.Errorf("loading the kernels of %s: %w%s", family.Name, err, cuda.CompilerAdvice(err))
		}
		if m.families == nil {
			m.families, m.functions = map[string]cuda.Module{}, map[string]*function{}
		}
		m.families[family.Name] = mod
	}
	found, err := mod.Function(name)
	if err != nil {
		return nil, err
	}
	f := &function{f: found, shared: freeShared}
	m.functions[name] = f
	return f, nil
}

// module loads a family: its cubin for the device, or where there is none, or the driver refuses it, its PTX, which the
// driver compiles.
func (m *modules) module(f *kernels.Family) (cuda.Module, error) {
	if cubin := f.For(m.d.info.Capability); cubin != nil {
		mod, err := m.d.dev.Load(cubin)
		if err == nil {
			return mod, nil
		}
		level := slog.LevelWarn
		if m.refused { // by a driver that is too old, which refuses all
			level = slog.LevelDebug
		}
		m.refused = true
		slog.Log(context.Background(), level, "the driver refuses compiled kernels, and compiles them itself, which "+
			"takes seconds", "device", m.d.name, "kernels", f.Name, "error", err)
	}
	return m.d.dev.Load(f.PTX())
}

// allow lets launches have n bytes of dynamic shared memory.
func (f *function) allow(n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n <= f.shared {
		return nil
	}
	if err := f.f.SetMaxShared(n); err != nil {
		return err
	}
	f.shared = n
	return nil
}
