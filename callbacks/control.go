package callbacks

// Control is what callbacks ask of the trainer: HuggingFace's TrainerControl. Each flag is acted on at the end of the step or epoch in which it was set,
// after the ranks have agreed on it, and cleared as the events say.
type Control struct {
	ShouldTrainingStop bool // end the run; cleared at train_begin
	ShouldEpochStop    bool // end the epoch; cleared at epoch_begin
	ShouldSave         bool // write a checkpoint; cleared at step_begin and at save
	ShouldEvaluate     bool // evaluate; cleared at step_begin and at evaluate
	ShouldLog          bool // write a record; cleared at step_begin and at log
}

// reset clears the flags that an event clears, before any callback sees it.
func (c *Control) reset(k Kind) {
	switch k {
	case TrainBegin:
		c.ShouldTrainingStop = false
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

// flags gives the flags under HuggingFace's names.
func (c *Control) flags() map[string]*bool {
	return map[string]*bool{
		"should_training_stop": &c.ShouldTrainingStop, "should_epoch_stop": &c.ShouldEpochStop,
		"should_save": &c.ShouldSave, "should_evaluate": &c.ShouldEvaluate, "should_log": &c.ShouldLog,
	}
}

// CallbackName gives the name under which HuggingFace saves the flags.
func (c *Control) CallbackName() string { return "TrainerControl" }

// ExportState gives the flags.
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
