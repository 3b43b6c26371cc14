// SPDX-License-Identifier: Apache-2.0

package callbacks

import "slices"

// Silent marks callbacks that print nothing: the bar stays where it is while they run.
type Silent interface {
	Callback
	Silent()
}

// HideBar puts callbacks of a program between two that take the bar away and bring it back, so that what they print
// does not run into it. At events within a step and at each batch of an evaluation the bar stays, and also if all of
// them are Silent.
func (p *Progress) HideBar(program ...Callback) []Callback {
	prints := slices.ContainsFunc(program, func(c Callback) bool { _, silent := c.(Silent); return !silent })
	if !prints || p.NoBar {
		return program
	}
	list := append([]Callback{&hideBar{p: p}}, program...)
	return append(list, &showBar{p: p})
}

// hide takes the bar away (1) or brings it back (-1).
func (p *Progress) hide(n int) error {
	p.open()
	p.away += n
	p.terminal.hold(n)
	return nil
}

// hideBar comes before a program's callbacks.
type hideBar struct {
	Base
	p *Progress
}

// OnTrainBegin takes the bar away; so do the others.
func (c *hideBar) OnTrainBegin(*Event) error { return c.p.hide(1) }
func (c *hideBar) OnEpochBegin(*Event) error { return c.p.hide(1) }
func (c *hideBar) OnStepEnd(*Event) error    { return c.p.hide(1) }
func (c *hideBar) OnLog(*Event) error        { return c.p.hide(1) }
func (c *hideBar) OnEvaluate(*Event) error   { return c.p.hide(1) }
func (c *hideBar) OnSave(*Event) error       { return c.p.hide(1) }
func (c *hideBar) OnEpochEnd(*Event) error   { return c.p.hide(1) }
func (c *hideBar) OnTrainEnd(*Event) error   { return c.p.hide(1) }
func (c *hideBar) OnPredict(*Event) error    { return c.p.hide(1) }

// showBar comes after them.
type showBar struct {
	Base
	p *Progress
}

// OnTrainBegin brings the bar back; so do the others.
func (c *showBar) OnTrainBegin(*Event) error { return c.p.hide(-1) }
func (c *showBar) OnEpochBegin(*Event) error { return c.p.hide(-1) }
func (c *showBar) OnStepEnd(*Event) error    { return c.p.hide(-1) }
func (c *showBar) OnLog(*Event) error        { return c.p.hide(-1) }
func (c *showBar) OnEvaluate(*Event) error   { return c.p.hide(-1) }
func (c *showBar) OnSave(*Event) error       { return c.p.hide(-1) }
func (c *showBar) OnEpochEnd(*Event) error   { return c.p.hide(-1) }
func (c *showBar) OnTrainEnd(*Event) error   { return c.p.hide(-1) }
func (c *showBar) OnPredict(*Event) error    { return c.p.hide(-1) }
