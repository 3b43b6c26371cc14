// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

const folder = "testdata/model"

// finetune runs the program, and returns what it printed.
func finetune(t *testing.T, argv ...string) (string, error) {
	var out bytes.Buffer
	argv = append(argv, "--report_to", "none")
	err := train(t.Context(), &program.Process{Name: "finetune", Args: argv, Stdout: &out, Stderr: &out})
	return out.String(), err
}

// Each group of settings has a heading that says what it is about.
func TestHelp(t *testing.T) {
	help, err := finetune(t, "--help")
	require.ErrorIs(t, err, args.ErrHelp)
	var headings []string
	for line := range strings.Lines(help) {
		if name, ok := strings.CutSuffix(line, ":\n"); ok && !strings.HasPrefix(line, " ") {
			headings = append(headings, name)
		}
	}
	require.Equal(t, []string{"Training", "Fine tuning", "Training data", "Adapter", "Hub", "Hub data", "Other flags"},
		headings)
}

type step struct {
	Loss         *float64 `json:"loss"`
	GradNorm     float64  `json:"grad_norm"`
	LearningRate float64  `json:"learning_rate"`
}

type golden struct {
	Forms map[string]struct {
		Rows    []json.RawMessage
		Options struct {
			AssistantOnly bool  `json:"assistant_only_loss"`
			Completion    *bool `json:"completion_only_loss"`
		}
		IDs, Labels [][]int32
	}
	Steps       []step
	PackedSteps []step `json:"packed_steps"`
}

func readGolden(t *testing.T) (g golden) {
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &g))
	return g
}

// Rows of all forms have the tokens and labels of TRL's SFTTrainer.
func TestSamplesAreThoseOfTRL(t *testing.T) {
	g := readGolden(t)
	require.Len(t, g.Forms, 6)
	_, f := defaults()
	f.ModelNameOrPath = folder
	j := &job{FineTuningArguments: f, Process: &program.Process{}, rows: []chat.Row{{Form: chat.Text}}}
	saved, err := language.Open(folder)
	require.NoError(t, err)
	j.base = &language.Tuned[language.Model]{Pretrained: saved, Line: func(string, ...string) {}}
	require.NoError(t, j.setEncoder())
	for name, form := range g.Forms {
		e := j.encoder
		e.AssistantOnly, e.MaxLength = form.Options.AssistantOnly, 64
		e.AllTokens = form.Options.Completion != nil && !*form.Options.Completion
		for i, text := range form.Rows {
			row, err := chat.ParseRow(text)
			require.NoError(t, err)
			s, err := e.Encode(row)
			require.NoError(t, err, "%s %d", name, i)
			labels := make([]int32, len(s.IDs))
			for k, id := range s.IDs {
				labels[k] = -100
				if s.Learned[k] {
					labels[k] = id
				}
			}
			require.Equal(t, form.IDs[i], s.IDs, "%s %d", name, i)
			require.Equal(t, form.Labels[i], labels, "%s %d", name, i)
		}
	}
}

// run50 is a run of 50 steps, with what golden.py gives TRL.
func run50(t *testing.T, want []step, more ...string) (out, printed string) {
	out = t.TempDir()
	printed, err := finetune(t, append([]string{"--model_name_or_path", folder, "--train_file", "testdata/chats.jsonl",
		"--output_dir", out, "--assistant_only_loss", "--learning_rate", "2e-3", "--max_steps", "50", "--logging_steps",
		"1", "--save_strategy", "no", "--train_sampling_strategy", "sequential", "--max_new_tokens", "4"}, more...)...)
	require.NoError(t, err, printed)
	text, err := os.ReadFile(filepath.Join(out, "trainer_state.json"))
	require.NoError(t, err)
	var state struct {
		LogHistory []step `json:"log_history"`
	}
	require.NoError(t, json.Unmarshal(text, &state))
	got := slices.DeleteFunc(state.LogHistory, func(s step) bool { return s.Loss == nil })
	require.Len(t, got, 50)
	require.Len(t, want, 50)
	for n, w := range want {
		require.InEpsilon(t, *w.Loss, *got[n].Loss, 1e-4, "loss of step %d", n+1)
		require.InEpsilon(t, w.GradNorm, got[n].GradNorm, 1e-4, "norm of step %d", n+1)
		require.InEpsilon(t, w.LearningRate, got[n].LearningRate, 1e-9, "rate of step %d", n+1)
	}
	return out, printed
}

// Losses, norms and rates of 50 steps are those of TRL's SFTTrainer.
func TestStepsAreThoseOfTRL(t *testing.T) {
	out, printed := run50(t, readGolden(t).Steps, "--max_length", "64", "--per_device_train_batch_size", "4")
	require.Contains(t, printed, "Who is Ada 0?<|im_end|>\n<|im_start|>assistant\n⟦Ada is number 0.<|im_end|>⟧\n")
	for _, name := range []string{"tokenizer.json", chat.TemplateFile, "generation_config.json", continuationsFile} {
		require.FileExists(t, filepath.Join(out, name))
	}
}

// So are they with rows put together, whose attention transformers keeps apart.
func TestPackedStepsAreThoseOfTRL(t *testing.T) {
	_, printed := run50(t, readGolden(t).PackedSteps, "--packing", "--max_length", "96",
		"--per_device_train_batch_size", "2")
	require.Regexp(t, `packed +20 rows, 86.6% of their 96 tokens are filled`, printed)
}

// A packed batch has the loss and the gradients of its texts alone. Without segment_ids it has others.
func TestPackedRowsAreTextsAlone(t *testing.T) {
	base, err := language.Open(folder)
	require.NoError(t, err)
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, true)
	var weights []*tensor.Tensor
	for _, p := range nn.NamedParameters(base.Model) {
		weights = append(weights, p.Tensor)
	}
	compute := func(drop string, samples ...chat.Sample) (loss float64, grads []float32) {
		b, err := chat.Collate(0)(c.Ctx, samples)
		require.NoError(t, err)
		b.Size = len(samples)
		delete(b.Tensors, drop)
		out := base.Model.Forward(c, b)
		for _, g := range tensor.Backward(c.Ctx, []*tensor.Tensor{out.Loss}, nil, weights) {
			grads = append(grads, tensor.ToSlice[float32](c.Ctx, g)...)
		}
		return float64(tensor.ToSlice[float32](c.Ctx, out.Loss)[0]), grads
	}
	var texts []chat.Sample
	for i, n := range []int{9, 6, 11, 3, 8} {
		s := chat.Sample{}
		for k := range n {
			s.IDs, s.Learned = append(s.IDs, int32((7*i+13*k*k)%300)), append(s.Learned, k%3 != 0)
		}
		texts = append(texts, s)
	}
	rows, err := chat.Pack(texts, 16, chat.BestFit)
	require.NoError(t, err)
	require.Len(t, rows, 3)
	wantLoss, want := compute("", texts...)
	loss, grads := compute("", rows...)
	require.InEpsilon(t, wantLoss, loss, 1e-6)
	require.InDeltaSlice(t, want, grads, 1e-5)
	loss, _ = compute(data.SegmentIDs, rows...)
	require.Greater(t, math.Abs(loss-wantLoss), 1e-3*wantLoss, "texts see each other")
}

// A packed run ends with the bits of one rank on two, and where it is resumed.
func TestPackedRunsAreDeterministic(t *testing.T) {
	run := func(out string, more ...string) [32]byte {
		printed, err := finetune(t, append([]string{"--model_name_or_path", folder, "--train_file",
			"testdata/chats.jsonl", "--output_dir", out, "--packing", "--packing_strategy", "wrapped", "--max_length",
			"48", "--save_steps", "3", "--max_new_tokens", "0", "--per_device_train_batch_size", "2"}, more...)...)
		require.NoError(t, err, printed)
		weights, err := os.ReadFile(filepath.Join(out, "model.safetensors"))
		require.NoError(t, err)
		return sha256.Sum256(weights)
	}
	out := t.TempDir()
	two := []string{"--gradient_accumulation_steps", "2", "--max_steps", "5"} // micro-batches
	want := run(t.TempDir(), two...)
	require.Equal(t, want, run(out, "--num_replicas", "2", "--max_steps", "5"))
	require.Equal(t, want, run(out, append(two, "--resume_from_checkpoint", filepath.Join(out, "checkpoint-3"))...))
	require.NotEqual(t, want, run(t.TempDir(), append(two, "--seed", "1")...), "another order of rows")
}

// A model that has learned the ends of answers stops.
func TestDemonstration(t *testing.T) {
	out := t.TempDir()
	printed, err := finetune(t, "--output_dir", out, "--answers", "5")
	require.NoError(t, err, printed)
	require.Contains(t, printed, "5 of 5 answers within 64 tokens")
	text, err := os.ReadFile(filepath.Join(out, continuationsFile))
	require.NoError(t, err)
	var answers []continuation
	require.NoError(t, json.Unmarshal(text, &answers))
	require.Len(t, answers, 5)
	for _, a := range answers {
		require.True(t, a.Stopped, a.Text)
	}
	require.Equal(t, "Bo is number 0.", answers[1].Text)
	require.Contains(t, printed, "Bo is number 0.")
}

// A model that is taught to end on another token than it stops at stops there, too.
func TestStopsAreExtended(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string) string {
		path = filepath.Join(dir, path)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	model := filepath.Join(dir, "model")
	require.NoError(t, os.CopyFS(model, os.DirFS(folder)))
	for _, c := range []struct {
		name, saved, row string
		argv             []string
		want             string // in what is saved
	}{
		{"the template's", `{"eos_token_id": 0, "top_k": 5}`, `{"instruction": "a", "output": "b"}`, nil, `[0,2]`},
		{"both are there", `{"eos_token_id": [0, 2]}`, `{"instruction": "a", "output": "b"}`, nil, `[0, 2]`},
		{"texts end on another", `{"eos_token_id": 0}`, `{"text": "b"}`, nil, `[0,2]`},
		{"a token of the user's", ``, `{"text": "b"}`, []string{"--eos_token", "<|endoftext|>"}, `[2,0]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, os.RemoveAll(filepath.Join(model, "generation_config.json")))
			if c.saved != "" {
				write("model/generation_config.json", c.saved)
			}
			out := filepath.Join(dir, "out")
			argv := append([]string{"--model_name_or_path", model, "--train_file", write("rows.jsonl", c.row),
				"--output_dir", out, "--max_steps", "1", "--save_strategy", "no", "--overwrite_output_dir"}, c.argv...)
			printed, err := finetune(t, argv...)
			require.NoError(t, err, printed)
			saved, err := os.ReadFile(filepath.Join(out, "generation_config.json"))
			require.NoError(t, err)
			var cfg map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(saved, &cfg))
			var ids, want []int
			require.NoError(t, json.Unmarshal(cfg["eos_token_id"], &ids))
			require.NoError(t, json.Unmarshal([]byte(c.want), &want))
			require.Equal(t, want, ids)
			require.Equal(t, strings.Contains(c.saved, "top_k"), string(cfg["top_k"]) == "5", "other keys stay")
			tokenizer, err := os.ReadFile(filepath.Join(out, "tokenizer_config.json"))
			require.NoError(t, err)
			require.Equal(t, c.argv != nil, strings.Contains(string(tokenizer), `"eos_token": "<|endoftext|>"`))
		})
	}
}

// Tokens of another template are added to the tokenizer and the model, which stops at them.
func TestTokensAreAdded(t *testing.T) {
	dir := t.TempDir()
	template := filepath.Join(dir, "other.jinja")
	require.NoError(t, os.WriteFile(template, []byte(`{% for m in messages %}<|turn|>{{ m.role }} `+
		`{% generation %}{{ m.content }}<|done|>{% endgeneration %}{% endfor %}`), 0o600))
	argv := []string{"--model_name_or_path", folder, "--train_file", "testdata/chats.jsonl", "--chat_template",
		template, "--max_steps", "2", "--save_strategy", "no", "--logging_steps", "1", "--max_new_tokens", "2"}
	refused, err := finetune(t, append(argv, "--output_dir", filepath.Join(dir, "refused"))...)
	require.Error(t, err, "without them the template's end of turn is several tokens")
	require.NotContains(t, refused, "step 1")

	add := []string{"--additional_special_tokens", "<|turn|>", "--additional_special_tokens", "<|done|>", "--eos_token",
		"<|done|>"}
	for multiple, want := range map[string]int{"64": 320, "0": 302} {
		out := filepath.Join(dir, multiple)
		printed, err := finetune(t, append(append(argv, add...), "--resize_to_multiple_of", multiple, "--output_dir",
			out)...)
		require.NoError(t, err, printed)
		require.Regexp(t, `added +<\|turn\|>, <\|done\|>.*300 rows become 3[02]`, printed)
		saved, err := language.Open(out)
		require.NoError(t, err)
		require.Equal(t, want, saved.Model.(models.Resizable).VocabSize())
		id, ok := saved.Tokenizer.TokenID("<|done|>")
		require.True(t, ok)
		require.Equal(t, int32(301), id)
		ids, err := saved.Tokenizer.Encode("<|turn|>a<|done|>")
		require.NoError(t, err)
		require.Equal(t, []int32{300, 301}, []int32{ids[0], ids[len(ids)-1]})
		text, err := saved.File("generation_config.json")
		require.NoError(t, err)
		require.Regexp(t, `"eos_token_id": \[\s*2,\s*301\s*\]`, string(text))
	}
	_, err = finetune(t, append(append(argv, add...), "--use_peft", "--output_dir", filepath.Join(dir, "peft"))...)
	require.ErrorContains(t, err, "an adapter is saved without the embeddings of new tokens")
}

// What would teach a model not to stop, or nothing, is refused before the first step.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const row = `{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}`
	rows := write("rows.jsonl", row)
	outside := write("outside.jinja", `{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}`+
		`<|im_end|>{% endfor %}`)
	bare := filepath.Join(dir, "bare")
	require.NoError(t, os.CopyFS(bare, os.DirFS(folder)))
	require.NoError(t, os.Remove(filepath.Join(bare, chat.TemplateFile)))
	for _, c := range []struct {
		want string
		argv []string
	}{
		{"does not end on a token at which the model stops (<|im_end|>)",
			[]string{"--train_file", rows, "--chat_template", outside, "--assistant_only_loss"}},
		{"there is no chat template", []string{"--train_file", rows, "--model_name_or_path", bare}},
		{`tokenizer.json, or additional_special_tokens to add it`,
			[]string{"--train_file", rows, "--eos_token", "<x>"}},
		{"rows.json: line 2: the row has text, and those before it messages: want one form",
			[]string{"--train_file", write("rows.json", row+"\n"+`{"text": "a"}`)}},
		{"broken.jinja)", []string{"--train_file", rows, "--chat_template", write("broken.jinja", "{% if %}")}},
		{`chat: the template leaves out what messages say: it makes "" of a question and its answer: want one that ` +
			"writes message.content (in ",
			[]string{"--train_file", rows, "--chat_template", write("none.jinja", "{{ messages[9999] }}")}},
		{"chat_template: chat: open ", []string{"--train_file", rows, "--chat_template", bare + ".jinja"}},
		{"want names of files", []string{"--train_file", ""}},
		{"line 1: the row has the keys", []string{"--train_file", write("keys.jsonl", `{"chat": []}`)}},
		{"no rows in", []string{"--train_file", write("empty.jsonl", "")}},
		{`model_name_or_path is "" (flag --model_name_or_path): want the model that learns the rows, or no rows`,
			[]string{"--train_file", rows, "--model_name_or_path", ""}},
	} {
		argv := append([]string{"--model_name_or_path", folder, "--output_dir", filepath.Join(dir, "out")}, c.argv...)
		printed, err := finetune(t, argv...)
		require.ErrorContains(t, err, c.want)
		require.NotContains(t, printed, "step 1")
	}
}

// A model that is fine-tuned from a GGUF file is saved as a folder with all that transformers needs.
func TestGGUF(t *testing.T) {
	out := t.TempDir()
	printed, err := finetune(t, "--model_name_or_path", "../../models/testdata/gguf/llama.gguf", "--train_file",
		"testdata/chats.jsonl", "--output_dir", out, "--max_steps", "2", "--max_length", "96", "--save_strategy", "no",
		"--max_new_tokens", "4")
	require.NoError(t, err, printed)
	saved, err := models.OpenPretrained[language.Model](tensor.CPU(), out, "a language model")
	require.NoError(t, err)
	require.Len(t, saved.Files, 5)
	_, err = chat.LoadTemplate(out)
	require.NoError(t, err)
}
