// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data/tabular"
	"github.com/lockstep-ml/lockstep/internal/recordtest"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

// run runs the program.
func run(ctx context.Context, argv []string, stdout, stderr io.Writer) error {
	return train(ctx, &program.Process{Name: "regression", Args: argv, Stdout: stdout, Stderr: stderr})
}

// regression runs the program and returns what it prints.
func regression(argv ...string) (string, error) {
	var out bytes.Buffer
	err := run(context.Background(), argv, &out, &out)
	return out.String(), err
}

// lines hands over what is written to it.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// The diamonds are learned, the best weights are saved with the features, and the service answers by them what the
// program printed.
func TestDiamonds(t *testing.T) {
	dir := t.TempDir()
	printed, err := regression("--output_dir", dir)
	require.NoError(t, err)
	require.Greater(t, recordtest.Last(t, printed, "eval_mae", "eval_r2").Number(t, "eval_r2"), 0.96)
	require.Regexp(t, `\nstopped after \d+ of \d+ steps: EarlyStopping.*\nmodel      best at step \d+, saved to `,
		printed)

	_, shown, ok := strings.Cut(printed, "held out:\n")
	require.True(t, ok, printed)
	var rows [][]string
	for line := range strings.Lines(shown) {
		rows = append(rows, regexp.MustCompile(` {2,}`).Split(strings.TrimSpace(line), -1))
	}
	require.Len(t, rows, 6, printed)
	require.Equal(t, []string{"price", "predicted", "carat"}, rows[0][:3])
	object := map[string]any{}
	for i, name := range rows[0][2:] {
		value := rows[1][2+i]
		object[name] = value
		if x, err := strconv.ParseFloat(value, 64); err == nil {
			object[name] = x
		}
	}
	body, err := json.Marshal(object)
	require.NoError(t, err)

	ctx, end := context.WithCancel(t.Context())
	out, ended := make(lines, 1), make(chan error, 1)
	go func() { ended <- run(ctx, []string{"--model_name_or_path", dir, "--serve", ":0"}, out, out) }()
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(<-out)
	require.NotEmpty(t, address)
	post := func(body string) (status int, answer struct {
		Label, Error string
		Value        float64
	}) {
		r, err := http.Post(address+"/predict", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer r.Body.Close()
		require.NoError(t, json.NewDecoder(r.Body).Decode(&answer))
		return r.StatusCode, answer
	}
	var all sync.WaitGroup
	for range 16 { // at once: some are computed in one batch
		all.Go(func() {
			status, answer := post(string(body))
			require.Equal(t, 200, status)
			require.Equal(t, "price", answer.Label)
			require.Equal(t, rows[1][1], fmt.Sprintf("%.5g", answer.Value))
		})
	}
	all.Wait()
	for body, want := range map[string]string{
		`{"carat": "heavy"}`: `carat = "heavy": want a number`,
		`{"cut": "Round"}`:   `cut = "Round": want one of Fair, Good, Ideal, Premium, Very Good`,
		`{"price": 1}`:       `there is no column "price": want some of carat, `,
		`{"carat": [1]}`:     `column "carat" has [1]: want a number or a text`,
		`{}`:                 "no column has a value: want a JSON object with values of some of the columns carat, ",
		`{"carat": null}`:    "no column has a value",
		`null`:               "want a JSON object with values of some of the columns carat, ",
		`[1]`:                ", got [1]",
		`{"carat": 1} {}`:    "and nothing after it",
		``:                   "want a JSON object",
	} {
		status, answer := post(body)
		require.Equal(t, 400, status, body)
		require.Contains(t, answer.Error, want)
	}
	end()
	require.NoError(t, <-ended)
}

// A user's table, with a number that is missing, a constant and a column that is no use; on two ranks the result
// is the same.
func TestOwnTable(t *testing.T) {
	dir := t.TempDir()
	var text strings.Builder
	text.WriteString("id\tsize\tplace\tconstant\trent\n")
	for i := range 200 {
		size, place := strconv.Itoa(i%20), []string{"town", "village"}[i/20%2]
		rent := 10*(i%20) + 50*(1-i/20%2)
		if i == 7 {
			size = ""
		}
		fmt.Fprintf(&text, "n%d\t%s\t%s\t4\t%d\n", i, size, place, rent)
	}
	file := filepath.Join(dir, "flats.tsv")
	require.NoError(t, os.WriteFile(file, []byte(text.String()), 0o600))
	flags := func(out string, more ...string) []string {
		return append([]string{"--train_file", file, "--label_column", "rent", "--ignore_columns", "id",
			"--output_dir", filepath.Join(dir, out),
			"--num_train_epochs", "10", "--learning_rate", "0.02", "--per_device_train_batch_size", "8",
			"--global_train_batch_size", "16"}, more...)
	}
	one, err := regression(flags("one")...)
	require.NoError(t, err)
	require.Contains(t, one, "160 rows to learn rent from, 40 held out, 3 columns make 4 inputs")
	result := recordtest.Last(t, one, "eval_loss", "eval_mae", "eval_r2")
	require.Greater(t, result.Number(t, "eval_r2"), 0.9)
	two, err := regression(flags("two", "--num_replicas", "2", "--validation_split_percentage", "20")...)
	require.NoError(t, err)
	require.Equal(t, result, recordtest.Last(t, two, "eval_loss", "eval_mae", "eval_r2"))
	whole, err := regression(flags("three", "--validation_file", file, "--hidden_layers", "0",
		"--early_stopping_patience", "0", "--num_train_epochs", "1")...)
	require.NoError(t, err)
	require.Contains(t, whole, "200 rows to learn rent from, 200 held out")
	require.Contains(t, whole, "widths [4 1]")
}

func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(content string) string {
		name := filepath.Join(dir, "t.csv")
		require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
		return name
	}
	train := func(content string, more ...string) error {
		out := filepath.Join(dir, "out")
		_, err := regression(append([]string{"--train_file", file(content), "--output_dir", out}, more...)...)
		return err
	}
	var many strings.Builder
	many.WriteString("name,price\n")
	for i := range 200 {
		fmt.Fprintf(&many, "n%d,1\n", i)
	}
	rows := strings.Repeat("1,2\n", 10)
	require.ErrorContains(t, train("a,b\n"+rows), `has no column "price": want one of a, b`)
	require.ErrorContains(t, train("a,price\n"+rows, "--ignore_columns", "x"), `has no column "x"`)
	require.ErrorContains(t, train("a,price\n"+strings.Repeat("1,cheap\n", 10)), "no numbers: want a number to predict")
	require.ErrorContains(t, train("price\n"+strings.Repeat("1\n", 10)), `has no column beside "price"`)
	require.ErrorContains(t, train("a,price\n1,2\n"), "want more rows")
	require.ErrorContains(t, train("a,price\n"+strings.Repeat(",1\n", 10)), `column "a" of `)
	require.ErrorContains(t, train("a,price\n"+rows+"1,\n"), "line 12: there is no price")
	require.ErrorContains(t, train(many.String()), "different values that are no numbers")
	_, err := regression("--serve", ":0", "--model_name_or_path", dir)
	require.ErrorContains(t, err, "is not a saved model")
	_, err = regression("--validation_file", "x", "--hidden_size", "0", "--report_to", "jsonl")
	var usage *args.Error
	require.ErrorAs(t, err, &usage)
	require.ErrorContains(t, err, "a train_file besides")
	require.ErrorContains(t, err, "hidden_size")
}

// Numbers go back to what they were, and the metric is that of the numbers.
func TestFeatures(t *testing.T) {
	table, err := tabular.Parse("t", []byte("a,kind,y\n1,x,10\n3,y,30\n,,20\n"))
	require.NoError(t, err)
	f, err := fit(table, []int{0, 1, 2}, "y", nil)
	require.NoError(t, err)
	require.Equal(t, 3, f.size())
	s, err := f.samples(table, []int{1, 2})
	require.NoError(t, err)
	require.Equal(t, []float32{1, 0, 1}, s[0].Inputs)
	require.Equal(t, []float32{0, 0, 0}, s[1].Inputs, "missing: the mean, and no category")
	require.InDelta(t, 30, f.Label.restore(float64(s[0].Labels[0])), 1e-5)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, featuresFile), f.json(), 0o600))
	again, err := loadFeatures(dir)
	require.NoError(t, err)
	require.Equal(t, f, again)
	require.NoError(t, os.WriteFile(filepath.Join(dir, featuresFile), []byte(`{"columns":[{"name":"a"}]}`), 0o600))
	_, err = loadFeatures(dir)
	require.ErrorContains(t, err, `column "a" has std = 0`)

	a, b := &fitMetric{std: 10, sums: [5]float64{2, 3, 5, 1, 1}}, (&fitMetric{std: 10}).ForRank().(*fitMetric)
	b.sums = [5]float64{1, 0, 0, 1, 1}
	var parts [][]byte
	for _, m := range []*fitMetric{a, b} {
		p, err := m.ExportPart()
		require.NoError(t, err)
		parts = append(parts, p)
	}
	require.NoError(t, b.MergeParts(parts))
	got := b.Compute(trainer.EvalLoss{})
	require.InDelta(t, 10*2.0/3, got["mae"], 1e-12)
	require.InDelta(t, 1-2.0/(5-3), got["r2"], 1e-12)
	require.ErrorContains(t, b.MergeParts([][]byte{nil}), "rank 0 sent 0 bytes")
}
