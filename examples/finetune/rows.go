// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/rowsets"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// readRows reads the rows, or the first ones of a stream.
func (j *job) readRows(ctx context.Context) error {
	set, err := rowsets.Open(j.rowset, j.args.SamplerSeed(), chat.Columns.ReadRows)
	if err != nil {
		return err
	}
	if j.rows, err = rowsets.Head(ctx, j.rowset, set); err != nil {
		return err
	}
	for _, row := range j.rows {
		if err := j.sameForm(row); err != nil {
			return err
		}
	}
	j.stream = set
	j.describeRows()
	return nil
}

// describeRows prints what the rows are.
func (j *job) describeRows() {
	how := program.Count(len(j.rows), "row")
	if j.rowset.DatasetStreaming {
		how = j.rowset.Description()
	}
	j.Line("rows", how, j.rows[0].Form.Description())
	if unread := chat.Unread(j.rows); len(unread) > 0 {
		j.Line("not read", strings.Join(unread, ", "))
	}
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

// encodeAll makes samples of rows of a stream.
func (j *job) encodeAll(e *chat.Encoder, rows []chat.Row) ([]chat.Sample, error) {
	samples := make([]chat.Sample, len(rows))
	for i, row := range rows {
		err := j.sameForm(row)
		if err == nil {
			samples[i], err = j.encode(e, row)
		}
		if err != nil {
			return nil, err
		}
	}
	return samples, nil
}

// collate makes a batch of rows of a stream.
func (j *job) collate(c *tensor.Ctx, rows []chat.Row) (*data.Batch, error) {
	samples, err := j.encodeAll(&j.encoder, rows)
	if err != nil {
		return nil, err
	}
	return chat.Collate(j.pad)(c, samples)
}
