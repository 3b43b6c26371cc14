// SPDX-License-Identifier: Apache-2.0

package gpt2

import (
	"regexp"
	"strings"
)

// maskBuffer matches the constant causal masks that old checkpoints carry.
var maskBuffer = regexp.MustCompile(`^(transformer\.)?h\.\d+\.attn\.(masked_)?bias$`)

// RenameWeight reads the names of GPT2Model's checkpoints, which lack the prefix
// "transformer.", and leaves out constant masks.
func (m *Model) RenameWeight(saved string) string {
	if strings.HasPrefix(saved, "lm_head.") {
		return saved
	}
	return renameWeight(saved)
}

// renameWeight is the name of a saved array of the transformer.
func renameWeight(saved string) string {
	switch {
	case maskBuffer.MatchString(saved):
		return ""
	case strings.HasPrefix(saved, "transformer."):
		return saved
	}
	return "transformer." + saved
}
