// SPDX-License-Identifier: Apache-2.0

// Package pipelinetest lists the settings under which a pipeline must end with the bits of one process, and reads how a
// run of examples/clm ended. It starts nothing.
package pipelinetest

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/tests/internal/clmtest"
)

// Setting is a run of a pipeline.
type Setting struct {
	Engine    string // of Engines
	Ranks     int    // 2 or 4
	Schedule  string
	Times     int // the micro-batches of a step are Times · Ranks
	BF16      bool
	Recompute bool
}

// Engines are the ways in which ranks exchange.
var Engines = []string{"goroutines", "shm", "tcp", "mpi"}

// steps of a run.
const steps = 20

// String names a setting.
func (s Setting) String() string {
	name := fmt.Sprintf("%s pp %d %s m %d", s.Engine, s.Ranks, s.Schedule, s.MicroBatches())
	if s.Ranks == 1 {
		name = fmt.Sprint("m ", s.MicroBatches())
	}
	if s.BF16 {
		name += " bf16"
	}
	if s.Recompute {
		name += " recompute"
	}
	return name
}

// MicroBatches is their number in a step.
func (s Setting) MicroBatches() int { return s.Times * s.Ranks }

// Legal tells whether the schedule takes so many micro-batches.
func (s Setting) Legal() bool { return s.Schedule != "dualpipev" || s.Times > 1 }

// All are the legal settings, those that differ in the engine alone one after the other.
func All() (list []Setting) {
	for _, ranks := range []int{2, 4} {
		for _, name := range schedule.Names() {
			for _, times := range []int{1, 2, 4} {
				for _, bf16 := range []bool{false, true} {
					for _, recompute := range []bool{false, true} {
						for _, engine := range Engines {
							if s := (Setting{engine, ranks, name, times, bf16, recompute}); s.Legal() {
								list = append(list, s)
							}
						}
					}
				}
			}
		}
	}
	return list
}

// pair is two values of two fields of a setting.
type pair struct{ a, b string }

// pairs are those of a setting.
func (s Setting) pairs() (list []pair) {
	values := []string{s.Engine, fmt.Sprint("pp ", s.Ranks), s.Schedule, fmt.Sprint("times ", s.Times),
		fmt.Sprint("bf16 ", s.BF16), fmt.Sprint("recompute ", s.Recompute)}
	for i, a := range values {
		for _, b := range values[i+1:] {
			list = append(list, pair{a, b})
		}
	}
	return list
}

// Pairs are a few of the settings, in which every two values that go together do so at least once: the setting that has
// most pairs that are missing comes next.
func Pairs() (chosen []Setting) {
	all, missing := All(), map[pair]bool{}
	for _, s := range all {
		for _, p := range s.pairs() {
			missing[p] = true
		}
	}
	for len(missing) > 0 {
		var best Setting
		most := 0
		for _, s := range all {
			n := 0
			for _, p := range s.pairs() {
				if missing[p] {
					n++
				}
			}
			if n > most {
				best, most = s, n
			}
		}
		chosen = append(chosen, best)
		for _, p := range best.pairs() {
			delete(missing, p)
		}
	}
	return chosen
}

// Over are the settings of an engine.
func Over(engine string, list []Setting) []Setting {
	return slices.DeleteFunc(slices.Clone(list), func(s Setting) bool { return s.Engine != engine })
}

// EnvWhole names the environment variable that asks for all settings: 1.
const EnvWhole = "LOCKSTEP_PIPELINES_WHOLE"

// Chosen are the pairs, or all settings.
func Chosen() []Setting {
	if os.Getenv(EnvWhole) == "1" {
		return All()
	}
	return Pairs()
}

// WriteCorpora makes the folders of texts. An epoch of them ends in the middle of a step, whatever its micro-batches.
func WriteCorpora(corpus, heldOut string) error {
	if err := clmtest.WriteCorpus(corpus, 2, 240); err != nil {
		return err
	}
	return clmtest.WriteCorpus(heldOut, 1, 200)
}

// One is the setting of one process that has the bits of s. It recomputes nothing.
func (s Setting) One() Setting { return Setting{Times: s.MicroBatches(), Ranks: 1, BF16: s.BF16} }

// Flags are clm's: AdamW with clipping that is always active, dropout, tied weights and micro-batches of a sample.
func (s Setting) Flags(corpus, heldOut, out string) []string {
	flags := clmtest.Tiny(corpus, heldOut, out, "--n_layer", "6", "--n_embd", "16", "--block_size", "16",
		"--vocab_size", "270", "--per_device_train_batch_size", "1",
		"--global_train_batch_size", strconv.Itoa(s.MicroBatches()), "--bf16="+strconv.FormatBool(s.BF16),
		"--gradient_checkpointing="+strconv.FormatBool(s.Recompute), "--max_steps", strconv.Itoa(steps),
		"--save_steps", strconv.Itoa(steps), "--eval_steps", strconv.Itoa(steps), "--log_level", "info")
	if s.Ranks > 1 {
		flags = append(flags, "--pp_size", strconv.Itoa(s.Ranks), "--pp_schedule", s.Schedule)
	}
	return flags
}

// End is how a run ended: hashes of files, and what each step logged.
type End struct{ Weights, Moments, Steps string }

// ReadEnd reads it.
func ReadEnd(out string) (end End, err error) {
	last := filepath.Join(out, "checkpoint-"+strconv.Itoa(steps))
	if end.Weights, err = hash(filepath.Join(out, "model.safetensors")); err != nil {
		return end, err
	}
	if end.Moments, err = hash(filepath.Join(last, "optimizer.safetensors")); err != nil {
		return end, err
	}
	text, err := os.ReadFile(filepath.Join(last, "trainer_state.json"))
	if err != nil {
		return end, err
	}
	var state struct {
		LogHistory []map[string]any `json:"log_history"`
	}
	if err := json.Unmarshal(text, &state); err != nil {
		return end, err
	}
	for _, r := range state.LogHistory {
		if loss, ok := r["loss"]; ok {
			end.Steps += fmt.Sprintln(r["step"], loss, r["grad_norm"], r["learning_rate"])
		}
	}
	return end, nil
}

func hash(path string) (string, error) {
	b, err := os.ReadFile(path)
	return fmt.Sprintf("%x", sha256.Sum256(b)), err
}
