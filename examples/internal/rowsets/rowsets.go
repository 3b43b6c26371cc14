// SPDX-License-Identifier: Apache-2.0

// Package rowsets has the flags of examples that read rows of chats or of preferences: which files and columns, mixed
// by which shares, read before training or while it runs. It is no example itself.
package rowsets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/data/jsonlines"
	"github.com/lockstep-ml/lockstep/data/text"
)

// TrainingDataArguments say which rows are trained on, by the names of TRL and datasets.
type TrainingDataArguments struct {
	TrainFile []string `json:"train_file" usage:"rows to learn: files, folders or globs of JSON, JSON Lines, Parquet or CSV; repeatable"`
	// DatasetColumns are words of chat.ParseColumns.
	DatasetColumns []string `json:"dataset_columns" usage:"column to read, or key=column to read it as another key, such as prompt=question; repeatable; none: all columns"`
	// DatasetProbabilities are datasets.interleave_datasets' probabilities: one for each of TrainFile.
	DatasetProbabilities []string `json:"dataset_probabilities" usage:"share of a train_file in the rows; repeatable, once for each file; none: one file after the other"`
	// StoppingStrategy is its, too.
	StoppingStrategy data.StoppingStrategy `json:"stopping_strategy" usage:"when a mixture ends: first_exhausted, all_exhausted or all_exhausted_without_replacement"`
	// DatasetStreaming reads the files while it trains.
	DatasetStreaming bool `json:"dataset_streaming" usage:"read rows while training, from JSON Lines and Parquet larger than memory; needs max_steps"`
	// ShuffleBufferSize is the buffer_size of datasets.IterableDataset.shuffle.
	ShuffleBufferSize int `json:"shuffle_buffer_size" usage:"number of rows from which dataset_streaming draws the next one; 0: the files' order"`
}

// Defaults are those of datasets.
func Defaults() *TrainingDataArguments {
	return &TrainingDataArguments{ShuffleBufferSize: 1000, StoppingStrategy: data.FirstExhausted}
}

// Check reports all faults at once.
func (a *TrainingDataArguments) Check(c *args.Checker) {
	_, err := chat.ParseColumns(a.DatasetColumns...)
	c.Require(err == nil, "dataset_columns", a.DatasetColumns, "names of columns or key=name, one for each key")
	_, err = a.probabilities()
	c.Require(err == nil && (len(a.DatasetProbabilities) == 0 || len(a.DatasetProbabilities) == len(a.TrainFile)),
		"dataset_probabilities", a.DatasetProbabilities, "a number above 0 for each train_file")
	c.Require(slices.Contains(data.StoppingStrategies(), a.StoppingStrategy), "stopping_strategy", a.StoppingStrategy,
		fmt.Sprint("one of ", data.StoppingStrategies()))
	c.Require(a.ShuffleBufferSize >= 0, "shuffle_buffer_size", a.ShuffleBufferSize, "at least 0")
	c.Require(!a.DatasetStreaming || len(a.TrainFile) > 0 || c.Given("dataset_name"), "dataset_streaming",
		a.DatasetStreaming, "a train_file")
	c.Require(!slices.Contains(a.TrainFile, ""), "train_file", a.TrainFile, "names of files")
}

// probabilities are the numbers of DatasetProbabilities.
func (a *TrainingDataArguments) probabilities() (list []float64, err error) {
	for _, text := range a.DatasetProbabilities {
		p, err := strconv.ParseFloat(text, 64)
		if err != nil || !(p > 0) || math.IsInf(p, 0) {
			return nil, fmt.Errorf("dataset_probabilities: %q: want a number above 0", text)
		}
		list = append(list, p)
	}
	return list, nil
}

// Columns are those that are read.
func (a *TrainingDataArguments) Columns() (chat.Columns, error) {
	return chat.ParseColumns(a.DatasetColumns...)
}

// ReadFunc reads the rows of files: chat.Columns.ReadRows or chat.Columns.ReadPairs.
type ReadFunc[T any] func(columns chat.Columns, paths ...string) ([]T, error)

// Open returns the rows of all files, mixed if there are probabilities. With DatasetStreaming they are read when they
// are asked for, else now.
func Open[T any](a *TrainingDataArguments, seed uint64, read ReadFunc[T]) (data.Iterable[T], error) {
	shares, err := a.probabilities()
	if err != nil {
		return nil, err
	}
	patterns := [][]string{a.TrainFile}
	if len(shares) > 0 {
		patterns = nil
		for _, one := range a.TrainFile {
			patterns = append(patterns, []string{one})
		}
	}
	var sets []data.Iterable[T]
	for _, some := range patterns {
		set, err := open(a, some, seed, read)
		if err != nil {
			return nil, err
		}
		sets = append(sets, set)
	}
	if len(shares) == 0 {
		return sets[0], nil
	}
	return data.Interleave(sets, shares, seed, a.StoppingStrategy)
}

// open returns the rows of some files.
func open[T any](a *TrainingDataArguments, patterns []string, seed uint64, read ReadFunc[T]) (data.Iterable[T], error) {
	paths, err := text.Expand(patterns...)
	if err != nil {
		return nil, err
	}
	columns, err := a.Columns()
	if err != nil {
		return nil, err
	}
	if !a.DatasetStreaming {
		rows, err := read(columns, paths...)
		return inMemory(rows), err
	}
	files, err := jsonlines.Open[T](paths...)
	if err != nil {
		return nil, err
	}
	if files = files.SelectColumns(columns); a.ShuffleBufferSize > 0 {
		files = files.ShuffleFiles(seed)
	}
	return files, nil
}

// inMemory is a set of rows that were read.
func inMemory[T any](rows []T) data.Iterable[T] {
	return data.Seq[T](func(int64) iter.Seq2[T, error] {
		return func(yield func(T, error) bool) {
			for _, row := range rows {
				if !yield(row, nil) {
					return
				}
			}
		}
	})
}

// Shuffle draws the samples of a stream from its buffer.
func Shuffle[T any](a *TrainingDataArguments, set data.Iterable[T], seed uint64) data.Iterable[T] {
	if a.ShuffleBufferSize == 0 {
		return set
	}
	return data.Shuffle(set, a.ShuffleBufferSize, seed)
}

// Description says in which order a stream comes.
func (a *TrainingDataArguments) Description() string {
	if a.ShuffleBufferSize == 0 {
		return "streamed in their order"
	}
	return fmt.Sprintf("streamed, drawn from a buffer of %d", a.ShuffleBufferSize)
}

// shown is how many rows of a stream are read before training, for what is printed.
const shown = 8

// Head are the rows that are read before training: all, or the first ones of a stream.
func Head[T any](ctx context.Context, a *TrainingDataArguments, set data.Iterable[T]) (rows []T, err error) {
	c, err := set.Open(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for !a.DatasetStreaming || len(rows) < shown {
		row, err := c.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, ctx.Err()
}
