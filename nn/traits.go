// SPDX-License-Identifier: Apache-2.0

package nn

// Traits describe the parameters in a module and its children. A module declares them by a method Traits() nn.Traits;
// without it there are none.
type Traits struct {
	// Norm: the module is a normalization layer, whose parameters never decay; see [DecayNames].
	Norm bool
	// Projection: the parameters are only read as weights and biases of products (tensor.Linear, tensor.AddMM), as
	// those of [Linear]. Under tensor.Ctx.Autocast their rounded copies are all that a step needs, so ranks that gather
	// parameters send those. A module that reads one in float32 all the same gets it, at the cost of another exchange.
	Projection bool
	// Embedding: the parameters are tables whose rows are looked up, as that of [Embedding]; see [Tree.Embeddings].
	Embedding bool
	// InOut: the weight of a linear layer, a Projection, is [in, out], as in GPT-2's checkpoints, and not [out, in] as
	// in [Linear].
	InOut bool
	// HeadDim is how many features of a linear layer are a head of attention: of the outputs of a projection to
	// queries, keys or values, and of the inputs of the one after attention. Tensor parallelism does not divide a head.
	// 0: there are no heads.
	HeadDim int
	// Heads and KVHeads are how many heads of queries and of keys an attention has, which ranks may divide among them;
	// 0: the module is none.
	Heads, KVHeads int
}

// with adds what a module within states.
func (t Traits) with(m Module) Traits {
	if s, ok := m.(interface{ Traits() Traits }); ok {
		own := s.Traits()
		t.Norm = t.Norm || own.Norm
		if own.Projection { // adapters are linear layers within one
			t.Projection, t.InOut = true, own.InOut
		}
		t.Embedding = t.Embedding || own.Embedding
		if own.HeadDim > 0 {
			t.HeadDim, t.Heads, t.KVHeads = own.HeadDim, own.Heads, own.KVHeads
		}
	}
	return t
}

// Traits returns the traits that the modules around a parameter, given by name, declare.
func (t *Tree) Traits(name string) Traits { return t.traits[name] }

// Projected is the set of the parameters, by name, that lie in a Projection and have no other use.
func (t *Tree) Projected() map[string]bool {
	tied := map[string]bool{}
	for _, of := range t.aliases {
		tied[of] = true
	}
	names := map[string]bool{}
	for _, p := range t.params {
		if t.traits[p.Name].Projection && !tied[p.Name] {
			names[p.Name] = true
		}
	}
	return names
}

// Embeddings lists the names of the parameters that are tables of embeddings. Optimizers treat them differently from
// other matrices, see optim.Group.
func (t *Tree) Embeddings() (names []string) {
	for _, p := range t.params {
		if t.traits[p.Name].Embedding {
			names = append(names, p.Name)
		}
	}
	return names
}
