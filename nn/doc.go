// SPDX-License-Identifier: Apache-2.0

// Package nn has the building blocks of neural networks: layers, losses, parameters and their initialisation. Use it to
// write your own model; complete models are in packages below models. A module is a struct of layers with a Forward
// method. Start with [NewInit] and a layer such as [NewLinear].
//
// The exported fields of type [*Parameter], of module types, and slices and maps of modules are the module's
// children. A field is named by its nn tag, else by its name in lower case. Dotted paths of these names
// identify parameters in saved files, as in PyTorch; [NamedParameters] lists them:
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
// Every Forward runs inside [Unit] or [Unit1]: names for random numbers and errors, memory scopes, hooks and
// recomputation depend on it. Your own layer gets its parameters' tensors from [Ctx.Param]. Losses are sums over their
// terms, not means: the trainer divides once, by the number of terms of the whole step.
//
// Package nn does not train (see packages trainer and optim) and does not read or write files (see package
// models).
//
// # For packages that train
//
// [Tree], [Hooks], [Observer], [DecayNames], [Clone] and the With methods of [Ctx] are for packages
// that run other people's modules, as trainer and accelerate do. A model needs none of them.
package nn
