// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"slices"
	"strings"
)

// Optimizer is a row of Optimizers.
type Optimizer struct {
	Name string // in checkpoints, and of its file in package optim
	// Names are HuggingFace's values of optim that mean it, which has names for implementations too, separated by
	// spaces. Empty: Name.
	Names string
	// Arguments are the training arguments that it reads, with the defaults of a program that has no arguments.
	Arguments Settings
	// Settings are those of optim_args.
	Settings Settings
	// Want completes the phrase "want …" if the settings do not fit each other; nil: they always do. given
	// has the defaults too.
	Want func(given Values) string
}

// Optimizers is the table of all optimizers. Each has a file in package optim with a struct of its settings.
var Optimizers = []Optimizer{
	{Name: "adamw", Names: "adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused", Arguments: adam},
	{Name: "adam", Arguments: adam},
	{Name: "sgd", Settings: Settings{{"momentum", 0.0, NonNegative}, {"dampening", 0.0, UnitRatio},
		{"nesterov", false, Switch}}, Want: wantNesterov},
}

// adam are the arguments of optimizers with two moments.
var adam = Settings{{"adam_beta1", 0.9, DecayRate}, {"adam_beta2", 0.999, DecayRate},
	{"adam_epsilon", 1e-8, NonNegative}}

// wantNesterov: as in torch.optim.SGD.
func wantNesterov(given Values) string {
	if given["nesterov"] == true && (given.Number("momentum", 0) <= 0 || given.Number("dampening", 0) != 0) {
		return "momentum > 0 and dampening 0 with nesterov"
	}
	return ""
}

// names are the values of optim that mean the optimizer.
func (o Optimizer) names() []string {
	if o.Names == "" {
		return []string{o.Name}
	}
	return strings.Fields(o.Names)
}

// OptimizerNames lists the values of optim, in the table's order.
func OptimizerNames() (names []string) {
	for _, o := range Optimizers {
		names = append(names, o.names()...)
	}
	return names
}

// OptimizerNamed finds the row of a value of optim.
func OptimizerNamed(name string) (o Optimizer, ok bool) {
	i := slices.IndexFunc(Optimizers, func(o Optimizer) bool { return slices.Contains(o.names(), name) })
	if i < 0 {
		return o, false
	}
	return Optimizers[i], true
}

// Wants completes the phrase "want …" for each fault of the settings; of is the name under which the optimizer was
// chosen.
func (o Optimizer) Wants(of string, given Values) []string {
	wants := o.Settings.Wants(of, given)
	if o.Want != nil && len(wants) == 0 {
		if want := o.Want(o.Settings.Fill(given)); want != "" {
			wants = append(wants, want)
		}
	}
	return wants
}

// OptimizerUsage lists the settings of all optimizers that have any.
func OptimizerUsage() string {
	var words []string
	for _, o := range Optimizers {
		if len(o.Settings) > 0 {
			words = append(words, o.names()[0]+": "+o.Settings.usage())
		}
	}
	return strings.Join(words, "; ")
}
