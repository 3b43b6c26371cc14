// SPDX-License-Identifier: Apache-2.0

package tp

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Cut is how a parameter is divided: along a dim, which holds Fused matrices one after the other, each into Parts of
// equal length, of which the last may be shorter or empty in vocabularies. Ranks have neighbouring parts.
type Cut struct {
	Name  string // of the parameter
	Shape []int  // of the whole
	Dim   int
	Fused int
	Parts int
}

// Of is what a rank has: its parts of each matrix.
func (c Cut) Of(rank, ranks int) tensor.Placement {
	own := c.Parts / ranks
	var strips []tensor.Range
	for f := range c.Fused {
		strips = append(strips, tensor.Range{Start: c.at(f, rank*own), Stop: c.at(f, (rank+1)*own)})
	}
	return tensor.WholePlacement(c.Name, c.Shape...).Along(c.Dim, strips...)
}

// size is how many indices of the dim a matrix has.
func (c Cut) size() int { return c.Shape[c.Dim] / c.Fused }

// length is how many of them a part has.
func (c Cut) length() int { return (c.size() + c.Parts - 1) / c.Parts }

// at is the first index of a part of a matrix.
func (c Cut) at(matrix, part int) int { return matrix*c.size() + min(part*c.length(), c.size()) }

// grain is how many elements of the parameter no cut separates, by whichever ranks: a divisor of strategy.Cell.
func (c Cut) grain() int {
	inner := 1
	for _, n := range c.Shape[c.Dim+1:] {
		inner *= n
	}
	grain := strategy.Cell
	for _, n := range []int{c.length(), c.size()} {
		for (n*inner)%grain != 0 {
			grain /= 2
		}
	}
	return grain
}

// Size is how a model is divided.
type Size struct {
	Ranks int
	Parts int // of each sum that ranks share; a multiple of Ranks
}

// Validate checks that ranks can share the parts and add them in one tree.
func (s Size) Validate() error {
	if err := s.fault(); err != nil {
		return Faults{err}
	}
	return nil
}

func (s Size) fault() error {
	own := s.Parts / max(1, s.Ranks)
	if s.Ranks >= 1 && s.Parts >= 1 && s.Parts%s.Ranks == 0 && (s.Ranks == 1 || own&(own-1) == 0) {
		return nil
	}
	return fmt.Errorf("tp_parts %d on %s: want tp_parts %d, or %d times 2, 4, 8, …, so that ranks add their "+
		"parts in the tree of one rank", s.Parts, quantity.Of(s.Ranks, "rank"), s.Ranks, s.Ranks)
}

// layer is a module that has parameters, and how it is divided.
type layer struct {
	path   string
	module nn.Module
	params []tensor.Named // by their names in the model
	traits nn.Traits
	rule   Rule
	tied   string // the parameter that it shares with another layer; "": none
	units  int    // heads or features that have to divide into parts; 0: none
}

// layers lists the modules that have parameters.
func layers(tree *nn.Tree) (list []*layer) {
	modules := map[string]nn.Module{}
	tree.Modules(func(path string, m nn.Module) { modules[path] = m })
	at := map[string]*layer{}
	of := func(name string) *layer {
		path := name[:max(0, strings.LastIndexByte(name, '.'))]
		if at[path] == nil {
			at[path] = &layer{path: path, module: modules[path]}
			list = append(list, at[path])
		}
		return at[path]
	}
	for _, p := range tree.Parameters() {
		l := of(p.Name)
		l.params, l.traits = append(l.params, p), tree.Traits(p.Name)
	}
	for alias, name := range tree.Aliases() {
		of(alias).tied = name
		of(name).tied = name
	}
	return list
}

// Resolve finds how each parameter of a model is divided, whole ones left out. The error has all faults: rules that
// match nothing, matrices without a rule, and what does not divide.
func (p Plan) Resolve(tree *nn.Tree, size Size) ([]Cut, error) {
	_, cuts, err := p.resolve(tree, size)
	return cuts, err
}

// Parts is how many parts sums get where nothing says how many: so many ranks times a power of two, up to most, as far
// as the model divides.
func (p Plan) Parts(tree *nn.Tree, ranks, most int) int {
	parts := ranks
	for 2*parts <= most {
		parts *= 2
	}
	for ; parts > ranks; parts /= 2 {
		if _, err := p.Resolve(tree, Size{Ranks: ranks, Parts: parts}); err == nil {
			break
		}
	}
	return parts
}

// Example lists the entries of a plan for a model that has none, in JSON: the patterns of its layers with matrices, all
// replicated.
func Example(tree *nn.Tree) (entries []string) {
	for _, pattern := range kinds(layers(tree)) {
		entries = append(entries, fmt.Sprintf("%q: %q", pattern, Replicate))
	}
	return entries
}

// resolve is Resolve that lists the layers too.
func (p Plan) resolve(tree *nn.Tree, size Size) (list []*layer, cuts []Cut, err error) {
	faults := collected{size: size}
	misfit := faults.add("", size.fault())
	list, used := layers(tree), map[string]bool{}
	for _, l := range list {
		kind := patternOf(l.path)
		l.rule, err = p.ruleOf(l, used)
		if faults.add(kind, err) || misfit {
			continue
		}
		own, err := l.cuts(size)
		faults.add(kind, err)
		cuts = append(cuts, own...)
	}
	faults.addUndivided(list)
	faults.add("", p.adapterDropout(tree, size))
	if len(faults.list) == 0 {
		faults.add("", tiedAlike(list))
	}
	for _, pattern := range slices.Sorted(maps.Keys(p)) {
		if !used[pattern] {
			faults.add(pattern, fmt.Errorf("rule %q of the plan matches no module: want one of %s", pattern,
				strings.Join(kinds(list), ", ")))
		}
	}
	return list, cuts, faults.list.err()
}

// ruleOf is that of a layer; it notes whose pattern it is.
func (p Plan) ruleOf(l *layer, used map[string]bool) (r Rule, err error) {
	var found []string
	for _, pattern := range slices.Sorted(maps.Keys(p)) {
		if matches(pattern, l.path) {
			found, used[pattern] = append(found, pattern), true
		}
	}
	if len(found) == 0 {
		if r, ok := p.ofAdapter(l.path); ok {
			return r, nil
		}
	}
	switch {
	case len(found) > 1:
		return r, fmt.Errorf("rules %s match %s: want one", strings.Join(found, " and "), l.path)
	case len(found) == 0 && l.hasMatrix():
		return r, fmt.Errorf("the plan has no rule for %s, which has a matrix: want one, such as %q: %q", l.path,
			patternOf(l.path), Replicate)
	case len(found) == 0:
		return r, nil
	}
	r = p[found[0]]
	switch {
	case r.divides() && l.tied != "" && !r.byVocabulary():
		return r, fmt.Errorf("%s is %s, and %s is tied to another module: want %s, %s or %s", l.path, r, l.tied,
			EmbeddingRowwise, ColwiseGatherOutput, Replicate)
	case r.divides() && l.module == nil:
		return r, fmt.Errorf("%s is %s, not a module: want a linear layer", l.path, r)
	case r.byRows() && (l.module == nil || l.hasMatrix() || l.tied != ""):
		return r, fmt.Errorf("%s is %s: want a layer without matrices, such as a norm, or %s", l.path, r, Replicate)
	}
	return r, nil
}

// ofAdapter is the rule of a matrix of an adapter (nn.LoRA), which follows from that of its layer: what reads or makes
// the features that are divided is divided with them.
func (p Plan) ofAdapter(path string) (r Rule, ok bool) {
	layer, isB, ok := nn.AdapterOf(path)
	if !ok {
		return r, false
	}
	for pattern, rule := range p {
		switch {
		case !matches(pattern, layer):
		case rule.rowwise() && !isB:
			return Rule{Style: Rowwise}, true
		case rule.Style == PackedColwise && isB:
			return rule, true
		case rule.divides() && !rule.rowwise() && isB:
			return Rule{Style: Colwise}, true
		}
	}
	return Rule{Style: Replicate}, true
}

// adapterDropout refuses dropout of features that ranks have parts of.
func (p Plan) adapterDropout(tree *nn.Tree, size Size) (err error) {
	tree.Modules(func(path string, m nn.Module) {
		layer, _, ok := strings.Cut(path, ".lora_dropout.")
		if !ok || size.Ranks == 1 || err != nil {
			return
		}
		for pattern, rule := range p {
			if matches(pattern, layer) && rule.rowwise() {
				err = fmt.Errorf("lora_dropout of %s, whose inputs are divided (%s), is not built: want lora_dropout 0",
					patternOf(layer), rule)
			}
		}
	})
	return err
}

// tiedAlike is an error if a parameter is divided for one of the layers that share it, and whole for another.
func tiedAlike(list []*layer) error {
	first := map[string]*layer{}
	for _, l := range list {
		other, tied := first[l.tied]
		switch {
		case l.tied == "":
		case !tied:
			first[l.tied] = l
		case other.rule.divides() != l.rule.divides():
			return fmt.Errorf("%s is shared by %s (%s) and %s (%s): want it divided for both (%s, %s), or for none",
				l.tied, other.path, other.rule, l.path, l.rule, EmbeddingRowwise, ColwiseGatherOutput)
		}
	}
	return nil
}

// hasMatrix reports whether the layer has a parameter of two dims or more.
func (l *layer) hasMatrix() bool {
	return slices.ContainsFunc(l.params, func(q tensor.Named) bool { return q.Dim() > 1 })
}

// weight is the name of the matrix by which the layer is divided; "" if it is not.
func (l *layer) weight() string {
	i := slices.IndexFunc(l.params, func(p tensor.Named) bool { return p.Dim() == 2 })
	switch {
	case !l.rule.divides():
		return ""
	case i < 0:
		return l.tied
	}
	return l.params[i].Name
}

// kinds are the patterns of layers with matrices.
func kinds(list []*layer) (patterns []string) {
	for _, l := range list {
		if k := patternOf(l.path); l.hasMatrix() && !slices.Contains(patterns, k) {
			patterns = append(patterns, k)
		}
	}
	return patterns
}

// divides reports whether a rule divides parameters.
func (r Rule) divides() bool { return r.Style != Replicate && r.Style != "" && !r.byRows() }

// byRows reports whether ranks compute some rows of a whole layer, and add the gradients of its parameters.
func (r Rule) byRows() bool {
	return r.Style == SequenceParallel || r.Style == ReplicatedWithGradAllReduce
}

// byVocabulary reports whether a rule divides the rows of tables, which need not divide into parts of equal length.
func (r Rule) byVocabulary() bool {
	return r.Style == EmbeddingRowwise || r.Style == ColwiseGatherOutput
}

// rowwise reports whether a rule divides inputs.
func (r Rule) rowwise() bool { return r.Style == Rowwise || r.Style == RowwiseSplitInput }

// cuts are those of the layer's parameters: of the matrix, and of a colwise layer's bias.
func (l *layer) cuts(size Size) (list []Cut, err error) {
	parts := size.Parts
	if !l.rule.divides() || parts == 1 || len(l.params) == 0 {
		return nil, nil
	}
	weight := slices.IndexFunc(l.params, func(p tensor.Named) bool { return p.Dim() == 2 })
	if weight < 0 {
		return nil, fmt.Errorf("%s is %s, and has no matrix: want a linear layer", l.path, l.rule)
	}
	w := l.params[weight]
	out := 0
	if l.traits.InOut {
		out = 1
	}
	dim := out
	if l.rule.rowwise() {
		dim = 1 - out
	}
	if err := l.divisible(w.Size(dim), size); err != nil {
		return nil, err
	}
	for i, p := range l.params {
		switch {
		case i == weight:
			list = append(list, Cut{p.Name, slices.Clone(p.Shape()), dim, l.rule.fused(), parts})
		case p.Dim() != 1 || p.Size(0) != w.Size(out):
			return nil, fmt.Errorf("%s is %s, and its %s of shape %v is not a bias of %d outputs: want a linear layer",
				l.path, l.rule, p.Name, p.Shape(), w.Size(out))
		case !l.rule.rowwise():
			list = append(list, Cut{p.Name, slices.Clone(p.Shape()), 0, l.rule.fused(), parts})
		}
	}
	return list, nil
}

// divisible is an *undivided if the layer's features, or the heads that they form, do not divide into parts.
func (l *layer) divisible(features int, size Size) error {
	n, of := features, "feature"
	switch fused := l.rule.fused(); {
	case n%fused != 0:
		return fmt.Errorf("%s is %s, and its %d features are not %d matrices of equal size", l.path, l.rule, n, fused)
	default:
		n /= fused
	}
	if d := l.traits.HeadDim; d > 0 && n%d == 0 {
		n, of = n/d, "head"
		if err := l.fusedHeads(n); err != nil {
			return err
		}
	}
	parts := size.Parts
	whole := Cut{Shape: []int{n}, Fused: 1, Parts: parts}
	if of == "feature" && l.rule.byVocabulary() && whole.at(0, parts-parts/size.Ranks) < n {
		return nil // the last rank has some
	}
	if l.units = n; n%parts != 0 {
		return &undivided{l.path, n, of}
	}
	return nil
}

// fusedHeads is an error if a matrix of so many heads is none of queries or keys alone: ranks would get heads of both.
func (l *layer) fusedHeads(n int) error {
	queries, keys := l.traits.Heads, l.traits.KVHeads
	all := n * l.rule.fused()
	if queries == 0 || n == queries || n == keys {
		return nil
	}
	want := "a layer for queries, keys and values each, or " + string(Replicate)
	if queries == keys && all%queries == 0 && all > queries {
		want = fmt.Sprintf("%s:%d", PackedColwise, all/queries)
	}
	return fmt.Errorf("%s is %s, and has %s in all, of an attention with %d of queries and %d of keys: want %s", l.path,
		l.rule, quantity.Of(all, "head"), queries, keys, want)
}
