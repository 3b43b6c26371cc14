// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"fmt"
	"html"
	"strings"
)

// drawMemory makes an SVG of a rank's memory under each contender: what its parameters, gradients and optimizer state
// take, and what the process holds between steps, of shared pages its part.
func drawMemory(names []string, all map[string]*measured) string {
	const left, width, row, top = 190, 640, 44, 50
	most := int64(1)
	for _, name := range names {
		most = max(most, all[name].last[0].PSS)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" `+
		`font-size="12">`+"\n"+`<rect width="100%%" height="100%%" fill="white"/>`+"\n", left+width+130, top+row*len(names))
	for i, kind := range []string{"parameters, gradients, optimizer state", "memory of the process between steps"} {
		fmt.Fprintf(&b, `<rect x="%d" y="16" width="12" height="12" fill="%s"/><text x="%d" y="26">%s</text>`+"\n",
			left+300*i, bars[i], left+300*i+18, kind)
	}
	for i, name := range names {
		y := top + row*i
		_, strategy, ok := strings.Cut(name, ":")
		if !ok {
			strategy = "ddp"
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-10, y+20, html.EscapeString(strategy))
		for j, n := range []int64{all[name].last[0].State, all[name].last[0].PSS} {
			if n == 0 {
				continue // PyTorch's is not counted
			}
			w := float64(width) * float64(n) / float64(most)
			fmt.Fprintf(&b, `<rect class="memory" x="%d" y="%d" width="%.1f" height="15" fill="%s"/>`+
				`<text x="%.1f" y="%d">%.0f MB</text>`+"\n", left, y+17*j, w, bars[j], left+w+6, y+17*j+12, float64(n)/1e6)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

var bars = []string{"#5b8fc9", "#c9d8ea"}
