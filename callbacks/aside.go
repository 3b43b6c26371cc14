// SPDX-License-Identifier: Apache-2.0

package callbacks

import "slices"

// Silent marks callbacks that print nothing: the bar stays where it is while they run.
type Silent interface {
	Callback
	Silent()
}

// Aside puts callbacks of a program between two that take the bar away and bring it back, so that what they print does
// not run into it. At events within a step and at each batch of an evaluation the bar stays, and also if all of them
// are Silent.
func (p *Progress) Aside(program ...Callback) []Callback {
	prints := slices.ContainsFunc(program, func(c Callback) bool { _, silent := c.(Silent); return !silent })
	if !prints || p.NoBar {
		return program
	}
	list := append([]Callback{&progressLeaves{p: p}}, program...)
	return append(list, &progressReturns{p: p})
}

// aside takes the bar away (1) or brings it back (-1).
func (p *Progress) aside(n int) error {
	p.open()
	p.away += n
	p.terminal.hold(n)
	return nil
}

// progressLeaves comes before a program's callbacks.
type progressLeaves struct {
	Base
	p *Progress
}

// OnTrainBegin takes the bar away; so do the others.
func (c *progressLeaves) OnTrainBegin(*Event) error { return c.p.aside(1) }
func (c *progressLeaves) OnEpochBegin(*Event) error { return c.p.aside(1) }
func (c *progressLeaves) OnStepEnd(*Event) error    { return c.p.aside(1) }
func (c *progressLeaves) OnLog(*Event) error        { return c.p.aside(1) }
func (c *progressLeaves) OnEvaluate(*Event) error   { return c.p.aside(1) }
func (c *progressLeaves) OnSave(*Event) error       { return c.p.aside(1) }
func (c *progressLeaves) OnEpochEnd(*Event) error   { return c.p.aside(1) }
func (c *progressLeaves) OnTrainEnd(*Event) error   { return c.p.aside(1) }
func (c *progressLeaves) OnPredict(*Event) error    { return c.p.aside(1) }

// progressReturns comes after them.
type progressReturns struct {
	Base
	p *Progress
}

// OnTrainBegin brings the bar back; so do the others.
func (c *progressReturns) OnTrainBegin(*Event) error { return c.p.aside(-1) }
func (c *progressReturns) OnEpochBegin(*Event) error { return c.p.aside(-1) }
func (c *progressReturns) OnStepEnd(*Event) error    { return c.p.aside(-1) }
func (c *progressReturns) OnLog(*Event) error        { return c.p.aside(-1) }
func (c *progressReturns) OnEvaluate(*Event) error   { return c.p.aside(-1) }
func (c *progressReturns) OnSave(*Event) error       { return c.p.aside(-1) }
func (c *progressReturns) OnEpochEnd(*Event) error   { return c.p.aside(-1) }
func (c *progressReturns) OnTrainEnd(*Event) error   { return c.p.aside(-1) }
func (c *progressReturns) OnPredict(*Event) error    { return c.p.aside(-1) }
