// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A function of t ≥ 0 in pieces is a polynomial around each multiple of pieceWidth: 32 of them, so that a permutation
// of two registers picks a coefficient by the number of the piece, which an addition leaves in the low bits of a
// float32.
const (
	pieceCount  = 32
	pieceWidth  = 0.25
	pieceDegree = 6
	pieceMagic  = 0x1.8p21                      // float32 has steps of pieceWidth there
	pieceLast   = (pieceCount - 1) * pieceWidth // the centre of the last piece
	pieceGrid   = 1000                          // points per piece that a fit looks at
)

// pieces are the coefficients, of each power 32 of them.
type pieces [pieceDegree + 1][pieceCount]float32

// fit returns the polynomials whose largest error in units of scale is smallest. A function that is odd at 0 is so in
// its first piece.
func fit(f, scale func(t float64) float64) *pieces {
	var p pieces
	for k := range pieceCount {
		centre, from, to := float64(k)*pieceWidth, -pieceWidth/2, pieceWidth/2
		value := func(u float64) float64 { return f(centre + u) }
		unit := func(u float64) float64 { return scale(centre + u) }
		first := 0
		if k == 0 {
			from = 0
			if f(0) == 0 { // fit what multiplies u: relative precision remains down to 0
				first = 1
				value = func(u float64) float64 { return f(max(u, 1e-9)) / max(u, 1e-9) }
				unit = value
			}
		}
		for i, c := range minimax(value, unit, from, to, pieceDegree-first) {
			p[first+i][k] = float32(c)
		}
	}
	return &p
}

// minimax is Remez' algorithm: the coefficients, that of the constant first, of the polynomial whose errors in units of
// scale alternate between degree+2 extrema.
func minimax(f, scale func(u float64) float64, from, to float64, degree int) []float64 {
	at := func(i int) float64 { return from + (to-from)*float64(i)/pieceGrid }
	extrema := make([]int, degree+2)
	for i := range extrema {
		extrema[i] = int(math.Round(pieceGrid * (1 - math.Cos(math.Pi*float64(i)/float64(degree+1))) / 2))
	}
	var solution []float64
	for range 8 {
		var rows [][]float64
		for i, e := range extrema {
			u, row := at(e), make([]float64, degree+3)
			row[0] = 1
			for j := 1; j <= degree; j++ {
				row[j] = row[j-1] * u
			}
			row[degree+1] = scale(u) * float64(1-i%2*2)
			row[degree+2] = f(u)
			rows = append(rows, row)
		}
		solution = solve(rows)
		wrong := func(i int) float64 {
			u, y := at(i), 0.0
			for j := degree; j >= 0; j-- {
				y = y*u + solution[j]
			}
			return (y - f(u)) / scale(u)
		}
		extrema = alternation(wrong, extrema)
	}
	return solution[:degree+1]
}

// alternation returns where the error is largest in each of its runs of one sign, if there are as many as before.
func alternation(wrong func(i int) float64, before []int) []int {
	var extrema []int
	largest, sign := 0.0, 0.0
	for i := range pieceGrid + 1 {
		e := wrong(i)
		if e*sign <= 0 {
			extrema, largest, sign = append(extrema, i), 0, e
		}
		if math.Abs(e) > largest {
			extrema[len(extrema)-1], largest = i, math.Abs(e)
		}
	}
	if len(extrema) != len(before) {
		return before
	}
	return extrema
}

// solve is Gauss' elimination of a system whose right side is the last column.
func solve(a [][]float64) []float64 {
	n := len(a)
	for c := range n {
		best := c
		for r := c; r < n; r++ {
			if math.Abs(a[r][c]) > math.Abs(a[best][c]) {
				best = r
			}
		}
		a[c], a[best] = a[best], a[c]
		for r := range n {
			if r == c {
				continue
			}
			q := a[r][c] / a[c][c]
			for j := c; j <= n; j++ {
				a[r][j] -= q * a[c][j]
			}
		}
	}
	x := make([]float64, n)
	for i := range x {
		x[i] = a[i][n] / a[i][i]
	}
	return x
}

// pieceTable is what a kernel of 512 bits holds of a function in pieces: the coefficients of each power in two
// registers.
type pieceTable struct {
	powers      [pieceDegree + 1][2]reg.VecVirtual
	last, magic reg.VecVirtual
}

// table loads the coefficients into registers.
func (l *loop) table(name string, p *pieces) *pieceTable {
	t := &pieceTable{magic: l.constant(pieceMagic), last: l.constant(pieceLast)}
	m := l.listed(name, p)
	for i := range t.powers {
		for h := range t.powers[i] {
			t.powers[i][h] = l.register()
			l.VMOVUPS(m.Offset(4*(pieceCount*i+16*h)), t.powers[i][h])
		}
	}
	return t
}

// inPieces emits the function at |x|, or at pieceLast where |x| is larger. A NaN stays one.
func (l *loop) inPieces(t *pieceTable, name string) reg.VecVirtual {
	u, number := l.and(0x7fffffff, l.load(name)), l.register()
	l.VMINPS(u, t.last, u)
	l.VADDPS(t.magic, u, number)
	centre := l.register()
	l.VSUBPS(t.magic, number, centre)
	l.VSUBPS(centre, u, u)
	var y reg.VecVirtual
	for i := pieceDegree; i >= 0; i-- {
		c := number
		if i > 0 {
			c = l.copied(number)
		}
		l.VPERMI2PS(t.powers[i][1], t.powers[i][0], c)
		if y == nil {
			y = c
			continue
		}
		l.VFMADD213PS(c, u, y) // y·u + c
	}
	return y
}

// beyond emits the test whether any of a turn's elements of a stream is below -pieceLast, as the unsigned order of bits
// has it: a negative NaN is, too.
func (l *loop) beyond(name string, vectors int) {
	l.part = 0
	most, mask := l.load(name), l.K()
	for l.part = 1; l.part < vectors; l.part++ {
		l.VPMAXUD(l.at(name, 0), most, most)
	}
	l.farLanes(most, mask)
	l.KORTESTW(mask, mask)
}

// farLanes sets the bits of the lanes where x is below -pieceLast.
func (l *loop) farLanes(x reg.VecVirtual, mask reg.OpmaskVirtual) {
	const greater = operand.U8(6)
	l.VPCMPUD(greater, l.number(-pieceLast), x, mask)
}
