// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Compute the sum of squares and its gradient.
func Example() {
	c := tensor.NewCtx(tensor.CPU())
	w := tensor.FromSlice(c, []float32{1, 2, 3}, 3).SetRequiresGrad(true)
	loss := tensor.Sum(c, tensor.Mul(c, w, w), nil, false)
	tensor.Backward(c, []*tensor.Tensor{loss}, nil, nil)
	fmt.Println(tensor.Item(c, loss), tensor.ToSlice[float32](c, w.Grad()))
	// Output: 14 [2 4 6]
}

// A scope frees what was made inside, except for what it returns.
func ExampleCtx_Scope() {
	c := tensor.NewCtx(tensor.CPU())
	x := tensor.FromSlice(c, []float32{1, 2, 3, 4}, 2, 2)
	y := c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		product := tensor.MatMul(c, x, x) // freed at the end of the scope
		return []*tensor.Tensor{tensor.ReLU(c, tensor.Affine(c, product, 1, -10))}
	})[0]
	fmt.Println(y.Shape(), tensor.ToSlice[float32](c, y))
	// Output: [2 2] [0 0 5 12]
}

// Misuse panics; Try makes the panic an error.
func ExampleTry() {
	c := tensor.NewCtx(tensor.CPU())
	a, b := tensor.Ones(c, tensor.Float32, 2, 3), tensor.Ones(c, tensor.Float32, 4, 5)
	err := tensor.Try(func() { tensor.MatMul(c, a, b) })
	fmt.Println(err)
	// Output: tensor.MatMul(float32[2 3], float32[4 5]): inner sizes differ: 3 and 4
}
