// SPDX-License-Identifier: Apache-2.0

package jsonlines_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/jsonlines"
)

// The lines of a file are the samples of a training set that is read in its order; trainer.WithIterableTrainData takes
// the source.
func Example() {
	dir, err := os.MkdirTemp("", "lines")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "points.jsonl")
	if err := os.WriteFile(path, []byte(`{"x": [1], "y": 5}`+"\n"+`{"x": [2], "y": 7}`+"\n"), 0o600); err != nil {
		panic(err)
	}

	type point struct {
		X [1]float32 `data:"inputs"`
		Y float32    `data:"labels"`
	}
	files, err := jsonlines.Open[point](path)
	if err != nil {
		panic(err)
	}
	reader, err := data.NewIterableSource(files, data.Stack[point]).Open(context.Background(), 0)
	if err != nil {
		panic(err)
	}
	defer reader.Close()
	for sample, err := reader.Next(); err == nil; sample, err = reader.Next() {
		fmt.Println(sample)
	}
	// Output:
	// {[1] 5}
	// {[2] 7}
}
