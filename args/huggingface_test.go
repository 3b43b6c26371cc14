// SPDX-License-Identifier: Apache-2.0

package args_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/catalog"
)

// theirs is a line of the goldens that testdata/training_arguments.py writes.
type theirs struct{ name, release, kind, value string }

func readTheirs(t *testing.T, file string) (out []theirs) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if len(f) == 3 {
			f = slices.Insert(f, 1, "")
		}
		out = append(out, theirs{f[0], f[1], f[2], f[3]})
	}
	return out
}

// setting is what a field of TrainingArguments says of itself, with its default.
type setting struct {
	usage, choices, value string
}

// values lists the choices.
func (s setting) values() string {
	if s.choices == "" {
		return ""
	}
	return ". Values: " + strings.ReplaceAll(s.choices, ",", ", ")
}

func settings(t *testing.T) map[string]setting {
	t.Helper()
	p := newProgram(nil, nil).parse()
	require.NoError(t, p.err)
	*p.train = *args.Default("")
	out := map[string]setting{}
	typ := reflect.TypeFor[args.TrainingArguments]()
	for i, row := range p.resolved.Table()[:typ.NumField()] {
		out[row[0]] = setting{args.Usage(typ, i), args.Choices(typ, i), row[1]}
	}
	return out
}

func knownRows() map[string]args.Known {
	out := map[string]args.Known{}
	for _, k := range args.HuggingFace() {
		out[k.Name] = k
	}
	return out
}

// Every argument of transformers' is a setting with its default, or a row of the table with its type and default.
func TestEveryArgumentOfTransformersIsKnown(t *testing.T) {
	ours, rows := settings(t), knownRows()
	require.Len(t, args.HuggingFace(), len(rows), "a name stands in the table twice")
	all := readTheirs(t, "transformers.tsv")
	require.Len(t, all, 114)
	current := map[string]bool{}
	for _, h := range all {
		current[h.name] = true
		s, built := ours[h.name]
		k, known := rows[h.name]
		require.True(t, built != known, "%s must be either a field or a row", h.name)
		if known {
			requireRow(t, h, k)
			continue
		}
		if s.value == "" {
			s.value = "none"
		}
		if args.NoneOf(h.name) != "" {
			require.Equal(t, "none", h.value, "%s: its note speaks of None", h.name)
			require.NotEqual(t, h.value, s.value, "%s needs no note", h.name)
			continue
		}
		require.Equal(t, h.value, s.value, "the default of %s", h.name)
	}
	old := readTheirs(t, "older.tsv")
	require.Greater(t, len(old), 30)
	for _, h := range old {
		current[h.name] = true
		if s, built := ours[h.name]; built { // it has gone there, and is a setting here
			require.NotContains(t, rows, h.name)
			require.Equal(t, h.value, cmp.Or(s.value, "none"), "the default of %s", h.name)
			continue
		}
		requireRow(t, h, rows[h.name])
	}
	for name := range rows {
		require.True(t, current[name] || name == "evaluate_during_training", "%s is no name of transformers'", name)
	}
}

// Every value that transformers lists for an argument is one of ours or known as not built.
func TestEveryValueOfTransformersIsKnown(t *testing.T) {
	ours := settings(t)
	text, err := os.ReadFile(filepath.Join("testdata", "values.tsv"))
	require.NoError(t, err)
	count := 0
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		s, built := ours[f[0]]
		if !built {
			continue // the heading, and arguments without effect
		}
		choices := strings.Split(s.choices, ",")
		if f[0] == "report_to" {
			choices = []string{"none", "all", "tensorboard"}
		}
		for _, v := range f[1:] {
			count++
			planned := slices.Contains(args.PlannedValues(f[0]), v) ||
				f[0] == "optim" && catalog.WhyRefused(v) != "" ||
				f[0] == "report_to" && !slices.Contains(choices, v)
			require.True(t, slices.Contains(choices, v) != planned, "%s %s", f[0], v)
			p := newProgram(nil, nil)
			p.loader.ForProgram(args.Program{Reporters: []string{"tensorboard"}})
			if p.parse("--"+f[0], v, "--metric_for_best_model", "loss"); planned {
				require.ErrorContains(t, p.err, v+" is ")
				require.NotContains(t, p.err.Error(), "did you mean")
			} else if p.err != nil {
				require.NotContains(t, p.err.Error(), "one of")
			}
		}
	}
	require.Greater(t, count, 80)
}

func requireRow(t *testing.T, h theirs, k args.Known) {
	t.Helper()
	require.Equal(t, h.name, k.Name, "%s is unknown", h.name)
	require.Contains(t, []args.Type{args.Type(h.kind), args.TypeAny}, k.Type, h.name)
	if h.value != "none" {
		require.Contains(t, append(k.Same, k.Default), h.value, "the default of %s", h.name)
	} else if h.release == "" {
		require.Empty(t, k.Default, "the default of %s", h.name)
	}
	if k.Status == args.StatusRenamed {
		_, built := settings(t)[k.Target]
		_, known := knownRows()[k.Target]
		require.True(t, built || known, "%s leads to %s, which is nothing", k.Name, k.Target)
		return
	}
	require.NotEmpty(t, k.Reason, k.Name)
	require.True(t, k.Status != args.StatusNoEffect || len("-- has no effect: "+k.Name+k.Reason) <= 100,
		"the notice of %s does not fit into 100 columns", k.Name)
	require.False(t, strings.HasSuffix(k.Reason, "."), k.Name)
}

// docFile is the page whose tables the tests of this package write with -rewrite.
const docFile = "../docs/arguments.md"

func cellText(s string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(s)
}

// The tables of docs/arguments.md are the parser's.
func TestDocument(t *testing.T) {
	ours, rows := settings(t), knownRows()
	here := func(name string) string {
		k, known := rows[name]
		if !known {
			s := ours[name]
			text := s.usage + s.values()
			if name == "optim" {
				text += ". Refused: " + strings.Join(catalog.RefusedOptimizers(), ", ") + ": see optimizers.md"
			}
			if planned := args.PlannedValues(name); planned != nil {
				text += ". Not built yet: " + strings.Join(planned, ", ")
			}
			if name == "report_to" {
				text += ". Reporters: " + strings.Join(args.ReporterPackages(), ", ") + ". Refused: " +
					strings.Join(args.RefusedReporters(), ", ") + ": see trackers.md"
			}
			if note := args.NoneOf(name); note != "" {
				text += fmt.Sprintf(". Default: %s (%s)", s.value, note)
			}
			return "built | " + text
		}
		switch {
		case k.Status == args.StatusRenamed && k.Values != nil:
			var pairs []string
			for _, from := range []string{"true", "false"} {
				if to, ok := k.Values[from]; ok {
					pairs = append(pairs, fmt.Sprintf("%s is `%s %s`", from, k.Target, to))
				}
			}
			return "renamed | " + strings.Join(pairs, ", ")
		case k.Status == args.StatusRenamed:
			return fmt.Sprintf("renamed | `%s`", k.Target)
		}
		reason := k.Reason
		if k.Status == args.StatusRefused {
			reason = "want " + reason
		}
		return fmt.Sprintf("%s | %s", k.Status, reason)
	}
	var b strings.Builder
	table := func(head string) {
		fmt.Fprintf(&b, "%s\n%s|\n", head, strings.Repeat("|---", strings.Count(head, "|")-1))
	}
	counts := map[string]int{}
	table("| name | default there | here | what it does, or why not |")
	seen := map[string]bool{}
	for _, h := range readTheirs(t, "transformers.tsv") {
		seen[h.name] = true
		text := here(h.name)
		counts[text[:strings.Index(text, " |")]]++
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", h.name, h.value, cellTextOfRow(text))
	}
	section(t, docFile, "current", b.String())

	b.Reset()
	fmt.Fprintf(&b, "Of the %d arguments, %d are built, %d are other names of built ones, %d have no effect here, %d "+
		"are not built yet,\nand %d are refused.\n",
		len(seen), counts["built"], counts["renamed"], counts["no effect"], counts["not built yet"], counts["refused"])
	section(t, docFile, "counts", b.String())

	b.Reset()
	table("| name | last seen in | here | what it does, or why not |")
	for _, h := range readTheirs(t, "older.tsv") {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", h.name, h.release, cellTextOfRow(here(h.name)))
	}
	fmt.Fprintf(&b, "| `evaluate_during_training` | before 4.1 | %s |\n",
		cellTextOfRow(here("evaluate_during_training")))
	section(t, docFile, "older", b.String())

	b.Reset()
	table("| name | here | what it does, or why not |")
	var names []string // of a row: neighbours that have one fate
	list := args.Libraries()
	for _, k := range list {
		rows[k.Name] = k
	}
	for i, k := range list {
		names = append(names, "`"+k.Name+"`")
		if cell := cellTextOfRow(here(k.Name)); i == len(list)-1 || cell != cellTextOfRow(here(list[i+1].Name)) {
			fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(names, ", "), cell)
			names = nil
		}
	}
	section(t, docFile, "libraries", b.String())

	b.Reset()
	table("| name | default | what it does |")
	typ := reflect.TypeFor[args.TrainingArguments]()
	for f := range typ.Fields() {
		if key := f.Tag.Get("json"); !seen[key] {
			s := ours[key]
			if s.value == "" {
				s.value = "none"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", key, s.value, cellText(s.usage+s.values()))
		}
	}
	section(t, docFile, "added", b.String())
}

func cellTextOfRow(row string) string {
	status, text, _ := strings.Cut(row, " | ")
	return status + " | " + cellText(text)
}

// section compares what stands between two markers of a page with want, or rewrites it.
func section(t *testing.T, path, name, want string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	page := strings.ReplaceAll(string(text), "\r\n", "\n")
	begin, end := fmt.Sprintf("<!-- begin %s -->\n", name), fmt.Sprintf("<!-- end %s -->\n", name)
	before, rest, ok := strings.Cut(page, begin)
	require.True(t, ok, "%s has no marker %s", path, begin)
	got, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "%s has no marker %s", path, end)
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(before+begin+want+end+after), 0o644))
		return
	}
	require.Equal(t, want, got, "%s: go test ./args -rewrite", path)
}

// sources returns the same setting by flag, variable, JSON and YAML.
func sources(name, value string) map[string]*program {
	text := value
	var js any
	if json.Unmarshal([]byte(value), &js) != nil {
		b, _ := json.Marshal(value)
		text = string(b)
	}
	files := map[string]string{"x.json": fmt.Sprintf(`{"%s": %s}`, name, text),
		"x.yaml": fmt.Sprintf("%s: %s\n", name, text)}
	return map[string]*program{
		"flag --" + name: newProgram(nil, nil).parse("--" + name + "=" + value),
		"env LOCKSTEP_" + strings.ToUpper(name): newProgram([]string{"LOCKSTEP_" + strings.ToUpper(name) + "=" + value},
			nil).parse(),
		"file x.json": newProgram(nil, files).parse("--config", "x.json"),
		"file x.yaml": newProgram(nil, files).parse("--config", "x.yaml"),
	}
}

// What happens to a name is the same from every source.
func TestKnownNames(t *testing.T) {
	for _, c := range []struct {
		name, value string
		fault       string // what follows "name is value (origin); "
		notice      string // what follows "name (origin) "
	}{
		{"push_to_hub", "false", "", ""},
		{"push_to_hub", "maybe", "want true or false", ""},
		{"push_to_hub", "true", "not built yet: uploads to the Hub", ""},
		{"deepspeed", `{"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"}`, "",
			"is read: keys used 2, without effect here 0"},
		{"deepspeed", "ds.json", "want a readable JSON or YAML file: ds.json: file does not exist", ""},
		{"fsdp_config", `{"min_num_params": 0, "xla": false}`, "", ""},
		{"fsdp_config", `{"min_num_params": 5}`, "", "has no effect: fsdp is not on"},
		{"average_tokens_across_devices", "false", "want true: the loss", ""},
		{"accelerator_config", `{"split_batches": false, "dispatch_batches": null, "even_batches": true}`, "", ""},
		{"accelerator_config", `{"split_batches": true}`, "want data_sharding huggingface with split_batches true", ""},
		{"accelerator_config", `{"even_batches": false}`, "want data_sharding huggingface with even_batches false", ""},
		{"accelerator_config", `{"dispatch_batches": true}`,
			"want dispatch_batches false: every rank reads its own batches", ""},
		{"accelerator_config", `{"use_seedable_sampler": false}`,
			"want use_seedable_sampler true: the order of samples", ""},
		{"accelerator_config", `{"split_batch": true}`, "want keys from dispatch_batches, even_batches, ", ""},
		{"accelerator_config", `{"split_batches": 1}`, "want split_batches to be true or false", ""},
		{"accelerator_config", `{"gradient_accumulation_kwargs": null, "non_blocking": true}`, "", ""},
		{"accelerator_config", "accelerate.json", "want a readable JSON or YAML file: accelerate.json", ""},
		{"split_batches", "true", "want accelerator_config with split_batches", ""},
		{"torch_compile", "true", "", "has no effect: programs and kernels are compiled before the run"},
		{"torch_compile", "false", "", ""},
		{"dataloader_pin_memory", "false", "", "has no effect: batches go to a GPU through pinned memory"},
		{"dataloader_pin_memory", "true", "", ""},
		{"remove_unused_columns", "false", "", "has no effect: a model takes"},
		{"hub_strategy", "every_save", "", ""},
		{"hub_strategy", "end", "", "has no effect: transformers too reads it only with push_to_hub"},
		{"eval_accumulation_steps", "2", "", "has no effect: metrics are"},
		{"eval_accumulation_steps", "0", "want a number of batches ≥ 1", ""},
		{"eval_accumulation_steps", "-1", "want a number of batches ≥ 1", ""},
		{"include_inputs_for_metrics", "true", "", "is taken as include_for_metrics inputs"},
		{"local_rank", "-1", "", ""},
		{"label_names", "labels", "", "has no effect: a model takes"},
		{"project", "huggingface", "", ""},
		{"evaluation_strategy", "epoch", "", "is taken as eval_strategy epoch"},
		{"evaluation_strategy", "no", "", ""},
		{"warmup_ratio", "0.1", "", "is taken as warmup_steps 0.1"},
		{"warmup_ratio", "0.0", "", ""},
		{"warmup_ratio", "1", "want a ratio of all steps in [0, 1)", ""},
		{"group_by_length", "true", "", "is taken as train_sampling_strategy group_by_length"},
		{"group_by_length", "false", "", ""},
		{"per_gpu_train_batch_size", "4", "", "is taken as per_device_train_batch_size 4"},
		{"activation_checkpointing", "true", "", "is taken as gradient_checkpointing true"},
		{"enable_jit_checkpoint", "true", "", "is taken as save_on_interrupt true"},
		{"enable_jit_checkpoint", "false", "", ""},
		{"evaluate_during_training", "true", "", "is taken as eval_strategy steps"},
		{"past_index", "2", "want -1: models with a memory", ""},
	} {
		for origin, p := range sources(c.name, c.value) {
			if c.name == "label_names" && strings.HasPrefix(origin, "file") {
				continue // a file has a list
			}
			if c.fault != "" {
				lines := faultLines(t, p.err)
				require.Len(t, lines, 1, "%s %s", c.name, origin)
				require.Regexp(t, fmt.Sprintf(`^%s is .* \(%s\)[:;] %s`, c.name, origin, quoteMeta(c.fault)), lines[0])
				continue
			}
			require.NoError(t, p.err, "%s %s %s", c.name, c.value, origin)
			if c.notice == "" {
				require.Empty(t, p.resolved.Notices, "%s %s %s", c.name, c.value, origin)
				continue
			}
			require.Len(t, p.resolved.Notices, 1, "%s %s", c.name, origin)
			subject := fmt.Sprintf("%s (%s)", c.name, origin)
			if origin == "flag --"+c.name {
				subject = "--" + c.name
			}
			require.Contains(t, p.resolved.Notices[0].String(), subject+" "+c.notice)
		}
	}
}

func quoteMeta(s string) string {
	return strings.NewReplacer("(", `\(`, ")", `\)`, "[", `\[`, "+", `\+`).Replace(s)
}

// Flags of known names have the forms of HuggingFace's parser.
func TestKnownFlagForms(t *testing.T) {
	for _, c := range []struct {
		argv    []string
		notices string // the keys, one after another
		fault   string
	}{
		{[]string{"--torch_compile"}, "torch_compile", ""},
		{[]string{"--torch_compile", "True", "--seed", "7"}, "torch_compile", ""},
		{[]string{"--torch_compile=True", "--seed", "7"}, "torch_compile", ""},
		{[]string{"--torch-compile", "--seed", "7"}, "torch_compile", ""},
		{[]string{"--torch_compile", "false", "--seed=7"}, "", ""},
		{[]string{"--torch_compile", "--torch_compile=no"}, "", ""},
		{[]string{"--no_dataloader_pin_memory", "--seed", "7"}, "dataloader_pin_memory", ""},
		{[]string{"--no-dataloader-pin-memory"}, "dataloader_pin_memory", ""},
		{[]string{"--no_remove_unused_columns", "--label_names", "a", "b", "--seed", "7"},
			"label_names remove_unused_columns", ""},
		{[]string{"--no_cuda"}, "use_cpu", ""},
		{[]string{"--no_cuda", "True"}, "use_cpu", ""},
		{[]string{"--use_cpu", "False", "--seed", "7"}, "", ""},
		{[]string{"--local_rank", "-1"}, "", ""},
		{[]string{"--local-rank=1"}, "local_rank", ""},
		{[]string{"--push_to_hub_token", "secret", "--hub_token", "secret"}, "hub_token", ""},
		{[]string{"--fsdp", "full_shard,auto_wrap", "--seed", "7"}, "", ""},
		{[]string{"--no_bf16"}, "", "unknown flag --no_bf16"},
		{[]string{"--logging_dir", "--seed", "7"}, "", "missing value of flag --logging_dir: want string"},
		{[]string{"--logging_dir"}, "", "missing value of flag --logging_dir: want string"},
		{[]string{"--adafactor"}, "adafactor", ""},
		{[]string{"--hub_token", "secret", "--hub_private_repo", "7"}, "", `unexpected argument "7"`},
		{[]string{"--per-device-train-batch-size", "4", "--seed=7"}, "", ""},
		{[]string{"--no-save-on-interrupt"}, "", ""},
	} {
		p := newProgram(nil, nil).parse(c.argv...)
		if c.fault != "" {
			require.Len(t, faultLines(t, p.err), 1)
			require.ErrorContains(t, p.err, c.fault)
			require.NotContains(t, p.err.Error(), "secret")
			continue
		}
		require.NoError(t, p.err, c.argv)
		var keys []string
		for _, n := range p.resolved.Notices {
			keys = append(keys, n.Key)
			require.NotContains(t, n.String(), "secret")
		}
		require.Equal(t, c.notices, strings.Join(keys, " "), c.argv)
		if strings.Contains(strings.Join(c.argv, " "), "seed") {
			require.EqualValues(t, 7, p.train.Seed, c.argv)
		}
	}
	p := newProgram(nil, nil).parse("--per-device-train-batch-size", "4", "--no-save-on-interrupt",
		"--gradient-accumulation-steps=3")
	require.NoError(t, p.err)
	require.Equal(t, []any{4, 3, false}, []any{p.train.PerDeviceTrainBatchSize, p.train.GradientAccumulationSteps,
		p.train.SaveOnInterrupt})
}

// An older name sets what replaced it, in its place among the sources.
func TestRenamedNames(t *testing.T) {
	files := map[string]string{
		"old.json":   `{"evaluation_strategy": "epoch", "warmup_ratio": 0.1, "group_by_length": true, "per_gpu_train_batch_size": 4}`,
		"new.json":   `{"eval_strategy": "steps", "warmup_steps": 50}`,
		"both.json":  `{"warmup_ratio": 0.1, "warmup_steps": 0, "evaluation_strategy": "epoch", "eval_strategy": "epoch", "per_gpu_train_batch_size": null}`,
		"other.json": `{"evaluation_strategy": "epoch", "eval_strategy": "steps"}`,
		"steps.json": `{"warmup_ratio": 0.0, "warmup_steps": 500}`,
	}
	for _, c := range []struct {
		environ, argv []string
		want          string
	}{
		{nil, []string{"--config", "old.json"}, "epoch 0.1 group_by_length 4"},
		{nil, []string{"--config", "old.json", "new.json"}, "steps 50 group_by_length 4"},
		{nil, []string{"--config", "new.json", "old.json"}, "epoch 0.1 group_by_length 4"},
		{nil, []string{"--config", "old.json", "--eval_strategy", "steps"}, "steps 0.1 group_by_length 4"},
		{nil, []string{"--config", "old.json", "--group_by_length", "false", "--evaluation_strategy", "no"},
			"no 0.1 random 4"},
		{nil, []string{"--config", "new.json", "--warmup_ratio", "0.25"}, "steps 0.25 random 8"},
		{nil, []string{"--config", "new.json", "--warmup_ratio", "0"}, "steps 0 random 8"},
		{nil, []string{"--config", "both.json"}, "epoch 0.1 random 8"},
		{nil, []string{"--config", "steps.json"}, "no 500 random 8"},
		{[]string{"LOCKSTEP_WARMUP_RATIO=0.5"}, []string{"--config", "old.json"}, "epoch 0.5 group_by_length 4"},
		{[]string{"LOCKSTEP_WARMUP_RATIO=0.5"}, []string{"--warmup_steps=3"}, "no 3 random 8"},
	} {
		p := newProgram(c.environ, files).parse(c.argv...)
		require.NoError(t, p.err, c.argv)
		a := p.train
		require.Equal(t, c.want, fmt.Sprintf("%s %g %s %d", a.EvalStrategy, a.WarmupSteps, a.TrainSamplingStrategy,
			a.PerDeviceTrainBatchSize), c.argv)
	}
	p := newProgram(nil, files).parse("--config", "other.json")
	require.Equal(t,
		[]string{
			`evaluation_strategy is "epoch" (file other.json): want eval_strategy alone, which has its place and is "steps" here`}, faultLines(t, p.err))

	p = newProgram(nil, files).parse("--evaluation_strategy", "epoch")
	require.Equal(t, "flag --evaluation_strategy", p.resolved.Origin("eval_strategy"))
	p = newProgram(nil, files).parse("--evaluation_strategy", "epochs")
	require.Equal(t, []string{`eval_strategy is "epochs" (flag --evaluation_strategy): want one of no, steps, epoch`},
		faultLines(t, p.err))

	// a program's own default yields to an older name's, too
	q := newProgram(nil, files)
	q.train.EvalStrategy = args.StrategyEpoch
	require.NoError(t, q.parse("--evaluation_strategy", "no").err)
	require.Equal(t, args.StrategyNo, q.train.EvalStrategy)
}

// A file that transformers wrote, with every argument in it, is a config file.
func TestFileOfTransformers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "training_args.json"))
	require.NoError(t, err)
	var all map[string]any
	require.NoError(t, json.Unmarshal(text, &all))
	require.Len(t, all, 114)
	// as run_clm.py is given one
	p := newProgram(nil, map[string]string{"training_args.json": string(text)}).parse("training_args.json")
	require.NoError(t, p.err)
	require.Empty(t, p.resolved.Notices)
	want := args.Default("out")
	want.DisableTQDM, want.ReportTo, want.Debug, want.IncludeForMetrics = new(false), []string{}, []string{}, []string{}
	require.Equal(t, want, p.train)
}

// All faults come at once, those of known names and of the program's parts among them.
func TestFaultsOfAllKindsAtOnce(t *testing.T) {
	p := newProgram([]string{"LOCKSTEP_PUSH_TO_HUB=1"},
		map[string]string{"x.yaml": "deepspeed: ds.json\nblock_size: 0\n"})
	p.loader.ForProgram(args.Program{Reporters: []string{"jsonl", "tensorboard"}})
	p.parse("--config", "x.yaml", "--report_to", "wandb", "--average_tokens_across_devices",
		"false", "--torch_compile", "--learning_rate=-1", "--stray_name=1")
	require.Equal(t, []string{
		"unknown flag --stray_name; --help lists the flags",
		`deepspeed is "ds.json" (file x.yaml): want a readable JSON or YAML file: ds.json: file does not exist`,
		"average_tokens_across_devices is false (flag --average_tokens_across_devices): want true: the loss is the " +
			"mean over the terms of all ranks, never a mean of the ranks' means",
		"push_to_hub is true (env LOCKSTEP_PUSH_TO_HUB); not built yet: uploads to the Hub; leave it out: " +
			"lockstep upload ORG/NAME OUTPUT_DIR sends what was saved",
		"learning_rate is -1 (flag --learning_rate): want a finite number ≥ 0",
		"block_size is 0 (file x.yaml): want a whole number ≥ 1",
		`report_to is "wandb" (flag --report_to): want none, all, or names from jsonl, tensorboard; wandb is in ` +
			`integrations/wandb, which this program does not import`,
	}, faultLines(t, p.err))
}

// A program without an engine for nccl takes its own, and says so; what the program itself sets is an error.
func TestEngines(t *testing.T) {
	p := newProgram(nil, nil)
	p.loader.ForProgram(args.Program{})
	p.parse("--ddp_backend", "nccl")
	require.NoError(t, p.err)
	require.Equal(t, args.BackendAuto, p.train.DDPBackend)
	require.Equal(t, "--ddp_backend has no effect: built without nccl (comm/nccl, -tags cuda), this program takes auto",
		p.resolved.Notices[0].String())

	p = newProgram(nil, nil)
	p.loader.ForProgram(args.Program{Engines: []string{"nccl"}})
	require.NoError(t, p.parse("--ddp_backend", "nccl").err)
	require.Equal(t, args.BackendNCCL, p.train.DDPBackend)
	require.Empty(t, p.resolved.Notices)

	a := args.Default("out")
	a.DDPBackend, a.ReportTo, a.LearningRate = args.BackendMPI, []string{"wandb"}, -1
	require.Len(t, faultLines(t, a.Validate()), 1)
	require.Equal(t, []string{
		"learning_rate is -1: want a finite number ≥ 0",
		`report_to is "wandb": want none, all, or names from jsonl; wandb is in integrations/wandb, which this ` +
			`program does not import`,
		`ddp_backend is "mpi": want one of auto, gloo, shm, tcp, nccl, which are what this program has`,
	}, faultLines(t, a.ValidateFor(args.Program{Reporters: []string{"jsonl"}, Engines: []string{"nccl"}})))
}

// use_cpu and its old name no_cuda are a value of device, which a program that lacks the device refuses.
func TestDevices(t *testing.T) {
	for _, flag := range []string{"--use_cpu", "--no_cuda"} {
		p := newProgram(nil, nil)
		p.loader.ForProgram(args.Program{Devices: []string{"cpu", "cuda:0"}})
		require.NoError(t, p.parse(flag).err)
		require.Equal(t, "cpu", p.train.Device)
		require.Contains(t, p.resolved.Notices[0].String(), "is taken as device cpu")

		p = newProgram(nil, nil)
		require.Equal(t, []string{
			"use_cpu is true (flag --use_cpu): want device alone, which has its place and is \"cuda\" here",
		}, faultLines(t, p.parse("--use_cpu", "--device", "cuda").err))
	}
	has := args.Program{Devices: []string{"absent", "cpu", "cuda:0", "cuda:1"}}
	a := args.Default("out")
	for _, name := range []string{"auto", "cpu", "cuda", "cuda:1", "absent"} {
		a.Device = name
		require.NoError(t, a.ValidateFor(has))
	}
	for _, name := range []string{"cuda:2", "tpu", ""} {
		a.Device = name
		require.Equal(t, []string{fmt.Sprintf("device is %q: want one of auto, cpu, absent, cuda, cuda:0, cuda:1, "+
			"which are what this program has", name)}, faultLines(t, a.ValidateFor(has)))
	}
}

// A program registers its own names. A setting or flag of the program comes first.
func TestKnow(t *testing.T) {
	p := newProgram([]string{"LOCKSTEP_JOB=7"}, nil)
	chatty := p.flags.Bool("chatty", false, "print more")
	p.loader.ReserveEnv("LOCKSTEP_JOB")
	p.loader.Know(
		args.Known{Name: "block_size", Type: args.TypeBool, Status: args.StatusRefused, Reason: "never"},
		args.Known{Name: "dataset_name", Type: args.TypeString, Status: args.StatusPlanned,
			Reason: "data sets of the Hub: want train_file"},
		args.Known{Name: "job", Type: args.TypeString, Status: args.StatusRefused, Reason: "never"},
		args.Known{Name: "push_to_hub", Type: args.TypeBool, Status: args.StatusNoEffect,
			Reason: "this program's own reason"},
	)
	p.parse("--chatty", "--block_size", "3", "--push_to_hub")
	require.NoError(t, p.err)
	require.True(t, *chatty)
	require.Equal(t, 3, p.data.BlockSize)
	require.Equal(t, "--push_to_hub has no effect: this program's own reason", p.resolved.Notices[0].String())

	p = newProgram(nil, nil)
	p.loader.Know(args.Known{Name: "max_length", Type: args.TypeInt, Status: args.StatusRenamed,
		Target: "max_words"})
	require.Equal(t, []string{"max_length is 3 (flag --max_length); not built yet: max_words"},
		faultLines(t, p.parse("--max_length=3").err))

	for _, bad := range []args.Known{{Name: "x", Type: "text", Status: args.StatusPlanned},
		{Name: "x", Type: args.TypeInt},
		{Name: "x", Type: args.TypeInt, Status: args.StatusRenamed}, {Type: args.TypeInt, Status: args.StatusPlanned},
		{Name: "x", Type: args.TypeInt, Status: args.StatusPlanned, Target: "seed"}} {
		require.Panics(t, func() { newProgram(nil, nil).loader.Know(bad) }, "%+v", bad)
	}
}

func TestUsageSaysWhereKnownNamesAre(t *testing.T) {
	usage := newProgram(nil, nil).loader.Usage()
	require.Contains(t, usage, "docs/arguments.md")
	require.NotContains(t, usage, "--push_to_hub")
	require.NotContains(t, usage, "--torch_compile")
}

// given values of some names, chosen at random, never make a name unknown, and each is judged as if it stood alone.
func TestRandomSubsets(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	rows := args.HuggingFace()
	values := map[args.Type][]string{
		args.TypeBool: {"true", "false", "True", "none"}, args.TypeInt: {"1", "-1", "none"},
		args.TypeFloat:  {"0.5", "0", "none"},
		args.TypeString: {"x", "no", "none"}, args.TypeList: {"a", "b"}, args.TypeAny: {"{}", "x", "false", `{"a": 1}`},
	}
	alone := func(flag string) (faults, notices int) {
		p := newProgram(nil, nil).parse(flag)
		if p.err != nil {
			return len(faultLines(t, p.err)), 0
		}
		return 0, len(p.resolved.Notices)
	}
	for range 60 {
		var argv []string
		faults, notices, targets := 0, 0, map[string]bool{}
		for _, i := range rnd.Perm(len(rows))[:8] {
			k := rows[i]
			target := k.Name
			for renamed := knownRows(); renamed[target].Target != ""; { // no_cuda is use_cpu, which is device
				target = renamed[target].Target
			}
			if targets[target] {
				continue // two names of one setting
			}
			targets[target] = true
			choices := values[k.Type]
			flag := "--" + k.Name + "=" + choices[rnd.IntN(len(choices))]
			f, n := alone(flag)
			argv, faults, notices = append(argv, flag), faults+f, notices+n
		}
		p := newProgram(nil, nil).parse(argv...)
		if faults == 0 {
			require.NoError(t, p.err, argv)
			require.Len(t, p.resolved.Notices, notices, argv)
			continue
		}
		lines := faultLines(t, p.err)
		require.Len(t, lines, faults, "%v", argv)
		require.NotContains(t, strings.Join(lines, "\n"), "unknown")
	}
}
