// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// errorFile is the JSON that torchrun's workers leave (torch.distributed.elastic's
// error_handler): readers of one read the other.
type errorFile struct {
	Message errorMessage `json:"message"`
}

type errorMessage struct {
	Message string    `json:"message"`
	Extra   errorInfo `json:"extraInfo"`
	// ErrorCode is the exit code, added by the launcher.
	ErrorCode int `json:"errorCode,omitempty"`
}

type errorInfo struct {
	Stack     string `json:"py_callstack"`
	Timestamp string `json:"timestamp"` // seconds since 1970
	// Blames are the ranks on whose failure this one followed. torchrun has no such key.
	Blames []int `json:"blames,omitempty"`
	// Permanent says that another attempt would fail in the same way. torchrun has no such key.
	Permanent bool `json:"permanent,omitempty"`
}

// RecordError leaves err for the launcher in the file that TORCHELASTIC_ERROR_FILE names,
// as torchrun's workers do; without that variable it does nothing. A rank calls it once,
// before it exits with a code other than 0. blames are the ranks whose loss or silence is
// the reason, if others are: the launcher then reports one of those as the root cause. It does not
// start the job again after an error that is Permanent. It is for package accelerate; programs call
// accelerate.RecordError.
func RecordError(lookup env.Lookup, err error, blames ...int) error {
	path, _ := lookup(varErrorFile)
	if path == "" || err == nil {
		return nil
	}
	return writeErrorFile(path, errorFile{Message: errorMessage{
		Message: err.Error(),
		Extra: errorInfo{Stack: string(debug.Stack()), Timestamp: seconds(time.Now()), Blames: blames,
			Permanent: permanent(err)},
	}})
}

// Permanent is implemented by errors that the same program with the same input meets each time.
type Permanent interface {
	error
	Permanent() bool
}

func permanent(err error) bool {
	p, ok := errors.AsType[Permanent](err)
	return ok && p.Permanent()
}

func seconds(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

// writeErrorFile replaces path in one step, so that nobody reads half of it.
func writeErrorFile(path string, f errorFile) error {
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("launch: error file: %w", err)
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".error-*")
	if err != nil { // as beside a file without a name, which the launcher holds open and reads when the rank has ended
		err = os.WriteFile(path, text, 0o600)
	} else {
		_, err = temporary.Write(text)
		if err = errors.Join(err, temporary.Close()); err == nil {
			err = os.Rename(temporary.Name(), path)
		}
		if err != nil {
			os.Remove(temporary.Name()) // the error before counts
		}
	}
	if err != nil {
		return fmt.Errorf("launch: error file: %w", err)
	}
	return nil
}

// readErrorFile reads a rank's error file. torchrun's older form has a text as message.
// ok is false if there is none that can be read.
func readErrorFile(path string) (f errorFile, ok bool) {
	text, err := vfs.ReadFile(vfs.OS, path, 1<<20)
	if err != nil {
		return f, false
	}
	if json.Unmarshal(text, &f) == nil {
		return f, true
	}
	var old struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &old) != nil {
		return errorFile{}, false
	}
	return errorFile{Message: errorMessage{Message: old.Message}}, true
}
