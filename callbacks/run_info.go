// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// RunInfo describes the run and its machine. The trainer passes it with train_begin.
type RunInfo struct {
	Device    string // "cpu"
	Kernels   string // the variant of the device's kernels, as "avx512"; "" if there is only one
	Threads   int    // that a kernel may use; 0 if the device does not say
	Ranks     int    // 1 or more
	Mesh      string // of several ranks, as "dp_replicate=2,dp_shard=2 [[0 1] [2 3]]"
	Precision string // the parameters' dtype, as "float32"
	// of mixed precision: what computes in which dtype, as "products bfloat16; norms float32"; "" without
	DTypes string
	// how the model is cut, as "full_shard: 13 units, 3.1 MB of parameters per rank, gathered"; "" where each rank has
	// all of it
	Sharding   string
	Parameters int64   // elements of all parameters, tied ones counted once
	Trainable  int64   // elements of those that are trained
	Samples    int64   // in the training set, 0 if it has no length
	Steps      int64   // optimizer steps of the whole run
	FromStep   int64   // steps done before: those of the run that this one resumes
	Resumed    string  // the checkpoint that the run continues from; "" for a new run
	BatchSize  int     // samples of one forward pass on one rank
	TotalBatch int     // samples of an optimizer step, over all ranks
	Seconds    float64 // of training that a resumed run has used of max_train_seconds
}

// String returns both parts in one line: Machine and Work.
func (r RunInfo) String() string { return r.Machine() + ": " + r.Work() }

// Machine says where the run takes place, and how the model is cut: "training on cpu (avx512, 2 threads), 1 rank,
// float32".
func (r RunInfo) Machine() string {
	var details []string
	if r.Threads > 0 { // of a device that computes with the CPU's kernels
		if r.Kernels != "" {
			details = append(details, r.Kernels)
		}
		details = append(details, quantity.Of(r.Threads, "thread"))
	}
	device := r.Device
	if len(details) > 0 {
		device += " (" + strings.Join(details, ", ") + ")"
	}
	machine := fmt.Sprintf("training on %s, %s, %s", device, quantity.Of(r.Ranks, "rank"), r.Precision)
	if strings.Contains(r.Mesh, ",") || strings.HasPrefix(r.Mesh, "pp=") { // more than one axis, or a pipeline
		machine += ", mesh " + r.Mesh
	}
	if r.Sharding != "" {
		machine += ", " + r.Sharding
	}
	return machine
}

// Work says how much there is to do: "1.07M parameters, 54,765 samples, 800 steps of 8". Where some parameters are
// frozen it gives how many are trained, of a resumed run the step and the checkpoint that it continues from, and of
// steps of several batches their size.
func (r RunInfo) Work() string {
	parameters := metric(float64(r.Parameters)) + " parameters"
	if r.Parameters == 1 {
		parameters = "1 parameter"
	}
	if r.Trainable != r.Parameters {
		parameters = fmt.Sprintf("%s of %s trainable", metric(float64(r.Trainable)), parameters)
	}
	steps := fmt.Sprintf("%s of %s", quantity.Of(r.Steps, "step"), quantity.Thousands(r.TotalBatch))
	if r.TotalBatch != r.BatchSize {
		steps += fmt.Sprintf(" (batches of %s)", quantity.Thousands(r.BatchSize))
	}
	if r.FromStep > 0 {
		steps += " from step " + quantity.Thousands(r.FromStep)
	}
	if r.Resumed != "" {
		steps += " (" + r.Resumed + ")"
	}
	if r.Samples == 0 {
		return parameters + ", " + steps
	}
	return strings.Join([]string{parameters, quantity.Of(r.Samples, "sample"), steps}, ", ")
}
