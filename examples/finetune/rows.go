// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/data/jsonlines"
	"github.com/lockstep-ml/lockstep/data/text"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// shown is how many rows of a stream are read before training, for what is printed and for the answers.
const shown = 8

// readRows reads the rows, or the first ones of a stream.
func (j *job) readRows(ctx context.Context) error {
	shares, err := j.probabilities()
	if err != nil {
		return err
	}
	sets, err := j.sets(len(shares) > 0)
	if err != nil {
		return err
	}
	if j.stream = sets[0]; len(shares) > 0 {
		if j.stream, err = data.Interleave(sets, shares, j.args.SamplerSeed(), j.StoppingStrategy); err != nil {
			return err
		}
	}
	most := 0
	if j.DatasetStreaming {
		most = shown
	}
	if j.rows, err = head(ctx, j.stream, most); err != nil {
		return err
	}
	for _, row := range j.rows {
		if err := j.sameForm(row); err != nil {
			return err
		}
	}
	if j.DatasetStreaming && j.ShuffleBufferSize > 0 {
		j.stream = data.Shuffle(j.stream, j.ShuffleBufferSize, j.args.SamplerSeed())
	}
	j.describeRows()
	return nil
}

// describeRows prints what the rows are.
func (j *job) describeRows() {
	form := j.rows[0].Form.Description()
	switch {
	case !j.DatasetStreaming:
		j.Line("rows", program.Count(len(j.rows), "row"), form)
	case j.ShuffleBufferSize > 0:
		j.Line("rows", fmt.Sprintf("streamed, drawn from a buffer of %d", j.ShuffleBufferSize), form)
	default:
		j.Line("rows", "streamed in their order", form)
	}
	if unread := chat.Unread(j.rows); len(unread) > 0 {
		j.Line("not read", strings.Join(unread, ", "))
	}
}

// sets are the rows of all files, or those of each train_file apart.
func (j *job) sets(apart bool) (sets []data.Iterable[chat.Row], err error) {
	patterns := [][]string{j.TrainFile}
	if apart {
		patterns = nil
		for _, one := range j.TrainFile {
			patterns = append(patterns, []string{one})
		}
	}
	for _, some := range patterns {
		paths, err := text.Expand(some...)
		if err != nil {
			return nil, err
		}
		set, err := j.set(paths)
		if err != nil {
			return nil, err
		}
		sets = append(sets, set)
	}
	return sets, nil
}

// set is the rows of files.
func (j *job) set(paths []string) (data.Iterable[chat.Row], error) {
	if !j.DatasetStreaming {
		rows, err := chat.ReadRows(paths...)
		return inMemory(rows), err
	}
	files, err := jsonlines.Open[chat.Row](paths...)
	if err == nil && j.ShuffleBufferSize > 0 {
		files = files.ShuffleFiles(j.args.SamplerSeed())
	}
	return files, err
}

// inMemory is a set of rows that were read.
func inMemory(rows []chat.Row) data.Iterable[chat.Row] {
	return data.Seq[chat.Row](func(int64) iter.Seq2[chat.Row, error] {
		return func(yield func(chat.Row, error) bool) {
			for _, row := range rows {
				if !yield(row, nil) {
					return
				}
			}
		}
	})
}

// head are the first rows of a set, all with 0.
func head(ctx context.Context, set data.Iterable[chat.Row], most int) (rows []chat.Row, err error) {
	c, err := set.Open(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for most == 0 || len(rows) < most {
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

// sameForm is an error of a row that has another form than the first.
func (j *job) sameForm(row chat.Row) error {
	if first := j.rows[0]; row.Form != first.Form {
		return fmt.Errorf("%s: the row has %s, and %s has %s: want one form", row.Place, row.Form, first.Place,
			first.Form)
	}
	return nil
}

// encode makes a sample of a row. Errors name it.
func (j *job) encode(e *chat.Encoder, row chat.Row) (chat.Sample, error) {
	s, err := e.Encode(row)
	if err != nil {
		return s, fmt.Errorf("%s: %w", cmp.Or(row.Place, "a row"), err)
	}
	return s, nil
}

// warnOfPrompts says that prompts end inside a token: it is learned with the completion, and a model that gets the
// prompt alone sees other tokens.
func (j *job) warnOfPrompts(samples []chat.Sample) {
	count, first := 0, ""
	for i, s := range samples {
		if s.InToken {
			count, first = count+1, cmp.Or(first, j.rows[i].Place)
		}
	}
	if count > 0 {
		j.Line("warning", program.Count(count, "row")+" whose prompt ends inside a token, the first "+first,
			"end prompts with a word, and begin completions with the blank")
	}
}

// collate makes a batch of rows of a stream.
func (j *job) collate(c *tensor.Ctx, rows []chat.Row) (*data.Batch, error) {
	samples := make([]chat.Sample, len(rows))
	for i, row := range rows {
		err := j.sameForm(row)
		if err == nil {
			samples[i], err = j.encode(&j.encoder, row)
		}
		if err != nil {
			return nil, err
		}
	}
	return chat.Collate(j.pad)(c, samples)
}
