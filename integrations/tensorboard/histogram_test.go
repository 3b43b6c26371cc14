// SPDX-License-Identifier: Apache-2.0

package tensorboard_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/tensorboard"
)

// doubles decodes a packed field.
func doubles(t *testing.T, field any) (xs []float64) {
	b := field.([]byte)
	for ; len(b) > 0; b = b[8:] {
		xs = append(xs, math.Float64frombits(binary.LittleEndian.Uint64(b)))
	}
	return xs
}

// value returns the value of the last event of a file that was closed.
func value(t *testing.T, w *tensorboard.Writer) message {
	require.NoError(t, w.Close())
	list := events(t, w.Path())
	summary := decode(t, list[len(list)-1][5][0].([]byte))
	return decode(t, summary[1][0].([]byte))
}

// Histograms are those of torch.utils.tensorboard: testdata/histogram.py.
func TestHistogram(t *testing.T) {
	text, err := os.ReadFile("testdata/histogram.json")
	require.NoError(t, err)
	var cases []struct {
		Values          []float64
		Min, Max        float64
		Num, Sum        float64
		SumSquares      float64 `json:"sum_squares"`
		Buckets, Limits int
		Filled          [][3]float64
	}
	require.NoError(t, json.Unmarshal(text, &cases))
	require.NotEmpty(t, cases)
	for _, c := range cases {
		w, err := tensorboard.NewWriter(t.TempDir())
		require.NoError(t, err)
		require.NoError(t, w.AddHistogram(time.Now(), 7, "weights/h.0", c.Values))
		v := value(t, w)
		require.Equal(t, "weights/h.0", string(v[1][0].([]byte)))
		h := decode(t, v[5][0].([]byte))
		for field, want := range map[int]float64{1: c.Min, 2: c.Max, 3: c.Num, 4: c.Sum, 5: c.SumSquares} {
			var got float64
			if f := h[protowire.Number(field)]; f != nil {
				got = math.Float64frombits(f[0].(uint64))
			}
			require.InDelta(t, want, got, 1e-12*math.Abs(want), "%v field %d", c.Values, field)
		}
		limits, counts := doubles(t, h[6][0]), doubles(t, h[7][0])
		require.Len(t, limits, c.Limits)
		require.Len(t, counts, c.Buckets)
		var filled [][3]float64
		for i, n := range counts {
			if n > 0 {
				filled = append(filled, [3]float64{float64(i), limits[i], n})
			}
		}
		require.Equal(t, c.Filled, filled, "%v", c.Values)
	}
	w, err := tensorboard.NewWriter(t.TempDir())
	require.NoError(t, err)
	for want, values := range map[string][]float64{"want at least one": nil, "a value is NaN": {1, math.NaN()},
		"a value is -Inf": {math.Inf(-1)}, "a value is 1e+21": {1e21}} {
		require.ErrorContains(t, w.AddHistogram(time.Now(), 1, "x", values), want)
	}
	require.NoError(t, w.Close())
}

func TestImage(t *testing.T) {
	colors := image.NewNRGBA(image.Rect(0, 0, 3, 2))
	colors.Set(2, 1, color.NRGBA{R: 255, A: 255})
	for _, c := range []struct {
		image    image.Image
		channels uint64
	}{{colors, 4}, {image.NewGray(image.Rect(1, 1, 4, 3)), 1}} {
		w, err := tensorboard.NewWriter(t.TempDir())
		require.NoError(t, err)
		require.NoError(t, w.AddImage(time.Now(), 7, "samples", c.image))
		v := value(t, w)
		m := decode(t, v[4][0].([]byte))
		require.Equal(t, []any{uint64(2)}, m[1])
		require.Equal(t, []any{uint64(3)}, m[2])
		require.Equal(t, []any{c.channels}, m[3])
		got, err := png.Decode(bytes.NewReader(m[4][0].([]byte)))
		require.NoError(t, err)
		require.Equal(t, c.image.Bounds().Size(), got.Bounds().Size())
		at := c.image.Bounds().Min.Add(image.Pt(2, 1))
		require.Equal(t, color.NRGBAModel.Convert(c.image.At(at.X, at.Y)), color.NRGBAModel.Convert(got.At(2, 1)))
	}
	w, err := tensorboard.NewWriter(t.TempDir())
	require.NoError(t, err)
	require.ErrorContains(t, w.AddImage(time.Now(), 1, "x", image.NewGray(image.Rectangle{})), "image x")
	require.NoError(t, w.Close())
}

// A callback adds to the file of a run's reporter.
func TestHistogramsAndImagesOfACallback(t *testing.T) {
	dir := t.TempDir()
	r := tensorboard.New(dir)
	require.NoError(t, r.OnTrainBegin(&callbacks.Event{Args: args.Default(dir)}))
	r.AddHistogram(3, "weights/h.0", []float64{1, 2})
	r.AddHistogram(4, "weights/h.0", []float64{math.Inf(1)}) // told in the log
	r.AddImage(3, "samples", image.NewGray(image.Rect(0, 0, 2, 2)))
	require.NoError(t, r.Close())
	list := files(t, dir)
	require.Len(t, list, 1)
	kinds := map[protowire.Number]int{}
	for _, e := range events(t, list[0])[1:] {
		for _, v := range decode(t, e[5][0].([]byte))[1] {
			for _, kind := range []protowire.Number{4, 5} {
				if value := decode(t, v.([]byte)); value[kind] != nil {
					require.Equal(t, []any{uint64(3)}, e[2])
					kinds[kind]++
				}
			}
		}
	}
	require.Equal(t, map[protowire.Number]int{4: 1, 5: 1}, kinds)
}
