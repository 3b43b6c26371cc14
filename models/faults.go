// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"strings"
)

// Faults are what is wrong with a model's configuration. It is for packages of architectures, whose Validate reports
// all at once.
type Faults []string

// Want adds a fault unless ok.
func (f *Faults) Want(ok bool, format string, args ...any) {
	if !ok {
		*f = append(*f, fmt.Sprintf(format, args...))
	}
}

// Err names the faults of a package's configuration; nil if there are none.
func (f Faults) Err(pkg string) error {
	if len(f) == 0 {
		return nil
	}
	return fmt.Errorf("%s: config: %s", pkg, strings.Join(f, "; "))
}
