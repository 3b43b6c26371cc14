// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// asProgram makes the test binary be the program.
const asProgram = "GENERATE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	main()
}

// saved is the folder of a model that knows nothing yet.
func saved(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	tok, err := tokenizers.Train(t.Context(), func(yield func(string, error) bool) { yield("some text", nil) },
		tokenizers.TrainOptions{VocabSize: 260, SpecialTokens: []string{"<|endoftext|>"}})
	require.NoError(t, err)
	require.NoError(t, tok.Save(filepath.Join(dir, models.TokenizerFile)))
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = tok.VocabSize(), 24, 16, 1, 2
	cfg.EosTokenID = new(0)
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	config, err := models.ConfigJSON(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, models.ConfigFile), config, 0o600))
	require.NoError(t, models.SaveWeights(m, filepath.Join(dir, models.WeightsFile)))
	return dir
}

// output is what the program prints.
func output(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append(argv, "--prompt", "some", "--temperature", "0", "--max_new_tokens", "8")...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// An adapter finds its model, which says something else with it, and says the same once it is merged. A merged model
// has the dtype of the model, and files of the adapter's folder before those of the model.
func TestAdapter(t *testing.T) {
	base, adapted := saved(t), t.TempDir()
	m, err := models.LoadPretrained(tensor.CPU(), base)
	require.NoError(t, err)
	a, err := lora.New(m, lora.Config{R: 4, Alpha: 40, TargetModules: lora.AllLinear, Init: lora.InitRandom,
		BaseModel: base})
	require.NoError(t, err)
	require.NoError(t, a.Save(adapted))
	const template = "{{ 'of the training' }}"
	require.NoError(t, os.WriteFile(filepath.Join(adapted, "chat_template.jinja"), []byte(template), 0o600))
	plain, err := output(t, "--model_name_or_path", base)
	require.NoError(t, err, plain)
	want, err := output(t, "--adapter", adapted)
	require.NoError(t, err, want)
	require.NotEqual(t, plain, want)
	for _, argv := range [][]string{{"--model_name_or_path", base, "--adapter", adapted},
		{"--model_name_or_path", adapted}} {
		got, err := output(t, argv...)
		require.NoError(t, err, got)
		require.Equal(t, want, got, argv)
	}

	merged := filepath.Join(t.TempDir(), "merged")
	said, err := output(t, "--adapter", adapted, "--merge", merged)
	require.NoError(t, err, said)
	require.Contains(t, said, "weights of float32, saved to "+merged)
	got, err := output(t, "--model_name_or_path", merged)
	require.NoError(t, err, got)
	require.Equal(t, want, got)
	text, err := os.ReadFile(filepath.Join(merged, "chat_template.jinja"))
	require.NoError(t, err)
	require.Equal(t, template, string(text))
	require.NoFileExists(t, filepath.Join(merged, models.AdapterFile))
	said, err = output(t, "--adapter", adapted, "--merge", base)
	require.Error(t, err)
	require.Contains(t, said, "has a model: want another folder for the merged one")

	require.NoError(t, os.Rename(filepath.Join(merged, models.WeightsFile), filepath.Join(base, models.WeightsFile)))
	said, err = output(t, "--adapter", adapted)
	require.Error(t, err)
	require.Contains(t, said, "the adapter was trained on the model of "+base)
}

// Whoever reads the text may leave, as head does: that is no error, and no more is computed.
func TestReaderLeaves(t *testing.T) {
	dir := saved(t)
	command := func(tokens string) (*exec.Cmd, *bytes.Buffer) {
		var stderr bytes.Buffer
		cmd := exec.Command(os.Args[0], "--model_name_or_path", dir, "--prompt", "some", "--max_new_tokens", tokens)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		cmd.Stderr = &stderr
		return cmd, &stderr
	}
	cmd, stderr := command("8")
	out, err := cmd.Output()
	require.NoError(t, err, stderr)
	require.Regexp(t, `^some`, string(out))

	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	cmd, stderr = command("1000000")
	cmd.Stdout = w
	require.NoError(t, cmd.Run(), stderr)
	require.NoError(t, w.Close())
	require.Empty(t, stderr.String())
}

// Several prompts come together, by the settings of the model's folder where no flag says otherwise.
func TestSeveralPrompts(t *testing.T) {
	dir := saved(t)
	run := func(argv ...string) (string, error) {
		cmd := exec.Command(os.Args[0], append([]string{"--model_name_or_path", dir}, argv...)...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "generation_config.json"),
		[]byte(`{"do_sample": true, "max_new_tokens": 5}`), 0o600))
	out, err := run("--prompt", "some", "--prompt", "text and more")
	require.NoError(t, err, out)
	require.Regexp(t, `(?s)^1 of 2: some.*\n2 of 2: text and more.*\n$`, out)
	again, err := run("--prompt", "some", "--prompt", "text and more")
	require.NoError(t, err)
	require.Equal(t, out, again)
	twice, err := run("--prompt", "some", "--num_return_sequences", "2")
	require.NoError(t, err)
	require.Regexp(t, `(?s)^1 of 2: some.*\n2 of 2: some.*\n$`, twice)
	greedy, err := run("--prompt", "some", "--prompt", "text and more", "--temperature", "0")
	require.NoError(t, err)
	require.NotEqual(t, out, greedy)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(`{"num_beams": 4}`), 0o600))
	out, err = run("--prompt", "some")
	require.Error(t, err)
	require.Contains(t, out, "generation_config.json: num_beams is 4: not supported: want these settings left out")
}
