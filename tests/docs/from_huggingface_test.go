// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/hub/hubtest"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// languageModel is what a program needs of a model that it loads.
type languageModel interface {
	models.Configured
	models.Generator
	EndTokens() []int
}

// load is AutoModelForCausalLM and AutoTokenizer.
func load(dir string) (*models.Pretrained[languageModel], error) {
	return models.OpenPretrained[languageModel](tensor.CPU(), dir, "a language model", models.WithSavedDType())
}

// download returns the folder of a model of the Hub, or of a folder of that name.
func download(ctx context.Context, name string) (dir string, err error) {
	client, err := hub.FromEnvironment()
	if err != nil {
		return "", err
	}
	return client.Model(ctx, name, "main")
}

// generate continues a prompt: the pipeline "text-generation".
func generate(ctx context.Context, p *models.Pretrained[languageModel], prompt string) (string, error) {
	opt, err := generation.Saved(p.Dir) // generation_config.json
	if err != nil {
		return "", err
	}
	opt.MaxNewTokens = 20
	ids, err := p.Tokenizer.EncodeWithSpecial(prompt)
	if err != nil {
		return "", err
	}
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), nn.Walk(p.Model), false)
	tokens, err := generation.Generate(ctx, c, p.Model, numbers(ids), opt)
	if err != nil {
		return "", err
	}
	return p.Tokenizer.DecodeText(tokenIDs(tokens))
}

// converse answers a conversation, and writes the answer as it comes.
func converse(ctx context.Context, p *models.Pretrained[languageModel], out io.Writer, messages ...map[string]string) (
	err error) {
	template, err := chat.LoadTemplate(p.Dir)
	if err != nil {
		return err
	}
	list, err := json.Marshal(messages)
	if err != nil {
		return err
	}
	prompt, _, err := template.Render(chat.Conversation{Messages: list, GenerationPrompt: true})
	if err != nil {
		return err
	}
	ids, err := p.Tokenizer.Encode(prompt) // the template has the special tokens
	if err != nil {
		return err
	}
	opt := generation.Options{MaxNewTokens: 20, Temperature: 0.7, TopP: 0.9, Seed: 1, EOS: p.Model.EndTokens()}
	text := generation.NewTextStream(p.Tokenizer.NewStream(), opt.EOS)
	opt.OnToken = func(id int) {
		piece, fault := text.Next(id)
		_, gone := io.WriteString(out, piece)
		err = errors.Join(err, fault, gone)
	}
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), nn.Walk(p.Model), false)
	if _, fault := generation.Generate(ctx, c, p.Model, numbers(ids), opt); fault != nil {
		return fault
	}
	_, gone := io.WriteString(out, text.Flush())
	return errors.Join(err, gone)
}

// tune is SFTTrainer.
func tune(ctx context.Context, p *models.Pretrained[languageModel], rows, out string) error {
	template, err := chat.LoadTemplate(p.Dir)
	if err != nil {
		return err
	}
	read, err := chat.ReadRows(rows)
	if err != nil {
		return err
	}
	e := chat.Encoder{Tokenizer: p.Tokenizer, Template: template, EOS: template.Special["eos_token"],
		Ends: tokenIDs(p.Model.EndTokens()), AssistantOnly: true, MaxLength: 1024}
	var samples data.Slice[chat.Sample]
	for _, row := range read {
		sample, err := e.Encode(row)
		if err != nil {
			return err
		}
		samples = append(samples, sample)
	}
	a := args.Default(out)
	a.LearningRate, a.MaxSteps, a.PerDeviceTrainBatchSize = 1e-2, 20, 8
	t := trainer.New(p.Model, a, trainer.WithTrainData(data.NewSource(samples, chat.Collate(0))),
		trainer.WithSidecars(p.Files...), trainer.WithDisplay(io.Discard))
	defer t.Close()
	if _, err := t.TrainContext(ctx); err != nil {
		return err
	}
	return t.SaveModel("")
}

// save is save_pretrained.
func save(p *models.Pretrained[languageModel], dir string) error {
	return models.SavePretrained(dir, p.Model, p.Files...)
}

func numbers(ids []int32) (list []int) {
	for _, id := range ids {
		list = append(list, int(id))
	}
	return list
}

func tokenIDs(ids []int) (list []int32) {
	for _, id := range ids {
		list = append(list, int32(id))
	}
	return list
}

// TestFromHuggingFace: the functions of the page do what it says, one after the other, on what each before has made.
func TestFromHuggingFace(t *testing.T) {
	const folder = root + "/examples/finetune/testdata"
	p, err := load(folder + "/model")
	require.NoError(t, err)
	before, err := generate(t.Context(), p, "Who is Ada 0?")
	require.NoError(t, err)
	tuned := filepath.Join(t.TempDir(), "tuned")
	require.NoError(t, tune(t.Context(), p, folder+"/chats.jsonl", tuned))
	again, err := load(tuned)
	require.NoError(t, err)
	after, err := generate(t.Context(), again, "Who is Ada 0?")
	require.NoError(t, err)
	require.NotEqual(t, before, after, "it has learned")
	own := filepath.Join(t.TempDir(), "own")
	require.NoError(t, save(again, own))
	last, err := load(own)
	require.NoError(t, err)
	same, err := generate(t.Context(), last, "Who is Ada 0?")
	require.NoError(t, err)
	require.Equal(t, after, same)
	for _, name := range []string{"tokenizer.json", "generation_config.json", chat.TemplateFile} {
		_, err := os.Stat(filepath.Join(own, name))
		require.NoError(t, err, name)
	}
	var answer strings.Builder
	require.NoError(t, converse(t.Context(), last, &answer, map[string]string{"role": "user", "content": "Who?"}))
	require.NotEmpty(t, fmt.Sprint(answer.String()))
}

// The page's download takes a model by its name.
func TestDownload(t *testing.T) {
	s := hubtest.New(t)
	commit := s.Add("models/org/name", map[string]string{"config.json": "{}", "model.safetensors": "x"})
	hubtest.Environment(t, s.URL)
	dir, err := download(t.Context(), "org/name")
	require.NoError(t, err)
	require.Equal(t, commit, filepath.Base(dir))
}
