// SPDX-License-Identifier: Apache-2.0

// Package byfeature runs every example of this folder and looks at what it prints.
package byfeature

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/lockstep-ml/lockstep/accelerate/launch" // what the programs link counts for go test's cache
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	_ "github.com/lockstep-ml/lockstep/trainer"
)

// result is an example that ran.
type result struct {
	dir    string // the working folder
	stdout string
	stderr string
	code   int
}

// programs is the folder of the built examples. They are linked once: in an overlay each is a package, whose Main a
// program calls by the name that it is started with. That they build as they are is the build's to show.
func programs(t *testing.T) string {
	t.Helper()
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	sources, err := filepath.Glob("*/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, sources)
	dir, replace := t.TempDir(), map[string]string{}
	put := func(name, text string) {
		file := filepath.Join(t.TempDir(), "file.go")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		replace[filepath.Join(here, name)] = file
	}
	var names []string
	var imports, calls string
	for _, source := range sources {
		code, err := os.ReadFile(source) // which makes it an input of the test for go test's cache
		require.NoError(t, err)
		text := strings.Replace(string(code), "\npackage main\n", "\npackage example\n", 1)
		if name, file := filepath.Split(source); file == "main.go" {
			name = filepath.Clean(name)
			require.Contains(t, text, "\nfunc main() {", source)
			text = strings.Replace(text, "\nfunc main() {", "\nfunc Main() {", 1)
			names = append(names, name)
			imports += fmt.Sprintf("\t%s %q\n", name, "github.com/lockstep-ml/lockstep/examples/by_feature/"+name)
			calls += fmt.Sprintf("\t%q: %s.Main,\n", name, name)
		}
		put(source, text)
	}
	put(filepath.Join("all", "main.go"), fmt.Sprintf(all, imports, calls))
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	file := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(file, overlay, 0o600))
	build := exec.Command("go", "build", "-ldflags=-s -w", "-overlay", file, "-o", dir, "./all", "../../cmd/lockstep")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range names {
		require.NoError(t, os.Link(executable(filepath.Join(dir, "all")), executable(filepath.Join(dir, name))))
	}
	return dir
}

// all is the program that is all examples.
const all = `package main

import (
	"os"
	"path/filepath"
	"strings"

%s)

var examples = map[string]func(){
%s}

func main() { examples[strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")]() }
`

// executable is the file of a program.
func executable(program string) string {
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	return program
}

// run runs a program in an empty folder.
func run(t *testing.T, program string, env []string, argv ...string) result {
	t.Helper()
	return runIn(t, t.TempDir(), program, env, argv...)
}

// runIn runs a program in a folder.
func runIn(t *testing.T, dir, program string, env []string, argv ...string) result {
	t.Helper()
	r := result{dir: dir}
	cmd := exec.Command(executable(program), argv...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = r.dir, &stdout, &stderr, append(os.Environ(), env...)
	err := cmd.Run()
	if _, exited := err.(*exec.ExitError); !exited {
		require.NoError(t, err)
	}
	r.stdout, r.stderr, r.code = stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	return r
}

var formula = regexp.MustCompile(`y = (-?[\d.]+)x \+ (-?[\d.]+)`)

// lines are the formulas that the program printed, as pairs of coefficients.
func (r result) lines(t *testing.T) (ab [][2]float64) {
	t.Helper()
	for _, m := range formula.FindAllStringSubmatch(r.stdout, -1) {
		a, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		b, err := strconv.ParseFloat(m[2], 64)
		require.NoError(t, err)
		ab = append(ab, [2]float64{a, b})
	}
	return ab
}

// numbers are those that the program printed in lines of a form: the first group is the key, the second the number.
func (r result) numbers(t *testing.T, form string) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for _, m := range regexp.MustCompile(form).FindAllStringSubmatch(r.stdout, -1) {
		x, err := strconv.ParseFloat(m[2], 64)
		require.NoError(t, err)
		all[m[1]] = x
	}
	require.NotEmpty(t, all, r.stdout)
	return all
}

// requireLearned checks that formula number i is near y = 2x + 3.
func (r result) requireLearned(t *testing.T, i int) {
	t.Helper()
	ab := r.lines(t)
	require.Greater(t, len(ab), i, r.stdout)
	require.InDelta(t, 2, ab[i][0], 0.1, r.stdout)
	require.InDelta(t, 3, ab[i][1], 0.1, r.stdout)
}

var hash = regexp.MustCompile(`weights ([0-9a-f]{12})`)

// launched runs the program as processes and returns what it prints, with the weights that r has on one rank.
func (r result) launched(t *testing.T, program string, ranks int) string {
	t.Helper()
	launcher := filepath.Join(filepath.Dir(program), "lockstep")
	p := run(t, launcher, nil, "launch", "--nproc_per_node", strconv.Itoa(ranks), "--", program)
	require.Zero(t, p.code, p.stderr)
	require.Equal(t, hash.FindStringSubmatch(r.stdout), hash.FindStringSubmatch(p.stdout))
	require.Len(t, hash.FindAllString(p.stdout, -1), 1, "rank 0 alone prints")
	return p.stdout
}

// examples says of each example what its output must show.
var examples = map[string]func(t *testing.T, program string, r result){
	"arguments": func(t *testing.T, program string, r result) {
		r.requireLearned(t, 0)
		r = run(t, program, []string{"LOCKSTEP_LEARNING_RATE=0.2"}, "--num_samples", "8", "--num_train_epochs=2",
			"--save_strategy", "no")
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stdout, "learning_rate comes from env LOCKSTEP_LEARNING_RATE\n")
		require.Contains(t, r.stdout, "num_samples comes from flag --num_samples\n")
		require.Contains(t, r.stdout, "after 2 steps\n")
		r = run(t, program, nil, "--num_samples=0", "--learning_rat=1")
		require.Equal(t, 2, r.code)
		require.Contains(t, r.stderr, "num_samples is 0 (flag --num_samples): want a whole number ≥ 1\n")
		require.Contains(t, r.stderr, "unknown flag --learning_rat; did you mean --learning_rate?\n")
		require.Contains(t, run(t, program, nil, "--help").stdout, "--num_samples")
		r = run(t, program, nil, "--num_train_epochs=1", "--torch_compile", "--warmup_ratio", "0.1", "--save_strategy",
			"no")
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stdout, "--torch_compile has no effect: ")
		require.Contains(t, r.stdout, "--warmup_ratio is taken as warmup_steps 0.1\n")
		r = run(t, program, nil, "--push_to_hub", "--report_to", "wandb", "--num_samples=0")
		require.Equal(t, 2, r.code)
		require.Contains(t, r.stderr, "3 faults")
		require.Contains(t, r.stderr, "push_to_hub is true (flag --push_to_hub); not built yet: uploads to the Hub")
		require.Contains(t, r.stderr, `report_to is "wandb" (flag --report_to): want none`)
	},
	"compression": func(t *testing.T, _ string, r result) {
		loss := r.numbers(t, `(?m)^(.*): eval_loss (\d\.\d+), .*; same bits as without: (?:true|false)$`)
		sent := r.numbers(t, `(?m)^(.*): eval_loss .*, each rank sent (\d+) KB; `)
		require.Contains(t, r.stdout, "; same bits as without: true\nbf16: ")
		require.Equal(t, 6, strings.Count(r.stdout, "; same bits as without: false\n"))
		require.Less(t, loss["no compression"], 3.5, "of 5.5 before training")
		for _, how := range []string{"bf16", "int8", "power_sgd", "top_k", "local SGD", "post-local SGD"} {
			require.InDelta(t, loss["no compression"], loss[how], 0.5, how)
			require.Less(t, sent[how], 0.75*sent["no compression"], how)
		}
	},
	"context_parallel": func(t *testing.T, program string, r result) {
		for run, same := range map[string]string{"2 ranks, cp_size 2 by ring": "false",
			"4 ranks, cp_size 4 by ulysses": "true", "4 ranks, cp_size 2 by gather": "true"} {
			require.Regexp(t, "(?m)^"+run+": .*, same bits as on 1 rank: "+same+"$", r.stdout)
		}
		losses := r.numbers(t, `(?m)^(.*): weights .* loss ([\d.]+)`)
		for run, loss := range losses {
			require.InDelta(t, losses["1 rank"], loss, 1e-3, run)
		}
		require.Contains(t, r.launched(t, program, 2), "cp_size 2 by gather: weights ")
	},
	"custom_callback": func(t *testing.T, _ string, r result) {
		r.requireLearned(t, 0)
		require.Regexp(t, `(?m)^epoch  1: worst step [1-9]`, r.stdout)
		require.Regexp(t, `worst step 0\.0[0-4]\d\d\ny = .*, stopped after \d+ of 800 steps`, r.stdout,
			"the last epoch is the first that was good enough")
		require.Len(t, regexp.MustCompile(`worst step 0\.0[0-4]`).FindAllString(r.stdout, -1), 1)
	},
	"custom_loss": func(t *testing.T, _ string, r result) {
		r.requireLearned(t, 1)
		require.Greater(t, r.lines(t)[0][1], 4.0, "the squared error is drawn to the wild labels")
	},
	"custom_training_loop": func(t *testing.T, program string, r result) {
		r.requireLearned(t, 0)
		require.Regexp(t, `(?m)^step 80  loss 0\.0`, r.stdout)
		require.Contains(t, r.stdout, " on 2 ranks\n")
		require.Len(t, r.lines(t), 1, "rank 0 alone prints")
		out := filepath.Join(r.dir, "out", "custom_training_loop")
		log, err := os.ReadFile(filepath.Join(out, "log.jsonl"))
		require.NoError(t, err)
		require.Equal(t, 4, bytes.Count(log, []byte("\n")))

		require.NoError(t, os.RemoveAll(filepath.Join(out, "checkpoint-80")))
		again := runIn(t, r.dir, program, nil, "-resume")
		_, end, _ := strings.Cut(r.stdout, "\nstep 60")
		require.Equal(t, "step 60"+end, again.stdout, "from step 40 on")
	},
	"early_stopping": func(t *testing.T, _ string, r result) {
		r.requireLearned(t, 0)
		require.Regexp(t,
			`^stopped after \d\d? of 100 epochs \(EarlyStoppingCallback: no eval_loss below 0\.0\d+ by more than 0\.0001 in 2 evaluations\); best eval_loss 0\.0\d+ at step \d+: `, r.stdout)
		infos, err := (&checkpoint.Store{Dir: filepath.Join(r.dir, "out", "early_stopping")}).List()
		require.NoError(t, err)
		require.Len(t, infos, 2)
	},
	"fsdp": func(t *testing.T, _ string, r result) {
		require.Regexp(t, `^830208 parameters; units: 4 transformer blocks of 198272\n1 rank: loss [23]\.`, r.stdout)
		require.Equal(t, 4, strings.Count(r.stdout, ", same bits as on 1 rank: true\n"), r.stdout)
		size := r.numbers(t, `(?m)^(.*): loss .*, (\d+\.\d) MB per rank,`)
		for _, how := range []string{"shard_grad_op", "full_shard"} {
			require.InDelta(t, 0.5, size["4 ranks, fsdp "+how]/size["4 ranks"], 0.1, r.stdout)
		}
	},
	"zero": func(t *testing.T, _ string, r result) {
		require.Regexp(t, `^1 rank: loss [23]\.`, r.stdout)
		require.Equal(t, 5, strings.Count(r.stdout, ", same bits as on 1 rank: true\n"), r.stdout)
		size := r.numbers(t, `(?m)^(.*): loss .*, (\d+\.\d) MB per rank,`)
		require.Greater(t, 0.85*size["4 ranks"], size["zero_stage 1"])
		require.Greater(t, size["zero_stage 1"], size["zero_stage 2"])
		require.Greater(t, 0.85*size["zero_stage 2"], size["zero_stage 3"])
	},
	"deepspeed_config": func(t *testing.T, _ string, r result) {
		require.Regexp(t, `(?m)^used +zero_optimization\.stage: zero_stage 3$`, r.stdout)
		require.Regexp(t, `(?m)^no effect +zero_optimization\.overlap_comm: exchanges always overlap`, r.stdout)
		require.Regexp(t, `(?m)^zero_stage 3 on 4 ranks: training loss [23]\.\d+$`, r.stdout)
	},
	"offload": func(t *testing.T, _ string, r result) {
		size := r.numbers(t, `(?m)^offload (.*): loss [23]\.\d+, (\d+\.\d) MB in memory$`)
		require.Less(t, size["disk"], 0.5*size["none"])
		require.Contains(t, r.stdout, "\nsame bits: true\n")
		files, err := os.ReadDir(filepath.Join(r.dir, "out", "offload", "state"))
		require.NoError(t, err)
		require.Empty(t, files)
	},
	"estimate": func(t *testing.T, _ string, r result) {
		require.Contains(t, r.stdout, "124439808 parameters on 8 ranks, MiB on each\n")
		require.Regexp(t, `(?m)^no_shard +474\.7 +474\.7 +949\.4 +[\d.]+$`, r.stdout)
		require.Regexp(t, `(?m)^zero_stage 1 +47\d\.\d +47\d\.\d +119\.\d +[\d.]+$`, r.stdout)
		require.Regexp(t, `(?m)^zero_stage 2 +47\d\.\d +59\.\d +119\.\d +[\d.]+$`, r.stdout)
		require.Regexp(t, `(?m)^full_shard +59\.\d +59\.\d +118\.\d +[\d.]+$`, r.stdout)
		require.NoDirExists(t, filepath.Join(r.dir, "out"))
	},
	"goroutine_ranks": func(t *testing.T, _ string, r result) {
		for i := range 4 {
			r.requireLearned(t, i)
		}
		require.Len(t,
			regexp.MustCompile(`(?m)^(?:1 rank|[248] ranks), 80 steps: .*; same bits as on 1: true$`).FindAllString(r.stdout, -1),
			4, r.stdout)
	},
	"gradient_accumulation": func(t *testing.T, _ string, r result) {
		r.requireLearned(t, 0)
		ab := r.lines(t)
		require.Len(t, ab, 2)
		require.InDeltaSlice(t, ab[0][:], ab[1][:], 0.0011, "formulas have three decimals")
		require.Regexp(t, `(?m)^4 × 4 samples per step, 80 steps`, r.stdout)
	},
	"inference": func(t *testing.T, _ string, r result) {
		require.Regexp(t, `^x = 1, 2, 3: y = \[(4\.9|5\.0)\d (6\.9|7\.0)\d (8\.9|9\.0)\d\]\n`, r.stdout)
		require.Len(t,
			regexp.MustCompile(
				`(?m)^(one at a time|batches of 256|4 goroutines, .*) +\d+ predictions/s, same as the first: true$`).FindAllString(r.stdout, -1), 3, r.stdout)
	},
	"iterable": func(t *testing.T, _ string, r result) {
		r.requireLearned(t, 0)
		r.requireLearned(t, 1)
		require.Regexp(t, `(?m)^2 ranks, after resume: .*, eval_loss 0\.01`, r.stdout)
		require.Contains(t, r.stdout, "same bits: true\n")
		require.FileExists(t, filepath.Join(r.dir, "out", "iterable", "parts", "checkpoint-33", "sampler.json"))
	},
	"launch": func(t *testing.T, program string, alone result) {
		alone.requireLearned(t, 0)
		require.Regexp(t, `^rank 0 of 1, process \d+: 80 steps`, alone.stdout)
		launcher := filepath.Join(filepath.Dir(program), "lockstep")
		flights := t.TempDir()
		r := run(t, launcher, []string{"LOCKSTEP_FLIGHT_DIR=" + flights}, "launch", "--nproc_per_node", "2", "--",
			program)
		require.Zero(t, r.code, r.stderr)
		require.NotContains(t, r.stderr, "flight record", "a rank that has ended well is not lost")
		records, err := os.ReadDir(flights)
		require.NoError(t, err)
		require.Empty(t, records)
		for i := range 2 {
			r.requireLearned(t, i)
			require.Len(t,
				regexp.MustCompile(fmt.Sprintf(`(?m)^\[%d\] rank %d of 2, process \d+: 80 steps`, i, i)).FindAllString(
					r.stdout, -1), 1, r.stdout)
		}
		weights := func(r result) []byte {
			b, err := os.ReadFile(filepath.Join(r.dir, "out", "launch", "model.safetensors"))
			require.NoError(t, err)
			return b
		}
		require.True(t, bytes.Equal(weights(alone), weights(r)), "the same bits")
	},
	"merge_weights": func(t *testing.T, program string, r result) {
		require.Equal(t, 4, strings.Count(r.stdout, "a rank wrote out/merge_weights/checkpoint-10/shard-0000"),
			r.stdout)
		require.Contains(t, r.stdout, "merged into [model.safetensors config.json training_args.json]\n")
		require.Contains(t, r.stdout, "loaded with the same bits: true\n")
		run := filepath.Join(r.dir, "out", "merge_weights")
		merge := func(from string, argv ...string) string {
			to := filepath.Join(t.TempDir(), "merged")
			got := runIn(t, r.dir, filepath.Join(filepath.Dir(program), "lockstep"), nil,
				append([]string{"merge-weights", from, to}, argv...)...)
			require.Zero(t, got.code, got.stderr)
			return to
		}
		text := func(dir string) string {
			b, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
			require.NoError(t, err)
			return string(b)
		}
		require.Equal(t, text(filepath.Join(run, "merged")), text(merge(run)), "the last checkpoint of the run")
		split := merge(run, "--max_shard_size", "1MB")
		require.FileExists(t, filepath.Join(split, "model.safetensors.index.json"))
		require.Equal(t, text(filepath.Join(run, "merged")), text(merge(split)), "an index is merged too")
	},
	"mesh": func(t *testing.T, program string, r result) {
		require.Equal(t, 5, strings.Count(r.stdout, ", same bits as on 1 rank: true\n"), r.stdout)
		require.Contains(t, r.launched(t, program, 4), "pp 2 × dp_replicate 1 × dp_shard 2: weights ")
	},
	"metrics": func(t *testing.T, _ string, r result) {
		require.Regexp(t, `^eval_loss 0\.0\d+  eval_rmse 0\.1\d+  eval_max_error 0\.\d+  eval_r2 0\.99\d+\n`, r.stdout)
	},
	"no_sync": func(t *testing.T, _ string, r result) {
		r.requireLearned(t, 0)
		require.Contains(t, r.stdout, "each rank: 320 backward passes, 80 exchanges\n")
	},
	"pipeline": func(t *testing.T, program string, r result) {
		for _, run := range []string{"1f1b, 2 ranks", "zbv, 2 ranks", "zb_h1, 4 ranks"} {
			require.Regexp(t, "(?m)^"+run+": weights [0-9a-f]{12}, same bits as on 1 rank: true$", r.stdout)
		}
		require.Contains(t, r.launched(t, program, 2), "1f1b, 2 ranks: weights ")
	},
	"profile": func(t *testing.T, _ string, r result) {
		require.Regexp(t, `^rank 0: 3 steps from step 3 on, `, r.stdout)
		for _, row := range []string{"forward", "backward", "optimizer", "bucket", "matmul", "attention", "adamw",
			"between kernels"} {
			require.Regexp(t, `(?m)^`+row+` `, r.stdout)
		}
		for _, file := range []string{"trace_rank0.json", "trace_rank1.json", "ops_rank1.txt"} {
			require.FileExists(t, filepath.Join(r.dir, "out", "profile", file))
		}
	},
	"resume": func(t *testing.T, _ string, r result) {
		r.requireLearned(t, 0)
		require.Contains(t, r.stdout, "trainer: interrupted after step 29: context canceled\n")
		require.Contains(t, r.stdout, "same bits: true\n")
	},
	"resume_on_other_ranks": func(t *testing.T, _ string, r result) {
		r.requireLearned(t, 1)
		require.Contains(t, r.stdout, "4 ranks: trainer: interrupted after step 13: ")
		require.Contains(t, r.stdout, "2 ranks: trainer: interrupted after step 45: ")
		require.Contains(t, r.stdout, "same bits: true\n")
	},
	"tensor_parallel": func(t *testing.T, program string, r result) {
		require.Equal(t, 5, strings.Count(r.stdout, ", same bits: true\n"), r.stdout)
		require.Regexp(t, "(?m)^tp 1 × dp_replicate 1, whole sums: weights [0-9a-f]{12}, same bits: false$", r.stdout)
		weights := regexp.MustCompile("weights ([0-9a-f]{12})").FindString(r.stdout)
		require.Contains(t, r.launched(t, program, 2), "tp 2 × dp_replicate 1, sums in 4 parts: "+weights+"\n")
	},
	"three_dimensions": func(t *testing.T, program string, r result) {
		as := regexp.MustCompile(": as on 1 rank in each step, weights [0-9a-f]{12}\n")
		require.Len(t, as.FindAllString(r.stdout, -1), 4, r.stdout)
		require.Contains(t, r.launched(t, program, 8), "pp=2,dp_shard=2,tp=2"+as.FindString(r.stdout))
		for spoil, want := range map[string]string{
			"samples":    `step 2: ranks \d and \d share the work on the same samples, and have others`,
			"gradients":  `step 2: rank 7 differs from 1 rank in the gradient of transformer\.`,
			"weights":    `step 2: rank 7 differs from 1 rank in the weights of transformer\.`,
			"checkpoint": `mesh dp_shard=2,tp=2, from the checkpoint: .*shard-0000`,
		} {
			spoiled := run(t, program, nil, "-spoil", spoil)
			require.NotZero(t, spoiled.code, spoil)
			require.Regexp(t, want, spoiled.stderr)
		}
	},
	"uneven_inputs": func(t *testing.T, _ string, r result) {
		r.requireLearned(t, 0)
		require.Contains(t, r.stdout, "batches of the ranks [13 5 8]: 13 steps, 99 samples\n")
	},
}

func TestExamples(t *testing.T) {
	folders, err := filepath.Glob("*/main.go")
	require.NoError(t, err)
	built := programs(t)
	for _, f := range folders {
		name := filepath.Dir(f)
		t.Run(name, func(t *testing.T) {
			check := examples[name]
			require.NotNil(t, check, "no test says what the example must show")
			program := filepath.Join(built, name)
			r := run(t, program, nil)
			require.Zero(t, r.code, r.stderr)
			check(t, program, r)
		})
	}
	require.Len(t, folders, len(examples))
}

// TestLine: before training the shared model is nowhere near the line.
func TestLine(t *testing.T) {
	a, b := line.Coefficients(line.Model())
	require.Greater(t, max(2-a, 3-b), 1.0)
	require.Equal(t, line.Samples(8, 1), line.Samples(8, 1))
	require.NotEqual(t, line.Samples(8, 1), line.Samples(8, 2))
}
