// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/tensor"
)

// size is a size that a constructor was given, by the name of its field.
type size struct {
	name  string
	value int
}

// wantPositive panics with all sizes below 1: a layer of none would compute nothing, and say so nowhere.
func wantPositive(in *Init, constructor string, sizes ...size) {
	var bad []string
	for _, s := range sizes {
		if s.value < 1 {
			bad = append(bad, fmt.Sprintf("%s is %d", s.name, s.value))
		}
	}
	if len(bad) > 0 {
		panic(&tensor.Error{Op: "nn." + constructor, Where: in.path,
			Msg: strings.Join(bad, ", ") + ": want at least 1"})
	}
}
