// SPDX-License-Identifier: Apache-2.0

// Clm shows how a language model is trained and fine-tuned, as transformers' run_clm.py does it. With no flags it
// trains a small GPT-2 for half a minute on functions of the Go standard library, which every Go installation has:
// first a tokenizer, then the model, with evaluations and checkpoints. At the end it reports whether the model predicts
// unseen functions better than byte counts do, and prints functions that the model wrote. They should look like Go.
//
//	go run ./examples/clm
//	go run ./examples/clm --resume_from_checkpoint last
//	go run ./examples/clm --train_file book.txt --do_train --do_eval --output_dir out/book
//	go run ./examples/clm --model_name_or_path out/clm --train_file my.jsonl.gz --output_dir out/tuned
//	go run ./examples/clm --do_eval --model_name_or_path out/clm --validation_file FILE --output_dir out/eval
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	_ "github.com/lockstep-ml/lockstep/comm/mpi"  // empty without -tags mpi
	_ "github.com/lockstep-ml/lockstep/comm/nccl" // empty without -tags cuda
	_ "github.com/lockstep-ml/lockstep/integrations/all"
	"github.com/lockstep-ml/lockstep/program"
	_ "github.com/lockstep-ml/lockstep/tensor/cuda" // empty without -tags cuda
)

func main() { os.Exit(program.Run(train)) }

// train is the program.
func train(ctx context.Context, p *program.Process) error {
	s := newSettings()
	resolved, err := p.Parse(s.loader())
	if errors.Is(err, args.ErrHelp) {
		fmt.Fprint(p.Stdout, demonstrationHelp)
	}
	if err != nil {
		return err
	}
	if s.args.LogLevel == args.LogLevelDebug || s.args.LogLevel == args.LogLevelInfo {
		list(p.Stdout, resolved)
	} else if settings := brief(resolved); len(settings) > 0 {
		p.Line("settings", settings...)
	}
	j := &job{settings: s, Process: p}
	return j.run(ctx)
}

// demonstrationHelp stands below the settings.
const demonstrationHelp = `Without train_file, validation_file and model_name_or_path clm trains on
functions of the Go standard library, with settings chosen for that. Otherwise
HuggingFace's defaults hold.
`
