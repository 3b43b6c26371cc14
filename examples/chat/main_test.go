// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// asProgram makes the test binary be the program.
const asProgram = "CHAT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	main()
}

// folder is a model that knows nothing yet, and reads 128 tokens.
const folder = "../finetune/testdata/model"

// changed is a copy of the folder with another text in place of old in a file.
func changed(t *testing.T, file, old, text string) string {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(folder)))
	content, err := os.ReadFile(filepath.Join(dir, file))
	require.NoError(t, err)
	require.Contains(t, string(content), old)
	content = bytes.ReplaceAll(content, []byte(old), []byte(text))
	require.NoError(t, os.WriteFile(filepath.Join(dir, file), content, 0o600))
	return dir
}

// piped runs the program on a pipe, and returns what it printed and what it said.
func piped(t *testing.T, text string, argv ...string) (out, said string, err error) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	go func() {
		_, _ = w.WriteString(text) // the program may end before it has read all
		_ = w.Close()
	}()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	var messages bytes.Buffer
	p := &program.Process{Name: "chat", Args: append([]string{"--model_name_or_path", folder}, argv...),
		Stdout: &messages, Stderr: &messages}
	err = talkOver(t.Context(), p, r, file)
	require.NoError(t, file.Close())
	printed, failed := os.ReadFile(file.Name())
	require.NoError(t, failed)
	return string(printed), messages.String(), err
}

// talked is what was printed without an error.
func talked(t *testing.T, text string, argv ...string) string {
	out, said, err := piped(t, text, argv...)
	require.NoError(t, err, said)
	return out
}

// The answer is that of generation with the tokens of the chat template.
func TestAnswer(t *testing.T) {
	a, how := defaults(), newSampling()
	a.ModelNameOrPath, a.System = folder, "Be brief."
	c, err := open(a, how, tensor.CPU())
	require.NoError(t, err)
	require.Equal(t, []int{2}, c.options.EOS)
	const prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
	tokens, err := c.base.Tokenizer.Encode(prompt)
	require.NoError(t, err)
	var ids []int
	for _, id := range tokens {
		ids = append(ids, int(id))
	}
	net := nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, false)
	out, err := generation.Generate(t.Context(), net, c.base.Model, ids, generation.Options{MaxNewTokens: 6})
	require.NoError(t, err)
	stream := generation.NewTextStream(c.base.Tokenizer.NewStream(), nil)
	want := ""
	for _, id := range out {
		piece, err := stream.Next(id)
		require.NoError(t, err)
		want += piece
	}
	want += stream.Flush() + "\n"
	require.Equal(t, want, talked(t, "Who?\n", "--system", "Be brief.", "--max_new_tokens", "6"))
}

// An adapter brings its model, and the model says something else with it.
func TestAdapter(t *testing.T) {
	m, err := models.LoadPretrained(tensor.CPU(), folder)
	require.NoError(t, err)
	base, err := filepath.Abs(folder)
	require.NoError(t, err)
	a, err := lora.New(m, lora.Config{R: 4, Alpha: 40, TargetModules: lora.AllLinear, Init: lora.InitRandom,
		BaseModel: base})
	require.NoError(t, err)
	adapted := t.TempDir()
	require.NoError(t, a.Save(adapted))
	short := []string{"--max_new_tokens", "8"}
	plain := talked(t, "Who?\n", short...)
	got := talked(t, "Who?\n", append(short, "--adapter", adapted)...)
	require.NotEqual(t, plain, got)
	require.Equal(t, got, talked(t, "Who?\n", append(short, "--model_name_or_path", adapted)...))
	require.NoError(t, a.Merge())
	a.Remove()
	merged := t.TempDir()
	require.NoError(t, os.CopyFS(merged, os.DirFS(folder)))
	require.NoError(t, models.SaveWeights(m, filepath.Join(merged, models.WeightsFile)))
	require.Equal(t, got, talked(t, "Who?\n", append(short, "--model_name_or_path", merged)...))
	_, _, err = piped(t, "Who?\n", "--adapter", t.TempDir())
	require.ErrorContains(t, err, "is not a saved adapter")
}

// The model sees what was said before, until /reset; a system prompt changes what it says.
func TestHistory(t *testing.T) {
	short := []string{"--max_new_tokens", "8"}
	lines := func(text string) []string { return strings.Split(talked(t, text, short...), "\n") }
	alone := lines("two\n")
	require.NotEqual(t, alone[0], lines("one\ntwo\n")[1])
	require.Equal(t, alone[0], lines("one\n/reset\ntwo\n")[1])
	system := lines("one\n/system Speak like a pirate.\ntwo\n")[1]
	require.NotEqual(t, alone[0], system)
	require.Equal(t, system+"\n", talked(t, "two", append(short, "--system", "Speak like a pirate.")...))
	require.NotEqual(t, talked(t, "\"\"\"a\nb\"\"\"\n", short...), talked(t, "ab\n", short...))
}

// What is saved can be learned.
func TestSave(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	out, said, err := piped(t, "one\n/save "+path+"\n/reset\n\"\"\"\ntwo\nlines\"\"\"\n/save "+path+"\n/exit\nthree",
		"--max_new_tokens", "3", "--system", "S")
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(out, "\n"), out)
	require.Contains(t, said, "(added to "+path+")\n")
	rows, err := chat.ReadRows(path)
	require.NoError(t, err)
	require.Len(t, rows, 2)
	var messages []message
	require.NoError(t, json.Unmarshal(rows[1].Messages, &messages))
	require.Equal(t, message{"user", "two\nlines"}, messages[1])
	require.Equal(t, "assistant", messages[2].Role)
	require.Equal(t, strings.Split(out, "\n")[1], messages[2].Content)
}

// A full context is said: earlier messages go first, then answers are cut, and what does not fit at all is refused.
func TestFullContext(t *testing.T) {
	long := strings.Repeat("x ", 25) + "\n"
	_, said, err := piped(t, long+long+long, "--max_new_tokens", "5")
	require.NoError(t, err)
	require.Contains(t, said, "(the context is full: the model does not see the first 2 messages any more)\n")
	require.Contains(t, said, "(cut at max_new_tokens)\n")
	out, said, err := piped(t, strings.Repeat("x ", 50)+"\n", "--temperature", "3", "--seed", "1")
	require.NoError(t, err)
	require.NotEmpty(t, out)
	require.Contains(t, said, "(cut: the context is full)\n")
	_, _, err = piped(t, strings.Repeat("x ", 70)+"\n")
	require.ErrorContains(t, err, "and the model reads 128: want a shorter one")
}

func TestErrors(t *testing.T) {
	bare := changed(t, "tokenizer_config.json", "{", "{")
	require.NoError(t, os.Remove(filepath.Join(bare, chat.TemplateFile)))
	template := filepath.Join(t.TempDir(), "own.jinja")
	require.NoError(t, os.WriteFile(template, []byte("{% for m in messages %}[{{ m.content }}]{% endfor %}"), 0o600))
	strict := changed(t, chat.TemplateFile, "{% for", "{{ raise_exception('no such role') if messages[0].role == "+
		"'system' }}{% for")
	for _, c := range []struct {
		text, want string
		argv       []string
	}{
		{"a", "or give a file with one by --chat_template", []string{"--model_name_or_path", bare}},
		{"a", "broken.jinja", []string{"--chat_template", "broken.jinja"}},
		{"a", `chat_template_kwargs`, []string{"--chat_template_kwargs", "[]"}},
		{"a", "dtype", []string{"--dtype", "int8"}},
		{"a", "there is no model in out/finetune", []string{"--model_name_or_path", "out/finetune"}},
		{"/system x\na", "no such role", []string{"--model_name_or_path", strict}},
		{"/nix", "there is no /nix: /help lists commands", nil},
		{"/save x", "/save needs the name of a file, and a conversation to save", nil},
		{"\"\"\"a\nb", `a message that begins with """ has no end`, nil},
	} {
		_, _, err := piped(t, c.text, c.argv...)
		require.ErrorContains(t, err, c.want)
	}
	out, said, err := piped(t, "/usr/bin is a path", "--model_name_or_path", bare, "--chat_template", template,
		"--max_new_tokens", "4")
	require.NoError(t, err)
	require.NotEmpty(t, out, "a message may begin with a path")
	require.NotContains(t, said, "no token that ends")
}

// The program serves until it is interrupted, on this machine alone.
func TestServe(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	var out syncbuffer.Buffer
	p := &program.Process{Name: "chat", Args: []string{"--model_name_or_path", folder, "--serve", ":0"}, Stdout: &out,
		Stderr: &out}
	ended := make(chan error, 1)
	go func() { ended <- talkOver(ctx, p, os.Stdin, os.Stdout) }()
	var url string
	require.Eventually(t, func() bool {
		url = regexp.MustCompile(`http://127\.0\.0\.1:\d+/v1`).FindString(out.String())
		return url != ""
	}, time.Minute, time.Millisecond)
	r, err := http.Post(url+"/chat/completions", "application/json", strings.NewReader(
		`{"model": "model", "messages": [{"role": "user", "content": "Who?"}], "temperature": 0, "max_tokens": 6}`))
	require.NoError(t, err)
	text, err := io.ReadAll(r.Body)
	require.NoError(t, errors.Join(err, r.Body.Close()))
	var answer struct{ Choices []struct{ Message message } }
	require.NoError(t, json.Unmarshal(text, &answer), "%s", text)
	require.Equal(t, talked(t, "Who?", "--max_new_tokens", "6"), answer.Choices[0].Message.Content+"\n")
	end()
	require.NoError(t, <-ended)
	_, _, err = piped(t, "", "--serve", "0.0.0.0:0")
	require.ErrorContains(t, err, "other machines can reach the address: want one of this machine alone, such "+
		"as :0, in "+
		"place of 0.0.0.0:0, or --serve_remote")
}

// What a model writes is not acted on by a terminal.
func TestPrintable(t *testing.T) {
	require.Equal(t, "a\tb\n[31mé 😀", printable("a\x07\tb\r\n\x1b[31mé\x0e 😀\u009b\x7f"))
}
