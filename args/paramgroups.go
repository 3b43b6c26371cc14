// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/catalog"
)

// ParamGroup is an entry of ParamGroups: settings of the parameters whose names have a match of Pattern.
type ParamGroup struct {
	Pattern *regexp.Regexp
	// LR is a learning rate in place of LearningRate, LRFactor multiplies it, and WeightDecay takes the place of the
	// argument, of parameters that do not decay too; nil: unchanged.
	LR, LRFactor, WeightDecay *float64
	// FrozenSteps is the number of steps at first that leave the parameters alone; nil: 0.
	FrozenSteps *float64
}

// ParamGroupRules is what ParamGroups holds, sorted by pattern; the error is an *Error.
func (a *TrainingArguments) ParamGroupRules() ([]ParamGroup, error) {
	rules, want := a.paramGroups()
	var c Checker
	c.Require(want == "", "param_groups", a.ParamGroups, want)
	return rules, c.Err()
}

// paramGroups reads the rules. want is empty, or says what was wanted.
func (a *TrainingArguments) paramGroups() (rules []ParamGroup, want string) {
	for _, pattern := range slices.Sorted(maps.Keys(a.ParamGroups)) {
		text, ok := a.ParamGroups[pattern].(string)
		if !ok {
			return nil, "texts like lr_factor=0.1,weight_decay=0 by regular expressions"
		}
		expression, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Sprintf("a regular expression in place of %q (%v)", pattern, err)
		}
		rule := ParamGroup{Pattern: expression}
		if want := rule.read(text); want != "" {
			return nil, fmt.Sprintf("%s for %q", want, pattern)
		}
		rules = append(rules, rule)
	}
	return rules, ""
}

// read reads k=v,k=v.
func (g *ParamGroup) read(text string) (want string) {
	settings := map[string]**float64{"lr": &g.LR, "lr_factor": &g.LRFactor, "weight_decay": &g.WeightDecay,
		"frozen_steps": &g.FrozenSteps}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		setting, known := settings[key]
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		switch {
		case !known:
			return "lr=…, lr_factor=…, weight_decay=… or frozen_steps=…, not " + strings.TrimSpace(pair) + ","
		case err != nil || !finite(v) || !catalog.NonNegative.OK(v):
			return key + " to be " + catalog.NonNegative.Want
		case key == "frozen_steps" && !catalog.Count.OK(v):
			return key + " to be " + catalog.Count.Want
		case *setting != nil:
			return key + " once"
		}
		*setting = &v
	}
	if g.LR != nil && g.LRFactor != nil {
		return "one of lr and lr_factor"
	}
	return ""
}
