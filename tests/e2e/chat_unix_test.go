// SPDX-License-Identifier: Apache-2.0

//go:build unix

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
	"github.com/lockstep-ml/lockstep/tests/internal/clmtest"

	_ "github.com/lockstep-ml/lockstep/data/chat"
	_ "github.com/lockstep-ml/lockstep/models/export"
	_ "github.com/lockstep-ml/lockstep/models/lora"
	_ "github.com/lockstep-ml/lockstep/models/serve"
)

// reader is who types the README's commands in a folder where go run finds built programs.
type reader struct {
	t        *testing.T
	dir      string
	programs map[string]string // by package, as ./examples/chat
}

// chatCommands are the README's commands behind "Fine-tune a chat model", in order.
func chatCommands(t *testing.T) (list []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "\nFine-tune a chat model and talk to it:\n\n")
	require.True(t, ok)
	block, _, ok := strings.Cut(rest, "\n\n")
	require.True(t, ok)
	for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", "")) {
		command, _, _ := strings.Cut(line, " #")
		list = append(list, command)
	}
	return list
}

// prepare is a command of the README with more arguments.
func (r *reader) prepare(ctx context.Context, command string, more ...string) *exec.Cmd {
	r.t.Helper()
	words := strings.Fields(command)
	require.Equal(r.t, []string{"go", "run"}, words[:2], command)
	program := r.programs[words[2]]
	if program == "" {
		var err error
		program, err = clmtest.Build(root, strings.TrimPrefix(words[2], "./"), scratch)
		require.NoError(r.t, err)
		r.programs[words[2]] = program
	}
	cmd := exec.CommandContext(ctx, program, append(words[3:], more...)...)
	cmd.Dir = r.dir
	return cmd
}

// types runs a command to its end, with text on its standard input.
func (r *reader) types(command, text string, more ...string) result {
	r.t.Helper()
	cmd := r.prepare(r.t.Context(), command, more...)
	cmd.Stdin = strings.NewReader(text)
	out := finish(r.t, cmd)
	require.Equal(r.t, 0, out.code, "%s: %s", command, out.stderr)
	return out
}

// served is what curl shows of a request to the program that command starts, and then interrupts.
func (r *reader) served(command string, requests ...string) (answers []string) {
	r.t.Helper()
	cmd := r.prepare(r.t.Context(), command, "--serve", ":0")
	var said syncbuffer.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(r.t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	var url string
	require.Eventually(r.t, func() bool {
		url = regexp.MustCompile(`http://127\.0\.0\.1:\d+/v1`).FindString(said.String())
		return url != ""
	}, time.Minute, time.Millisecond, "%s", &said)
	for _, q := range requests {
		resp, err := http.Post(url+"/chat/completions", "application/json", strings.NewReader(q))
		require.NoError(r.t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(r.t, err)
		require.NoError(r.t, resp.Body.Close())
		require.Equal(r.t, http.StatusOK, resp.StatusCode, "%s", text)
		answers = append(answers, string(text))
	}
	require.NoError(r.t, cmd.Process.Signal(os.Interrupt))
	require.NoError(r.t, cmd.Wait(), "%s", &said)
	return answers
}

// TestReadmeChat: the README's commands from a GGUF file to a fine-tuned model that answers, in the terminal, over HTTP
// and as the file that they export. The model is tiny; the one that the first command fetches has 93 MB.
func TestReadmeChat(t *testing.T) {
	commands := chatCommands(t)
	require.Len(t, commands, 4)
	require.Equal(t, "go run ./examples/finetune/smollm2", strings.TrimSpace(commands[0]))
	tune, talk, export := commands[1], commands[2], commands[3]

	r := &reader{t: t, dir: t.TempDir(), programs: map[string]string{}}
	const data = "examples/finetune/testdata"
	require.NoError(t, os.CopyFS(filepath.Join(r.dir, data), os.DirFS(filepath.Join(root, data))))
	r.types("go run ./cmd/lockstep export "+data+"/model --dtype f32 --output out/smollm2/tiny.gguf", "")

	require.Contains(t, r.types(tune, "").stdout, "the first row, with what is learned in ⟦⟧:\n⟦<|im_start|>system\n")
	const question = "Who is Ada 0?"
	short := []string{"--max_new_tokens", "12", "--temperature", "0"}
	said := r.types(talk, question+"\n", short...).stdout
	require.NotEmpty(t, strings.TrimSpace(said))
	untuned := r.types("go run ./examples/chat --model_name_or_path out/smollm2", question+"\n", short...).stdout
	require.NotEqual(t, untuned, said)

	const request = `{"model": "smollm2", "messages": [{"role": "user", "content": "` + question +
		`"}], "max_tokens": 12, "temperature": 0`
	answers := r.served(talk, request+`}`, request+`, "stream": true}`)
	require.Equal(t, said, contentOf(t, answers[0])+"\n")
	require.Equal(t, said, streamedOf(t, answers[1])+"\n")

	r.types(export, "", "--dtype", "f32") // the last of equal flags counts: f16 may answer otherwise
	require.FileExists(t, filepath.Join(r.dir, "out/Modelfile"))
	require.Equal(t, said, r.types("go run ./examples/chat --model_name_or_path out/tuned.gguf", question+"\n",
		short...).stdout)
}

// contentOf is the message of an answer.
func contentOf(t *testing.T, answer string) string {
	t.Helper()
	var a struct {
		Choices []struct{ Message struct{ Content string } }
	}
	require.NoError(t, json.Unmarshal([]byte(answer), &a), answer)
	require.Len(t, a.Choices, 1)
	return a.Choices[0].Message.Content
}

// streamedOf is the message of an answer's events.
func streamedOf(t *testing.T, events string) (content string) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(events))
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || text == "[DONE]" {
			continue
		}
		var e struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		require.NoError(t, json.Unmarshal([]byte(text), &e), text)
		for _, c := range e.Choices {
			content += c.Delta.Content
		}
	}
	require.Contains(t, events, "data: [DONE]\n")
	return content
}
