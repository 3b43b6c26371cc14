// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fake is a processor that has features, under an operating system that saves the registers of state.
type fake struct {
	features []Feature
	state    uint64
	leaves   uint32 // the highest leaf of CPUID
	noXSAVE  bool
	noTiles  bool // the operating system refuses them
}

func (f fake) processor(t *testing.T) *processor {
	return &processor{
		cpuid: func(leaf, subleaf uint32) (a, b, c, d uint32) {
			require.LessOrEqual(t, leaf, f.leaves, "CPUID of a leaf that the processor lacks")
			var r [4]uint32
			switch {
			case leaf == 0:
				r[eax] = f.leaves
			case leaf == 1 && !f.noXSAVE:
				r[ecx] = 1 << 27
			case leaf == 7 && subleaf == 0 && slices.Contains(f.features, FeatureAVX512BF16):
				r[eax] = 1 // the highest subleaf
			}
			for _, known := range features {
				if known.leaf == leaf && known.subleaf == subleaf && slices.Contains(f.features, known.name) {
					r[known.register] |= 1 << known.bit
				}
			}
			return r[eax], r[ebx], r[ecx], r[edx]
		},
		xcr0: func() uint64 {
			require.False(t, f.noXSAVE, "XGETBV without OSXSAVE is an illegal instruction")
			return f.state
		},
		tilesAllowed: func() bool {
			require.Contains(t, f.features, FeatureAMXTile)
			return !f.noTiles
		},
	}
}

// best is the preferred variant that a processor runs.
func (f fake) best(t *testing.T) Variant {
	best, p := Generic, f.processor(t)
	for v := AVX2; v < numVariants; v++ {
		if len(p.missing(v)) == 0 {
			best = v
		}
	}
	return best
}

// without is a list without some features.
func without(list []Feature, some ...Feature) []Feature {
	return slices.DeleteFunc(slices.Clone(list), func(f Feature) bool { return slices.Contains(some, f) })
}

func TestFeaturesDecideTheVariant(t *testing.T) {
	all, saved := Needs(AMX), uint64(tileState)
	for _, c := range []struct {
		name string
		cpu  fake
		want Variant
	}{
		{"everything", fake{all, saved, 30, false, false}, AMX},
		{"no AVX, as Nehalem", fake{nil, 0, 11, false, false}, Generic},
		{"few leaves", fake{[]Feature{FeatureAVX, FeatureFMA, FeatureF16C}, vectorState, 4, false, false}, Generic},
		{"no XSAVE", fake{all, saved, 30, true, false}, Generic},
		{"AVX without AVX2, as Sandy Bridge", fake{[]Feature{FeatureAVX}, vectorState, 13, false, false}, Generic},
		{"Haswell, Zen 1 to 3", fake{Needs(AVX2), vectorState, 13, false, false}, AVX2},
		{"AVX-512 F alone, as Knights Landing", fake{append(Needs(AVX2), FeatureAVX512F), wideState, 13, false, false},
			AVX2},
		{"Skylake", fake{Needs(AVX512), wideState, 22, false, false}, AVX512},
		{"Zen 4", fake{append(Needs(AVX512), FeatureAVX512BF16, FeatureBMI2), wideState, 16, false, false}, AVX512},
		{"wide registers are not saved", fake{all, vectorState, 30, false, false}, AVX2},
		{"upper registers are not saved", fake{all, saved &^ (1 << 7), 30, false, false}, AVX2},
		{"vectors are not saved", fake{all, 1, 30, false, false}, Generic},
		{"tiles are not saved", fake{all, wideState, 30, false, false}, AVX512},
		{"tiles are not allowed", fake{all, saved, 30, false, true}, AVX512},
	} {
		require.Equal(t, c.want, c.cpu.best(t), c.name)
	}
	// Each feature counts: without it, the variant before is the best.
	for v := AVX2; v < numVariants; v++ {
		for _, f := range Needs(v) {
			lacking := fake{without(all, f), saved, 30, false, false}
			require.Equal(t, []string{string(f)}, lacking.processor(t).missing(v)[:1], "%s without %s", v, f)
			require.Less(t, lacking.best(t), v, "%s without %s", v, f)
		}
	}
	require.Equal(t, []string{"permission of the operating system to use tiles"},
		fake{all, saved, 30, false, true}.processor(t).missing(AMX))
}

// TestTableOfFeatures holds the table in docs/cpus.md: the variants, what each needs beyond the one before, and where
// CPUID and XCR0 report it.
func TestTableOfFeatures(t *testing.T) {
	text, err := os.ReadFile("../../docs/cpus.md")
	require.NoError(t, err)
	var before []Feature
	for v := AVX2; v < numVariants; v++ {
		for _, f := range features {
			if !slices.Contains(Needs(v), f.name) || slices.Contains(before, f.name) {
				continue
			}
			var bits []string
			for bit := range 64 {
				if f.state>>bit&1 == 1 {
					bits = append(bits, fmt.Sprint(bit))
				}
			}
			if bits == nil {
				bits = []string{"none"}
			}
			register := [...]string{"EAX", "EBX", "ECX", "EDX"}[f.register]
			where := fmt.Sprintf("%X.%d:%s[%d]", f.leaf, f.subleaf, register, f.bit)
			row := fmt.Sprintf("| `%s` | %s | `%s` | %s |", v, f.name, where, strings.Join(bits, ", "))
			require.Contains(t, string(text), row+"\n")
		}
		before = append(before, Needs(v)...)
	}
	rows := regexp.MustCompile("(?m)^\\| `[a-z0-9]+` \\| [A-Z0-9_]+ \\| `").FindAll(text, -1)
	require.Len(t, rows, len(features), "rows of the table")
}
