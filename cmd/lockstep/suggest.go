// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/internal/levenshtein"
)

// underscores makes --log-dir and --log_dir the same flag, as torchrun does.
func underscores(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "-", "_"))
}

// suggest is a hint to the known name that is nearest, or otherwise if none is near.
func suggest(name, prefix string, known []string, otherwise string) string {
	best, distance := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := levenshtein.Distance(name, k); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return otherwise
	}
	return "did you mean " + prefix + best + "?"
}
