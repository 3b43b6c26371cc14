// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"

	"github.com/lockstep-ml/lockstep/data/text"
)

// byteModel predicts a byte from the two before it: counts of the training text, smoothed
// by the model of one byte before, which is smoothed by that of none (Jelinek & Mercer
// 1980, with a fixed weight). A language model that does not beat it has learned nothing
// that counting could not.
type byteModel struct {
	order0 [256]float64
	order1 [256][256]float64
	counts [1 << 16][256]uint32
	totals [1 << 16]uint32
}

// smoothing is the weight of the shorter context, in occurrences.
const smoothing = 5

// newByteModel counts the training text.
func newByteModel(docs []text.Document) *byteModel {
	m := &byteModel{}
	var n0, n1 [256]float64
	var total float64
	var pairs [256][256]float64
	for _, d := range docs {
		context := 0
		for i := range len(d.Text) {
			b := d.Text[i]
			n0[b]++
			total++
			pairs[context&0xff][b]++
			n1[context&0xff]++
			m.counts[context][b]++
			m.totals[context]++
			context = (context<<8 | int(b)) & 0xffff
		}
	}
	for b := range 256 {
		m.order0[b] = (n0[b] + 1) / (total + 256)
	}
	for a := range 256 {
		for b := range 256 {
			m.order1[a][b] = (pairs[a][b] + smoothing*m.order0[b]) / (n1[a] + smoothing)
		}
	}
	return m
}

// natsPerByte is the mean −ln p of the bytes of docs.
func (m *byteModel) natsPerByte(docs []text.Document) float64 {
	var nats float64
	for _, d := range docs {
		context := 0
		for i := range len(d.Text) {
			b := d.Text[i]
			p := (float64(m.counts[context][b]) + smoothing*m.order1[context&0xff][b]) /
				(float64(m.totals[context]) + smoothing)
			nats -= math.Log(p)
			context = (context<<8 | int(b)) & 0xffff
		}
	}
	return nats / float64(max(size(docs), 1))
}
