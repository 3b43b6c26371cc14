// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"slices"
	"strings"
)

// Program says what the running program has of the things that settings name. What it has depends on the packages
// that it imports: trainer.Program tells.
type Program struct {
	// Reporters are the names that report_to can choose from.
	Reporters []string
	// Engines are the names that ddp_backend can choose from besides auto, gloo, shm and tcp.
	Engines []string
	// Devices are the names that device can choose from besides auto and cpu: of kinds, as cuda, or with an index, as
	// cuda:0.
	Devices []string
}

// DeviceAuto is an accelerator if the machine and the program have one, and the CPU otherwise.
const DeviceAuto = "auto"

// ForProgram tells the loader what the program has, so that Parse reports what is missing together with all other
// faults. An engine that the program lacks, as nccl without a GPU, is replaced by auto, with a notice: the choice of
// an engine changes no result.
func (l *Loader) ForProgram(p Program) { l.program = &p }

// ValidateFor is Validate together with what can be told of a program.
func (a *TrainingArguments) ValidateFor(p Program) error {
	c := a.checked()
	a.checkProgram(c, p)
	return c.Err()
}

// checkProgram checks report_to, ddp_backend and device against what there is.
func (a *TrainingArguments) checkProgram(c *Checker, p Program) {
	if c.OK("report_to") {
		_, want := reporters(a.ReportTo, append([]string{}, p.Reporters...))
		c.Require(want == "", "report_to", a.ReportTo, want)
	}
	if c.OK("ddp_backend") {
		have := append([]string{"auto", "gloo", "shm", "tcp"}, p.Engines...)
		c.Require(p.hasEngine(a.DDPBackend), "ddp_backend", string(a.DDPBackend),
			fmt.Sprintf("one of %s, which are what this program has", strings.Join(have, ", ")))
	}
	have := []string{DeviceAuto, "cpu"}
	for _, name := range p.Devices {
		kind, _, _ := strings.Cut(name, ":")
		for _, name := range []string{kind, name} {
			if !slices.Contains(have, name) {
				have = append(have, name)
			}
		}
	}
	want := fmt.Sprintf("one of %s, which are what this program has", strings.Join(have, ", "))
	if strings.HasPrefix(a.Device, "cuda") && !slices.Contains(have, "cuda") {
		want += "; cuda needs a GPU and a program that imports tensor/cuda and is built with -tags cuda (docs/gpu.md)"
	}
	c.Require(slices.Contains(have, a.Device), "device", a.Device, want)
}

func (p Program) hasEngine(b Backend) bool {
	return b != BackendNCCL && b != BackendMPI || slices.Contains(p.Engines, string(b))
}

// replaceEngine takes auto for an engine that the user asked for and the program lacks.
func (m *merge) replaceEngine(structs []any) []Notice {
	const key = "ddp_backend"
	a, p := m.loader.training(structs), m.loader.program
	if a == nil || p == nil || m.origins[key] == "" || p.hasEngine(a.DDPBackend) {
		return nil
	}
	tag := map[Backend]string{BackendMPI: "mpi", BackendNCCL: "cuda"}[a.DDPBackend]
	text := fmt.Sprintf("has no effect: built without %[1]s (comm/%[1]s, -tags %[2]s), this program takes %[3]s",
		a.DDPBackend, tag, BackendAuto)
	a.DDPBackend = BackendAuto
	return []Notice{{key, m.origins[key], text}}
}
