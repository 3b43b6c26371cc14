// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/nvml"
)

const envUsage = `usage: lockstep env [FLAGS]

Shows the rank and world size that a program started here would have, and the variable that
each value comes from; then the resources of the machine. The exit code is 1 if the
variables are incomplete or contradict each other.

`

// report is what lockstep env shows.
type report struct {
	Build       build            `json:"build"`
	Kernels     kernelReport     `json:"kernels"`
	Host        env.Host         `json:"host"`
	GPUs        gpuReport        `json:"gpus"`
	Environment *env.Environment `json:"environment"`
	Mesh        string           `json:"mesh,omitempty"`  // of several ranks, as the variables have it
	Place       string           `json:"place,omitempty"` // this rank's, in the mesh
	Error       string           `json:"error,omitempty"` // why there is no environment
}

type kernelReport struct {
	Active    string   `json:"active"`
	Available []string `json:"available"`
	Error     string   `json:"error,omitempty"`
}

type gpuReport struct {
	Driver  string     `json:"driver,omitempty"`
	Source  string     `json:"source,omitempty"` // who was asked, as nvidia-smi
	Devices []nvml.GPU `json:"devices"`
	Error   string     `json:"error,omitempty"` // of a driver that does not answer
}

// findGPUs lists the GPUs of the host.
func findGPUs() (r gpuReport) {
	l, err := nvml.Open()
	switch {
	case errors.Is(err, nvml.ErrNone):
		return r
	case err != nil:
		r.Error = err.Error()
		return r
	}
	r = gpuReport{Driver: l.Driver(), Source: l.Source(), Devices: l.GPUs()}
	if err := l.Close(); err != nil {
		r.Error = err.Error()
	}
	return r
}

// env shows the environment.
func (p *program) env(argv []string) int {
	fs := pflag.NewFlagSet("env", pflag.ContinueOnError)
	asJSON := fs.Bool("json", false, "print JSON")
	if code, done := p.parse(fs, argv, envUsage); done {
		return code
	}
	if code, done := p.noWords(fs); done {
		return code
	}
	r := p.look()
	if *asJSON {
		encoder := json.NewEncoder(p.stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(r); err != nil {
			p.complain("lockstep: env: %v", err)
			return exitError
		}
	} else {
		p.show(r)
	}
	if r.Error != "" || r.Kernels.Error != "" {
		return exitError
	}
	return exitOK
}

func (p *program) look() *report {
	r := &report{Build: readBuild(), Host: env.ReadHost(p.lookup), GPUs: findGPUs()}
	for _, v := range kernels.Available() {
		r.Kernels.Available = append(r.Kernels.Available, v.String())
	}
	if err := kernels.Init(); err != nil {
		r.Kernels.Error = err.Error()
	} else {
		r.Kernels.Active = kernels.Active().String()
	}
	e, err := env.Detect(p.lookup)
	if err != nil {
		r.Error = err.Error()
	}
	r.Environment = e
	if e != nil {
		r.arrange(p.lookup)
	}
	return r
}

// arrange finds the mesh, and this rank's place in it.
func (r *report) arrange(lookup env.Lookup) {
	a, err := meshArguments(lookup)
	if err != nil {
		r.Error = err.Error()
		return
	}
	ranks := max(r.Environment.WorldSize, a.NumReplicas)
	m, err := accelerate.MeshOf(a, ranks)
	if err != nil {
		r.Error = err.Error()
		return
	}
	if ranks == 1 {
		return
	}
	var place []string
	for axis := comm.PP; axis <= comm.TP; axis <<= 1 {
		if m.Size(axis) > 1 && r.Environment.Distributed() {
			place = append(place, fmt.Sprintf("%v %d", axis, m.Coord(r.Environment.Rank, axis)))
		}
	}
	r.Mesh, r.Place = m.Drawing(), strings.Join(place, ", ")
}

// show prints the report as a table.
func (p *program) show(r *report) {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "lockstep\t%s\n", r.Build.Version)
	fmt.Fprintf(w, "go\t%s\t%s\n", r.Build.Go, r.Build.Platform)
	if r.Kernels.Error != "" {
		fmt.Fprintf(w, "kernels\terror\t%s\n", r.Kernels.Error)
	} else {
		fmt.Fprintf(w, "kernels\t%s\tavailable: %s; %s chooses\n", r.Kernels.Active,
			strings.Join(r.Kernels.Available, ", "), kernels.EnvVar)
	}
	fmt.Fprintf(w, "cores\t%d\t%s\n", r.Host.Cores, r.Host.CoresSource)
	if r.Host.Memory > 0 {
		fmt.Fprintf(w, "memory\t%.1f GiB\t%s\n", float64(r.Host.Memory)/(1<<30), r.Host.MemorySource)
	} else {
		fmt.Fprintf(w, "memory\tunknown\n")
	}
	for _, g := range r.GPUs.Devices {
		fmt.Fprintf(w, "gpu %d\t%s\t%.1f GiB, compute capability %s, %s; driver %s, by %s\n", g.Index, g.Name,
			float64(g.Memory)/(1<<30), g.Capability, g.PCI, r.GPUs.Driver, r.GPUs.Source)
	}
	if r.GPUs.Error != "" {
		fmt.Fprintf(w, "gpus\terror\t%s\n", r.GPUs.Error)
	} else if len(r.GPUs.Devices) == 0 {
		fmt.Fprintf(w, "gpus\tnone\n")
	}
	if r.Environment != nil {
		for _, f := range r.Environment.Findings {
			fmt.Fprintf(w, "%s\t%s\t%s\n", f.Field, f.Value, f.Source)
		}
	}
	if r.Mesh != "" {
		place := "of the ranks of one process (num_replicas)"
		if r.Place != "" {
			place = "this rank: " + r.Place
		}
		fmt.Fprintf(w, "mesh\t%s\t%s\n", r.Mesh, place)
	}
	w.Flush()
	if r.Environment != nil {
		for _, n := range r.Environment.Notes {
			fmt.Fprintln(p.stdout, "note:", n)
		}
	}
	if r.Error != "" {
		p.complain("lockstep: env: %v", r.Error)
	}
}
