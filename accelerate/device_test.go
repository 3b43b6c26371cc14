// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

var devices = map[string]*tensor.Device{}

func init() {
	for _, name := range []string{"deferred:0", "deferred:1"} {
		devices[name] = nil
		tensor.RegisterDevice(name, func() (*tensor.Device, error) { return devices[name], nil })
	}
	tensor.RegisterDevice("absent", func() (*tensor.Device, error) { return nil, errors.New("no such hardware") })
}

// trainOn trains two or more goroutine ranks on the named devices and returns rank 0's weights, gradients and losses.
func trainOn(t *testing.T, ranks int, where func(rank int) *tensor.Device,
	opts ...accelerate.Option) (map[string]string, map[string]string, []accelerate.WindowLoss) {
	list := accelerators(t, ranks, nil, opts...)
	weight, gradient, losses := make([]map[string]string, ranks), make([]map[string]string, ranks),
		make([][]accelerate.WindowLoss, ranks)
	for _, err := range job(t, list, func(acc *accelerate.Accelerator) error {
		r := acc.Rank()
		require.Same(t, where(r), acc.Device())
		var err error
		weight[r], losses[r], err = train(t, acc, 3, everywhere, everywhere)
		for _, p := range acc.Params() {
			require.Same(t, where(r), p.Device())
			require.Same(t, where(r), p.Grad().Device())
		}
		gradient[r] = grads(acc)
		return err
	}) {
		require.NoError(t, err)
	}
	for r := range ranks {
		require.Equal(t, weight[0], weight[r])
		require.Equal(t, gradient[0], gradient[r])
	}
	return weight[0], gradient[0], losses[0]
}

// Goroutine ranks on devices of their own, whose memory the host cannot see, train with the bits of the CPU.
func TestRanksHaveDevices(t *testing.T) {
	for name := range devices {
		devices[name] = joint.Device[*tensor.Device](deferred.New(1))
		defer devices[name].Close()
	}
	for _, ranks := range []int{2, 4} {
		weight, gradient, losses := trainOn(t, ranks, func(int) *tensor.Device { return tensor.CPU() })
		w, g, l := trainOn(t, ranks, func(r int) *tensor.Device {
			return devices[[]string{"deferred:0", "deferred:1"}[r%2]]
		}, accelerate.WithDevices("deferred:0", "deferred:1"))
		require.Equal(t, weight, w)
		require.Equal(t, gradient, g)
		require.Equal(t, losses, l)
		w, _, _ = trainOn(t, ranks, func(int) *tensor.Device {
			return devices["deferred:1"]
		}, accelerate.WithDevices("deferred:1"))
		require.Equal(t, weight, w)
	}
	list, err := accelerate.Replicas(rankArgs(3), 3, accelerate.WithDevices("deferred:0", "deferred:1"))
	require.NoError(t, err)
	for r, acc := range list {
		require.Same(t, devices[[]string{"deferred:0", "deferred:1", "deferred:0"}[r]], acc.Device())
	}
	_, err = accelerate.New(rankArgs(1), accelerate.WithDevices("absent"))
	require.EqualError(t, err, "accelerate: device of local rank 0: no such hardware")
	_, err = accelerate.New(rankArgs(1), accelerate.WithDevices("none"))
	require.ErrorContains(t, err, `no device "none" is built in: want one of absent, cpu, deferred:0`)
}

// The argument device names one device, or a kind of which each rank of a host takes its own, by its number there.
func TestDeviceArgument(t *testing.T) {
	for name := range devices {
		devices[name] = joint.Device[*tensor.Device](deferred.New(1))
		defer devices[name].Close()
	}
	defer accelerate.SetAccelerators("cuda")
	for _, row := range []struct {
		device, accelerator string
		want                []string // of three ranks
	}{
		{"cpu", "deferred", []string{"cpu", "cpu", "cpu"}},
		{"deferred:1", "cuda", []string{"deferred:1", "deferred:1", "deferred:1"}},
		{"deferred", "cuda", []string{"deferred:0", "deferred:1", "deferred:0"}},
		{"auto", "cuda", []string{"cpu", "cpu", "cpu"}}, // the program has none
		{"auto", "deferred", []string{"deferred:0", "deferred:1", "deferred:0"}},
		{"auto", "absent", []string{"cpu", "cpu", "cpu"}}, // the machine has none
	} {
		accelerate.SetAccelerators(row.accelerator)
		a := rankArgs(3)
		a.Device = row.device
		var log bytes.Buffer
		logger := accelerate.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
		list, err := accelerate.Replicas(a, 3, logger)
		require.NoError(t, err)
		deviceOf := func(name string) *tensor.Device {
			if name == "cpu" {
				return tensor.CPU()
			}
			return devices[name]
		}
		for r, acc := range list {
			require.Same(t, deviceOf(row.want[r]), acc.Device(), "%s, rank %d", row.device, r)
		}
		if row.accelerator == "absent" {
			require.Contains(t, log.String(), `computing on the CPU" device=absent error="no such hardware"`)
		} else {
			require.Empty(t, log.String())
		}
		list, err = accelerate.Replicas(a, 1, accelerate.WithDevices("deferred:1"))
		require.NoError(t, err)
		require.Same(t, devices["deferred:1"], list[0].Device(), "the option counts")

		for name, value := range map[string]string{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1",
			"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29400"} {
			t.Setenv(name, value)
		}
		a.NumReplicas = 1
		acc, err := accelerate.New(a, logger)
		require.NoError(t, err)
		require.Same(t, deviceOf(row.want[1]), acc.Device(), "%s, local rank 1", row.device)
		require.NoError(t, acc.Close())
		for _, name := range []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
			"MASTER_PORT"} {
			t.Setenv(name, "")
		}
	}
	a := rankArgs(1)
	a.Device = "absent"
	_, err := accelerate.New(a)
	require.EqualError(t, err, "accelerate: device of local rank 0: no such hardware")
	a.Device = "deferred:7"
	_, err = accelerate.New(a)
	require.EqualError(t, err, `accelerate: device of local rank 0: tensor: no device "deferred:7" is built in: want `+
		"one of absent, cpu, deferred:0, deferred:1")
}

// A model that was made on the CPU is trained elsewhere once it has been moved; its tensors stay the same.
func TestMoveModel(t *testing.T) {
	dev := joint.Device[*tensor.Device](deferred.New(1))
	defer dev.Close()
	acc, err := accelerate.New(rankArgs(1), accelerate.WithDevice(dev))
	require.NoError(t, err)
	m := netOf(nn.NewInit(tensor.CPU(), 3))
	require.ErrorContains(t, acc.Prepare(t.Context(), m, nil), "is on cpu: want deferred: call MoveModel")
	c := tensor.NewCtx(tensor.CPU())
	before, first := tensor.ReadBytes(c, m.First.Weight.Tensor), m.First.Weight.Tensor
	part := tensor.Slice(c.NoGrad(), first, 0, 1, 2)
	inUse := tensor.CPU().MemStats().InUse
	require.NoError(t, acc.MoveModel(m))
	require.Less(t, tensor.CPU().MemStats().InUse, inUse)
	require.Same(t, first, m.First.Weight.Tensor)
	require.Same(t, dev, part.Device())
	require.Equal(t, before, tensor.ReadBytes(acc.Ctx(), first))
	require.NoError(t, acc.MoveModel(m), "it is there")
	require.NoError(t, acc.Prepare(t.Context(), m, adamW))

	first.SwapGrad(tensor.ZerosLike(acc.Ctx().NoGrad(), first), true)
	home, err := accelerate.New(rankArgs(1))
	require.NoError(t, err)
	require.ErrorContains(t, home.MoveModel(m), "first.weight")
}

// A device without TF32 is named once, whatever the number of ranks.
func TestTF32OnTheCPU(t *testing.T) {
	var said bytes.Buffer
	a := args.Default(t.TempDir())
	a.TF32, a.Device = true, "cpu"
	_, err := accelerate.Replicas(a, 3, accelerate.WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(said.String(), "tf32 has no effect: the device has no such mode"), said.String())
	require.Contains(t, said.String(), "device=cpu")
}
