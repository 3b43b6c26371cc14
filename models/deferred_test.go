// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A model that is read when it is used has no memory before, and the same weights and buffers afterwards, in every
// architecture and in a copy of it too.
func TestDeferredWeightsAreReadWhenTheyAreUsed(t *testing.T) {
	for _, dir := range []string{"gpt2/testdata/tiny", "gpt2/testdata/classifier", "resnet/testdata/basic",
		"resnet/testdata/bottleneck"} {
		dir := filepath.FromSlash(dir)
		now, err := models.LoadPretrained(tensor.CPU(), dir)
		require.NoError(t, err)
		dev := tensor.NewCPU(1)
		later, err := models.LoadPretrained(dev, dir, models.Deferred())
		require.NoError(t, err)
		held := dev.MemStats().InUse
		again, err := nn.Clone(later, dev)
		require.NoError(t, err)
		require.Equal(t, 2*held, dev.MemStats().InUse, "a copy has buffers alone, too")
		size := int64(0)
		for _, p := range nn.NamedParameters(now) {
			size += int64(p.Bytes())
		}
		require.Less(t, held, size/3, "buffers")
		for _, m := range []nn.Module{later, again} {
			require.Equal(t, bits(now), bits(m), dir)
		}
		require.Nil(t, nn.NamedParameters(later)[0].Deferred())
		require.NoError(t, dev.Close())
	}
}

// What is wrong with values is an error of what uses them, which names the weight.
func TestDeferredWeightsThatAreNotFinite(t *testing.T) {
	const name = "transformer.wpe.weight"
	m := smallGPT2(t, 3, nil)
	set(m, name, 5, math.NaN())
	dir := save(t, m)
	loaded, err := models.LoadPretrained(tensor.CPU(), dir, models.Deferred())
	require.NoError(t, err)
	require.ErrorContains(t, tensor.Try(func() { weights(loaded) }),
		"models: the saved weights are not finite: "+name+" has 1 of 64")
	loaded, err = models.LoadPretrained(tensor.CPU(), dir, models.Deferred(), models.AllowNonFinite(name))
	require.NoError(t, err)
	require.Equal(t, weights(m), weights(loaded))
}

func bits(m nn.Module) map[string]string {
	list := map[string]string{}
	for _, p := range nn.Walk(m).State() {
		list[p.Name] = string(tensor.ReadBytes(tensor.NewCtx(p.Device()).NoGrad(), p.Tensor))
	}
	return list
}
