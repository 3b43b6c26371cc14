// SPDX-License-Identifier: Apache-2.0

package callbacks

import "sync"

var defaults struct {
	sync.Mutex
	factories []func() Callback
}

// RegisterDefault adds a callback to every run of the program, after Speed and Memory, which also add to records. A run
// to which trainer.WithCallbacks gives one of the same name has that in its place. Packages of integrations call it in
// init where a build tag turns them on. It panics if the factory is nil.
func RegisterDefault(factory func() Callback) {
	if factory == nil {
		panic("callbacks: RegisterDefault got nil")
	}
	defaults.Lock()
	defer defaults.Unlock()
	defaults.factories = append(defaults.factories, factory)
}

// NewDefaults makes the callbacks of RegisterDefault for a run with the given callbacks. It is for package trainer.
func NewDefaults(own []Callback) (out []Callback) {
	names := map[string]bool{}
	for _, c := range own {
		names[Name(c)] = true
	}
	defaults.Lock()
	defer defaults.Unlock()
	for _, factory := range defaults.factories {
		if c := factory(); !names[Name(c)] {
			out = append(out, c)
		}
	}
	return out
}
