// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/internal/usertemp"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// meetingFile is a Meeting in a file that only its owner can read.
type meetingFile struct {
	path string
	text []byte // what was announced
}

// MeetingFile returns a meeting for ranks of one user on one host, in a file of the temporary folder (TMPDIR) that
// other users can neither read nor write. job is any text that tells jobs apart which run at the same time.
func MeetingFile(job string) Meeting {
	sum := sha256.Sum256([]byte(job))
	return &meetingFile{path: filepath.Join(usertemp.Path(), hex.EncodeToString(sum[:12])+".job")}
}

// String implements Meeting.
func (f *meetingFile) String() string { return "the file " + f.path }

// Announce implements Meeting.
func (f *meetingFile) Announce(_ context.Context, p *Place) error {
	if _, err := usertemp.Make(); err != nil {
		return orToken(err)
	}
	f.text = p.encode()
	return vfs.Replace(f.path, f.text)
}

// Look implements Meeting.
func (f *meetingFile) Look(ctx context.Context) (Place, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		text, err := f.read()
		if err == nil {
			return decodePlace(text)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return Place{}, err
		}
		if sleep(ctx, pause) != nil {
			return Place{}, fmt.Errorf("rank 0 did not write it: %w (do all ranks have the same TMPDIR?)",
				context.Cause(ctx))
		}
	}
}

// Withdraw implements Meeting.
func (f *meetingFile) Withdraw(context.Context) error {
	if text, err := f.read(); err != nil || !bytes.Equal(text, f.text) {
		return err // another job's by now
	}
	return os.Remove(f.path)
}

// read returns the file's text, if nobody else could have written it.
func (f *meetingFile) read() ([]byte, error) {
	if err := usertemp.Check(); err != nil {
		return nil, orToken(err)
	}
	r, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxPlace+1))
}

// orToken adds the other way out: ranks that share a token need no file.
func orToken(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%w, or %s to the same random text for all ranks", err, env.VarJobToken)
}
