// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAxis: ticks are 1, 2 or 5 times a power of ten.
func TestAxis(t *testing.T) {
	a := NewAxis(4.03, 6.53, 0, 100, 6)
	require.InDeltaSlice(t, []float64{4.5, 5, 5.5, 6, 6.5}, a.Ticks(), 1e-9)
	a = a.Widen()
	require.InDeltaSlice(t, []float64{4, 4.5, 5, 5.5, 6, 6.5, 7}, a.Ticks(), 1e-9)
	require.InDelta(t, 50, a.At(5.5), 1e-9)
	require.InDelta(t, 100, a.At(9), 1e-9)
	require.Equal(t, "4.5", a.Number(4.5))

	step := NewAxis(0, 112.9, 120, 820, 8)
	require.InDeltaSlice(t, []float64{0, 20, 40, 60, 80, 100}, step.Ticks(), 1e-9)
	require.InDelta(t, 820, step.At(112.9), 1e-9)
	require.Equal(t, "100", step.Number(100))
	require.Equal(t, "0", step.Number(step.Ticks()[0]))

	require.Equal(t, 1000.0, NewAxis(0, 10000, 0, 1, 10).Step)
	require.Len(t, NewAxis(3, 3, 0, 1, 5).Ticks(), 1, "an axis of one value")
	require.InDeltaSlice(t, []float64{-20, 0, 20}, NewAxis(-25, 25, 0, 1, 3).Ticks(), 1e-9)

	l := NewLogAxis(0.4, 30, 0, 100)
	require.InDeltaSlice(t, []float64{0.5, 1, 2, 5, 10, 20}, l.Ticks(), 1e-9)
	require.InDelta(t, 50, l.At(math.Sqrt(0.4*30)), 1e-9)
	require.Equal(t, "0.5", l.Number(0.5))
}

// rgb is a colour of light, 0 to 1, without the screen's gamma.
type rgb [3]float64

func parse(t *testing.T, hex string) rgb {
	t.Helper()
	var v [3]int
	_, err := fmt.Sscanf(hex, "#%02x%02x%02x", &v[0], &v[1], &v[2])
	require.NoError(t, err)
	var out rgb
	for i := range v {
		c := float64(v[i]) / 255
		if out[i] = c / 12.92; c > 0.04045 {
			out[i] = math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	return out
}

// contrast is WCAG's ratio of two colours.
func contrast(a, b rgb) float64 {
	light := func(c rgb) float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] + 0.05 }
	return max(light(a), light(b)) / min(light(a), light(b))
}

// eyes are what each kind of colour vision makes of a colour: Machado, Oliveira and Fernandes, "A Physiologically-based
// Model for Simulation of Color Vision Deficiency", 2009, at severity 1.
var eyes = map[string][3]rgb{
	"normal":       {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protanopia":   {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deuteranopia": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"tritanopia":   {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

func see(m [3]rgb, c rgb) (out rgb) {
	for i, row := range m {
		out[i] = min(max(row[0]*c[0]+row[1]*c[1]+row[2]*c[2], 0), 1)
	}
	return out
}

// lab are CIE's coordinates, in which distances are differences that people see: 2 is just seen.
func lab(c rgb) rgb {
	f := func(v float64) float64 {
		if v > 0.008856 {
			return math.Cbrt(v)
		}
		return 7.787*v + 16.0/116
	}
	x := f((0.4124*c[0] + 0.3576*c[1] + 0.1805*c[2]) / 0.9505)
	y := f(0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2])
	z := f((0.0193*c[0] + 0.1192*c[1] + 0.9505*c[2]) / 1.089)
	return rgb{116*y - 16, 500 * (x - y), 200 * (y - z)}
}

func distance(a, b rgb) float64 { return math.Hypot(math.Hypot(a[0]-b[0], a[1]-b[1]), a[2]-b[2]) }

// TestColours: text can be read and series stand out from the page in both themes, and any two series can be told
// apart with any colour vision.
func TestColours(t *testing.T) {
	for _, theme := range Themes {
		page, window := parse(t, theme.page), parse(t, theme.window)
		for _, text := range append([]string{theme.text, theme.muted}, theme.ansi[:]...) {
			require.GreaterOrEqual(t, contrast(parse(t, text), page), 4.5, "%s %s", theme.Name, text)
			require.GreaterOrEqual(t, contrast(parse(t, text), window), 4.5, "%s %s", theme.Name, text)
		}
		require.Less(t, contrast(parse(t, theme.grid), page), 1.4, "a grid keeps in the background")
		for i, one := range theme.series {
			require.GreaterOrEqual(t, contrast(parse(t, one), page), 3.0, "%s %s", theme.Name, one)
			for name, eye := range eyes {
				for _, other := range theme.series[:i] {
					d := distance(lab(see(eye, parse(t, one))), lab(see(eye, parse(t, other))))
					require.GreaterOrEqual(t, d, 15.0, "%s: %s beside %s with %s", theme.Name, one, other, name)
				}
			}
		}
	}
	red, green := parse(t, "#d62728"), parse(t, "#2ca02c") // known to be confused
	require.Less(t, distance(lab(see(eyes["deuteranopia"], red)), lab(see(eyes["deuteranopia"], green))), 15.0)
}

// TestPicture: a picture is well-formed, has the style of what it uses and nothing else, and its two themes differ in
// the style alone.
func TestPicture(t *testing.T) {
	p := New("A & B", "of <one>", Command("-C bench ./x", []string{"--out", "a b", "--n=1"}))
	p.Key("ours", func(p *Picture, x, y float64) { p.Disc(x, y, 4, "fill1") })
	p.XAxis(NewAxis(0, 5, 100, 800, 5), Top, 300, "time (s)")
	p.YAxis(NewAxis(0, 5, 300, Top, 5), 100, 800, "loss")
	p.Polyline([][2]float64{{100, 200}, {200, 250}}, "line1")
	p.Box(1, 2, 3, 4, "fill1 pale", "a < b")
	p.Fixed(1, 2, 100, "text mono", "a  b")
	p.Height = 350
	name := filepath.Join(t.TempDir(), "x")
	require.NoError(t, p.Write(name))
	var bodies []string
	for _, theme := range Themes {
		text, err := os.ReadFile(name + "-" + theme.Name + ".svg")
		require.NoError(t, err)
		d := xml.NewDecoder(strings.NewReader(string(text)))
		for err == nil {
			_, err = d.Token()
		}
		require.True(t, errors.Is(err, io.EOF), err)
		require.Contains(t, string(text), "<desc>Drawn by: go run -C bench ./x --out &#39;a b&#39; --n=1</desc>")
		before, rest, _ := strings.Cut(string(text), "<style>")
		style, after, _ := strings.Cut(rest, "</style>")
		bodies = append(bodies, before+after)
		require.Contains(t, style, ".fill1{fill:"+theme.series[0]+"}")
		require.NotContains(t, style, "fill2")
	}
	require.Equal(t, bodies[0], bodies[1])
}

func TestCommand(t *testing.T) {
	require.Equal(t, `go run -C bench ./x --a=1 'b c' 'it'\''s' ''`,
		Command("-C bench ./x", []string{"--a=1", "b c", "it's", ""}))
}
