// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

var updatePlans = flag.Bool("update", false, "rewrite testdata/plans*.txt")

// use is a product as training or inference has it.
type use struct {
	name           string
	m, n, k        int
	transA, transB bool
	half           string // which operands are bfloat16: "", "B" or "AB"
	workers        int
}

// uses are the products of the models that the repository measures, and of generating text.
var uses = []use{
	{"GPT-2 124M, 1024 tokens: q, k, v", 1024, 2304, 768, false, false, "", 1},
	{"its gradient of the input", 1024, 768, 2304, false, true, "", 1},
	{"its gradient of the weight", 768, 2304, 1024, true, false, "", 1},
	{"second layer of the MLP", 1024, 768, 3072, false, false, "", 2},
	{"the same in bfloat16", 1024, 768, 3072, false, false, "AB", 2},
	{"the same, with a weight in bfloat16", 1024, 768, 3072, false, false, "B", 2},
	{"logits", 1024, 50257, 768, false, true, "", 2},
	{"gradient of the embedding", 50257, 768, 1024, true, false, "", 2},
	{"ResNet-18, batch 32: 1×1 convolution", 128, 784, 64, false, false, "", 1},
	{"gradient of a 3×3 convolution's weight", 64, 147, 100352, false, true, "", 2},
	{"the same for 1 worker", 64, 147, 100352, false, true, "", 1},
	{"classifier", 32, 1000, 512, false, true, "", 1},
	{"gradient of the classifier's weight", 1000, 512, 32, true, false, "", 1},
	{"small step, 64 tokens: layer", 64, 512, 128, false, false, "", 1},
	{"its gradient of the input", 64, 128, 512, false, true, "", 1},
	{"its gradient of the weight", 128, 512, 64, true, false, "", 1},
	{"64 tokens of GPT-2: q, k, v", 64, 2304, 768, false, false, "", 1},
	{"64 tokens of GPT-2, transposed weight", 64, 2304, 768, false, true, "", 1},
	{"8 tokens of GPT-2: q, k, v", 8, 2304, 768, false, false, "", 1},
	{"8 tokens of GPT-2: logits", 8, 50257, 768, false, true, "", 1},
	{"12 tokens, transposed weight", 12, 2304, 768, false, true, "", 1},
	{"8 rows of a deep layer", 8, 1024, 65536, false, false, "", 1},
	{"1 token of GPT-2: q, k, v", 1, 2304, 768, false, false, "", 1},
	{"1 token of GPT-2: logits", 1, 50257, 768, false, true, "", 1},
	{"the same with a weight in bfloat16", 1, 50257, 768, false, true, "B", 1},
	{"columns 4 KiB apart", 1, 1024, 1024, false, true, "", 1},
	{"a matrix times a vector", 1024, 1, 1024, false, false, "", 1},
	{"outer product", 1024, 1024, 1, false, false, "", 1},
}

// newUse is the product of u for an engine, without elements: gates look at no more.
func newUse(e *engine[float32], u use, bf16 *format[float32]) product[float32] {
	ars, acs, brs, bcs := u.k, 1, u.n, 1
	if u.transA {
		ars, acs = 1, u.m
	}
	if u.transB {
		brs, bcs = 1, u.k
	}
	q := newProblem(u.m, u.n, u.k, Strided[float32](nil, ars, acs), Strided[float32](nil, brs, bcs),
		InRows([]float32{0}, u.n), false)
	if strings.Contains(u.half, "A") {
		q.halfA = half[float32]{nil, bf16}
	}
	if strings.Contains(u.half, "B") {
		q.halfB = half[float32]{nil, bf16}
	}
	return newProduct(e, q, u.workers)
}

// processor is what plans depend on beside the product.
type processor struct {
	name    string
	engine  engine[float32]
	bf16    *format[float32]
	ways    int // of the first-level cache
	largeL2 bool
}

// plansTable is which plan computes each of the uses on each of the processors; reached are the plans among them.
func plansTable(processors []processor) (table string, reached []string) {
	defer func(ways func() int, large func() bool) { l1Ways, largeL2 = ways, large }(l1Ways, largeL2)
	var s strings.Builder
	for _, p := range processors {
		l1Ways, largeL2 = func() int { return p.ways }, func() bool { return p.largeL2 }
		fmt.Fprintf(&s, "%s\n", p.name)
		for _, u := range uses {
			q := newUse(&p.engine, u, p.bf16)
			name := q.plan().name
			fmt.Fprintf(&s, "  %-30s %s: %v, %d workers\n", name, u.name, &q, u.workers)
			reached = append(reached, name)
		}
	}
	return s.String(), reached
}

// requirePlans compares the table with a file in testdata and logs it.
func requirePlans(t *testing.T, file string, processors []processor) (reached []string) {
	table, reached := plansTable(processors)
	t.Log("\n" + table)
	path := filepath.Join("testdata", file)
	if *updatePlans {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(table), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), table, "go test -run TestPlans -update writes the table anew")
	return reached
}

// TestPlansOfPortableKernels: run it with -v to see which plan computes what.
func TestPlansOfPortableKernels(t *testing.T) {
	requirePlans(t, "plansportable.txt", []processor{{"portable", generic32, &genericBF16, 8, false}})
}

// TestPlansHaveNames: names tell plans apart, for engine.off and for the tables in testdata; one plan computes what no
// other does.
func TestPlansHaveNames(t *testing.T) {
	names := map[string]bool{}
	for i, p := range plans32 {
		require.False(t, names[p.name], p.name)
		names[p.name] = true
		require.Equal(t, p.name, plans64[i].name)
	}
	require.True(t, plans32[len(plans32)-1].gate(&product[float32]{}))
}

// BenchmarkPlans compares each of the uses with the plan that computes it and with that plan off, alternately: off/on
// is the median of the ratios, the plan's gain.
func BenchmarkPlans(b *testing.B) {
	e := *engine32()
	for _, u := range uses {
		bf16 := formatBF16()
		p := newUse(&e, u, bf16)
		without := e
		without.off = []string{p.plan().name}
		if u.half != "" || p.plan().name == plans32[len(plans32)-1].name {
			continue
		}
		b.Run(p.plan().name+"/"+u.name, func(b *testing.B) {
			pool := parallel.New(u.workers)
			defer pool.Close()
			x := newExample[float32](1, u.m, u.n, u.k, u.transA, u.transB, 0, false)
			timed := func(e *engine[float32]) float64 {
				start := time.Now()
				multiply(pool, e, newProblem(x.m, x.n, x.k, Strided(x.a, x.ars, x.acs), Strided(x.b, x.brs, x.bcs),
					InRows(x.c, x.ldc), false))
				return time.Since(start).Seconds()
			}
			var ratios []float64
			for b.Loop() {
				first, off, second := timed(&e), timed(&without), timed(&e)
				ratios = append(ratios, 2*off/(first+second))
			}
			slices.Sort(ratios)
			other := newUse(&without, u, bf16)
			b.ReportMetric(ratios[len(ratios)/2], "off/on")
			b.Log(other.plan().name, "in its place")
		})
	}
}
