// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// imageRows are convolutions, batch norm and pooling as ResNet-18 has them for 32 images of 64×64 pixels, each forward
// and backward, and its whole training step.
func imageRows() []row {
	// Input channels, output channels, kernel, stride, and the image's height and width.
	all := []row{resNet18()}
	for _, k := range [][5]int{{3, 64, 7, 2, 64}, {64, 64, 3, 1, 16}, {64, 128, 3, 2, 16}, {64, 128, 1, 2, 16},
		{128, 128, 3, 1, 8}, {128, 256, 3, 2, 8}, {256, 256, 3, 1, 4},
		{256, 512, 3, 2, 4}, {512, 512, 3, 1, 2}} {
		all = append(all, conv2D(k[0], k[1], k[2], k[3], k[4]))
	}
	for _, s := range [][2]int{{64, 32}, {64, 16}, {512, 2}} {
		all = append(all, onImages(fmt.Sprintf("batch_norm_%d_%d", s[0], s[1]), s[0], s[1],
			func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
				y, _, _ := tensor.BatchNorm(c, x, nil, nil, 1e-5)
				return y
			}))
	}
	return append(all, onImages("max_pool_64_32", 64, 32, func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.MaxPool2D(c, x, tensor.Pool2DOptions{Kernel: [2]int{3, 3}, Stride: [2]int{2, 2},
			Padding: [2]int{1, 1}})
	}))
}

const imageBatch = 32

// onImages is a function of 32 images and its gradient.
func onImages(name string, channels, size int, f func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor) row {
	return row{name: name, bytes: 20 * float64(imageBatch*channels*size*size), against: []side{kept}, extra: true,
		open: func(threads int) (run, end func()) {
			dev := tensor.NewCPU(threads)
			c := tensor.NewCtx(dev)
			x := filled(c, imageBatch, channels, size, size).SetRequiresGrad(true)
			return func() { backward(c, func(c *tensor.Ctx) *tensor.Tensor { return f(c, x) }, x) }, func() {
				dev.Close()
			}
		}}
}

// backward computes a function and the gradients of leaves, and drops them, all inside a scope.
func backward(c *tensor.Ctx, f func(c *tensor.Ctx) *tensor.Tensor, leaves ...*tensor.Tensor) {
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		y := f(c)
		tensor.Backward(c, []*tensor.Tensor{y},
			[]*tensor.Tensor{tensor.Expand(c, tensor.Full(c, tensor.Float32, 1), y.Shape()...)}, leaves)
		return nil
	})
}

// conv2D is a convolution of 32 images with the gradients of images, unless they have three channels, and kernels.
func conv2D(in, out, kernel, stride, size int) row {
	places := (size + stride - 1) / stride
	passes := 3
	if in == 3 {
		passes = 2
	}
	flops := 2 * float64(passes*imageBatch*out*in) * float64(kernel*kernel*places*places)
	return row{name: fmt.Sprintf("conv2d_%d_%d_%d_%d_%d", in, out, kernel, stride, size), flops: flops,
		against: []side{kept}, extra: true, open: func(threads int) (run, end func()) {
			dev := tensor.NewCPU(threads)
			c := tensor.NewCtx(dev)
			x, w := filled(c, imageBatch, in, size, size), filled(c, out, in, kernel, kernel).SetRequiresGrad(true)
			leaves := []*tensor.Tensor{w}
			if in != 3 {
				leaves = append(leaves, x.SetRequiresGrad(true))
			}
			opt := tensor.Conv2DOptions{Stride: [2]int{stride, stride}, Padding: [2]int{kernel / 2, kernel / 2}}
			return func() {
				backward(c, func(c *tensor.Ctx) *tensor.Tensor { return tensor.Conv2D(c, x, w, nil, opt) }, leaves...)
			}, func() { dev.Close() }
		}}
}

// resNet18 is a training step of ResNet-18 with a thousand classes by SGD with momentum.
func resNet18() row {
	return row{name: "resnet18", flops: 28.5e9, against: []side{kept}, open: func(threads int) (run, end func()) {
		dev := tensor.NewCPU(threads)
		names := make([]string, 1000)
		for i := range names {
			names[i] = fmt.Sprint(i)
		}
		m, err := resnet.New(nn.NewInit(dev, 1), resnet.ResNet18(names...))
		if err != nil {
			panic(err)
		}
		c, tree := tensor.NewCtx(dev), nn.Walk(m)
		opt := optim.SGD{Momentum: 0.9}.New(c, []*optim.Group{{Params: tree.Parameters(), LR: 1e-3}})
		labels := make([]int64, imageBatch)
		for i := range labels {
			labels[i] = int64(i * 7919 % 1000)
		}
		b := &data.Batch{Tensors: map[string]*tensor.Tensor{
			data.PixelValues: filled(c, imageBatch, 3, 64, 64), data.Labels: tensor.FromSlice(c, labels, imageBatch),
		}}
		return func() {
			opt.ZeroGrad()
			nn.NewCtx(c, tree, true).Scope(func(c *nn.Ctx) []*tensor.Tensor {
				tensor.Backward(c.Ctx, []*tensor.Tensor{m.Forward(c, b).Loss},
					[]*tensor.Tensor{tensor.Full(c.Ctx, tensor.Float32, 1.0/imageBatch)}, nil)
				return nil
			})
			opt.Step(c)
		}, func() { dev.Close() }
	}}
}
