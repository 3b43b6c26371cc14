// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"fmt"
	"math"
	"strings"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// rate is what the parameters of a group have in common.
type rate struct{ lr, decay float64 }

// groups divides this rank's parameters: those that decay, those that do not, and those whose learning rate or decay
// param_groups or layerwise_lr_decay change, a group for each pair. All ranks have the same groups, some of them empty.
func (r *run) groups(params []tensor.Named) ([]*optim.Group, error) {
	a, decays := r.args, nn.DecayNames(r.model)
	rules, err := a.ParamGroupRules()
	if err != nil {
		return nil, err
	}
	if err := r.planThaw(rules); err != nil {
		return nil, err
	}
	layers, err := r.layerFactors()
	if err != nil {
		return nil, err
	}
	groups := []*optim.Group{{LR: a.LearningRate, WeightDecay: a.WeightDecay,
		Embeddings: nn.Walk(r.model).Embeddings()}, {LR: a.LearningRate}}
	matched, made, group := make([]bool, len(rules)), map[rate]*optim.Group{}, map[string]*optim.Group{}
	for _, p := range nn.NamedParameters(r.model) {
		group[p.Name] = groups[1]
		if decays[p.Name] {
			group[p.Name] = groups[0]
		}
		plain := rate{group[p.Name].LR, group[p.Name].WeightDecay}
		own := plain
		if factor, ok := layers[p.Name]; ok {
			own.lr *= factor
		}
		if own, err = ruled(rules, matched, p.Name, own, plain.lr); err != nil {
			return nil, err
		}
		if own == plain {
			continue
		}
		if made[own] == nil {
			made[own] = &optim.Group{LR: own.lr, WeightDecay: own.decay}
			groups = append(groups, made[own])
		}
		group[p.Name] = made[own]
	}
	for i, rule := range rules {
		if !matched[i] {
			return nil, fmt.Errorf("trainer: param_groups: no parameter of %T matches %q: want a regular expression "+
				"for names such as %s", r.model, rule.Pattern, nn.NamedParameters(r.model)[0].Name)
		}
	}
	for _, p := range params {
		g := group[p.Name]
		g.Params = append(g.Params, p)
	}
	return groups, nil
}

// ruled applies the rules that match a name. lr is its learning rate without layerwise_lr_decay.
func ruled(rules []args.ParamGroup, matched []bool, name string, own rate, lr float64) (rate, error) {
	var rateBy, decayBy, frozenBy *args.ParamGroup
	for i := range rules {
		rule := &rules[i]
		if !rule.Pattern.MatchString(name) {
			continue
		}
		matched[i] = true
		for _, set := range []struct {
			by    **args.ParamGroup
			given bool
		}{
			{&rateBy, rule.LR != nil || rule.LRFactor != nil}, {&decayBy, rule.WeightDecay != nil},
			{&frozenBy, rule.FrozenSteps != nil},
		} {
			if set.given && *set.by != nil {
				return own, fmt.Errorf("trainer: param_groups: %s matches %q and %q: want one pattern for each "+
					"setting of a parameter", name, (*set.by).Pattern, rule.Pattern)
			}
			if set.given {
				*set.by = rule
			}
		}
	}
	switch {
	case rateBy == nil:
	case rateBy.LR != nil:
		own.lr = *rateBy.LR
	default:
		own.lr *= *rateBy.LRFactor
	}
	if decayBy != nil {
		own.decay = *decayBy.WeightDecay
	}
	return own, nil
}

// layerFactors are the factors of layerwise_lr_decay by name: of n layers, decay^(n−i) for layer i, counted from 0;
// decay^(n+1) for what comes before them, and 1 for what comes behind.
func (r *run) layerFactors() (map[string]float64, error) {
	decay := r.args.LayerwiseLRDecay
	if decay == 1 {
		return nil, nil
	}
	var layers []nn.Module
	if m, ok := r.model.(models.Recomputable); ok {
		layers = m.RecomputeUnits()
	}
	if len(layers) == 0 {
		return nil, fmt.Errorf("trainer: layerwise_lr_decay is %g, but %T lists no layers (models.Recomputable): "+
			"want 1, and param_groups for the rates", decay, r.model)
	}
	number := map[nn.Module]int{}
	for i, m := range layers {
		number[m] = i
	}
	prefixes := map[string]int{}
	nn.Walk(r.model).Modules(func(path string, m nn.Module) {
		if i, ok := number[m]; ok {
			prefixes[path+"."] = i
		}
	})
	factors, depth := map[string]float64{}, len(layers)+1
	for _, p := range nn.NamedParameters(r.model) {
		inside := false
		for prefix, i := range prefixes {
			if strings.HasPrefix(p.Name, prefix) {
				depth, inside = len(layers)-i, true
			}
		}
		if !inside && depth <= len(layers) {
			factors[p.Name] = 1
			continue
		}
		factors[p.Name] = math.Pow(decay, float64(depth))
	}
	return factors, nil
}

// planThaw notes after how many steps which parameters are trained that are frozen at first. Those that do not train at
// all are none of them. It is an error if no parameter is left for the first step.
func (r *run) planThaw(rules []args.ParamGroup) error {
	r.thaw = map[int64][]*nn.Parameter{}
	first := false // whether one trains from the first step on
	nn.Walk(r.model).EachParameter(func(name string, p *nn.Parameter) {
		trains := p.RequiresGrad()
		for _, rule := range rules {
			if rule.FrozenSteps != nil && *rule.FrozenSteps > 0 && rule.Pattern.MatchString(name) && p.RequiresGrad() {
				n := int64(*rule.FrozenSteps)
				r.thaw[n], trains = append(r.thaw[n], p), false
			}
		}
		first = first || trains
	})
	if len(r.thaw) > 0 && !first {
		return fmt.Errorf("trainer: param_groups: frozen_steps freezes all trainable parameters of %T: want at least "+
			"one that is trained from the first step on", r.model)
	}
	return nil
}

// freeze freezes the parameters that are to be trained from a later step on.
func (r *run) freeze() {
	for n, params := range r.thaw {
		for _, p := range params {
			p.SetRequiresGrad(r.state.GlobalStep >= n)
		}
	}
}

// thawAfter lets parameters be trained from the next step on; all of them with the end of the run.
func (r *run) thawAfter(steps int64) {
	for n, params := range r.thaw {
		if n == steps || steps == endOfRun {
			for _, p := range params {
				p.SetRequiresGrad(true)
			}
		}
	}
}

// endOfRun is no number of steps.
const endOfRun = -1
