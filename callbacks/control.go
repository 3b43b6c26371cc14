// SPDX-License-Identifier: Apache-2.0

package callbacks

// Control is what callbacks ask of the trainer: HuggingFace's TrainerControl. Each flag is acted on at the end of the
// step or epoch in which it was set, after the ranks have agreed on it, and cleared as the events say.
type Control struct {
	ShouldTrainingStop bool // end the run; cleared at train_begin
	ShouldEpochStop    bool // end the epoch; cleared at epoch_begin
	ShouldSave         bool // write a checkpoint; cleared at step_begin and at save
	ShouldEvaluate     bool // evaluate; cleared at step_begin and at evaluate
	ShouldLog          bool // write a record; cleared at step_begin and at log

	// StopReason says who asked for the end of the run, and why; cleared at train_begin. A callback need not set it:
	// its name is entered for it. At train_end it is what the run's end is told with: zero if the run has done all its
	// steps.
	StopReason StopReason

	epochStop string // the name of the callback that last set ShouldEpochStop
}

// EndReason says why the run ends after done of planned steps: StopReason, or the callback that ended an epoch early;
// the zero value if no step is missing. An interrupt is told even then: it may have ended the last evaluation.
func (c *Control) EndReason(done, planned int64) StopReason {
	switch {
	case done >= planned && c.StopReason.Kind != StopInterrupted:
		return StopReason{}
	case !c.StopReason.Early() && c.epochStop != "":
		return StopReason{Kind: StopCallback, Callback: c.epochStop, Detail: "ended an epoch early"}
	}
	return c.StopReason
}

// StopTraining asks for the end of the run and says why, as a phrase: "no eval_loss below 4.1750 in 3 evaluations". The
// first reason stays.
func (c *Control) StopTraining(why string) {
	c.ShouldTrainingStop = true
	if !c.StopReason.Early() {
		c.StopReason = StopReason{Kind: StopCallback, Detail: why}
	}
}

// reset clears the flags that an event clears, before any callback sees it.
func (c *Control) reset(k Kind) {
	switch k {
	case TrainBegin:
		c.ShouldTrainingStop, c.StopReason, c.epochStop = false, StopReason{}, ""
	case EpochBegin:
		c.ShouldEpochStop = false
	case StepBegin:
		c.ShouldSave, c.ShouldEvaluate, c.ShouldLog = false, false, false
	case Evaluate:
		c.ShouldEvaluate = false
	case Save:
		c.ShouldSave = false
	case Log:
		c.ShouldLog = false
	}
}

// flags returns the flags under HuggingFace's names.
func (c *Control) flags() map[string]*bool {
	return map[string]*bool{
		"should_training_stop": &c.ShouldTrainingStop, "should_epoch_stop": &c.ShouldEpochStop,
		"should_save": &c.ShouldSave, "should_evaluate": &c.ShouldEvaluate, "should_log": &c.ShouldLog,
	}
}

// CallbackName returns the name under which HuggingFace saves the flags.
func (c *Control) CallbackName() string { return "TrainerControl" }

// ExportState returns the flags.
func (c *Control) ExportState() Exported {
	out := Exported{Args: map[string]any{}, Attributes: map[string]any{}}
	for name, flag := range c.flags() {
		out.Args[name] = *flag
	}
	return out
}

// ImportState sets the flags that e has.
func (c *Control) ImportState(e Exported) error {
	for name, flag := range c.flags() {
		if v, ok := e.Args[name]; ok {
			set, ok := v.(bool)
			if !ok {
				return badState(name, v, "true or false")
			}
			*flag = set
		}
	}
	return nil
}
