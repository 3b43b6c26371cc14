// SPDX-License-Identifier: Apache-2.0

// Clm compares the run of examples/clm as a process, from its start to its end, with a script for HuggingFace's Trainer
// that does the same: the text of the Go standard library, a tokenizer trained on it, the same model and settings, an
// evaluation and a checkpoint at the end.
//
// Runs alternate: ours, theirs, ours, theirs …. The rows are tokens trained on per second of the whole process, and the
// time from the process's start to the end of the first optimizer step; those with _ids are against a peer that leaves
// text and tokenizer alone and loads token ids. The peer is peer.py under the Python that the environment variable
// PYTHON names.
//
//	PYTHON=$PWD/venv/bin/python go run -C bench ./clm --threads 1,2 --steps 200
package main

import (
	"bufio"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/data/text"
)

const tokensPerStep = 8 * 128

// bench is what is measured.
type bench struct {
	steps, rounds   int
	eval            int    // bytes of text held out
	dir             string // of peer.py
	work            string
	program, python string
	texts, ids      string
	readyIDs        bool
}

func main() {
	log.SetFlags(0)
	var b bench
	threads := pflag.IntSlice("threads", []int{1, 2}, "numbers of threads to compare at")
	pflag.IntVar(&b.steps, "steps", 200, "optimizer steps of a run")
	pflag.IntVar(&b.eval, "eval", 384<<10, "bytes of text to evaluate on, rounded up to whole files")
	pflag.IntVar(&b.rounds, "rounds", 3, "runs of each side")
	pflag.StringVar(&b.dir, "dir", "clm", "the folder that holds peer.py")
	pflag.BoolVar(&b.readyIDs, "ids", true, "compare with a peer that loads token ids, too")
	pflag.Parse()
	if err := b.run(*threads); err != nil {
		log.Fatal(err)
	}
}

func (b *bench) run(threads []int) error {
	if b.python = os.Getenv("PYTHON"); b.python == "" {
		return errors.New("the environment variable PYTHON is empty: want a Python interpreter with transformers")
	}
	var err error
	if b.work, err = os.MkdirTemp("", "bench-clm-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.work)
	if err := b.prepare(); err != nil {
		return err
	}
	for _, n := range threads {
		if err := b.compare(n); err != nil {
			return err
		}
	}
	return nil
}

// prepare builds our program, copies the text and has the peer write its token ids.
func (b *bench) prepare() error {
	b.program, b.texts, b.ids = filepath.Join(b.work, "clm"), filepath.Join(b.work, "text"),
		filepath.Join(b.work, "ids.npz")
	build := exec.Command("go", "build", "-o", b.program, "./examples/clm")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	root, err := text.GoRoot()
	if err != nil {
		return err
	}
	train, eval, err := text.GoSource(root)
	if err != nil {
		return err
	}
	if err := copyFiles(filepath.Join(b.texts, "train"), train, 1<<40); err != nil {
		return err
	}
	if err := copyFiles(filepath.Join(b.texts, "eval"), eval, b.eval); err != nil {
		return err
	}
	if b.readyIDs {
		_, err = b.theirs(4, b.ids)
	}
	return err
}

// copyFiles copies files under their own names until they have so many bytes.
func copyFiles(dir string, files []string, limit int) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for i, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%05d.txt", i)), text, 0o666); err != nil {
			return err
		}
		if limit -= len(text); limit <= 0 {
			break
		}
	}
	return nil
}

// times are what a run took, in seconds from the process's start.
type times struct{ first, whole float64 }

// compare runs both sides alternately at one number of threads.
func (b *bench) compare(threads int) error {
	var ours, text, ids []times
	for range b.rounds {
		for _, side := range []struct {
			list *[]times
			run  func() (times, error)
		}{
			{&ours, func() (times, error) { return b.ours(threads) }},
			{&text, func() (times, error) { return b.theirs(threads, "") }},
			{&ids, func() (times, error) { return b.theirs(threads, b.ids) }},
		} {
			if side.list == &ids && !b.readyIDs {
				continue
			}
			t, err := side.run()
			if err != nil {
				return err
			}
			if t.first == 0 {
				return errors.New("a run did not say that its first step was over")
			}
			*side.list = append(*side.list, t)
		}
	}
	tokens := float64(b.steps * tokensPerStep)
	for _, peer := range []struct {
		suffix string
		runs   []times
	}{{"", text}, {"_ids", ids}} {
		if len(peer.runs) == 0 {
			continue
		}
		var speed, first []float64
		for i, t := range peer.runs {
			speed, first = append(speed, t.whole/ours[i].whole), append(first, t.first/ours[i].first)
		}
		whole := func(t times) float64 { return tokens / t.whole }
		firsts := func(t times) float64 { return 1e3 * t.first }
		fmt.Printf("ROW clm_process%s %d %.0f %.0f tokens/s %d steps\n", peer.suffix, threads, medianOf(ours, whole),
			medianOf(peer.runs, whole), b.steps)
		fmt.Printf("RATIO clm_process%s %d %.3f\n", peer.suffix, threads, stats.Median(speed))
		fmt.Printf("ROW clm_first_step%s %d %.0f %.0f ms\n", peer.suffix, threads, medianOf(ours, firsts),
			medianOf(peer.runs, firsts))
		fmt.Printf("RATIO clm_first_step%s %d %.3f\n", peer.suffix, threads, stats.Median(first))
	}
	return nil
}

// ours runs the example.
func (b *bench) ours(threads int) (times, error) {
	out := filepath.Join(b.work, "ours")
	n := strconv.Itoa(b.steps)
	cmd := exec.Command(b.program, "--train_file", filepath.Join(b.texts, "train"), "--validation_file",
		filepath.Join(b.texts, "eval"), "--output_dir", out,
		"--learning_rate", "3e-3", "--weight_decay", "0.1", "--adam_beta2", "0.98", "--lr_scheduler_type", "cosine",
		"--warmup_steps", "50",
		"--max_steps", n, "--eval_strategy", "steps", "--eval_steps", n, "--save_steps", n, "--save_total_limit", "2",
		"--logging_steps", "50", "--logging_first_step",
		"--dataloader_num_workers", "1", "--max_new_tokens", "0")
	return b.timed(cmd, threads, out)
}

// theirs runs the peer, on token ids if a file of them is given.
func (b *bench) theirs(threads int, ids string) (times, error) {
	out := filepath.Join(b.work, "theirs")
	arguments := []string{filepath.Join(b.dir, "peer.py"), strconv.Itoa(threads), strconv.Itoa(b.steps), out, b.texts}
	if ids != "" {
		arguments = append(arguments, ids)
	}
	return b.timed(exec.Command(b.python, arguments...), threads, out)
}

// timed runs a command that prints a line that begins with "step 1 " at the end of the first step, and removes what it
// wrote.
func (b *bench) timed(cmd *exec.Cmd, threads int, out string) (t times, err error) {
	defer os.RemoveAll(out)
	n := strconv.Itoa(threads)
	cmd.Env = append(os.Environ(), "GOMAXPROCS="+n, "OMP_NUM_THREADS="+n, "MKL_NUM_THREADS="+n, "RAYON_NUM_THREADS="+n,
		"OMP_WAIT_POLICY=PASSIVE", "HF_HUB_OFFLINE=1")
	if library := os.Getenv("MKL_PRELOAD"); library != "" && cmd.Path == b.python {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+library)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return t, err
	}
	cmd.Stderr = cmd.Stdout
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return t, err
	}
	var last []string // for an error
	for lines := bufio.NewScanner(output); lines.Scan(); {
		last = append(last[max(0, len(last)-19):], lines.Text())
		if t.first == 0 && strings.HasPrefix(lines.Text(), "step 1 ") {
			t.first = time.Since(start).Seconds()
		}
	}
	err = cmd.Wait()
	t.whole = time.Since(start).Seconds()
	if err != nil {
		return t, fmt.Errorf("%s: %w\n%s", cmd, err, strings.Join(last, "\n"))
	}
	return t, nil
}

func medianOf(list []times, f func(times) float64) float64 {
	var x []float64
	for _, t := range list {
		x = append(x, f(t))
	}
	return stats.Median(x)
}
