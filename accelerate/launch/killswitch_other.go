// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package launch

import (
	"errors"
	"os"
)

// killSwitch would let the kernel kill what is left when the launcher and its guards have been killed; only Linux can.
type killSwitch struct{}

func newKillSwitch() (*killSwitch, error)     { return nil, errors.ErrUnsupported }
func inheritKillSwitch() (*killSwitch, error) { return nil, errors.ErrUnsupported }

func (*killSwitch) files() []*os.File           { return nil }
func (*killSwitch) add(int) error               { return nil }
func (*killSwitch) addMarked(int, string) error { return nil }
func (*killSwitch) remove(int)                  {}
func (*killSwitch) close()                      {}

// strays finds nothing: other processes' environments cannot be read here.
type strays struct{}

func newStrays(string) *strays { return &strays{} }

func (*strays) look(map[int]bool) map[int]bool { return nil }
