// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrClosed is returned by calls on a group that this rank has closed.
var ErrClosed = errors.New("dist: the group is closed")

// Side is one rank's half of a disagreement.
type Side struct {
	Rank int    `json:"rank"`
	Call string `json:"call"` // as Signature.String gives it
}

// MismatchError says that two ranks issued different calls where all must issue the same. Every rank of the group gets
// it, with the same two sides.
type MismatchError struct {
	Group string `json:"group"`
	A     Side   `json:"a"` // the lowest rank of the majority
	B     Side   `json:"b"` // the lowest rank that differs from it
}

// Error names both sides.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("dist: group %q: the ranks disagree: rank %d called %s, rank %d called %s", e.Group, e.A.Rank,
		e.A.Call, e.B.Rank, e.B.Call)
}

// RankLostError says that a rank's process ended, its host became unreachable, or it left the group while others waited
// for it.
type RankLostError struct {
	Group string `json:"group"`
	Rank  int    `json:"rank"`           // in the group
	Host  string `json:"host,omitempty"` // where it ran, if it had a process of its own
	PID   int    `json:"pid,omitempty"`
	Cause string `json:"cause"`
	Call  string `json:"call,omitempty"` // what waited for it
}

// Error names the rank, its process and its host.
func (e *RankLostError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "dist: group %q: rank %d", e.Group, e.Rank)
	if e.PID != 0 {
		fmt.Fprintf(&b, " (process %d on %s)", e.PID, e.Host)
	}
	fmt.Fprintf(&b, " is lost: %s", e.Cause)
	if e.Call != "" {
		fmt.Fprintf(&b, " (during %s)", e.Call)
	}
	return b.String()
}

// TimeoutError says that a call passed its deadline, and who did not arrive.
type TimeoutError struct {
	Group    string        `json:"group"`
	Reporter int           `json:"reporter"` // the rank whose deadline passed
	Op       Op            `json:"op"`
	Seq      uint64        `json:"seq"`
	Label    string        `json:"label,omitempty"`
	Call     string        `json:"call"`
	After    time.Duration `json:"after"`
	Missing  []int         `json:"missing"` // ranks that had not arrived
}

// Error names the call and the ranks that did not arrive.
func (e *TimeoutError) Error() string {
	if len(e.Missing) == 0 {
		return fmt.Sprintf("dist: group %q: %s timed out after %v on rank %d: all ranks arrived, and the "+
			"transfer did not end", e.Group, e.Call, e.After, e.Reporter)
	}
	return fmt.Sprintf("dist: group %q: %s timed out after %v on rank %d: %s did not arrive", e.Group, e.Call, e.After,
		e.Reporter, rankList(e.Missing))
}

// Timeout reports true, as net.Error has it.
func (e *TimeoutError) Timeout() bool { return true }

// NewTimeoutError is for engines: c passed its deadline on rank reporter while it waited for missing.
func NewTimeoutError(c *Call, reporter int, missing []int) *TimeoutError {
	return &TimeoutError{Group: c.Group, Reporter: reporter, Op: c.Op, Seq: c.Seq, Label: c.Label, Call: c.String(),
		After: c.Timeout, Missing: missing}
}

// AbortError says that a rank gave up the group for a reason of its own: it panicked, its arguments were wrong, or it
// called [Group.Abort].
type AbortError struct {
	Group   string `json:"group"`
	Rank    int    `json:"rank"`
	Message string `json:"message"`
	cause   error  // on the rank itself
}

// Error names the rank and its reason.
func (e *AbortError) Error() string {
	return fmt.Sprintf("dist: group %q: rank %d aborted: %s", e.Group, e.Rank, e.Message)
}

// Unwrap returns the error given to Abort, on the rank that did.
func (e *AbortError) Unwrap() error { return e.cause }

func rankList(ranks []int) string {
	if len(ranks) == 0 {
		return "no rank"
	}
	s := strings.Trim(strings.ReplaceAll(fmt.Sprint(ranks), " ", ", "), "[]")
	if len(ranks) == 1 {
		return "rank " + s
	}
	return "ranks " + s
}

// travelling is an error on its way to another rank.
type travelling struct {
	Mismatch *MismatchError `json:"mismatch,omitempty"`
	Lost     *RankLostError `json:"lost,omitempty"`
	Timeout  *TimeoutError  `json:"timeout,omitempty"`
	Abort    *AbortError    `json:"abort,omitempty"`
}

// EncodeError is for engines: err as JSON, to be told to other ranks. What is none of the package's types travels as an
// *AbortError of this rank.
func EncodeError(err error, group string, rank int) []byte {
	var t travelling
	if !errors.As(err, &t.Mismatch) && !errors.As(err, &t.Lost) && !errors.As(err, &t.Timeout) &&
		!errors.As(err, &t.Abort) {
		t.Abort = &AbortError{Group: group, Rank: rank, Message: err.Error()}
	}
	b, e := json.Marshal(t)
	if e != nil { // strings and numbers alone: cannot happen
		return []byte("{}")
	}
	return b
}

// DecodeError is the inverse of EncodeError; it returns an *AbortError of rank from for what it cannot read. It is
// for engines.
func DecodeError(b []byte, group string, from int) error {
	var t travelling
	if err := json.Unmarshal(b, &t); err != nil {
		return &AbortError{Group: group, Rank: from, Message: "an unreadable error: " + err.Error()}
	}
	switch {
	case t.Mismatch != nil:
		return t.Mismatch
	case t.Lost != nil:
		return t.Lost
	case t.Timeout != nil:
		return t.Timeout
	case t.Abort != nil:
		return t.Abort
	}
	return &AbortError{Group: group, Rank: from, Message: "no reason given"}
}

// Compare is for engines: it returns nil if the encoded signatures of all ranks are equal, else the *MismatchError that
// all ranks return. Entries without bytes are left out. The side called wrong is the one that fewer ranks are on.
func Compare(group string, signatures [][]byte) error {
	first := slices.IndexFunc(signatures, func(s []byte) bool { return s != nil })
	if first < 0 || !slices.ContainsFunc(signatures, func(s []byte) bool {
		return s != nil && string(s) != string(signatures[first])
	}) {
		return nil
	}
	votes := map[string]int{}
	for _, s := range signatures {
		if s != nil {
			votes[string(s)]++
		}
	}
	a, b := -1, -1
	for r, s := range signatures {
		if s != nil && (a < 0 || votes[string(s)] > votes[string(signatures[a])]) {
			a = r
		}
	}
	for r, s := range signatures {
		if s != nil && b < 0 && string(s) != string(signatures[a]) {
			b = r
		}
	}
	return &MismatchError{Group: group, A: sideOf(a, signatures[a]), B: sideOf(b, signatures[b])}
}

func sideOf(rank int, signature []byte) Side {
	s, err := DecodeSignature(signature)
	if err != nil {
		return Side{Rank: rank, Call: "something unreadable"}
	}
	return Side{Rank: rank, Call: s.String()}
}

// CompareMessage is for engines: it returns a *MismatchError unless sent, the sender's encoded signature, fits the
// receiver's call.
func CompareMessage(c *Call, receiver int, sent []byte) error {
	want := c.Signature
	want.Op, want.Root = Send, receiver
	var b [SignatureBytes]byte
	want.Encode(b[:])
	if string(b[:]) == string(sent) {
		return nil
	}
	return &MismatchError{Group: c.Group, A: sideOf(c.Root, sent), B: Side{Rank: receiver, Call: c.String()}}
}
