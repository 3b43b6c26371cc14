// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/lockstep-ml/lockstep/comm"
)

// RefusedError says that a run does not begin, or does not continue from a checkpoint, with the arguments, the data and
// the folder that it has.
type RefusedError struct{ Err error }

// Error is that of Err.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap gives Err.
func (e *RefusedError) Unwrap() error { return e.Err }

// Permanent says that a launcher need not start the run again: it would find the same.
func (*RefusedError) Permanent() bool { return true }

// Refuse is a RefusedError with the text of fmt.Errorf.
func Refuse(format string, values ...any) error { return &RefusedError{fmt.Errorf(format, values...)} }

// peerError is an error of another rank, in its words.
type peerError struct {
	rank int
	text string
}

func (e *peerError) Error() string { return fmt.Sprintf("rank %d: %s", e.rank, e.text) }

// Refused is an error of a resume as a RefusedError, unless another attempt may do better: a file could not be read,
// another rank failed, or the context ended.
func Refused(err error) error {
	var file *fs.PathError
	var lost *comm.RankLostError
	var late *comm.TimeoutError
	var peer *peerError
	var abort *comm.AbortError
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.As(err, &lost), errors.As(err, &late), errors.As(err, &abort), errors.As(err, &peer),
		errors.As(err, &file) && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return &RefusedError{err}
}
