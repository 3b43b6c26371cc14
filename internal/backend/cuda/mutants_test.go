// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/backendtest"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/cuda/kernels"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/ptx"
)

var entries = regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\(`)

// alone is a kernel's text without the others of its family.
func alone(t *testing.T, kernel string) string {
	text := string(kernels.Find(kernel).PTX())
	found := entries.FindAllStringSubmatchIndex(text, -1)
	at := slices.IndexFunc(found, func(m []int) bool { return text[m[2]:m[3]] == kernel })
	require.GreaterOrEqual(t, at, 0)
	body := text[found[at][0]:]
	return text[:found[0][0]] + body[:strings.Index(body, "\n}\n")+3]
}

// mutating is a driver that loads a mutant in a kernel's place.
type mutating struct {
	cuda.Driver
	kernel string
	text   []byte
}

func (m *mutating) Open(i int) (cuda.Device, error) {
	d, err := m.Driver.Open(i)
	return &mutatingDevice{d, m}, err
}

type mutatingDevice struct {
	cuda.Device
	m *mutating
}

func (d *mutatingDevice) Load(text []byte) (cuda.Module, error) {
	own, err := d.Device.Load(text)
	if err != nil || !bytes.Contains(text, []byte(".entry "+d.m.kernel+"(")) {
		return own, err
	}
	other, err := d.Device.Load(d.m.text)
	return &mutatingModule{own, other, d.m.kernel}, err
}

type mutatingModule struct {
	cuda.Module
	mutant cuda.Module
	kernel string
}

func (m *mutatingModule) Function(name string) (cuda.Function, error) {
	if name != m.kernel {
		return m.Module.Function(name)
	}
	f, err := m.mutant.Function(name)
	if err != nil {
		err = errors.Join(errUnreadable, err)
	}
	return f, err
}

var errUnreadable = errors.New("no PTX")

// failing panics with an error where a test would fail.
type failing struct{}

func (failing) Helper()                           {}
func (failing) FailNow()                          {}
func (failing) Errorf(format string, args ...any) { panic(fmt.Errorf(format, args...)) }

// caught is what f panics with.
func caught(f func() error) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case error:
			err = v
		default:
			panic(v)
		}
	}()
	return f()
}

// longRows compares an op with the CPU, and its bits with those recorded, for rows of a block or a warp, at addresses
// that are multiples of 16 and others.
func longRows(d *Device, op backend.Op) error {
	return caught(func() error {
		for _, c := range []struct{ cols, skip int }{{1203, 1}, {1300, 0}, {47, 1}} {
			for _, r := range rowCases(dtype.Float32, 2, c.cols, c.skip) {
				if r.op == op {
					requireCPU(failing{}, d, r.call(), r.outs, r.ins, false)
				}
			}
		}
		requireBits(failing{}, d, op, dtype.Float32)
		return nil
	})
}

// targets is longRows of a cross entropy, and what becomes of rows of special numbers and of bad targets.
func targets(d *Device, op backend.Op) error {
	if err := longRows(d, op); err != nil {
		return err
	}
	return caught(func() error {
		requireSpecial(failing{}, d, op)
		requireBadTargets(failing{}, d)
		return nil
	})
}

// mutated is a kernel, the op whose samples run it, and what else looks at it.
type mutated struct {
	kernel string
	op     backend.Op
	more   func(*Device, backend.Op) error
}

// try says what is found to be wrong with a text of the kernel.
func (m *mutated) try(text []byte) error {
	driver := fake.New(fake.Options{CheckRaces: true, Budget: 4e6, Capability: noCubin})
	d, err := Open(&mutating{driver, m.kernel, text}, 0)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // which repeats what went wrong
	if err := backendtest.Check(d, m.op, dtype.Float32); err != nil || m.more == nil {
		return err
	}
	return m.more(d, m.op)
}

// The suite finds kernels with a mistake in one instruction (see [ptx.Mutants]), at least nine of ten. Those that it
// does not find are nearly all no mistakes: they lose a short cut, a barrier that nothing needs, or a case that cannot
// be. A sample is tried, of which fewer must be found since it is small. All are tried with
//
//	LOCKSTEP_MUTANTS=all go test ./internal/backend/cuda -run TestMutants -v -timeout 1h
//
// which found 611 of 678 in layer norm and 347 of 369 in AdamW when the test was written.
func TestMutants(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's
	}
	for _, c := range []mutated{
		{"layer_norm_f32", backend.OpLayerNorm, longRows}, {"cross_entropy_f32", backend.OpCrossEntropy, targets},
		{"adamw_many_f32", backend.OpAdamW, nil},
	} {
		t.Run(c.kernel, func(t *testing.T) {
			text := alone(t, c.kernel)
			require.NoError(t, c.try([]byte(text)), "the kernel as it is")
			mutants, err := ptx.Mutants(text, c.kernel)
			require.NoError(t, err)
			require.Greater(t, len(mutants), 100)
			r := rand.New(rand.NewPCG(19, 1))
			r.Shuffle(len(mutants), func(i, j int) { mutants[i], mutants[j] = mutants[j], mutants[i] })
			wanted := 8
			if n, err := strconv.Atoi(cmp.Or(os.Getenv("LOCKSTEP_MUTANTS"), "30")); err == nil {
				mutants = mutants[:min(n, len(mutants))]
			} else {
				wanted = 9
			}
			found, tried := 0, 0
			for _, m := range mutants {
				err := c.try([]byte(m.Src))
				if err != nil && strings.Contains(err.Error(), errUnreadable.Error()) {
					continue // no driver would take it
				}
				tried++
				if err != nil {
					found++
				} else {
					t.Logf("not found: %s", m.What)
				}
			}
			t.Logf("found %d of %d", found, tried)
			require.Greater(t, tried, len(mutants)/2)
			require.GreaterOrEqual(t, 10*found, wanted*tried)
		})
	}
}
