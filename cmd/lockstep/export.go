// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/internal/terminal"
	"github.com/lockstep-ml/lockstep/models/export"
)

const exportUsage = `usage: lockstep export MODEL [FLAGS]

Writes a saved language model as one GGUF file, for llama.cpp, ollama and programs that use them.
MODEL is a folder that training or transformers saved, a GGUF file, or a model of HuggingFace's Hub
as org/name. The file has the weights, the tokenizer and the chat template. If llama.cpp would
compute a part of the model differently, the command writes nothing, and the error names that part.
The file is written whole or not at all; --overwrite replaces an existing one.

  lockstep export out/tuned --dtype q8_0 --output tuned.gguf --modelfile
  ollama create tuned -f Modelfile

`

// formatGGUF is the only format that is written.
const formatGGUF = "gguf"

// exportFlags are what export can be asked for.
type exportFlags struct {
	format, output string
	revision       string
	modelfile      bool
	options        export.Options
	write          export.WriteOptions
}

func (f *exportFlags) flagSet() *pflag.FlagSet {
	fs := pflag.NewFlagSet("export", pflag.ContinueOnError)
	fs.StringVar(&f.format, "format", formatGGUF, "format of the file: gguf")
	fs.StringVar((*string)(&f.options.DType), "dtype", string(export.Auto),
		"dtype of matrices: f32, f16, bf16, q8_0 (8 bits) or auto, that of the weights; norms and biases are f32")
	fs.StringVarP(&f.output, "output", "o", "", "the file (default: MODEL-DTYPE.gguf in the working directory)")
	fs.StringVar(&f.options.Adapter, "adapter", "",
		"a LoRA adapter to merge into the weights: its folder, or its name on the Hub")
	fs.StringVar(&f.revision, "revision", "", "branch, tag or commit of a model of the Hub (default: main)")
	fs.StringVar(&f.options.Name, "name", "", "name of the model in the file (default: MODEL's)")
	fs.BoolVar(&f.modelfile, "modelfile", false, "write ollama's Modelfile beside it: template, stop words, sampling")
	fs.BoolVar(&f.write.Overwrite, "overwrite", false, "replace existing files")
	return fs
}

func (p *program) export(argv []string) int {
	var f exportFlags
	fs := f.flagSet()
	if code, done := p.parse(fs, argv, exportUsage); done {
		return code
	}
	f.options.DType = export.DType(strings.ToLower(string(f.options.DType))) // llama.cpp writes Q8_0
	switch {
	case fs.NArg() != 1:
		return p.usageError("export: %s: want one MODEL", quantity.Of(fs.NArg(), "word"))
	case f.format != formatGGUF:
		return p.usageError("export: format %q: want %s", f.format, formatGGUF)
	case !slices.Contains(export.DTypes(), f.options.DType):
		return p.usageError("export: dtype %q: want one of %v", f.options.DType, export.DTypes())
	}
	ctx, stop := signal.NotifyContext(context.Background(), p.endings()...)
	defer stop()
	if err := p.exportModel(ctx, fs.Arg(0), &f); err != nil {
		return p.failed("export", unprefixed(err))
	}
	return exitOK
}

// unprefixed is an error without the name of the package, which is that of the command.
func unprefixed(err error) error {
	if text, ok := strings.CutPrefix(err.Error(), "export: "); ok {
		return errors.New(text)
	}
	return err
}

// exportModel writes the file, and the Modelfile if that is asked for.
func (p *program) exportModel(ctx context.Context, model string, f *exportFlags) error {
	model, err := p.hubModel(ctx, model, f.revision)
	if err == nil && f.options.Adapter != "" {
		f.options.Adapter, err = p.hubModel(ctx, f.options.Adapter, "")
	}
	if err != nil {
		return err
	}
	m, err := export.Open(model, f.options)
	if err != nil {
		return err
	}
	if f.output == "" {
		f.output = m.FileName()
	}
	if err := m.Check(f.output, f.write); err != nil {
		return err
	}
	if f.modelfile {
		if err := m.CheckModelfile(f.output, f.write); err != nil {
			return err
		}
	}
	for _, note := range m.Notes {
		p.complain("lockstep: export: %s", note)
	}
	begin := time.Now()
	shown := p.progress()
	f.write.Progress = shown.show
	err = m.Write(ctx, f.output, f.write)
	shown.end()
	if err != nil {
		return err
	}
	info, err := os.Stat(f.output)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%s: %d tensors, %s, %s MiB in %s\n", f.output, m.Tensors(), m.DType, mebibytes(info.Size()),
		time.Since(begin).Round(100*time.Millisecond))
	if !f.modelfile {
		return nil
	}
	path, err := m.WriteModelfile(ctx, f.output, f.write)
	if err == nil {
		fmt.Fprintln(p.stdout, path)
	}
	return err
}

// progress is a line on a terminal that shows how far the work is.
type progress struct {
	p     *program
	moves bool
	last  time.Time
	drawn bool
}

func (p *program) progress() *progress { return &progress{p: p, moves: terminal.Moves(p.stderr)} }

func (s *progress) show(done, total int64) {
	if !s.moves || total == 0 || time.Since(s.last) < 100*time.Millisecond {
		return
	}
	s.last, s.drawn = time.Now(), true
	fmt.Fprintf(s.p.stderr, "\r%3d %%", 100*done/total)
}

// end takes the line away.
func (s *progress) end() {
	if s.drawn {
		fmt.Fprint(s.p.stderr, "\r     \r")
	}
}
