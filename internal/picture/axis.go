// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"fmt"
	"math"
)

// Axis maps values to pixels.
type Axis struct {
	Low, High float64 // values
	From, To  float64 // pixels
	Step      float64 // between ticks: 1, 2 or 5 times a power of ten; 0 on a logarithmic axis
}

// NewAxis spans the values from low to high with at most n + 1 ticks.
func NewAxis(low, high, from, to float64, n int) Axis {
	raw := (high - low) / float64(n)
	if !(raw > 0) {
		raw = 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * unit
	for _, m := range []float64{5, 2, 1} {
		if m*unit >= raw*(1-1e-9) {
			step = m * unit
		}
	}
	return Axis{low, max(high, low+1e-9*step), from, to, step}
}

// Widen moves both ends outwards to ticks.
func (a Axis) Widen() Axis {
	a.Low, a.High = math.Floor(a.Low/a.Step+1e-9)*a.Step, math.Ceil(a.High/a.Step-1e-9)*a.Step
	return a
}

// NewLogAxis spans the values from low to high, both above 0, on a logarithmic axis. It has ticks at 1, 2 and 5 times
// the powers of ten.
func NewLogAxis(low, high, from, to float64) Axis { return Axis{low, high, from, to, 0} }

// At is where a value lies; values beyond the axis lie at its end.
func (a Axis) At(v float64) float64 {
	v = min(max(v, a.Low), a.High)
	at := (v - a.Low) / (a.High - a.Low)
	if a.Step == 0 {
		at = math.Log(v/a.Low) / math.Log(a.High/a.Low)
	}
	return a.From + at*(a.To-a.From)
}

// Ticks are the round values on the axis.
func (a Axis) Ticks() (out []float64) {
	if a.Step == 0 {
		for unit := math.Pow(10, math.Floor(math.Log10(a.Low))); unit <= a.High; unit *= 10 {
			for _, m := range []float64{1, 2, 5} {
				if v := m * unit; v >= a.Low && v <= a.High {
					out = append(out, v)
				}
			}
		}
		return out
	}
	for i := math.Ceil(a.Low/a.Step - 1e-9); i <= a.High/a.Step+1e-9; i++ {
		out = append(out, i*a.Step+0) // + 0 makes 0 of -0
	}
	return out
}

// Number writes a tick with the digits that the step needs.
func (a Axis) Number(v float64) string {
	if a.Step == 0 {
		return fmt.Sprintf("%.3g", v)
	}
	return fmt.Sprintf("%.*f", max(0, int(math.Ceil(-math.Log10(a.Step)-1e-9))), v)
}
