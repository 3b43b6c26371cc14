// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"regexp"
	"strings"
)

var noDecay = regexp.MustCompile(`bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)`)

// DecayNames is the set of parameters that weight decay applies to, by the rule of
// HuggingFace's Trainer: all except those inside a normalization layer (Traits.Norm) and those whose
// name, in lower case, contains bias, layernorm or rmsnorm or has a path component norm
// or …_norm. Parameters that are frozen belong to neither group.
func DecayNames(m Module) map[string]bool {
	t := Walk(m)
	out := map[string]bool{}
	for _, p := range t.Parameters() {
		if p.IsLeaf() && !t.traits[p.Name].Norm && !noDecay.MatchString(strings.ToLower(p.Name)) {
			out[p.Name] = true
		}
	}
	return out
}
