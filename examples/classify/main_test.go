// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/internal/recordtest"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// run runs the program.
func run(ctx context.Context, argv []string, stdout, stderr io.Writer) error {
	return train(ctx, &program.Process{Name: "classify", Args: argv, Stdout: stdout, Stderr: stderr})
}

// classify runs the program and returns what it prints.
func classify(argv ...string) (string, error) {
	var out bytes.Buffer
	err := run(context.Background(), argv, &out, &out)
	return out.String(), err
}

// writeMoods writes n texts that praise or blame, in a format.
func writeMoods(t *testing.T, dir, format string, n int) string {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	things := []string{"food", "room", "film", "garden"}
	praise, blame := []string{"good", "great", "lovely"}, []string{"bad", "awful", "dreary"}
	var b strings.Builder
	if format == "csv" {
		b.WriteString("id,sentiment,sentence\n-1,negative,\n") // one without text
	}
	for i := range n {
		words, label := praise, "positive"
		if i%3 == 0 {
			words, label = blame, "negative"
		}
		text := fmt.Sprintf("The %s was%s %s, they said.", things[r.IntN(4)], strings.Repeat(" really", r.IntN(3)),
			words[r.IntN(3)])
		if format == "csv" {
			fmt.Fprintf(&b, "%d,%s,\"%s\"\n", i, label, text)
			continue
		}
		line, err := json.Marshal(map[string]any{"sentence": text, "sentiment": label, "id": i})
		require.NoError(t, err)
		b.Write(append(line, '\n'))
	}
	name := filepath.Join(dir, fmt.Sprintf("moods%d.%s", n, format))
	require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o600))
	return name
}

// lines hands over what is written to it.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// A classifier learns, evaluates the same from its folder, learns the same on two ranks, continues learning and serves.
func TestClassify(t *testing.T) {
	dir := t.TempDir()
	train, dev := writeMoods(t, dir, "csv", 119), writeMoods(t, dir, "jsonl", 40)
	columns := []string{"--text_column", "sentence", "--label_column", "sentiment", "--max_seq_length", "24"}
	flags := func(out string, more ...string) []string {
		return append(append(columns, "--train_file", train, "--validation_file", dev, "--n_layer", "1",
			"--output_dir", filepath.Join(dir, out), "--n_embd", "16", "--n_head", "2", "--vocab_size", "300",
			"--learning_rate", "1e-2", "--num_train_epochs", "3",
			"--per_device_train_batch_size", "8", "--global_train_batch_size", "16"), more...)
	}
	one, err := classify(flags("one")...)
	require.NoError(t, err)
	require.Contains(t, one, "120 texts to learn from, 40 held out, 2 classes")
	require.Contains(t, one, "model      saved to "+filepath.Join(dir, "one")+"\n")
	result := func(printed string) recordtest.Record {
		return recordtest.Last(t, printed, "eval_loss", "eval_accuracy", "eval_f1")
	}
	require.Greater(t, result(one).Number(t, "eval_accuracy"), 0.9)
	require.Regexp(t, `(?m)^negative .* 14$`, one, "the table of classes")
	require.Regexp(t, `(positive|negative) \(\d+ %, (right|wrong, it is \w+)\): The `, one)

	again, err := classify(append(columns, "--do_eval", "--model_name_or_path", filepath.Join(dir, "one"),
		"--validation_file", dev, "--output_dir", filepath.Join(dir, "eval"))...)
	require.NoError(t, err)
	require.Equal(t, result(one), result(again))
	predicted, err := classify("--do_predict", "--text_column", "sentence", "--test_file", dev, "--model_name_or_path",
		filepath.Join(dir, "one"), "--output_dir", filepath.Join(dir, "predict"))
	require.NoError(t, err)
	require.Contains(t, predicted, "predict    40 texts of "+dev+", column sentence, classified in ")
	results, err := os.ReadFile(filepath.Join(dir, "predict", resultsFile))
	require.NoError(t, err)
	require.Regexp(t, `^index\tprediction\n0\t(positive|negative)\n1\t`, string(results))
	require.Len(t, strings.Split(string(results), "\n"), 42)
	_, err = classify("--do_predict", "--model_name_or_path", filepath.Join(dir, "one"))
	require.ErrorContains(t, err, "want --test_file")
	two, err := classify(flags("two", "--num_replicas", "2")...)
	require.NoError(t, err)
	require.Equal(t, result(one), result(two))
	more,
		err := classify(flags("more", "--model_name_or_path", filepath.Join(dir, "one"), "--num_train_epochs", "1")...)
	require.NoError(t, err)
	require.Contains(t, more, "one with its head")
	for _, name := range []string{models.TokenizerFile, tokenizerConfigFile} {
		a, err := os.ReadFile(filepath.Join(dir, "one", name))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(dir, "more", name))
		require.NoError(t, err)
		require.Equal(t, string(a), string(b))
	}

	ctx, end := context.WithCancel(t.Context())
	out, ended := make(lines, 1), make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"--serve", ":0", "--output_dir", filepath.Join(dir, "one")}, out, out)
	}()
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(<-out)
	require.NotEmpty(t, address)
	ask := func(body string) (int, string) {
		r, err := http.Post(address+"/predict", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return r.StatusCode, string(text)
	}
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			word, label := "lovely", "positive"
			if i%2 == 0 {
				word, label = "awful", "negative"
			}
			really := strings.Repeat(" really", i/4)
			status, answer := ask(fmt.Sprintf(`{"text": "The garden was%s %s, they said."}`, really, word))
			require.Equal(t, 200, status, answer)
			require.Contains(t, answer, `"label":"`+label+`"`)
		})
	}
	all.Wait()
	status, answer := ask(`{}`)
	require.Equal(t, 400, status)
	require.Contains(t, answer, "with a text that is not empty")
	status, answer = ask(`{"text": "` + strings.Repeat("long ", 100) + `"}`)
	require.Equal(t, 200, status, "a text that is too long is cut off: %s", answer)
	end()
	require.NoError(t, <-ended)

	_, err = classify(flags("x", "--label_column", "id", "--model_name_or_path", filepath.Join(dir, "one"))...)
	require.ErrorContains(t, err, `is none of the model's: want one of negative, positive`)
}

// A language model gets a new head and pads with its end of text.
func TestClassifyFromALanguageModel(t *testing.T) {
	dir := t.TempDir()
	lm := filepath.Join(dir, "lm")
	require.NoError(t, os.Mkdir(lm, 0o777))
	tok, err := tokenizers.Train(t.Context(), func(yield func(string, error) bool) { yield("some text", nil) },
		tokenizers.TrainOptions{VocabSize: 260, SpecialTokens: []string{endOfText}})
	require.NoError(t, err)
	require.NoError(t, tok.Save(filepath.Join(lm, models.TokenizerFile)))
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead, cfg.EosTokenID = tok.VocabSize(), 24, 16, 1, 2,
		new(0)
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	config, err := models.ConfigJSON(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(lm, models.ConfigFile), config, 0o600))
	require.NoError(t, models.SaveWeights(m, lm))

	printed, err := classify("--model_name_or_path", lm, "--train_file", writeMoods(t, dir, "jsonl", 30),
		"--label_column", "sentiment", "--text_column", "sentence", "--output_dir", filepath.Join(dir, "out"),
		"--num_train_epochs", "1")
	require.NoError(t, err)
	require.Contains(t, printed, "lm with a new head")
	require.Contains(t, printed, "27 texts to learn from, 3 held out", "10 % of the file")
	loaded, err := models.LoadPretrained(tensor.CPU(), filepath.Join(dir, "out"))
	require.NoError(t, err)
	require.Equal(t, 0, *loaded.(*gpt2.Classifier).Cfg.PadTokenID)
	require.Equal(t, []string{"negative", "positive"}, loaded.(*gpt2.Classifier).Labels())

	for _, config := range []string{`{"pad_token": "a"}`, `{"pad_token": {"content": "a", "special": true}}`} {
		require.NoError(t, os.WriteFile(filepath.Join(lm, tokenizerConfigFile), []byte(config), 0o600))
		_, err = classify("--model_name_or_path", lm, "--train_file", writeMoods(t, dir, "jsonl", 30),
			"--label_column", "sentiment", "--text_column", "sentence", "--output_dir", filepath.Join(dir, "padded"),
			"--max_steps", "1", "--overwrite_output_dir")
		require.NoError(t, err)
		loaded, err = models.LoadPretrained(tensor.CPU(), filepath.Join(dir, "padded"))
		require.NoError(t, err)
		want, ok := tok.TokenID("a")
		require.True(t, ok)
		require.EqualValues(t, want, *loaded.(*gpt2.Classifier).Cfg.PadTokenID)
	}
	for config, want := range map[string]string{
		`{"pad_token": 3}`:  tokenizerConfigFile + ": pad_token is 3: want a token's text",
		`{"pad_token": "a"`: tokenizerConfigFile + ": line 1, column 18: the text ends too early",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(lm, tokenizerConfigFile), []byte(config), 0o600))
		_, err = classify("--model_name_or_path", lm, "--train_file", writeMoods(t, dir, "jsonl", 30),
			"--label_column", "sentiment", "--text_column", "sentence")
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, os.Remove(filepath.Join(lm, tokenizerConfigFile)))
	_, err = classify("--do_eval", "--model_name_or_path", lm, "--label_column", "sentiment", "--validation_file",
		writeMoods(t, dir, "jsonl", 31))
	require.ErrorContains(t, err, "without a classifier's head")
	_, err = classify("--serve", ":0", "--model_name_or_path", lm)
	require.ErrorContains(t, err, "is not a text classifier")
}

// The demonstration's settings hold only where no file and no model is given.
func TestDemonstrationSettings(t *testing.T) {
	parsed := func(argv ...string) *settings {
		s := newSettings(false)
		_, err := s.loader(&program.Process{Name: "classify"}).Parse(argv)
		require.NoError(t, err)
		return s
	}
	s := parsed()
	require.Equal(t, 1e-3, s.args.LearningRate)
	for _, flag := range []string{"--train_file", "--model_name_or_path", "--validation_file"} {
		s = parsed(flag, "x")
		require.Equal(t, args.Default("").LearningRate, s.args.LearningRate, flag)
		require.Equal(t, args.Default("").NumTrainEpochs, s.args.NumTrainEpochs, flag)
	}
	train, eval, err := readTexts(nil, newSettings(true).data, 1, true)
	require.NoError(t, err)
	require.Equal(t, parts, train.classes())
	require.Equal(t, parts, eval.classes())
	require.Greater(t, len(train.texts), 4000)
	require.InDelta(t, 0.1, float64(len(eval.texts))/float64(len(train.texts)), 0.04)
}

func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	moods := writeMoods(t, dir, "csv", 6)
	for want, argv := range map[string][]string{
		"want --model_name_or_path FOLDER":      {"--do_eval", "--train_file", moods},
		`has no column "label": want one of id`: {"--train_file", moods},
		`has no column "text": want one of id`: {"--train_file", moods, "--label_column", "sentiment",
			"--text_column", "text"},
		"10 % of 7 texts are 0": {"--train_file", moods, "--label_column", "sentiment",
			"--text_column", "sentence"},
		"nothing to train on: want --train_file":         {"--validation_file", moods},
		"is not a saved model":                           {"--serve", ":0", "--model_name_or_path", dir},
		"vocab_size":                                     {"--vocab_size", "10"},
		"validation_split_percentage is 100":             {"--validation_split_percentage", "100"},
		"report_to":                                      {"--report_to", "nowhere"},
		"want a file named .csv, .tsv, .jsonl or .json,": {"--train_file", dir},
	} {
		_, err := classify(append(argv, "--output_dir", filepath.Join(dir, "out"))...)
		require.ErrorContains(t, err, want)
	}
}
