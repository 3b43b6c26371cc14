// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"fmt"
	"time"
)

// What the settings of a file may make of a text: a few lines of nested replacements would fill any memory, and one
// regular expression would never end.
const (
	maxGrowth   = 16                    // times the text, of which real normalizers need at most 11
	growthFree  = 1 << 16               // and so many bytes
	maxMatching = 2 * time.Second       // in regular expressions that have no scanner
	matchRate   = 10 * time.Microsecond // and so long for each byte
)

// run is what one call may still cost. The first error stays, and ends the work.
type run struct {
	err  error
	room int           // bytes that its text may become
	time time.Duration // for regular expressions
}

// newRun begins the work on a text of so many bytes.
func newRun(size int) *run {
	return &run{room: maxGrowth*size + growthFree, time: maxMatching + time.Duration(size)*matchRate}
}

// fits reports whether a text of so many bytes may be made.
func (r *run) fits(size int) bool {
	if r.err == nil && size > r.room {
		r.err = fmt.Errorf("tokenizers: tokenizer.json makes more than %d times its size of a text: want fewer or "+
			"shorter replacements in the normalizer, pre_tokenizer or decoder", maxGrowth)
	}
	return r.err == nil
}

// spend takes time for a regular expression.
func (r *run) spend(expr string, d time.Duration) bool {
	if r.time -= d; r.err == nil && r.time < 0 {
		r.err = fmt.Errorf("tokenizers: the regular expression %.200q takes too long on this text: want one with "+
			"less backtracking", expr)
	}
	return r.err == nil
}
