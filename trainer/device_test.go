// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

var deferredDevices = map[string]*tensor.Device{"deferred:0": nil, "deferred:1": nil}

func init() {
	for name := range deferredDevices {
		tensor.RegisterDevice(name, func() (*tensor.Device, error) { return deferredDevices[name], nil })
	}
}

// openDeferred makes the deferred devices, whose memory the host cannot see.
func openDeferred(t *testing.T) {
	for name := range deferredDevices {
		deferredDevices[name] = joint.Device[*tensor.Device](deferred.New(1))
		t.Cleanup(func() { require.NoError(t, deferredDevices[name].Close()) })
	}
}

// The argument device moves the model and the run, whose evaluations and checkpoints have the bits of the CPU. Each
// rank of the process takes a device.
func TestDevice(t *testing.T) {
	openDeferred(t)
	want := trainOnRanks(t, 2)
	for device, of := range map[string][]string{"deferred": {"deferred:0", "deferred:1"},
		"deferred:1": {"deferred:1"}} {
		m := newGPT2(t, 0.2)
		got := trainModel(t, m, vfs.NewMem(), 2, func(a *args.TrainingArguments) { a.Device = device })
		require.Equal(t, want.weights, got.weights)
		require.Equal(t, want.history, got.history)
		require.Equal(t, contents(t, want.disk, 4)["model.safetensors"], contents(t, got.disk, 4)["model.safetensors"])
		require.Same(t, deferredDevices[of[0]], nn.NamedParameters(m)[0].Device())
		for _, name := range of {
			require.Positive(t, deferredDevices[name].MemStats().Peak, name)
		}
	}
}

// Sharded models whose memory the host cannot see have the bits of the CPU too: what is gathered, also rounded under
// bf16, and what stays.
func TestShardedModelsOnDevices(t *testing.T) {
	for what, set := range map[string]func(a *args.TrainingArguments){
		"float32": func(*args.TrainingArguments) {},
		"bf16":    func(a *args.TrainingArguments) { a.BF16, a.GradientCheckpointing = true, true },
		"some stay": func(a *args.TrainingArguments) {
			a.BF16, a.FSDPIgnoredModules, a.FSDPPersistenceThreshold = true, `.*\.mlp`, 100
		},
	} {
		if testing.Short() && what != "some stay" {
			continue // which has of both others
		}
		one := trainOnRanks(t, 1, func(a *args.TrainingArguments) {
			set(a)
			a.FSDPIgnoredModules = ""
		})
		for name, strategy := range shardings {
			if name == "fsdp hybrid_shard" {
				continue // of one rank each
			}
			openDeferred(t)
			got := trainOnRanks(t, 2, set, strategy, func(a *args.TrainingArguments) { a.Device = "deferred" })
			require.Equal(t, one.history, got.history, "%s, %s", what, name)
			require.Equal(t, one.weights, got.weights, "%s, %s", what, name)
		}
	}
}

// The device is the program's business, so one that it lacks is known before the run. An option takes the place of the
// argument.
func TestDeviceThatIsMissing(t *testing.T) {
	openDeferred(t)
	a := args.Default(out)
	a.Device = "tpu"
	require.ErrorContains(t, newTrainer(vfs.NewMem(), newGPT2(t, 0), a).Err(),
		`device is "tpu": want one of auto, cpu, `+
			"deferred, deferred:0, deferred:1, which are what this program has")
	a = args.Default(out)
	m := newGPT2(t, 0)
	require.NoError(t, newTrainer(vfs.NewMem(), m, a, trainer.WithDevices("deferred:1")).Err())
	require.Same(t, deferredDevices["deferred:1"], nn.NamedParameters(m)[0].Device())
}

// The peak of a device is divided among the ranks of the process that share it, and no others.
func TestMemoryOfRanksOnDevicesOfTheirOwn(t *testing.T) {
	peak := map[string]float64{}
	for _, device := range []string{"deferred", "deferred:0"} {
		openDeferred(t)
		a := args.Default(out)
		a.PerDeviceTrainBatchSize, a.MaxSteps, a.SaveStrategy, a.NumReplicas = 2, 3, args.StrategyNo, 2
		a.SkipMemoryMetrics, a.Device = false, device
		res, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(texts(64))).Train()
		require.NoError(t, err)
		peak[device] = res.Metrics["train_mem_peak"]
		of := float64(deferredDevices["deferred:0"].MemStats().Peak)
		if device == "deferred:0" {
			of /= 2
		}
		require.GreaterOrEqual(t, peak[device], of)
		require.Less(t, peak[device], 1.5*of, "its gradients lie in the memory of the group")
	}
}
