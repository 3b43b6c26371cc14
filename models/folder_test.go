// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// What is no saved model is named, with what to do.
func TestLoadPretrainedSaysWhatAPathIs(t *testing.T) {
	t.Chdir(t.TempDir())
	pickle := "PK\x03\x04" + string(make([]byte, 26)) + "archive/data.pkl"
	config := `{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 3, "n_embd": 2, "n_head": 1}`
	for name, content := range map[string]string{
		"adapter/adapter_config.json": "{}", "run/checkpoint-5/config.json": "{}", "run/checkpoint-9/config.json": "{}",
		"models--gpt2/snapshots/607a/config.json": "{}", "quantized/model.gguf": "GGUF", "file": "x",
		"bin/config.json": config, "bin/pytorch_model.bin": pickle, "tf/config.json": config, "tf/tf_model.h5": "x",
		"renamed/config.json": config, "renamed/model.safetensors": pickle,
		"pointer/config.json": config, "pointer/model.safetensors": "version https://git-lfs.github.com/spec/v1\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o777))
		require.NoError(t, os.WriteFile(name, []byte(content), 0o666))
	}
	hub := "is not a saved model: there is no such folder. Programs know a model of HuggingFace's Hub as org/name, " +
		"and hub.Client.Model downloads it and gives its folder"
	for path, want := range map[string]string{
		"gpt2":                  "gpt2 " + hub,
		"openai-community/gpt2": "openai-community/gpt2 " + hub,
		"./gpt2": "./gpt2 is not a saved model: open gpt2/config.json: no such file or directory: " +
			"want the folder",
		"file":         "want the folder that the file is in",
		"adapter":      "it has a LoRA adapter: want its model here, and this folder as --adapter",
		"run":          "want a folder such as run/checkpoint-9",
		"models--gpt2": "want a folder such as models--gpt2/snapshots/607a",
		"quantized":    "quantized/model.gguf: file is truncated: its header ends in the middle, at byte 4",
		"bin": `There is pytorch_model.bin, a pickle, which is a program and is never read: python3 -c "from transformers ` +
			`import GPT2LMHeadModel as M; M.from_pretrained('bin').save_pretrained('bin')" writes model.safetensors`,
		"tf":      "There is tf_model.h5, which is not read",
		"renamed": "renamed/model.safetensors is a pickle of PyTorch",
		"pointer": "pointer/model.safetensors is a pointer of Git LFS, not the file: git lfs pull",
	} {
		_, err := models.LoadPretrained(tensor.CPU(), path)
		require.ErrorContains(t, err, filepath.FromSlash(want), path)
	}
}

// What a program does not accept of a saved model is known before the weights are read: these are not finite.
func TestOpenPretrained(t *testing.T) {
	texts := func(yield func(string, error) bool) { yield("some text, some more text", nil) }
	tok, err := tokenizers.Train(t.Context(), texts, tokenizers.TrainOptions{VocabSize: 260,
		SpecialTokens: []string{"<|endoftext|>", "<|pad|>"}})
	require.NoError(t, err)
	folder := func(size int) string {
		m := smallGPT2(t, 1, func(c *gpt2.Config) { c.VocabSize = size })
		tensor.FillInto(tensor.NewCtx(tensor.CPU()).NoGrad(), nn.NamedParameters(m)[0].Tensor, math.NaN())
		dir := save(t, m)
		require.NoError(t, tok.Save(filepath.Join(dir, models.TokenizerFile)))
		return dir
	}
	const want = "a model of letters"
	dir := folder(258)
	_, err = models.OpenPretrained[*gpt2.Classifier](tensor.CPU(), dir, want)
	require.EqualError(t, err, dir+" is a GPT2LMHeadModel: want "+want)
	_, err = models.OpenPretrained[models.Configured](tensor.CPU(), dir, want)
	require.ErrorContains(t, err, filepath.Join(dir, "tokenizer.json")+" has 260 tokens, more than the model's "+
		"258: 258 is ")
	require.ErrorContains(t, err, "by LoadPretrained and ResizeTokenEmbeddings(260, 0), or in Python by ")
	for _, size := range []int{260, 300} {
		dir := folder(size)
		_, err = models.OpenPretrained[*gpt2.Model](tensor.CPU(), dir, want)
		require.ErrorContains(t, err, "the saved weights are not finite")
		got, err := models.OpenPretrained[*gpt2.Model](tensor.CPU(), dir, want, models.AllowNonFinite())
		require.NoError(t, err)
		require.Equal(t, size, got.Model.Cfg.VocabSize)
		require.Equal(t, 260, got.Tokenizer.VocabSize())
		text, err := got.File(models.TokenizerFile)
		require.NoError(t, err)
		require.Equal(t, got.Files[0].Data, text)
		_, err = got.File("merges.txt")
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, filepath.Join(dir, "merges.txt"))
		require.NoError(t, os.Remove(filepath.Join(dir, models.TokenizerFile)))
		_, err = models.OpenPretrained[*gpt2.Model](tensor.CPU(), dir, want)
		require.ErrorContains(t, err, models.TokenizerFile)
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	line, err := mlp.New(nn.NewInit(tensor.CPU(), 3), mlp.Config{Sizes: []int{2, 1}, Loss: "mse"})
	require.NoError(t, err)
	got, err := models.OpenPretrained[*mlp.Model](tensor.CPU(), save(t, line), want)
	require.NoError(t, err)
	require.Nil(t, got.Tokenizer, "it reads no tokens")
	require.Equal(t, "mlp", models.Architecture(line))
	require.Equal(t, "GPT2LMHeadModel", models.Architecture(smallGPT2(t, 1, nil)))
}
