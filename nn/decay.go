// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"regexp"
	"strings"
)

// Normalization is implemented by modules whose parameters never decay.
type Normalization interface {
	// Normalizes does nothing; it marks the type.
	Normalizes()
}

var noDecay = regexp.MustCompile(`bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)`)

// DecayNames is the set of parameters that weight decay applies to, by the rule of
// HuggingFace's Trainer: all except those inside a normalization layer and those whose
// name, in lower case, contains bias, layernorm or rmsnorm or has a path component norm
// or …_norm. Parameters that are frozen belong to neither group.
func DecayNames(m Module) map[string]bool {
	t := Walk(m)
	var norms []string
	t.Modules(func(path string, m Module) {
		if _, ok := m.(Normalization); ok {
			norms = append(norms, path)
		}
	})
	out := map[string]bool{}
	for _, p := range t.Parameters() {
		if p.IsLeaf() && !noDecay.MatchString(strings.ToLower(p.Name)) && !under(norms, p.Name) {
			out[p.Name] = true
		}
	}
	return out
}

func under(paths []string, name string) bool {
	for _, p := range paths {
		if p == "" || strings.HasPrefix(name, p+".") {
			return true
		}
	}
	return false
}
