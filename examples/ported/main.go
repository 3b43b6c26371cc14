// SPDX-License-Identifier: Apache-2.0

// Ported has scripts of transformers' and accelerate's examples, each in its own file, which were ported by the tables
// of docs/overriding.md alone. Its first argument is a script's name, as README.md lists them; --help after it lists
// the settings.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/program"
)

// scripts are the ports by the names of the originals.
var scripts = map[string]func(context.Context, *program.Process) error{
	"nlp_example":                     nlp,
	"complete_nlp_example":            nlp,
	"cv_example":                      cv,
	"complete_cv_example":             cv,
	"cross_validation":                crossValidation,
	"memory":                          memory,
	"automatic_gradient_accumulation": memory,
	"multi_process_metrics":           multiProcessMetrics,
	"schedule_free":                   scheduleFree,
	"run_clm_no_trainer":              clm,
	"gradient_accumulation_for_autoregressive_models": clm,
	"run_summarization":     summarization,
	"run_translation":       translation,
	"distributed_inference": inference,
}

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	names := strings.Join(slices.Sorted(maps.Keys(scripts)), ", ")
	if len(p.Args) == 0 {
		return fmt.Errorf("want the name of a script: %s", names)
	}
	script, ok := scripts[p.Args[0]]
	if !ok {
		return fmt.Errorf("no script %q: want one of %s", p.Args[0], names)
	}
	p.Args = p.Args[1:]
	return script(ctx, p)
}
