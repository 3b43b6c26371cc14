// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func init() {
	makers[backend.OpSoftmax] = func(g *gen) { rowSamples(g, 1, func(out, x, _ []float64) { softmax(out, x) }) }
	makers[backend.OpSoftmaxGrad] = func(g *gen) {
		rowSamples(g, 2, func(out, y, dy []float64) {
			dot := 0.0
			for j := range y {
				dot += y[j] * dy[j]
			}
			for j := range y {
				out[j] = y[j] * (dy[j] - dot)
			}
		})
	}
	makers[backend.OpLogSoftmax] = func(g *gen) {
		rowSamples(g, 1, func(out, x, _ []float64) {
			lse := logSumExp(x)
			for j := range x {
				out[j] = x[j] - lse
			}
		})
	}
	makers[backend.OpLogSoftmaxGrad] = func(g *gen) {
		rowSamples(g, 2, func(out, y, dy []float64) {
			sum := 0.0
			for j := range y {
				sum += dy[j]
			}
			for j := range y {
				out[j] = dy[j] - math.Exp(y[j])*sum
			}
		})
	}
	makers[backend.OpCrossEntropy] = crossEntropySamples
	makers[backend.OpCrossEntropyGrad] = crossEntropyGradSamples
	makers[backend.OpLayerNorm] = withSums(layerNormSamples)
	makers[backend.OpLayerNormGrad] = withSums(layerNormGradSamples)
	makers[backend.OpLayerNormParamGrad] = withSums(layerNormParamGradSamples)
	makers[backend.OpRMSNorm] = rmsNormSamples
	makers[backend.OpRMSNormGrad] = withSums(rmsNormGradSamples)
	makers[backend.OpRMSNormParamGrad] = rmsNormParamGradSamples
}

func logSumExp(x []float64) float64 {
	m := math.Inf(-1)
	for _, v := range x {
		m = max(m, v)
	}
	var s float64
	for _, v := range x {
		s += math.Exp(v - m)
	}
	return m + math.Log(s)
}

func softmax(out, x []float64) {
	lse := logSumExp(x)
	for j := range x {
		out[j] = math.Exp(x[j] - lse)
	}
}

// values are an operand's elements in row-major order.
func (o *operand) values() []float64 {
	x := make([]float64, o.numel())
	for i := range x {
		x[i] = o.at(i)
	}
	return x
}

// rowsOf cuts values into rows.
func rowsOf(x []float64, cols int) [][]float64 {
	var rows [][]float64
	for ; cols > 0 && len(x) > 0; x = x[cols:] {
		rows = append(rows, x[:cols])
	}
	return rows
}

var rowShapes = [][]int{{7}, {1, 1}, {0, 4}, {4, 0}, {5, 9}, {2, 3, 17}, {70, 130}, {3, 2048}}

func rowSamples(g *gen, ins int, f func(out, x, y []float64)) {
	for _, dt := range g.some(floating) {
		for _, shape := range rowShapes {
			s := &sample{outs: []*operand{output(dt, rowMajor, shape...)}}
			for range ins {
				s.ins = append(s.ins, g.random(dt, rowMajor, -4, 1, shape...))
			}
			want := make([]float64, numel(shape))
			cols := shape[len(shape)-1]
			x := rowsOf(s.ins[0].values(), cols)
			y := rowsOf(s.ins[ins-1].values(), cols)
			for i, out := range rowsOf(want, cols) {
				f(out, x[i], y[i])
			}
			// A sum of up to 2048 products of a size near 1.
			s.want, s.loose = [][]float64{want}, 64
			g.add(s, "%s %v", dt, shape)
		}
	}
}

// entropyCase is the input of a cross entropy; the target −100 is ignored.
func (g *gen) entropyCase(dt, index dtype.DType, l layout, rows, cols int) (logits, targets *operand) {
	logits = g.random(dt, l, -6, 6, rows, cols)
	targets = g.random(index, rowMajor, 0, float64(cols-1), rows)
	for i := 1; i < rows; i += 3 {
		targets.set(i, -100)
	}
	return logits, targets
}

var entropyShapes = [][2]int{{0, 3}, {1, 1}, {5, 7}, {40, 300}, {9, 2048}}

func crossEntropySamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, index := range []dtype.DType{dtype.Int32, dtype.Int64} {
			for _, shape := range entropyShapes {
				g.crossEntropy(dt, index, rowMajor, shape[0], shape[1])
				g.crossEntropy(dt, index, rowGapped, shape[0], shape[1])
			}
		}
	}
}

func (g *gen) crossEntropy(dt, index dtype.DType, l layout, rows, cols int) {
	logits, targets := g.entropyCase(dt, index, l, rows, cols)
	loss, lse, slope := make([]float64, rows), make([]float64, rows), make([]float64, rows*cols)
	slopes := rowsOf(slope, cols)
	for i, x := range rowsOf(logits.values(), cols) {
		lse[i] = logSumExp(x)
		if k := int(targets.at(i)); k != -100 {
			loss[i] = lse[i] - x[k]
			softmax(slopes[i], x)
			slopes[i][k]--
		}
	}
	stat, inPlace := statistic(dt), *logits
	inPlace.alias = 1
	for n, out := range []*operand{nil, output(dt, rowMajor, rows, cols), output(dt, rowGapped, rows, cols), &inPlace} {
		s := &sample{ins: []*operand{logits, targets},
			outs: []*operand{output(stat, rowMajor, rows), output(stat, rowMajor, rows)},
			want: [][]float64{loss, lse}, loose: 2}
		if out != nil {
			s.outs, s.want = append(s.outs, out), append(s.want, slope)
		}
		s.ints[0] = -100
		g.add(s, "%s %s %s %dx%d slope %d", dt, index, l.name, rows, cols, n)
	}
}

func crossEntropyGradSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, index := range []dtype.DType{dtype.Int32, dtype.Int64} {
			for _, shape := range entropyShapes {
				for _, l := range []layout{rowMajor, repeatAll} {
					rows, cols := shape[0], shape[1]
					logits, targets := g.entropyCase(dt, index, rowMajor, rows, cols)
					lses := make([]float64, rows)
					x := rowsOf(logits.values(), cols)
					for i := range x {
						lses[i] = logSumExp(x[i])
					}
					lse, dloss := numbers(statistic(dt), []int{rows}, lses), g.random(statistic(dt), l, -1, 1, rows)
					want := make([]float64, rows*cols)
					for i, out := range rowsOf(want, cols) {
						k := int(targets.at(i))
						if k == -100 {
							continue
						}
						for j := range out {
							out[j] = (math.Exp(x[i][j]-lse.at(i)) - truth(j == k)) * dloss.at(i)
						}
					}
					s := &sample{ins: []*operand{logits, targets, lse, dloss},
						outs: []*operand{output(dt, rowMajor, rows, cols)}, want: [][]float64{want}, loose: 2}
					s.ints[0] = -100
					g.add(s, "%s %s %v dloss %s", dt, index, shape, l.name)
				}
			}
		}
	}
}

const normEps = 1e-3

var normShapes = [][2]int{{0, 4}, {1, 1}, {3, 5}, {7, 64}, {200, 130}}

// moments are the mean and 1/σ of a row.
func moments(x []float64) (mean, rstd float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	var dev float64
	for _, v := range x {
		dev += (v - mean) * (v - mean) / float64(len(x))
	}
	return mean, 1 / math.Sqrt(dev+normEps)
}

func rms(x []float64) float64 {
	var sq float64
	for _, v := range x {
		sq += v * v / float64(len(x))
	}
	return 1 / math.Sqrt(sq+normEps)
}

// normInput is x [N,C] with its statistics: means and 1/σ, or 1/rms in rstd.
func (g *gen) normInput(dt dtype.DType, shape [2]int, centred bool) (x, mean, rstd *operand) {
	x = g.random(dt, rowMajor, -1, 3, shape[:]...)
	means, rstds := make([]float64, shape[0]), make([]float64, shape[0])
	for i, row := range rowsOf(x.values(), shape[1]) {
		if centred {
			means[i], rstds[i] = moments(row)
		} else {
			rstds[i] = rms(row)
		}
	}
	return x, numbers(statistic(dt), shape[:1], means), numbers(statistic(dt), shape[:1], rstds)
}

// normTypes are the dtypes of x and of y or dy.
func (g *gen) normTypes() (types [][2]dtype.DType) {
	for _, dt := range g.some(floating) {
		types = append(types, [2]dtype.DType{dt, dt})
	}
	for _, half := range g.some(halves) {
		types = append(types, [2]dtype.DType{dtype.Float32, half})
	}
	return types
}

// withSums makes the samples of a norm, or of a gradient of one, and those whose rows are the sum of x and part, and
// whose dx is added to more, in more's memory or in its own, and rounded besides.
func withSums(samples func(*gen)) func(*gen) {
	return func(g *gen) {
		samples(g)
		for i, s := range g.out {
			x, y := s.ins[0], s.outs[0]
			switch g.op {
			case backend.OpLayerNormGrad, backend.OpLayerNormParamGrad:
				y = s.ins[3] // dy
			case backend.OpRMSNormGrad:
				y = s.ins[2]
			}
			sum := *s
			sum.ins = slices.Clone(s.ins)
			if y.dt != x.dt && g.op != backend.OpRMSNormGrad {
				part := g.random(y.dt, rowMajor, -1, 1, x.shape...)
				rest := x.values()
				for i := range rest {
					rest[i] -= part.at(i)
				}
				sum.ins[0] = numbers(x.dt, x.shape, rest)
				sum.ins, sum.ints[1] = append(sum.ins, part), 1
			}
			if (g.op == backend.OpLayerNormGrad || g.op == backend.OpRMSNormGrad) && !slices.Contains(halves, x.dt) {
				more := g.random(x.dt, rowMajor, -1, 1, x.shape...)
				sum.ins, sum.outs, sum.want = append(sum.ins, more), slices.Clone(s.outs), slices.Clone(s.want)
				sum.want[0] = slices.Clone(s.want[0])
				for i := range sum.want[0] {
					sum.want[0][i] += more.at(i)
				}
				if i%2 == 0 {
					own := *more
					own.alias = len(sum.ins)
					sum.outs[0] = &own
				}
				sum.ints[0] = 1
				if y.dt != x.dt {
					sum.outs, sum.ints[2] = append(sum.outs, output(y.dt, rowMajor, x.shape...)), 1
					sum.want = append(sum.want, sum.want[0])
				}
			}
			if sum.ints != s.ints {
				g.add(&sum, "%s sums %v", s.name, sum.ints[:3])
			}
		}
	}
}

func layerNormSamples(g *gen) {
	for _, types := range g.normTypes() {
		dt, of := types[0], types[1]
		for _, shape := range normShapes {
			for params := range 3 {
				x, mean, rstd := g.normInput(dt, shape, true)
				s := &sample{ins: []*operand{x}, loose: 8}
				for range params {
					s.ins = append(s.ins, g.random(dt, rowMajor, -2, 2, shape[1]))
				}
				y := make([]float64, x.numel())
				for r, row := range rowsOf(x.values(), shape[1]) {
					m, f := moments(row)
					for j := range row {
						v := (row[j] - m) * f
						if params > 0 {
							v *= s.ins[1].at(j)
						}
						if params > 1 {
							v += s.ins[2].at(j)
						}
						y[r*shape[1]+j] = v
					}
				}
				stat := statistic(dt)
				s.outs = []*operand{output(of, rowMajor, shape[:]...), output(stat, rowMajor, shape[0]),
					output(stat, rowMajor, shape[0])}
				s.want = [][]float64{y, mean.values(), rstd.values()}
				s.floats[0] = normEps
				g.add(s, "%s %s %v params %d", dt, of, shape, params)
			}
		}
	}
}

func layerNormGradSamples(g *gen) {
	for _, types := range g.normTypes() {
		dt, of := types[0], types[1]
		for _, shape := range normShapes {
			for params := range 4 { // 1: weight; 2 and 3: its gradient too, and the bias's
				x, mean, rstd := g.normInput(dt, shape, true)
				dy := g.random(of, rowMajor, -1, 1, shape[:]...)
				s := &sample{ins: []*operand{x, mean, rstd, dy}, outs: []*operand{output(dt, rowMajor, shape[:]...)},
					loose: 8}
				weight := func(int) float64 { return 1 }
				if params > 0 {
					s.ins = append(s.ins, g.random(dt, rowMajor, -2, 2, shape[1]))
					weight = s.ins[4].at
				}
				want := make([]float64, x.numel())
				dys, c := rowsOf(dy.values(), shape[1]), float64(shape[1])
				for r, row := range rowsOf(x.values(), shape[1]) {
					var sum, inner float64
					for j := range row {
						d := dys[r][j] * weight(j)
						sum += d / c
						inner += d * (row[j] - mean.at(r)) * rstd.at(r) / c
					}
					for j := range row {
						want[r*shape[1]+j] = rstd.at(r) *
							(dys[r][j]*weight(j) - sum - (row[j]-mean.at(r))*rstd.at(r)*inner)
					}
				}
				s.want = [][]float64{want}
				for range params - 1 {
					s.outs = append(s.outs, output(dt, rowMajor, shape[1]))
				}
				dw, db := make([]float64, shape[1]), make([]float64, shape[1])
				for i := range want {
					r, j := i/shape[1], i%shape[1]
					dw[j] += dy.at(i) * (x.at(i) - mean.at(r)) * rstd.at(r)
					db[j] += dy.at(i)
				}
				s.want = append(s.want, [][]float64{dw, db}[:max(0, params-1)]...)
				g.add(s, "%s %s %v params %d", dt, of, shape, params)
			}
		}
	}
}

func layerNormParamGradSamples(g *gen) {
	for _, types := range g.normTypes() {
		dt, of := types[0], types[1]
		for _, shape := range normShapes {
			for outs := 1; outs <= 2; outs++ {
				x, mean, rstd := g.normInput(dt, shape, true)
				dy := g.random(of, rowMajor, -1, 1, shape[:]...)
				dw, db := make([]float64, shape[1]), make([]float64, shape[1])
				for i := range x.numel() {
					r, j := i/shape[1], i%shape[1]
					dw[j] += dy.at(i) * (x.at(i) - mean.at(r)) * rstd.at(r)
					db[j] += dy.at(i)
				}
				s := &sample{ins: []*operand{x, mean, rstd, dy}, want: [][]float64{dw, db}[:outs], loose: 8}
				for range outs {
					s.outs = append(s.outs, output(dt, rowMajor, shape[1]))
				}
				g.add(s, "%s %s %v outputs %d", dt, of, shape, outs)
			}
		}
	}
}

func rmsNormSamples(g *gen) {
	for _, types := range g.normTypes() {
		dt, of := types[0], types[1]
		for _, shape := range normShapes {
			for params := range 2 {
				x, _, rstd := g.normInput(dt, shape, false)
				s := &sample{ins: []*operand{x}, loose: 8}
				y := make([]float64, x.numel())
				for r, row := range rowsOf(x.values(), shape[1]) {
					f := rms(row)
					for j := range row {
						y[r*shape[1]+j] = row[j] * f
					}
				}
				if params > 0 {
					w := g.random(dt, rowMajor, -2, 2, shape[1])
					s.ins = append(s.ins, w)
					for i := range y {
						y[i] *= w.at(i % shape[1])
					}
				}
				s.outs = []*operand{output(of, rowMajor, shape[:]...), output(statistic(dt), rowMajor, shape[0])}
				s.want = [][]float64{y, rstd.values()}
				s.floats[0] = normEps
				g.add(s, "%s %s %v params %d", dt, of, shape, params)
			}
		}
	}
}

func rmsNormGradSamples(g *gen) {
	for _, types := range g.normTypes() {
		dt, of := types[0], types[1]
		for _, shape := range normShapes {
			for params := range 3 { // 1: weight; 2: its gradient too
				x, _, rstd := g.normInput(dt, shape, false)
				dy := g.random(of, rowMajor, -1, 1, shape[:]...)
				s := &sample{ins: []*operand{x, rstd, dy}, outs: []*operand{output(dt, rowMajor, shape[:]...)},
					loose: 8}
				weight := func(int) float64 { return 1 }
				if params > 0 {
					s.ins = append(s.ins, g.random(dt, rowMajor, -2, 2, shape[1]))
					weight = s.ins[3].at
				}
				want := make([]float64, x.numel())
				dys := rowsOf(dy.values(), shape[1])
				for r, row := range rowsOf(x.values(), shape[1]) {
					f, inner := rstd.at(r), 0.0
					for j := range row {
						inner += dys[r][j] * weight(j) * row[j] * f / float64(shape[1])
					}
					for j := range row {
						want[r*shape[1]+j] = f * (dys[r][j]*weight(j) - row[j]*f*inner)
					}
				}
				s.want = [][]float64{want}
				if params > 1 {
					dw := make([]float64, shape[1])
					for i := range want {
						dw[i%shape[1]] += dy.at(i) * x.at(i) * rstd.at(i/shape[1])
					}
					s.outs, s.want = append(s.outs, output(dt, rowMajor, shape[1])), append(s.want, dw)
				}
				g.add(s, "%s %s %v params %d", dt, of, shape, params)
			}
		}
	}
}

func rmsNormParamGradSamples(g *gen) {
	for _, types := range g.normTypes() {
		dt, of := types[0], types[1]
		for _, shape := range normShapes {
			x, _, rstd := g.normInput(dt, shape, false)
			dy := g.random(of, rowMajor, -1, 1, shape[:]...)
			dw := make([]float64, shape[1])
			for i := range x.numel() {
				dw[i%shape[1]] += dy.at(i) * x.at(i) * rstd.at(i/shape[1])
			}
			g.add(&sample{ins: []*operand{x, rstd, dy}, outs: []*operand{output(dt, rowMajor, shape[1])},
				want: [][]float64{dw}, loose: 8}, "%s %s %v", dt, of, shape)
		}
	}
}
