// SPDX-License-Identifier: Apache-2.0

package tp

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/catalog"
	"github.com/lockstep-ml/lockstep/internal/misspelt"
)

// Style is how a layer is divided. The names are those of transformers' base_model_tp_plan, which package catalog lists
// for the arguments.
type Style string

// The styles.
const (
	// Colwise divides the outputs' features. Each rank gets the whole input and has a part of the output.
	Colwise Style = "colwise"
	// Rowwise divides the inputs' features. Each rank has a part of the input and gets the whole output.
	Rowwise Style = "rowwise"
	// PackedColwise is Colwise for several matrices that lie one after the other in the outputs, each of which is
	// divided: gate and up projection of an MLP, or "packed_colwise:3" for queries, keys and values.
	PackedColwise Style = "packed_colwise"
	// ColwiseGatherOutput is Colwise with the whole output on each rank, for features that need not divide, such as the
	// scores of a vocabulary. The loss of a language model does without the whole scores, see nn.LMHead.LossSum.
	ColwiseGatherOutput Style = "colwise_gather_output"
	// RowwiseSplitInput is Rowwise with the whole input on each rank.
	RowwiseSplitInput Style = "rowwise_split_input"
	// EmbeddingRowwise divides the rows of a table of embeddings. Each rank looks up its own, and gets all.
	EmbeddingRowwise Style = "embedding_rowwise"
	// SequenceParallel leaves a layer without matrices, such as a norm, whole on each rank. Each computes some of the
	// tokens, which lie along the last dim but one, and gets the whole output; the gradients of parameters are added.
	SequenceParallel Style = "sequence_parallel"
	// ReplicatedWithGradAllReduce leaves a layer without matrices whole on each rank, which computes its heads, along
	// the last dim but one: norms of queries and keys behind colwise projections. The gradients of parameters are
	// added.
	ReplicatedWithGradAllReduce Style = "replicated_with_grad_allreduce"
	// Replicate leaves the layer whole on each rank.
	Replicate Style = "replicate"
)

// StyleNames lists the styles for a reader.
func StyleNames() string { return strings.Join(catalog.TensorStyles, ", ") }

// Rule is how the layers of a pattern are divided.
type Rule struct {
	Style Style
	Fused int // matrices of PackedColwise; 0 means 2
}

// String is the rule as ParsePlan reads it.
func (r Rule) String() string {
	if r.Fused > 0 {
		return fmt.Sprintf("%s:%d", r.Style, r.Fused)
	}
	return string(r.Style)
}

// fused is how many matrices lie one after the other in a layer's outputs.
func (r Rule) fused() int {
	switch {
	case r.Style != PackedColwise:
		return 1
	case r.Fused == 0:
		return 2
	}
	return r.Fused
}

// Plan says how the layers of a model are divided, by the paths of their modules. In a path * stands for one element,
// as in "transformer.h.*.mlp.c_fc".
type Plan map[string]Rule

// ParsePlan reads the styles of a map from paths to styles, such as the base_model_tp_plan of a config. The error has
// all faults.
func ParsePlan(text map[string]string) (Plan, error) {
	plan, faults := Plan{}, Faults(nil)
	for _, path := range slices.Sorted(maps.Keys(text)) {
		rule, err := parseRule(text[path])
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", path, err))
		}
		plan[path] = rule
	}
	if err := faults.err(); err != nil {
		return nil, err
	}
	return plan, nil
}

func parseRule(text string) (Rule, error) {
	name, count, counted := strings.Cut(text, ":")
	names := catalog.TensorStyles
	switch rule := (Rule{Style: Style(name)}); {
	case slices.Contains(catalog.UnbuiltTensorStyles, name):
		return Rule{}, fmt.Errorf("style %q is not built: want one of %s", name, StyleNames())
	case !slices.Contains(names, name):
		return Rule{}, fmt.Errorf("unknown style %q: %s", name,
			misspelt.Suggestion(name, "", names, "want one of "+StyleNames()))
	case counted:
		n, err := strconv.Atoi(count)
		if err != nil || n < 2 || rule.Style != PackedColwise {
			return Rule{}, fmt.Errorf("style %q: want a number of at least 2 behind packed_colwise alone", text)
		}
		rule.Fused = n
		return rule, nil
	default:
		return rule, nil
	}
}

// matches reports whether a pattern is one of a path.
func matches(pattern, path string) bool {
	p, q := strings.Split(pattern, "."), strings.Split(path, ".")
	return slices.EqualFunc(p, q, func(a, b string) bool { return a == "*" || a == b })
}

// patternOf is a path with * for numbers.
func patternOf(path string) string {
	parts := strings.Split(path, ".")
	for i, s := range parts {
		if _, err := strconv.Atoi(s); err == nil {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ".")
}
