// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"io"

	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/tensor"
)

// SaveTensors writes the tensors as one safetensors file. Each is copied to the host when its turn comes.
func SaveTensors(c *tensor.Ctx, w io.Writer, tensors []tensor.Named) error {
	list := make([]safetensors.Tensor, len(tensors))
	for i, n := range tensors {
		list[i] = safetensors.Tensor{Name: n.Name, DType: n.DType(), Shape: n.Shape(), Write: func(w io.Writer) error {
			_, err := w.Write(tensor.ReadBytes(c, n.Tensor))
			return err
		}}
	}
	return safetensors.Write(w, list, safetensors.PyTorchMetadata())
}

// SetPart is the arrays of an open set as one safetensors file. It is for programs that merge what several
// ranks wrote; each array is in memory while it is written.
func SetPart(name string, set *safetensors.Set) Part {
	return Part{Name: name, Write: func(w io.Writer) error {
		var list []safetensors.Tensor
		for _, tensor := range set.Names() {
			a, _ := set.Lookup(tensor)
			list = append(list, safetensors.Tensor{Name: tensor, DType: a.DType, Shape: a.Shape,
				Write: func(w io.Writer) error {
					section, err := a.Section(a.Placement())
					if err != nil {
						return err
					}
					_, err = io.Copy(w, section)
					return err
				}})
		}
		return safetensors.Write(w, list, safetensors.PyTorchMetadata())
	}}
}
