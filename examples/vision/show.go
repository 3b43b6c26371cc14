// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/images"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// shades are the brightnesses of a picture in characters, from black on.
const shades = " .:-=+*#%@"

// Pictures in characters: beside each other, and no wider than a terminal.
const (
	shown    = 3
	maxWidth = 32
)

// show prints some pictures that the model has not learned from, with what it takes them for.
func (j *job) show() error {
	var some []images.Image
	for i := range min(shown, j.test.Len()) {
		x, err := j.test.Get(i)
		if err != nil {
			return err
		}
		if x.Width > maxWidth {
			return nil // too wide for this
		}
		some = append(some, x)
	}
	guesses, err := j.classify(some)
	if err != nil {
		return err
	}
	names := j.net.Labels()
	captions := make([]string, len(some))
	for i, x := range some {
		verdict := "right"
		if int64(guesses[i]) != x.Label {
			verdict = "wrong, it is " + names[x.Label]
		}
		captions[i] = fmt.Sprintf("%s (%s)", names[guesses[i]], verdict)
	}
	if width := j.Width(); width > 0 { // as many as fit beside each other
		n := max(1, (width+2)/(cellWidth(some, captions)+2))
		some, captions = some[:min(n, len(some))], captions[:min(n, len(some))]
	}
	writePictures(j.Stdout, some, captions)
	return nil
}

// classify returns the likeliest class of each image.
func (j *job) classify(some []images.Image) (guesses []int, err error) {
	tree := nn.Walk(j.net)
	c := nn.NewCtx(tensor.NewCtx(tree.Parameters()[0].Device()).NoGrad(), tree, false)
	_, err = c.TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
		b, err := j.norm.Collate(c.Ctx, some)
		if err != nil {
			return nil, err
		}
		delete(b.Tensors, data.Labels) // no loss is wanted
		for _, g := range tensor.ToSlice[int64](c.Ctx, tensor.ArgMax(c.Ctx, j.net.Forward(c, b).Logits, 1, false)) {
			guesses = append(guesses, int(g))
		}
		return nil, nil
	})
	return guesses, err
}

// brightness is that of a pixel: of a color, its luma by ITU-R BT.601.
func brightness(x images.Image, at int) int {
	if x.Channels != 3 {
		return int(x.Pixels[at])
	}
	plane := x.Height * x.Width
	r, g, b := int(x.Pixels[at]), int(x.Pixels[plane+at]), int(x.Pixels[2*plane+at])
	return (299*r + 587*g + 114*b) / 1000
}

// cellWidth is how wide the widest picture or caption is.
func cellWidth(some []images.Image, captions []string) (width int) {
	for i, x := range some {
		width = max(width, x.Width, len([]rune(captions[i])))
	}
	return width
}

// writePictures draws pictures beside each other, two rows of pixels to a line, above their captions.
func writePictures(w io.Writer, some []images.Image, captions []string) {
	if len(some) == 0 {
		return
	}
	width := cellWidth(some, captions)
	line := func(cell func(i int) string) {
		var b strings.Builder
		for i := range some {
			fmt.Fprintf(&b, "%-*s  ", width, cell(i))
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
	for y := 0; y < some[0].Height; y += 2 {
		line(func(i int) string {
			x := some[i]
			cell := make([]byte, x.Width)
			for k := range cell {
				v := brightness(x, y*x.Width+k)
				if y+1 < x.Height {
					v = (v + brightness(x, (y+1)*x.Width+k)) / 2
				}
				cell[k] = shades[v*len(shades)/256]
			}
			return string(cell)
		})
	}
	line(func(i int) string { return captions[i] })
}
