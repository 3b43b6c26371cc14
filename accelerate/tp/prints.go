// SPDX-License-Identifier: Apache-2.0

package tp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Prints are hashes of parts of a parameter, by which ranks that made their parts separately, for example each from its
// own file, check that the parameter is the same.
type Prints struct {
	Name string
	Own  string // of this rank's part
	Next string // of what the next rank has, as this rank would make it; "": it does not know
}

// Fingerprints are those of the divided parameters, if Config.Compare was set.
func (d *Division) Fingerprints() []Prints { return d.prints }

// Differing describes the first parameter of which two ranks have made parts that are not of the same whole: "" if
// there is none. all are the fingerprints of all ranks, and at is the place of each among those that share a model.
func Differing(all [][]Prints, at []int, ranks int) string {
	for i := range all[0] {
		own := make([]int, ranks) // a rank of each place
		for rank := range all {
			own[at[rank]] = rank
		}
		for rank, prints := range all {
			p, same, next := prints[i], own[at[rank]], own[(at[rank]+1)%ranks]
			if all[same][i].Own != p.Own {
				return fmt.Sprintf("%s of ranks %d and %d", p.Name, same, rank)
			}
			if p.Next != "" && all[next][i].Own != p.Next {
				return fmt.Sprintf("%s of ranks %d and %d", p.Name, rank, next)
			}
		}
	}
	return ""
}

// blockBytes, or a blockShare of it, is how much of a part is made at a time to see what another rank has.
const (
	blockBytes = 1 << 20
	blockShare = 32
)

// printsOf are those of a part that source has made, which is nil if the whole was there.
func (d *Division) printsOf(c *tensor.Ctx, part *tensor.Tensor, source nn.PartFunc, cut Cut) Prints {
	p := Prints{Name: cut.Name, Own: hashOf(part.Size(0), rowBytes(part), func(start, stop int) (data []byte) {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			data = tensor.ReadBytes(c, tensor.Slice(c, part, 0, start, stop))
			return nil
		})
		return data
	})}
	if source == nil {
		return p
	}
	next := cut.Of((d.rank()+1)%d.size.Ranks, d.size.Ranks)
	rows, columns := next.Box[0], 1
	for _, ranges := range next.Box[1:] {
		columns *= placement.Len(ranges)
	}
	p.Next = hashOf(placement.Len(rows), columns*part.DType().Size(), func(start, stop int) []byte {
		t := source(c, next.Along(0, placement.Sub(rows, start, stop)...))
		defer t.Free()
		return tensor.ReadBytes(c, t)
	})
	return p
}

func rowBytes(t *tensor.Tensor) int { return t.Bytes() / max(1, t.Size(0)) }

// hashOf is the hash of rows, which read reads some at a time.
func hashOf(rows, width int, read func(start, stop int) []byte) string {
	h, step := sha256.New(), max(1, min(blockBytes/max(1, width), rows/blockShare))
	for start := 0; start < rows; start += step {
		h.Write(read(start, min(start+step, rows)))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
