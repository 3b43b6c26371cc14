// SPDX-License-Identifier: Apache-2.0

package backend

// Cost is what a call has to do at least: floating-point operations, counted for products (a multiplication and an
// addition each) and zero for all else, and bytes of the elements that it reads and writes, each once.
func (c *Call) Cost() (flops, bytes float64) {
	for i := range c.NOut {
		bytes += c.Out[i].bytes()
	}
	for i := range c.NIn {
		bytes += c.In[i].bytes()
	}
	switch c.Op {
	case OpMatMul:
		a := &c.In[0]
		flops = 2 * float64(c.Out[0].Numel()) * float64(a.Shape[a.NDim-1])
		if c.Ints[0] == 1 {
			bytes += c.Out[0].bytes()
		}
	case OpLinear:
		flops = 2 * float64(c.Out[0].Numel()) * float64(c.In[0].Shape[1])
	case OpConv2D: // the definition's products, padding included
		flops = convolutionFLOPs(&c.Out[0], &c.In[1])
	case OpConv2DGrad:
		flops = convolutionFLOPs(&c.In[0], &c.In[1])
	case OpConv2DParamGrad:
		flops = convolutionFLOPs(&c.In[1], &c.Out[0])
	case OpAttention: // q·kᵀ and p·v
		flops = 2 * c.scores() * float64(c.In[0].Shape[3]+c.In[2].Shape[3])
	case OpAttentionGrad: // q·kᵀ again, dq and dk; dout·vᵀ and dv
		flops = 2 * c.scores() * float64(3*c.In[0].Shape[3]+2*c.In[2].Shape[3])
	}
	return flops, bytes
}

// convolutionFLOPs is a multiplication and an addition for each result and element of a kernel.
func convolutionFLOPs(results, kernels *View) float64 {
	return 2 * float64(results.Numel()) * float64(kernels.Shape[1]*kernels.Shape[2]*kernels.Shape[3])
}

// scores is the number of pairs of a query and a key that it sees, if queries and keys begin together.
func (c *Call) scores() float64 {
	q, k := &c.In[0], &c.In[1]
	pairs := float64(q.Shape[2]) * float64(k.Shape[2])
	if c.Ints[0] == 1 && q.Shape[2] == k.Shape[2] {
		pairs = pairs / 2 * (1 + 1/float64(max(1, q.Shape[2])))
	}
	return float64(q.Shape[0]) * float64(q.Shape[1]) * pairs
}

// bytes is the size of the elements that the view shows, repeated ones counted once.
func (v *View) bytes() float64 {
	n := float64(v.DType.Size())
	for d, s := range v.Shape[:v.NDim] {
		if v.Stride[d] != 0 || s == 0 {
			n *= float64(s)
		}
	}
	return n
}
