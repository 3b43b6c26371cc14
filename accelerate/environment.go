// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"cmp"
	"slices"
	"strings"
)

// Environment is what the last bits of a run depend on besides its arguments, its data and the number of ranks.
// Checkpoints record it.
type Environment struct {
	// Devices are what ranks compute on, with the versions of driver and libraries, each kind once: see
	// tensor.Device.Versions.
	Devices []string `json:"devices"`
	// Exchange is the library by which devices exchange tensors, with its version; "" for none.
	Exchange string `json:"exchange,omitempty"`
}

// String is for people.
func (e Environment) String() string {
	s := strings.Join(e.Devices, " and ")
	if e.Exchange != "" {
		s += "; " + e.Exchange
	}
	return s
}

// Same reports whether bits need not differ between the two. An Environment without devices is not known, and differs
// from none; ranks that do not exchange between devices differ from none that do.
func (e Environment) Same(other Environment) bool {
	if len(e.Devices) == 0 || len(other.Devices) == 0 {
		return true
	}
	return slices.Equal(e.Devices, other.Devices) &&
		(e.Exchange == other.Exchange || e.Exchange == "" || other.Exchange == "")
}

// Environment is that of all ranks after Prepare, and this rank's before.
func (a *Accelerator) Environment() Environment {
	e := Environment{Devices: a.versions}
	if a.Group() != nil {
		e.Exchange = a.Group().DeviceLibrary()
	}
	return e
}

// ownVersions is what this rank computes on.
func (a *Accelerator) ownVersions() []string { return []string{cmp.Or(a.dev.Versions(), a.dev.Name())} }

// allVersions are those of all ranks, each once, so that neither the number of ranks nor their order shows.
func allVersions(ranks []fingerprint) (versions []string) {
	for _, f := range ranks {
		versions = append(versions, f.Versions...)
	}
	slices.Sort(versions)
	return slices.Compact(versions)
}
