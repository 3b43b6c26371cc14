// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"strings"
)

// maxFaults is how many faults an InvalidError lists.
const maxFaults = 20

// InvalidError lists what is wrong with a schedule.
type InvalidError struct {
	Of     string   // what the faults are of
	Faults []string // the first ones
	More   int      // how many are not listed
}

func (e *InvalidError) Error() string {
	list := e.Faults
	if e.More > 0 {
		list = append(list[:len(list):len(list)], fmt.Sprintf("and %d more", e.More))
	}
	if e.Of == "" {
		return strings.Join(list, "\n")
	}
	if len(list) == 1 {
		return e.Of + ": " + list[0]
	}
	return e.Of + ":\n  " + strings.Join(list, "\n  ")
}

// faults collects what is wrong.
type faults struct {
	of   string
	list []string
	more int
}

func (f *faults) add(format string, a ...any) {
	if len(f.list) == maxFaults {
		f.more++
		return
	}
	f.list = append(f.list, fmt.Sprintf(format, a...))
}

func (f *faults) none() bool { return len(f.list) == 0 }

func (f *faults) err() error {
	if f.none() {
		return nil
	}
	return &InvalidError{f.of, f.list, f.more}
}
