// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// fast has another setting than SGD's row.
type fast struct {
	SGD
	Speed float64 `json:"speed"`
}

func (fast) New(c *tensor.Ctx, groups []*Group) *Optimizer { return New(c, "fast", groups) }

// few lacks settings of SGD's row.
type few struct {
	Momentum float64 `json:"momentum"`
}

func (few) New(c *tensor.Ctx, groups []*Group) *Optimizer { return New(c, "few", groups) }

// The settings of an optimizer are those of its row: a program with others does not start.
func TestConfigsHaveTheSettingsOfTheirRows(t *testing.T) {
	sgd := configs["sgd"]
	defer func() { configs["sgd"] = sgd }()
	require.Equal(t, SGD{}, register("sgd", SGD{}))
	require.PanicsWithValue(t, `optim: optim.fast has the settings ["dampening" "momentum" "nesterov" "speed"], and `+
		`its row in internal/catalog ["dampening" "momentum" "nesterov"] (<nil>)`, func() { register("sgd", fast{}) })
	require.PanicsWithValue(t, `optim: optim.few has the settings [], and its row in internal/catalog ["dampening" `+
		`"momentum" "nesterov"] (json: unknown field "dampening")`, func() { register("sgd", few{}) })
	require.PanicsWithValue(t, "optim: optimizer faster has no row in internal/catalog",
		func() { register("faster", SGD{}) })
}
