// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrClosed is returned by calls on a group that this rank has closed.
var ErrClosed = errors.New("comm: the group is closed")

// Side is one rank's half of a disagreement.
type Side struct {
	Rank      int    `json:"rank"`       // in the job
	GroupRank int    `json:"group_rank"` // in the group
	Call      string `json:"call"`       // as Signature.String gives it
}

func (s Side) String() string { return rankText(s.Rank, s.GroupRank) + " called " + s.Call }

// MismatchError says that two ranks issued different calls where all must issue the same. Every rank of the group gets
// it, with the same two sides.
type MismatchError struct {
	Group string `json:"group"`
	A     Side   `json:"a"` // the lowest rank of the majority
	B     Side   `json:"b"` // the lowest rank that differs from it
}

// Error names both sides.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("comm: group %q: the ranks disagree: %v, %v", e.Group, e.A, e.B)
}

// RankLostError says that a rank's process ended, its host became unreachable, or it left the group while others waited
// for it.
type RankLostError struct {
	Group     string `json:"group"`
	Rank      int    `json:"rank"`           // in the job
	GroupRank int    `json:"group_rank"`     // in the group
	Host      string `json:"host,omitempty"` // where it ran, if it was a separate process
	PID       int    `json:"pid,omitempty"`
	Cause     string `json:"cause"`
	Call      string `json:"call,omitempty"`   // what waited for it
	Caller    string `json:"caller,omitempty"` // the rank whose call that was, where another one told of it
}

// Error names the rank, its process and its host.
func (e *RankLostError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "comm: group %q: %s", e.Group, rankText(e.Rank, e.GroupRank))
	if e.PID != 0 {
		fmt.Fprintf(&b, " (process %d on %s)", e.PID, e.Host)
	}
	fmt.Fprintf(&b, " is lost: %s", e.Cause)
	switch {
	case e.Call != "" && e.Caller != "":
		fmt.Fprintf(&b, " (reported by %s during its %s)", e.Caller, e.Call)
	case e.Call != "":
		fmt.Fprintf(&b, " (during %s)", e.Call)
	}
	return b.String()
}

// TimeoutError says that a call passed its deadline, and who did not arrive.
type TimeoutError struct {
	Group    string        `json:"group"`
	Reporter int           `json:"reporter"` // the rank whose deadline passed, in the job
	Op       Op            `json:"op"`
	Seq      uint64        `json:"seq"`
	Label    string        `json:"label,omitempty"`
	Call     string        `json:"call"`
	After    time.Duration `json:"after"`
	Missing  []int         `json:"missing"` // ranks that had not arrived, in the job
	// the same ranks, in the group
	GroupMissing []int `json:"group_missing"`
}

// Error names the call and the ranks that did not arrive.
func (e *TimeoutError) Error() string {
	if len(e.Missing) == 0 {
		return fmt.Sprintf("comm: group %q: %s timed out after %v on rank %d: all ranks arrived, and the "+
			"transfer did not end", e.Group, e.Call, e.After, e.Reporter)
	}
	return fmt.Sprintf("comm: group %q: %s timed out after %v on rank %d: %s did not arrive", e.Group, e.Call, e.After,
		e.Reporter, ranksText(e.Missing, e.GroupMissing))
}

// Timeout reports true, as net.Error has it.
func (e *TimeoutError) Timeout() bool { return true }

// NewTimeoutError is for engines: c passed its deadline on rank reporter while it waited for missing. Both are numbers
// in the group.
func NewTimeoutError(c *Call, reporter int, missing []int) *TimeoutError {
	return &TimeoutError{Group: c.Group, Reporter: c.JobRank(reporter), Op: c.Op, Seq: c.Seq, Label: c.Label,
		Call: c.String(), After: c.Timeout, Missing: JobRanks(c.members, missing), GroupMissing: missing}
}

// AbortError reports that a rank aborted the group: it panicked, its arguments were wrong, or it called [Group.Abort].
type AbortError struct {
	Group     string `json:"group"`
	Rank      int    `json:"rank"`       // in the job
	GroupRank int    `json:"group_rank"` // in the group
	Message   string `json:"message"`
	cause     error  // on the rank itself
}

// Error names the rank and its reason.
func (e *AbortError) Error() string {
	return fmt.Sprintf("comm: group %q: %s aborted: %s", e.Group, rankText(e.Rank, e.GroupRank), e.Message)
}

// Unwrap returns the error given to Abort, on the rank that did.
func (e *AbortError) Unwrap() error { return e.cause }

// travelling is an error on its way to another rank.
type travelling struct {
	Mismatch *MismatchError `json:"mismatch,omitempty"`
	Lost     *RankLostError `json:"lost,omitempty"`
	Timeout  *TimeoutError  `json:"timeout,omitempty"`
	Abort    *AbortError    `json:"abort,omitempty"`
}

// find looks for one of the package's errors in err.
func (t *travelling) find(err error) bool {
	return errors.As(err, &t.Mismatch) || errors.As(err, &t.Lost) || errors.As(err, &t.Timeout) ||
		errors.As(err, &t.Abort)
}

// error is what find found, nil if nothing.
func (t *travelling) error() error {
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
	return nil
}

// EncodeError is for engines: err as JSON, to be told to other ranks. What is none of the package's types travels as an
// *AbortError of this rank, which is given by its numbers in the job and in the group.
func EncodeError(err error, rank, groupRank int) []byte {
	var t travelling
	if !t.find(err) {
		t.Abort = &AbortError{Rank: rank, GroupRank: groupRank, Message: err.Error()}
	}
	if t.Lost != nil && t.Lost.Call != "" && t.Lost.Caller == "" {
		told := *t.Lost
		told.Caller, t.Lost = rankText(rank, groupRank), &told
	}
	b, _ := json.Marshal(t) // strings and numbers cannot fail
	return b
}

// DecodeError is the inverse of EncodeError; it returns an *AbortError of the rank that sent b for what it cannot read.
// It is for engines.
func DecodeError(b []byte, rank, groupRank int) error {
	message := "no reason given"
	var t travelling
	if err := json.Unmarshal(b, &t); err != nil {
		message = "an unreadable error: " + err.Error()
	} else if err := t.error(); err != nil {
		return err
	}
	return &AbortError{Rank: rank, GroupRank: groupRank, Message: message}
}

// RootCause returns the first rank whose error is not about another rank, else the first that has one; −1: none has. It
// is for packages that start ranks.
func RootCause(errs []error) (rank int) {
	for rank, err := range errs {
		var abort *AbortError
		var lost *RankLostError
		if err != nil && !errors.As(err, &lost) && (!errors.As(err, &abort) || abort.Rank == rank) {
			return rank
		}
	}
	return slices.IndexFunc(errs, func(err error) bool { return err != nil })
}

// Compare is for engines: it returns nil if the encoded signatures of c on all ranks are equal, else the *MismatchError
// that all ranks return. Entries without bytes are left out. The side called wrong is the one that fewer ranks are on.
func Compare(c *Call, signatures [][]byte) error {
	first := slices.IndexFunc(signatures, func(s []byte) bool { return s != nil })
	differs := func(s, from []byte) bool { return s != nil && !bytes.Equal(s, from) }
	if first < 0 || !slices.ContainsFunc(signatures, func(s []byte) bool { return differs(s, signatures[first]) }) {
		return nil
	}
	votes := map[string]int{}
	for _, s := range signatures {
		if s != nil {
			votes[string(s)]++
		}
	}
	a := first
	for r, s := range signatures {
		if s != nil && votes[string(s)] > votes[string(signatures[a])] {
			a = r
		}
	}
	b := slices.IndexFunc(signatures, func(s []byte) bool { return differs(s, signatures[a]) })
	return &MismatchError{Group: c.Group, A: c.side(a, signatures[a]), B: c.side(b, signatures[b])}
}

// side is what a rank of the group called.
func (c *Call) side(rank int, signature []byte) Side {
	side := Side{Rank: c.JobRank(rank), GroupRank: rank, Call: "something unreadable"}
	if s, err := DecodeSignature(signature); err == nil {
		s.members = c.members
		side.Call = s.String()
	}
	return side
}

// CompareMessage is for engines: it returns a *MismatchError unless sent, the sender's encoded signature, fits the
// receiver's call.
func CompareMessage(c *Call, receiver int, sent []byte) error {
	want := c.Signature
	want.Op, want.Root = Send, receiver
	var b [SignatureBytes]byte
	want.Encode(b[:])
	if bytes.Equal(b[:], sent) {
		return nil
	}
	return &MismatchError{Group: c.Group, A: c.side(c.Root, sent),
		B: Side{Rank: c.JobRank(receiver), GroupRank: receiver, Call: c.String()}}
}
