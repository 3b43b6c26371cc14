// SPDX-License-Identifier: Apache-2.0

package tp

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// Faults is all that is wrong with a plan. It unwraps to one error for each fault.
type Faults []error

// Error lists the faults, one a line.
func (f Faults) Error() string {
	if len(f) == 1 {
		return "tp: " + f[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "tp: %d faults:", len(f))
	for _, err := range f {
		b.WriteString("\n  - " + err.Error())
	}
	return b.String()
}

// Unwrap lists the faults.
func (f Faults) Unwrap() []error { return f }

// err is nil if there are no faults.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

// collected are the faults of a plan, of each kind of layer the first.
type collected struct {
	size      Size
	list      Faults
	kinds     map[string]bool // that have one
	undivided []*undivided
}

// add adds a fault, unless a layer of the same kind has one; it reports whether err is one.
func (f *collected) add(kind string, err error) bool {
	if err == nil || f.kinds[kind] {
		return err != nil
	}
	if f.kinds == nil {
		f.kinds = map[string]bool{}
	}
	f.kinds[kind] = true
	if u, ok := errors.AsType[*undivided](err); ok {
		f.undivided = append(f.undivided, u)
	} else {
		f.list = append(f.list, err)
	}
	return true
}

// addUndivided adds one fault for those of the layers that do not divide, with the numbers of parts into which all do.
func (f *collected) addUndivided(all []*layer) {
	if len(f.undivided) == 0 {
		return
	}
	common := 0
	for _, l := range all {
		common = gcd(common, l.units)
	}
	var have []string
	for i, u := range f.undivided {
		verb := " "
		if i == 0 {
			verb = " has "
		}
		have = append(have, u.path+verb+quantity.Of(u.n, u.of))
	}
	f.list = append(f.list, fmt.Errorf("%s: they do not divide into %d parts: want tp_parts among %s, and a tp_size "+
		"that divides it", strings.Join(have, ", "), f.size.Parts, divisors(common)))
}

// undivided is a layer whose heads or features do not divide into parts.
type undivided struct {
	path string
	n    int
	of   string // "head" or "feature"
}

func (u *undivided) Error() string { return u.path + " has " + quantity.Of(u.n, u.of) }

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// divisors lists those of n that could be numbers of parts.
func divisors(n int) string {
	var list []string
	for d := 1; d <= min(n, 128); d++ {
		if n%d == 0 {
			list = append(list, strconv.Itoa(d))
		}
	}
	return strings.Join(list, ", ")
}
