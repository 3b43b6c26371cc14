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
	// Whole: it does not compute each element by itself, so ranks cannot own parts of matrices.
	Whole bool
	// Want completes the phrase "want …" if the settings do not fit each other; nil: they always do. given
	// has the defaults too.
	Want func(given Values) string
}

// Optimizers is the table of all optimizers. Each has a file in package optim with a struct of its settings.
var Optimizers = []Optimizer{
	{Name: "adamw", Names: "adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused adamw_apex_fused " +
		"adamw_hf adamw_anyprecision paged_adamw_32bit", Arguments: adam},
	{Name: "adam", Arguments: adam},
	{Name: "sgd", Settings: Settings{{"momentum", 0.0, NonNegative}, {"dampening", 0.0, UnitRatio},
		{"nesterov", false, Switch}}, Want: wantNesterov},
	{Name: "adagrad", Settings: Settings{{"lr_decay", 0.0, NonNegative}, {"eps", 1e-10, NonNegative}}},
	{Name: "rmsprop", Names: "rmsprop rmsprop_bnb rmsprop_bnb_32bit", Settings: Settings{rms[0], rms[1],
		{"momentum", 0.0, NonNegative}, {"centered", false, Switch}}},
	{Name: "lion", Names: "lion_32bit paged_lion_32bit", Arguments: lion},
	{Name: "ademamix", Names: "ademamix paged_ademamix_32bit", Arguments: adam, Settings: slowMean,
		Want: wantMeans},
	{Name: "adafactor", Whole: true, Settings: Settings{{"scale_parameter", false, Switch},
		{"relative_step", false, Switch}, {"warmup_init", false, Switch}, {"eps1", 1e-30, NonNegative},
		{"eps2", 1e-3, NonNegative}, {"clip_threshold", 1.0, Positive}, {"decay_rate", -0.8, Negative},
		{"beta1", 0.0, DecayRate}}, Want: wantRelative},
	{Name: "lamb", Whole: true, Arguments: Settings{adam[0], adam[1], {"adam_epsilon", 1e-6, NonNegative}},
		Settings: Settings{{"always_adapt", false, Switch}, {"trust_clip", false, Switch}}},
	{Name: "muon", Whole: true, Arguments: adam, Settings: Settings{{"muon_momentum", 0.95, DecayRate},
		{"nesterov", true, Switch}, {"ns_steps", 5.0, Rounds},
		{"adjust_lr_fn", "match_rms_adamw", oneOf("match_rms_adamw", "original")}}},
	{Name: "stable_adamw", Whole: true, Arguments: adam, Settings: Settings{{"decouple_lr", false, Switch},
		{"max_lr", 0.0, NonNegative}}},
	{Name: "adamw_8bit", Whole: true, Names: "adamw_bnb_8bit adamw_8bit paged_adamw_8bit", Arguments: adam},
	{Name: "lion_8bit", Whole: true, Names: "lion_8bit paged_lion_8bit", Arguments: lion},
	{Name: "ademamix_8bit", Whole: true, Names: "ademamix_8bit paged_ademamix_8bit", Arguments: adam,
		Settings: slowMean, Want: wantMeans},
	{Name: "rmsprop_8bit", Whole: true, Names: "rmsprop_bnb_8bit", Settings: rms},
	{Name: "adamw_torch_8bit", Whole: true, Arguments: adam},
	{Name: "schedule_free_adamw", Whole: true, Arguments: Settings{{"adam_beta1", 0.9, Share}, adam[1], adam[2],
		{"warmup_steps", 0.0, NonNegative}}, Settings: averaging},
	{Name: "schedule_free_radam", Whole: true, Arguments: Settings{{"adam_beta1", 0.9, Share}, adam[1], adam[2]},
		Settings: averaging},
	{Name: "schedule_free_sgd", Whole: true, Arguments: Settings{{"warmup_steps", 0.0, NonNegative}},
		Settings: Settings{averaging[0], averaging[1], {"momentum", 0.9, Share}}},
}

// adam are the arguments of optimizers with two moments.
var adam = Settings{{"adam_beta1", 0.9, DecayRate}, {"adam_beta2", 0.999, DecayRate},
	{"adam_epsilon", 1e-8, NonNegative}}

// The settings that optimizers share with their form in 8 bits.
var (
	lion     = Settings{{"adam_beta1", 0.9, DecayRate}, {"adam_beta2", 0.99, DecayRate}}
	rms      = Settings{{"alpha", 0.99, UnitRatio}, {"eps", 1e-8, NonNegative}}
	slowMean = Settings{{"beta3", 0.9999, DecayRate}, {"alpha", 5.0, NonNegative}, {"t_alpha", 0.0, Count},
		{"t_beta3", 0.0, Count}}
)

// averaging are the settings of schedule-free optimizers: the powers of step and learning rate in the average.
var averaging = Settings{{"r", 0.0, NonNegative}, {"weight_lr_power", 2.0, NonNegative}}

// wantNesterov: as in torch.optim.SGD.
func wantNesterov(given Values) string {
	if given["nesterov"] == true && (given.Number("momentum", 0) <= 0 || given.Number("dampening", 0) != 0) {
		return "momentum > 0 and dampening 0 with nesterov"
	}
	return ""
}

// wantMeans: beta3 rises from adam_beta1 by the logarithms of both.
func wantMeans(given Values) string {
	if given.Number("t_beta3", 0) > 0 && (given.Number("beta3", 0) == 0 || given.Number("adam_beta1", 1) == 0) {
		return "adam_beta1 and beta3 > 0 with t_beta3"
	}
	return ""
}

// wantRelative: as in transformers' Adafactor.
func wantRelative(given Values) string {
	if given["warmup_init"] == true && given["relative_step"] != true {
		return "relative_step true with warmup_init"
	}
	return ""
}

// fused is why optimizers that step in the backward pass are refused.
const fused = "it updates parameters during the backward pass, so gradients can be neither clipped nor accumulated; "

// Refused lists HuggingFace's values of optim that are not built, with the reason and what to take instead.
var Refused = []struct{ Names, Why string }{
	{"lomo adalomo", fused + "take adafactor, which needs as little memory"},
	{"galore_adamw galore_adamw_8bit galore_adafactor apollo_adamw",
		"gradients of a lower rank are not built; take adafactor, which needs less memory"},
	{"galore_adamw_layerwise galore_adamw_8bit_layerwise galore_adafactor_layerwise apollo_adamw_layerwise",
		fused + "take adafactor, which needs less memory"},
	{"grokadamw", "it is adamw_torch with a filter of gradients, which is not built; take adamw_torch"},
	{"adamw_torch_4bit", "moments of 4 bits are not built; take adamw_bnb_8bit, or adafactor, which needs less memory"},
}

// RefusedOptimizers lists these values.
func RefusedOptimizers() (names []string) {
	for _, r := range Refused {
		names = append(names, strings.Fields(r.Names)...)
	}
	return names
}

// WhyRefused says why a value is refused and what to take instead; empty: the value is not one of these.
func WhyRefused(name string) string {
	for _, r := range Refused {
		if slices.Contains(strings.Fields(r.Names), name) {
			return r.Why
		}
	}
	return ""
}

// AllNames are the values of optim that mean the optimizer.
func (o Optimizer) AllNames() []string {
	if o.Names == "" {
		return []string{o.Name}
	}
	return strings.Fields(o.Names)
}

// OptimizerNames lists the values of optim, in the table's order.
func OptimizerNames() (names []string) {
	for _, o := range Optimizers {
		names = append(names, o.AllNames()...)
	}
	return names
}

// OptimizerNamed finds the row of a value of optim.
func OptimizerNamed(name string) (o Optimizer, ok bool) {
	i := slices.IndexFunc(Optimizers, func(o Optimizer) bool { return slices.Contains(o.AllNames(), name) })
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
			words = append(words, o.AllNames()[0]+": "+o.Settings.usage())
		}
	}
	return strings.Join(words, "; ")
}
