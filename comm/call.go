// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Signature is what all ranks must agree on for a call. It is compared before any byte is combined. The flight recorder
// stores it in JSON. It is for engines; programs see it in errors and flight records.
type Signature struct {
	// number of the call in its group, from 1; messages are counted per pair and direction
	Seq    uint64      `json:"seq"`
	Op     Op          `json:"op"`
	Reduce ReduceOp    `json:"reduce"`
	DType  dtype.DType `json:"-"`
	// elements of one block: of the whole buffer, or of one rank's share where each has its own
	Count int `json:"count"`
	// the root of a rooted operation, the other rank of a message, else 0; by its number in the group
	Root   int    `json:"root"`
	Fast   bool   `json:"fast"`             // additions in any order
	Layout uint64 `json:"layout,omitempty"` // hash of what lies in the buffer: names, shapes and offsets
	Label  string `json:"label,omitempty"`  // what the buffer is: a parameter or a bucket
	Group  string `json:"-"`

	members []int // of the group
}

// JobRank is the number in the job of rank r of the group.
func (s *Signature) JobRank(r int) int { return jobRank(s.members, r) }

// MaxLabel is the number of bytes of a label that are compared and shown; the rest counts through Layout.
const MaxLabel = 120

// SignatureBytes is the size of an encoded Signature. It is for engines.
const SignatureBytes = 48 + MaxLabel

const signatureMagic = 0x4c4f434b // "LOCK"

// Encode writes the signature into dst, which has SignatureBytes bytes. Equal signatures have equal bytes.
func (s *Signature) Encode(dst []byte) {
	le := binary.LittleEndian
	n := min(len(s.Label), MaxLabel)
	le.PutUint32(dst[0:], signatureMagic)
	dst[4], dst[5], dst[6], dst[7] = byte(s.Op), byte(s.Reduce), byte(s.DType), byte(n)
	if s.Fast {
		dst[5] |= 0x80
	}
	le.PutUint64(dst[8:], s.Seq)
	le.PutUint64(dst[16:], Hash(s.Group))
	le.PutUint64(dst[24:], uint64(s.Count))
	le.PutUint64(dst[32:], uint64(s.Root))
	le.PutUint64(dst[40:], s.Layout)
	clear(dst[48+copy(dst[48:SignatureBytes], s.Label[:n]) : SignatureBytes])
}

// DecodeSignature is the inverse of Encode, except that the group's name, of which only a hash travels, and its members
// are missing. It is for engines.
func DecodeSignature(src []byte) (Signature, error) {
	le := binary.LittleEndian
	if len(src) < SignatureBytes || le.Uint32(src) != signatureMagic {
		return Signature{}, fmt.Errorf("comm: not a signature")
	}
	n := int(src[7])
	s := Signature{
		Op: Op(src[4]), Reduce: ReduceOp(src[5] & 0x7f), Fast: src[5]&0x80 != 0, DType: dtype.DType(src[6]),
		Seq: le.Uint64(src[8:]), Count: int(le.Uint64(src[24:])), Root: int(int64(le.Uint64(src[32:]))),
		Layout: le.Uint64(src[40:]),
	}
	if n > MaxLabel || s.Op == opInvalid || s.Op >= numOps || s.Reduce >= numReduceOps || s.DType.Size() == 0 ||
		s.Count < 0 {
		return Signature{}, fmt.Errorf("comm: not a signature: %v", src[:48])
	}
	s.Label = string(src[48 : 48+n])
	return s, nil
}

// String describes the call in one phrase: all-reduce #12 "bucket 3" (sum of float32 × 1024). It names ranks by their
// numbers in the job.
func (s Signature) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v #%d", s.Op, s.Seq)
	if s.Label != "" {
		fmt.Fprintf(&b, " %q", s.Label)
	}
	switch {
	case s.Op == Barrier:
		return b.String()
	case s.Op.Reduces():
		fmt.Fprintf(&b, " (%v of %v × %d", s.Reduce, s.DType, s.Count)
	default:
		fmt.Fprintf(&b, " (%v × %d", s.DType, s.Count)
	}
	switch {
	case s.Op.Rooted():
		fmt.Fprintf(&b, ", root %d", s.JobRank(s.Root))
	case s.Op == Send:
		fmt.Fprintf(&b, ", to rank %d", s.JobRank(s.Root))
	case s.Op == Recv:
		fmt.Fprintf(&b, ", from rank %d", s.JobRank(s.Root))
	}
	if s.Layout != 0 {
		fmt.Fprintf(&b, ", layout %08x", uint32(s.Layout^s.Layout>>32))
	}
	if s.Fast {
		b.WriteString(", fast order")
	}
	return b.String() + ")"
}

// Hash is the 64-bit FNV-1a hash of the parts, each closed by a zero byte: for [Layout] and for names. It is for
// packages that lay tensors out in buffers, such as accelerate/ddp.
func Hash(parts ...string) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return h.Sum64()
}

// Call is one operation as an engine sees it: checked, with its buffers and its deadline. It is for engines.
type Call struct {
	Signature
	In []byte // this rank's input; nil if it has none
	// what this rank receives; the same memory as In for operations in place; nil where it receives nothing
	Out      []byte
	Deadline time.Time // the engine returns a *TimeoutError soon after
	Timeout  time.Duration

	from, to *tensor.Memory // of In and Out where a tensor was given; nil: ordinary memory
	turn     *turn          // where a device engine carries it out; nil: nowhere
	apart    bool           // it has ended, on all ranks, when the method that issues it returns
}

// Sent returns the bytes that a rank of so many sends in the call with comm/tcp's flat algorithms, messages alone:
// 2(n-1)/n of the buffer for an all-reduce (rounded down), and so on.
func (c *Call) Sent(rank, size int) int64 {
	block, n := int64(c.Count*c.DType.Size()), int64(size)
	switch c.Op {
	case AllReduce:
		return 2 * (n - 1) * block / n
	case Reduce:
		if rank == c.Root {
			return (n - 1) * block / n
		}
		return block // its slices to all, and its combined slice to the root
	case ReduceScatter, AllGather, AllToAll:
		return (n - 1) * block
	case Broadcast, Scatter:
		if rank == c.Root {
			return (n - 1) * block
		}
	case Gather:
		if rank != c.Root {
			return block
		}
	case Send:
		return block
	}
	return 0
}

// CallOption is an option of a call: [Label], [Layout], [Timeout]. Several may be given.
type CallOption struct {
	label   string
	layout  uint64
	timeout time.Duration
}

// Label names what a call works on: a parameter, a bucket. Errors and flight records have it, and ranks that disagree
// on it get a *MismatchError.
func Label(name string) CallOption { return CallOption{label: name} }

// Layout is a hash (see [Hash]) of the layout of the buffer. Ranks that disagree on it get a *MismatchError.
func Layout(hash uint64) CallOption { return CallOption{layout: hash} }

// Timeout replaces the group's deadline for one call. It counts from when the call begins to run, not from when it was
// issued.
func Timeout(d time.Duration) CallOption { return CallOption{timeout: d} }
