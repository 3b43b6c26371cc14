// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// difference is a difference that stays, with its row in docs/differences-from-huggingface.md. It explains a mismatch
// of a case in which it plays a part.
type difference struct {
	heading, row string
	plays        func(c *randomCase) bool // nil: in every case
	explains     func(c *randomCase, got outcome, m mismatch) bool
}

// explain is the row of the difference that explains a mismatch, "" if none does.
func explain(c *randomCase, got outcome, m mismatch) string {
	for _, d := range slices.Concat(differences, rankDifferences, languageDifferences) {
		if (d.plays == nil || d.plays(c)) && d.explains(c, got, m) {
			return d.row
		}
	}
	return ""
}

// anything explains each mismatch of a case that takes another way altogether.
func anything(*randomCase, outcome, mismatch) bool { return true }

var differences = []difference{
	{"Callbacks and logs", "Records of training steps also have speed and memory", nil,
		func(c *randomCase, _ outcome, m mismatch) bool {
			return m.place == "record" && m.want == "nothing" &&
				(strings.HasPrefix(m.key, "memory_") || strings.HasPrefix(m.key, "train_"))
		}},
	{"Evaluation and data", "There is no `eval_model_preparation_time`", nil,
		func(c *randomCase, _ outcome, m mismatch) bool {
			return strings.HasSuffix(m.key, "_model_preparation_time") && m.got == "nothing"
		}},
	{"The loss", "A logged loss is a mean over loss terms", func(c *randomCase) bool {
		return c.Args["loss_average"] != "steps"
	}, meanOfMeans},
	{"Resuming", "Losses of steps before a resume count", func(c *randomCase) bool { return c.Resume != nil },
		meanOfMeans},
	{"The loss", "A sum and a count", func(c *randomCase) bool { return c.Loss == "mean" && c.ragged() },
		func(c *randomCase, _ outcome, m mismatch) bool {
			return m.place == "weights" || m.place == "record" || m.place == "returned" ||
				strings.HasPrefix(m.key, "best_") ||
				m.place == "checkpoint" && slices.Contains(weightKeys, m.key)
		}},
	{"Evaluation and data", "`dataloader_drop_last` does not affect evaluation", (*randomCase).dropsEvaluation,
		evaluatedMore},
	{"Evaluation and data", "Training data of which `dataloader_drop_last` leaves nothing are refused",
		func(c *randomCase) bool {
			return c.Args["dataloader_drop_last"] == true && c.TrainSize < c.integer("per_device_train_batch_size", 8)
		}, anything},
	{"Saving", "`save_total_limit` 1 keeps two checkpoints", func(c *randomCase) bool {
		return c.integer("save_total_limit", 0) == 1
	},
		func(_ *randomCase, _ outcome, m mismatch) bool { return m.place == "checkpoints" }},
	{"Callbacks and logs", "If a callback sets `should_save`, the run saves under `save_strategy` best too",
		func(c *randomCase) bool {
			return c.Args["save_strategy"] == "best" && slices.ContainsFunc(c.Flags, func(f randomFlag) bool {
				return f.flag == "should_save"
			})
		},
		func(_ *randomCase, _ outcome, m mismatch) bool {
			return m.place == "events" || m.place == "checkpoints"
		}},
	{"Resuming", "An epoch that a callback has ended is over for a resume", func(c *randomCase) bool {
		return c.Resume != nil && slices.ContainsFunc(c.Resume.Flags, func(f randomFlag) bool {
			return f.flag == "should_epoch_stop"
		})
	}, anything},
	{"Resuming", "A second call of Train is a new run", func(c *randomCase) bool {
		return slices.Equal(c.Calls, []string{"train", "train"})
	},
		func(c *randomCase, _ outcome, m mismatch) bool { return m.place != "returned" || m.index == 1 }},
	{"Callbacks and logs", "Early stopping without `metric_for_best_model`", func(c *randomCase) bool {
		return c.EarlyStopping != nil && c.Args["metric_for_best_model"] == nil
	},
		func(c *randomCase, _ outcome, m mismatch) bool {
			return m.place == "error" && m.want == "AssertionError"
		}},
	{"Callbacks and logs", "A step that has begun is finished", (*randomCase).stopsWithinSteps, anything},
	{"Callbacks and logs", "The state shows the plan before training", func(c *randomCase) bool {
		return !slices.Contains(c.Calls, "train")
	},
		func(c *randomCase, _ outcome, m mismatch) bool {
			return m.place == "state" &&
				slices.Contains([]string{"logging_steps", "eval_steps", "save_steps", "train_batch_size"}, m.key)
		}},
	{"Resuming", "The arguments that cut the training stream come from the checkpoint", (*randomCase).cutsAnew,
		anything},
	{"Resuming", "A resume after the last step trains no further", (*randomCase).resumesAtTheEnd, anything},
	{"Callbacks and logs", "A resumed run does not evaluate on start", func(c *randomCase) bool {
		return c.Resume != nil && c.Args["eval_on_start"] == true
	}, startedAlready},
	{"Resuming", "A checkpoint at the last step of an epoch", func(c *randomCase) bool { return c.Resume != nil },
		func(c *randomCase, _ outcome, m mismatch) bool {
			switch m.place {
			case "events":
				return epochEnd.ReplaceAllString(m.got.(string), "ab") == m.want
			case "log": // logging_strategy epoch
				extra := fmt.Sprintf("loss@%d", c.Resume.From)
				return slices.Equal(slices.DeleteFunc(slices.Clone(m.got.([]string)), func(s string) bool {
					return s == extra
				}), m.want.([]string))
			}
			return m.key == "records" && c.Args["logging_strategy"] == "epoch"
		}},
	{"Resuming", "States of callbacks are always restored", func(c *randomCase) bool {
		return c.Resume != nil && c.EarlyStopping != nil
	}, anything},
	{"Resuming", "The intervals of a resume are those of its arguments", func(c *randomCase) bool {
		return c.Resume != nil
	},
		func(c *randomCase, _ outcome, m mismatch) bool {
			interval := (m.place == "state" || m.place == "checkpoint") && strings.HasSuffix(m.key, "_steps")
			if c.otherRatios() { // what happens when, too
				return interval || m.place == "events" || m.place == "log" || m.key == "records"
			}
			return interval && c.Args[m.key] != c.Resume.Args[m.key]
		}},
	{"Resuming", "The learning rate of a resume is that of its arguments", func(c *randomCase) bool {
		return c.Resume != nil && c.changes("learning_rate", "weight_decay", "warmup_steps", "max_steps",
			"num_train_epochs")
	},
		func(c *randomCase, _ outcome, m mismatch) bool {
			return m.key == "best_metric" || m.place == "weights" || m.place == "record" || m.place == "returned" ||
				m.place == "checkpoint" && slices.Contains(weightKeys, m.key)
		}},
	{"Callbacks and logs", "Control flags are cleared once acted on", nil,
		func(c *randomCase, _ outcome, m mismatch) bool {
			return m.place == "checkpoint" && m.key == "control.should_log" && m.want == true
		}},
}

// rankDifferences are those that only runs on several ranks show.
var rankDifferences = []difference{
	{"Evaluation and data", "Samples are never repeated", (*randomCase).repeatsEvaluation, evaluatedMore},
	{"The loss", "`train_loss` is that of all ranks", func(c *randomCase) bool { return c.Ranks > 1 },
		func(_ *randomCase, _ outcome, m mismatch) bool {
			return m.key == "train_loss" || m.key == "training_loss"
		}},
	{"The loss", "Ranks that evaluated first exchange gradients", func(c *randomCase) bool {
		train := slices.Index(c.Calls, "train")
		return c.Ranks > 1 && train > 0
	}, anything},
}

// weightKeys are the keys of a checkpoint's weights.
var weightKeys = []string{"a", "b", "figures"}

// languageDifferences are those that only language models show.
var languageDifferences = []difference{
	{"Arguments", "Schedule-free optimizers always save the average of weights", (*randomCase).scheduleFree,
		func(_ *randomCase, _ outcome, m mismatch) bool {
			return m.place == "weights" || m.place == "checkpoint" && m.key == "figures"
		}},
	{"Arguments", "A metric that the evaluation does not have is refused", func(c *randomCase) bool {
		return c.Args["prediction_loss_only"] == true
	},
		func(_ *randomCase, _ outcome, m mismatch) bool { return m.place == "error" && m.want == "" }},
	{"Arguments", "`save_steps` of `load_best_model_at_end` is a ratio if `eval_steps` is one",
		(*randomCase).bestByRatio,
		func(_ *randomCase, _ outcome, m mismatch) bool { return m.place == "error" && m.want == "" }},
	{"Callbacks and logs", "`train_runtime` is in the last record alone", func(c *randomCase) bool {
		return c.Args["include_num_input_tokens_seen"] != nil
	},
		func(_ *randomCase, _ outcome, m mismatch) bool {
			return m.place == "record" && m.key == "train_runtime" && m.got == "nothing"
		}},
	{"The loss", "`eval_loss` is the mean over loss terms", func(c *randomCase) bool { return c.RaggedEval },
		func(_ *randomCase, _ outcome, m mismatch) bool {
			return strings.HasSuffix(m.key, "_loss") && strings.Contains(m.key, "eval_") ||
				strings.HasSuffix(m.key, "_losses") || m.key == "metrics.test_loss" || strings.HasPrefix(m.key, "best_")
		}},
}

// bestByRatio reports whether a run loads the best of checkpoints that are evaluated at a part of all steps.
func (c *randomCase) bestByRatio() bool {
	n, ok := c.Args["eval_steps"].(float64)
	return c.Args["load_best_model_at_end"] == true && ok && n < 1
}

func (c *randomCase) scheduleFree() bool {
	return strings.HasPrefix(fmt.Sprint(c.Args["optim"]), "schedule_free")
}

// repeatsEvaluation reports whether transformers fills the evaluation batches of its ranks with samples that it has
// had, and counts them in the loss.
func (c *randomCase) repeatsEvaluation() bool {
	batch, sizes := c.Ranks*c.integer("per_device_eval_batch_size", 8), []int{c.EvalSize}
	if c.EvalSets == 2 {
		sizes = []int{c.EvalSize / 2, c.EvalSize - c.EvalSize/2}
	}
	if slices.Contains(c.Calls, "predict") {
		sizes = append(sizes, 11)
	}
	return c.Ranks > 1 && slices.ContainsFunc(sizes, func(n int) bool { return n%batch != 0 })
}

// ragged reports whether an optimizer step has micro-batches of different sizes.
func (c *randomCase) ragged() bool {
	batch, gas := c.integer("per_device_train_batch_size", 8), c.integer("gradient_accumulation_steps", 1)
	return gas > 1 && c.TrainSize%batch != 0 && c.Args["dataloader_drop_last"] != true
}

func (c *randomCase) integer(key string, otherwise int) int { return integerOf(c.Args, key, otherwise) }

func integerOf(given map[string]any, key string, otherwise int) int {
	if v, ok := given[key].(float64); ok {
		return int(v)
	}
	return otherwise
}

// dropsEvaluation reports whether transformers leaves evaluation samples out.
func (c *randomCase) dropsEvaluation() bool {
	batch, sizes := c.integer("per_device_eval_batch_size", 8), []int{c.EvalSize}
	if c.EvalSets == 2 {
		sizes = []int{c.EvalSize / 2, c.EvalSize - c.EvalSize/2}
	}
	if slices.Contains(c.Calls, "predict") {
		sizes = append(sizes, 11)
	}
	return c.Args["dataloader_drop_last"] == true &&
		slices.ContainsFunc(sizes, func(n int) bool { return n%batch != 0 })
}

// evaluatedMore explains what an evaluation of more samples changes: its batches, its figures, and what is best by
// them.
func evaluatedMore(c *randomCase, _ outcome, m mismatch) bool {
	switch m.place {
	case "events":
		return strings.ReplaceAll(m.want.(string), "o", "") == strings.ReplaceAll(m.got.(string), "o", "")
	case "error": // an evaluation of nothing has no metric
		return m.want == "KeyError"
	case "record":
		return strings.HasPrefix(m.key, "eval_")
	case "returned":
		return strings.HasPrefix(m.key, "metrics.") || m.key == "predictions" || m.key == "labels"
	case "weights":
		return c.Args["load_best_model_at_end"] == true
	}
	return strings.HasPrefix(m.key, "best_")
}

// changes reports whether a resume has other values of some arguments.
func (c *randomCase) changes(keys ...string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { return c.Args[key] != c.Resume.Args[key] })
}

// otherRatios reports whether a resume has intervals that are parts of another number of steps.
func (c *randomCase) otherRatios() bool {
	return c.changes("max_steps", "num_train_epochs") &&
		slices.ContainsFunc([]string{"logging_steps", "eval_steps", "save_steps"}, func(key string) bool {
			n, ok := c.Args[key].(float64)
			return ok && n < 1
		})
}

// epochEnd is the end of an epoch that a resume begins with, and the record of logging_strategy epoch.
var epochEnd = regexp.MustCompile(`^aben?`)

var firstEvaluation = regexp.MustCompile(`^ab(o*nk)+`)

// startedAlready explains the lack of an evaluation at the start of a resume: its events and records, and what is best
// by it.
func startedAlready(c *randomCase, _ outcome, m mismatch) bool {
	switch m.place {
	case "events":
		return firstEvaluation.ReplaceAllString(m.want.(string), "ab") ==
			epochEnd.ReplaceAllString(m.got.(string), "ab")
	case "log":
		return slices.ContainsFunc(m.want.([]string), func(s string) bool {
			return strings.HasPrefix(s, "eval") && strings.HasSuffix(s, fmt.Sprintf("@%d", c.Resume.From))
		})
	}
	return strings.HasPrefix(m.key, "best_") || m.key == "records"
}

// stopsWithinSteps reports whether a callback asks, before a step has ended, for the end of the epoch or of training.
func (c *randomCase) stopsWithinSteps() bool {
	return slices.ContainsFunc(c.Flags, func(f randomFlag) bool {
		return (f.event == "step_begin" || f.event == "substep_end") &&
			(f.flag == "should_epoch_stop" || f.flag == "should_training_stop")
	})
}

// cutsAnew reports whether a resume has another batch size.
func (c *randomCase) cutsAnew() bool {
	return c.Resume != nil &&
		slices.ContainsFunc([]string{"per_device_train_batch_size", "gradient_accumulation_steps"},
			func(key string) bool {
				return c.Args[key] != c.Resume.Args[key]
			})
}

// resumesAtTheEnd reports whether a resume has nothing left to do.
func (c *randomCase) resumesAtTheEnd() bool {
	return c.Resume != nil && float64(c.Resume.From) >= c.State["max_steps"].(float64)
}

// meanOfMeans explains a loss that transformers averages over optimizer steps, or micro-batches, of different sizes:
// from the loss terms found here it computes what transformers logs.
func meanOfMeans(c *randomCase, got outcome, m mismatch) bool {
	var from, to, resumed int64
	if c.Resume != nil {
		resumed = c.Resume.From
	}
	losses := got.losses
	switch {
	case m.place == "record" && m.key == "loss":
		end, _ := got.LogHistory[m.index].Number("step")
		if to = int64(end); to > resumed { // transformers forgets what it had not logged before the checkpoint
			from = resumed
		}
		for _, rec := range got.LogHistory[:m.index] {
			if step, _ := rec.Number("step"); rec["loss"] != nil {
				from = max(from, int64(step))
			}
		}
	case m.place == "record" && m.key == "train_loss", m.place == "returned" && m.key == "training_loss":
		from, to = resumed, int64(got.State["global_step"].(float64))
		if m.place == "returned" {
			to = int64(got.Returned[m.index]["global_step"].(float64))
		}
	default:
		return false
	}
	for i := 1; i < len(losses); i++ {
		if losses[i].step <= losses[i-1].step && m.index == 0 {
			losses = losses[:i] // a second call of Train began there
		}
	}
	total := float64(0)
	for _, s := range losses {
		if s.step > from && s.step <= to {
			total += s.transformers(c.Loss)
		}
	}
	want, _ := toFloat(m.want)
	return math.Abs(total/float64(to-from)-want) <= c.tolerance("")*(1+math.Abs(want))
}

// transformers is the loss that transformers has for a step.
func (s stepLoss) transformers(kind string) (loss float64) {
	count := 0
	for i, n := range s.counts {
		count += n
		loss += s.sums[i] / float64(n) / float64(len(s.counts))
	}
	if kind == "mean" {
		return loss
	}
	loss = 0
	for _, sum := range s.sums {
		loss += sum / float64(count)
	}
	return loss
}

// TestDifferencesAreDocumented: each of them is a row in the document, below its heading.
func TestDifferencesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/differences-from-huggingface.md")
	require.NoError(t, err)
	for _, d := range slices.Concat(differences, rankDifferences, languageDifferences) {
		_, after, found := strings.Cut(string(text), "\n## "+d.heading+"\n")
		require.True(t, found, "heading %q", d.heading)
		section, _, _ := strings.Cut(after, "\n## ")
		require.Contains(t, strings.Join(strings.Fields(section), " "), d.row, "below %q", d.heading)
	}
}
