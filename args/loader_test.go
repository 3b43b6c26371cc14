// SPDX-License-Identifier: Apache-2.0

package args_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

// dataArguments stands for the settings that an example adds.
type dataArguments struct {
	TrainFile []string    `json:"train_file" path:"true" usage:"files to train on"`
	BlockSize int         `json:"block_size" usage:"tokens per sample"`
	APIToken  string      `json:"api_token" usage:"key of a service"`
	_         int         // fields that are not exported, or tagged so, are no settings
	Cache     map[int]int `json:"-"`
}

func (d *dataArguments) Check(c *args.Checker) {
	if d.APIToken == "none allowed" {
		c.Require(!c.Given("api_token"), "api_token", d.APIToken, "the program's own")
	}
	c.Require(d.BlockSize >= 1, "block_size", d.BlockSize, "a whole number ≥ 1")
}

// program is one run of an example's command line.
type program struct {
	train    *args.TrainingArguments
	data     *dataArguments
	flags    *pflag.FlagSet
	loader   *args.Loader
	resolved *args.Resolved
	err      error
}

func newProgram(environ []string, files map[string]string) *program {
	p := &program{train: args.Default("out"), data: &dataArguments{BlockSize: 128}}
	p.flags = pflag.NewFlagSet("test", pflag.ContinueOnError)
	p.loader = args.Bind(p.flags, p.train, p.data)
	p.loader.Predicts = true
	p.loader.Environ = func() []string { return environ }
	p.loader.ReadFile = func(path string) ([]byte, error) {
		text, ok := files[path]
		if !ok {
			return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
		}
		return []byte(text), nil
	}
	return p
}

func (p *program) parse(argv ...string) *program {
	p.resolved, p.err = p.loader.Parse(argv)
	return p
}

func TestPrecedence(t *testing.T) {
	files := map[string]string{
		"a.yaml": "learning_rate: 1e-3\nblock_size: 64\nseed: 1\n",
		"b.json": `{"learning_rate": 2e-3, "run_name": "from b"}`,
	}
	for _, c := range []struct {
		name    string
		environ []string
		argv    []string
		rate    float64
		origin  string
	}{
		{"default", nil, nil, 5e-5, ""},
		{"file", nil, []string{"--config", "a.yaml"}, 1e-3, "file a.yaml"},
		{"later file", nil, []string{"--config", "a.yaml", "--config=b.json"}, 2e-3, "file b.json"},
		{"several files after one flag", nil, []string{"--config", "b.json", "a.yaml"}, 1e-3, "file a.yaml"},
		{"file named by a variable", []string{"LOCKSTEP_CONFIG=a.yaml"}, nil, 1e-3, "file a.yaml"},
		{"flag's file beats the variable's", []string{"LOCKSTEP_CONFIG=a.yaml"}, []string{"--config", "b.json"}, 2e-3,
			"file b.json"},
		{"env beats file", []string{"LOCKSTEP_LEARNING_RATE=3e-3", "HOME=/"}, []string{"--config", "a.yaml"}, 3e-3,
			"env LOCKSTEP_LEARNING_RATE"},
		{"flag beats env", []string{"LOCKSTEP_LEARNING_RATE=3e-3"},
			[]string{"--config", "a.yaml", "--learning_rate", "4e-3"}, 4e-3, "flag --learning_rate"},
		{"last flag wins", nil, []string{"--learning_rate=1", "--learning_rate=5e-3"}, 5e-3, "flag --learning_rate"},
		{"a flag may set the default", []string{"LOCKSTEP_LEARNING_RATE=3e-3"}, []string{"--learning_rate", "5e-5"},
			5e-5, "flag --learning_rate"},
		{"zero really is zero", []string{"LOCKSTEP_LEARNING_RATE=3e-3"}, []string{"--learning_rate=0"}, 0,
			"flag --learning_rate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProgram(c.environ, files).parse(c.argv...)
			require.NoError(t, p.err)
			require.Equal(t, c.rate, p.train.LearningRate)
			require.Equal(t, c.origin, p.resolved.Origin("learning_rate"))
		})
	}
}

// A source replaces whole values: objects of two sources are not mixed.
func TestObjectsAreReplacedWhole(t *testing.T) {
	files := map[string]string{"a.yaml": "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-6, " +
		"num_cycles: 1}\n"}
	p := newProgram(nil, files).parse("--config", "a.yaml")
	require.NoError(t, p.err)
	require.Equal(t, map[string]any{"min_lr": 1e-6, "num_cycles": 1.0}, p.train.LRSchedulerKwargs)

	p = newProgram(nil, files).parse("--config", "a.yaml", "--lr_scheduler_kwargs", `{"min_lr_rate": 0.1}`)
	require.NoError(t, p.err)
	require.Equal(t, map[string]any{"min_lr_rate": 0.1}, p.train.LRSchedulerKwargs)
}

func TestFlagForms(t *testing.T) {
	for _, c := range []struct {
		name  string
		argv  []string
		check func(t *testing.T, p *program)
	}{
		{"switch", []string{"--do_train"}, func(t *testing.T, p *program) { require.True(t, p.train.DoTrain) }},
		{"switch with value", []string{"--save_on_interrupt=false"}, func(t *testing.T, p *program) {
			require.False(t, p.train.SaveOnInterrupt)
		}},
		{"switch with a word", []string{"--save_on_interrupt", "False", "--do_eval", "True"},
			func(t *testing.T, p *program) {
				require.False(t, p.train.SaveOnInterrupt)
				require.True(t, p.train.DoEval)
			}},
		{"no_ form", []string{"--no_save_on_interrupt"}, func(t *testing.T, p *program) {
			require.False(t, p.train.SaveOnInterrupt)
			require.Equal(t, "flag --no_save_on_interrupt", p.resolved.Origin("save_on_interrupt"))
		}},
		{"last of both forms", []string{"--no_save_on_interrupt", "--save_on_interrupt"},
			func(t *testing.T, p *program) {
				require.True(t, p.train.SaveOnInterrupt)
				require.Equal(t, "flag --save_on_interrupt", p.resolved.Origin("save_on_interrupt"))
			}},
		{"no_ form negated", []string{"--no_save_on_interrupt=no"}, func(t *testing.T, p *program) {
			require.True(t, p.train.SaveOnInterrupt)
		}},
		{"negative number", []string{"--max_steps", "-1"}, func(t *testing.T, p *program) {
			require.Equal(t, -1, p.train.MaxSteps)
		}},
		{"whole float", []string{"--max_steps", "1e3"}, func(t *testing.T, p *program) {
			require.Equal(t, 1000, p.train.MaxSteps)
		}},
		{"pointer", []string{"--eval_steps", "0.5", "--data_seed", "7", "--greater_is_better"},
			func(t *testing.T, p *program) {
				require.Equal(t, new(0.5), p.train.EvalSteps)
				require.Equal(t, new(uint64(7)), p.train.DataSeed)
				require.Equal(t, new(true), p.train.GreaterIsBetter)
			}},
		{"pointer unset", []string{"--eval_steps=none", "--disable_tqdm=none"}, func(t *testing.T, p *program) {
			require.Nil(t, p.train.EvalSteps)
			require.Nil(t, p.train.DisableTQDM)
		}},
		{"list of words", []string{"--train_file", "a,b.txt", "c.txt", "--train_file=d.txt"},
			func(t *testing.T, p *program) {
				require.Equal(t, []string{"a,b.txt", "c.txt", "d.txt"}, p.data.TrainFile)
			}},
		{"list split at commas", []string{"--report_to", "jsonl, tensorboard"}, func(t *testing.T, p *program) {
			require.Equal(t, []string{"jsonl", "tensorboard"}, p.train.ReportTo)
		}},
		{"resume", []string{"--resume_from_checkpoint", "last"}, func(t *testing.T, p *program) {
			path, last := p.train.ResumePath()
			require.True(t, last)
			require.Empty(t, path)
		}},
		{"tokens seen as HuggingFace's boolean", []string{"--include_num_input_tokens_seen", "True"},
			func(t *testing.T, p *program) {
				require.Equal(t, args.TokensSeenAll, p.train.IncludeNumInputTokensSeen)
			}},
		{"largest seed", []string{"--seed=18446744073709551615"}, func(t *testing.T, p *program) {
			require.Equal(t, uint64(1<<64-1), p.train.Seed)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProgram(nil, nil).parse(c.argv...)
			require.NoError(t, p.err)
			c.check(t, p)
		})
	}
}

func TestOwnFlagsAndWords(t *testing.T) {
	p := newProgram(nil, nil)
	verbose := p.flags.BoolP("verbose", "v", false, "say more")
	name := p.flags.StringP("name", "n", "", "a name")
	p.parse("-v", "--seed", "3", "-n", "x")
	require.NoError(t, p.err)
	require.True(t, *verbose)
	require.Equal(t, "x", *name)
	require.EqualValues(t, 3, p.train.Seed)

	p = newProgram(nil, nil)
	p.loader.AllowArgs = true
	p.parse("one", "-", "--seed", "3", "--", "--two", "-3")
	require.NoError(t, p.err)
	require.Equal(t, []string{"one", "-", "--two", "-3"}, p.flags.Args())

	p = newProgram(nil, nil)
	count := p.flags.Int("count", 0, "a number")
	p.parse("--count", "many", "--seed=x")
	require.Zero(t, *count)
	require.ErrorContains(t, p.err, "count")
	require.ErrorContains(t, p.err, `seed is "x"`)
}

func TestHelp(t *testing.T) {
	for _, flag := range []string{"--help", "-h"} {
		p := newProgram(nil, nil).parse("--learning_rat=1", flag)
		require.ErrorIs(t, p.err, args.ErrHelp)
	}
	usage := newProgram(nil, nil).loader.Usage()
	for _, want := range []string{"Training:\n", "Data:\n", "--per_device_train_batch_size int",
		"(default 5e-05)",
		"--save_strategy string", "no, steps, epoch, best", "--block_size int", "--config list"} {
		require.Contains(t, usage, want)
	}
	require.Less(t, strings.Index(usage, "--output_dir"), strings.Index(usage, "--block_size"))
}

// Each struct's flags have their own heading, and choices that the usage names are not listed again.
func TestHelpHeadings(t *testing.T) {
	type TrainingArguments struct {
		Shape string `json:"shape" choices:"line,curve" usage:"line (straight), or curve"`
		Size  string `json:"size" choices:"small,large" usage:"how many"`
	}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	usage := args.Bind(fs, args.Default("out"), &TrainingArguments{"line", "small"}, &struct {
		Color string `json:"color" usage:"any"`
	}{}).UsageWrapped(60)
	var headings []string
	for line := range strings.Lines(usage) {
		require.LessOrEqual(t, len(line), 61, line)
		if text, ok := strings.CutSuffix(line, ":\n"); ok && !strings.HasPrefix(text, " ") {
			headings = append(headings, text)
		}
	}
	require.Equal(t, []string{"Training (args)", "Training (args_test)", "Arguments", "Other flags"}, headings)
	require.Regexp(t, `--shape string +line \(straight\), or curve\s+\(default\s+"line"\)`, usage)
	require.Regexp(t, `--size string +how many: small,\s+large`, usage)
}

// A heading has the words of the struct's name.
func TestHeadingWords(t *testing.T) {
	for name, want := range map[string]string{
		"HubDataArguments": "Hub data", "modelSettings": "Model", "DPOArguments": "DPO", "hubURLData": "Hub URL data",
		"Arguments": "Arguments", "Settings": "Arguments", "": "Arguments",
	} {
		require.Equal(t, want, args.Heading(name), name)
	}
}

// faultLines are the faults of an error, one a line.
func faultLines(t *testing.T, err error) []string {
	t.Helper()
	var e *args.Error
	require.ErrorAs(t, err, &e)
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.Error()
	}
	return lines
}

func TestAllFaultsAtOnce(t *testing.T) {
	files := map[string]string{"x.yaml": "learning_rat: 1\nweight_decay: heavy\nblock_size: 0\nconfig: y.yaml\n"}
	environ := []string{"LOCKSTEP_EVAL_STRATEGY=stepz", "LOCKSTEP_SEEED=1", "LOCKSTEP_CPU=avx2", "LOCKSTEP_seed=2"}
	p := newProgram(environ, files)
	p.loader.ReserveEnv("LOCKSTEP_CPU")
	p.parse("--config", "x.yaml", "missing.json", "notes.txt", "--per_device_train_batch_size", "-4",
		"--load_best_model_at_end", "--epoch_count", "3",
		"--gradient-accumulation-step=2", "stray", "--max_steps", "many", "--output_dir")
	require.Equal(t, []string{
		`unknown flag --epoch_count; --help lists the flags`,
		`unknown flag --gradient-accumulation-step; did you mean --gradient_accumulation_steps?`,
		`unexpected argument "stray": want flags only`,
		`missing value of flag --output_dir: want string`,
		`unknown key config in x.yaml; did you mean config_file?`,
		`unknown key learning_rat in x.yaml; did you mean learning_rate?`,
		`weight_decay is "heavy" (file x.yaml): want a finite number`,
		`cannot read config file missing.json; file does not exist`,
		`cannot read config file notes.txt: want a name that ends in .json, .yaml or .yml`,
		`unknown variable LOCKSTEP_SEEED; did you mean LOCKSTEP_SEED?`,
		`unknown variable LOCKSTEP_seed; did you mean LOCKSTEP_SEED?`,
		`max_steps is "many" (flag --max_steps): want a whole number`,
		`eval_strategy is "stepz" (env LOCKSTEP_EVAL_STRATEGY): want one of no, steps, epoch`,
		`per_device_train_batch_size is -4 (flag --per_device_train_batch_size): want a whole number ≥ 1`,
		`block_size is 0 (file x.yaml): want a whole number ≥ 1`,
	}, faultLines(t, p.err))
	require.True(t, strings.HasPrefix(p.err.Error(), "arguments: 15 faults:\n  - unknown flag"))

	var fault args.Fault
	require.True(t, errors.As(p.err, &fault))
	require.Equal(t, args.Default("out"), p.train, "a failed Parse changes nothing")
	require.Equal(t, 128, p.data.BlockSize)
}

func TestNearestNames(t *testing.T) {
	for wrong, right := range map[string]string{
		"learning_rat":               "learning_rate",
		"lerning_rate":               "learning_rate",
		"laerning_rate":              "learning_rate",
		"evaluation_strateg":         "evaluation_strategy",
		"torch_compil":               "torch_compile",
		"train_batch_size":           "per_device_train_batch_size",
		"per_device_train_batchsize": "per_device_train_batch_size",
		"num_train_epoch":            "num_train_epochs",
	} {
		p := newProgram(nil, map[string]string{"x.json": `{"` + wrong + `": 1}`}).parse("--config", "x.json")
		require.Equal(t, []string{"unknown key " + wrong + " in x.json; did you mean " + right + "?"},
			faultLines(t, p.err))
		p = newProgram(nil, nil).parse("--" + wrong + "=1")
		require.Equal(t, []string{"unknown flag --" + wrong + "; did you mean --" + right + "?"}, faultLines(t, p.err))
	}
	p := newProgram(nil, nil).parse("-learning_rate", "1")
	require.Equal(t, []string{"unknown flag -learning_rate; did you mean --learning_rate?"}, faultLines(t, p.err))
	p = newProgram([]string{"LOCKSTEP_QQQQ=1"}, nil).parse()
	require.Equal(t,
		[]string{"unknown variable LOCKSTEP_QQQQ; --help lists the settings; a variable is LOCKSTEP_ followed by the " +
			"name in capitals"}, faultLines(t, p.err))
}

// A check can tell what a user gave from what the program set.
func TestGiven(t *testing.T) {
	p := newProgram(nil, nil)
	p.data.APIToken = "none allowed"
	require.NoError(t, p.parse().err)
	p = newProgram([]string{"LOCKSTEP_API_TOKEN=none allowed"}, nil).parse()
	require.Equal(t, []string{"api_token is <API_TOKEN> (env LOCKSTEP_API_TOKEN): want the program's own"},
		faultLines(t, p.err))
}

func TestReserveEnvPattern(t *testing.T) {
	p := newProgram([]string{"LOCKSTEP_KERNELS=generic", "LOCKSTEP_JOB_ID=1", "LOCKSTEP_JOB_TOKEN=2"}, nil)
	p.loader.ReserveEnv("LOCKSTEP_JOB_*")
	require.NoError(t, p.parse().err)
}

func TestTable(t *testing.T) {
	p := newProgram([]string{"LOCKSTEP_API_TOKEN=secret"}, nil).parse("--seed=7", "--lr_scheduler_type=cosine",
		`--lr_scheduler_kwargs={"num_cycles": 2}`)
	require.NoError(t, p.err)
	require.Equal(t, "secret", p.data.APIToken)
	rows := map[string][3]string{}
	for _, row := range p.resolved.Table() {
		rows[row[0]] = row
	}
	require.Equal(t, [3]string{"seed", "7", "flag --seed"}, rows["seed"])
	require.Equal(t, [3]string{"learning_rate", "5e-05", "default"}, rows["learning_rate"])
	require.Equal(t, [3]string{"lr_scheduler_kwargs", `{"num_cycles":2}`, "flag --lr_scheduler_kwargs"},
		rows["lr_scheduler_kwargs"])
	require.Equal(t, [3]string{"eval_steps", "none", "default"}, rows["eval_steps"])
	require.Equal(t, [3]string{"api_token", "<API_TOKEN>", "env LOCKSTEP_API_TOKEN"}, rows["api_token"])
	require.NotContains(t, rows, "config")

	var b strings.Builder
	require.NoError(t, p.resolved.WriteTable(&b))
	require.Equal(t, len(rows), strings.Count(b.String(), "\n"))
	require.Regexp(t, `(?m)^seed +7 +flag --seed$`, b.String())
	require.NotContains(t, b.String(), "secret")
}

func TestHomeFolder(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	p := newProgram(nil, nil).parse("--output_dir=~/run", "--train_file=~/a.txt", "--resume_from_checkpoint=~")
	require.NoError(t, p.err)
	require.Equal(t, filepath.Join(home, "run"), p.train.OutputDir)
	require.Equal(t, []string{filepath.Join(home, "a.txt")}, p.data.TrainFile)
	require.Equal(t, home, p.train.ResumeFromCheckpoint)
	require.Equal(t, filepath.Join(home, "x"), args.Default("~/x").OutputDir)
	require.Equal(t, "~x", args.Default("~x").OutputDir)
}

func TestReadsRealFilesAndEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yml")
	require.NoError(t, os.WriteFile(path, []byte("seed: 5\nmax_steps: 11\n"), 0o600))
	t.Setenv("LOCKSTEP_WEIGHT_DECAY", "0.1")
	t.Setenv("LOCKSTEP_SEED", "6") // the flag beats it
	a := args.Default("out")
	loader := args.Bind(pflag.NewFlagSet("t", pflag.ContinueOnError), a)
	loader.ReserveEnv("LOCKSTEP_*") // whatever else this process was started with
	resolved, err := loader.Parse([]string{"--config", path, "--seed=7"})
	require.NoError(t, err)
	require.EqualValues(t, 7, a.Seed)
	require.Equal(t, 0.1, a.WeightDecay)
	require.Equal(t, 11, a.MaxSteps)
	require.Equal(t, "file "+path, resolved.Origin("max_steps"))
}

// fileArguments is embedded in the settings of several programs.
type fileArguments struct {
	TrainFile string `json:"train_file" usage:"file"`
}

// Settings of embedded structs are settings, at any depth; TrainingArguments stand beside others.
func TestEmbeddedStructs(t *testing.T) {
	type inner struct {
		fileArguments
		Rows int `json:"rows" usage:"rows"`
	}
	mine := &struct {
		inner
		Column string `json:"column" usage:"column"`
	}{Column: "text"}
	mine.Rows = 3
	loader := args.Bind(pflag.NewFlagSet("t", pflag.ContinueOnError), args.Default("out"), mine)
	loader.Environ = func() []string { return nil }
	_, err := loader.Parse([]string{"--train_file", "a.csv", "--rows", "5"})
	require.NoError(t, err)
	require.Equal(t, "a.csv", mine.TrainFile)
	require.Equal(t, 5, mine.Rows)
	require.Equal(t, "text", mine.Column)
	type whole struct{ args.TrainingArguments }
	require.PanicsWithValue(t, "args: args_test.whole embeds TrainingArguments: want the two beside each other in Bind",
		func() { args.Bind(pflag.NewFlagSet("t", pflag.ContinueOnError), &whole{}) })
}

func TestBindRefusesWhatIsNoSettingsStruct(t *testing.T) {
	type noUsage struct {
		A int `json:"a"`
	}
	type noKey struct {
		A int `usage:"x"`
	}
	type badType struct {
		A []int `json:"a" usage:"x"`
	}
	type twice struct {
		A int `json:"seed" usage:"x"`
	}
	for _, v := range []any{nil, 3, dataArguments{}, (*dataArguments)(nil), &noUsage{}, &noKey{}, &badType{}} {
		require.Panics(t, func() { args.Bind(pflag.NewFlagSet("t", pflag.ContinueOnError), v) }, "%T", v)
	}
	require.Panics(t, func() { args.Bind(pflag.NewFlagSet("t", pflag.ContinueOnError), args.Default(""), &twice{}) })
}

func TestDefaultsByWhatWasGiven(t *testing.T) {
	for _, c := range []struct {
		argv              []string
		seed, warmups     string
		ofSeed, ofWarmups string
	}{
		{nil, "7", "0", "demonstration", ""},
		{[]string{"--seed", "3"}, "3", "0", "flag --seed", ""},
		{[]string{"--warmup_steps", "5"}, "7", "5", "demonstration", "flag --warmup_steps"},
		{[]string{"--max_steps", "5"}, "42", "10", "", "long run"},
	} {
		a := args.Default("out")
		l := args.Bind(pflag.NewFlagSet("t", pflag.ContinueOnError), a)
		l.Environ = func() []string { return nil }
		l.Defaults(func(given func(string) bool) string {
			if given("max_steps") {
				a.WarmupSteps = 10
				return "long run"
			}
			a.Seed = 7
			return "demonstration"
		})
		resolved, err := l.Parse(c.argv)
		require.NoError(t, err)
		require.Equal(t, c.seed, fmt.Sprint(a.Seed), c.argv)
		require.Equal(t, c.warmups, fmt.Sprint(a.WarmupSteps), c.argv)
		require.Equal(t, c.ofSeed, resolved.Origin("seed"), c.argv)
		require.Equal(t, c.ofWarmups, resolved.Origin("warmup_steps"), c.argv)
		require.Empty(t, resolved.Origin("learning_rate"), "it has not changed")
	}
}

// Of a flag that is given twice the last value counts, and is the one that an error names.
func TestFaultOfRepeatedFlag(t *testing.T) {
	l := args.Bind(pflag.NewFlagSet("t", pflag.ContinueOnError), args.Default("out"))
	l.Environ = func() []string { return nil }
	_, err := l.Parse([]string{"--weight_decay", "0.1", "--weight_decay", "ten"})
	require.EqualError(t, err, `arguments: weight_decay is "ten" (flag --weight_decay): want a finite number`)
}

// The form of sharded checkpoints is read from accelerate launch's variable too, in accelerate's spelling. Every other
// source beats it.
func TestVariableOfAccelerate(t *testing.T) {
	const variable = "FSDP_STATE_DICT_TYPE="
	files := map[string]string{"x.yaml": "fsdp_state_dict_type: FULL_STATE_DICT\n"}
	for _, c := range []struct {
		environ []string
		argv    []string
		want    args.StateDictType
		origin  string
	}{
		{nil, nil, args.FullStateDict, ""},
		{[]string{variable}, nil, args.FullStateDict, ""},
		{[]string{variable + "SHARDED_STATE_DICT"}, nil, args.ShardedStateDict, "env FSDP_STATE_DICT_TYPE"},
		{[]string{variable + "SHARDED_STATE_DICT"}, []string{"--config", "x.yaml"}, args.FullStateDict, "file x.yaml"},
		{[]string{variable + "SHARDED_STATE_DICT", "LOCKSTEP_FSDP_STATE_DICT_TYPE=full_state_dict"}, nil,
			args.FullStateDict, "env LOCKSTEP_FSDP_STATE_DICT_TYPE"},
		{nil, []string{"--fsdp_state_dict_type", "Sharded_State_Dict"}, args.ShardedStateDict,
			"flag --fsdp_state_dict_type"},
	} {
		p := newProgram(c.environ, files).parse(c.argv...)
		require.NoError(t, p.err)
		require.Equal(t, c.want, p.train.FSDPStateDictType)
		require.Equal(t, c.origin, p.resolved.Origin("fsdp_state_dict_type"))
	}
	p := newProgram([]string{variable + "LOCAL_STATE_DICT"}, nil).parse()
	require.ErrorContains(t, p.err, `fsdp_state_dict_type is "local_state_dict" (env FSDP_STATE_DICT_TYPE): want one of `+
		"full_state_dict, sharded_state_dict")
}
