// Package nn builds neural networks from tensor ops: parameters, modules, layers,
// losses and initialisation.
//
// A module is a pointer to a struct. Its exported fields of type *Parameter, of module
// types, and slices of modules are its children; a field is named by its nn tag, else
// by its name in lower case, and dotted paths of these names identify parameters in
// checkpoints, as in PyTorch:
//
//	type MLP struct {
//		Up   *nn.Linear `nn:"up"`
//		Down *nn.Linear `nn:"down"`
//	}
//
//	func (m *MLP) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
//		return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
//			return m.Down.Forward(c, tensor.GELU(c.Ctx, m.Up.Forward(c, x)))
//		}, x)
//	}
//
// A chain of layers needs no type of its own: see Sequential.
//
// Fields of type *Buffer are state that is saved with the parameters but not trained, as batch
// norm's running statistics; modules that change them while training are Trackers.
//
// Every Forward runs inside a Unit: that is where names, memory scopes, hooks and
// recomputation attach. The package does not train, shard or save anything.
package nn
