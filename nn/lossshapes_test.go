// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// exportedLosses are the exported functions and methods of package nn whose names end in Sum.
func exportedLosses(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.IsExported() && strings.HasSuffix(f.Name.Name, "Sum") {
				names = append(names, f.Name.Name)
			}
		}
	}
	require.NotEmpty(t, names)
	return names
}

// No loss broadcasts: values and targets, or rows and labels, that differ in shape are refused even where they have as
// many elements.
func TestLossesRefuseUnequalShapes(t *testing.T) {
	c := env()
	in := nn.NewInit(tensor.CPU(), 1)
	column, row := tensor.Ones(c.Ctx, tensor.Float32, 3, 1), tensor.Ones(c.Ctx, tensor.Float32, 3)
	logits := tensor.Ones(c.Ctx, tensor.Float32, 2, 3, 4)
	labels := tensor.Ones(c.Ctx, tensor.Int64, 3, 2)
	weights := tensor.Ones(c.Ctx, tensor.Float32, 4)
	head := &nn.LMHead{Weight: in.Normal("weight", 1, 5, 4)}
	table := map[string]func(){
		"CrossEntropySum": func() { nn.CrossEntropySum(c, logits, labels) },
		"CrossEntropySumWith": func() {
			nn.CrossEntropySumWith(c, logits, labels, nn.CrossEntropyOptions{ClassWeights: weights})
		},
		"LinearCrossEntropySum": func() { nn.LinearCrossEntropySum(c, logits, head.Weight, nil, labels) },
		"LossSum":               func() { head.LossSum(c, logits, labels) },
		"LabelWeightSum":        func() { nn.LabelWeightSum(c, labels, logits) },
		"BCEWithLogitsSum":      func() { nn.BCEWithLogitsSum(c, column, row, nn.BCEOptions{}) },
		"L1Sum":                 func() { nn.L1Sum(c, column, row) },
		"HuberSum":              func() { nn.HuberSum(c, column, row, 1) },
		"SmoothL1Sum":           func() { nn.SmoothL1Sum(c, column, row, 1) },
		"KLDivSum":              func() { nn.KLDivSum(c, column, row, false) },
		"MSESum":                func() { nn.MSESum(c, column, row) },
	}
	for _, name := range exportedLosses(t) {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, table, name)
			require.ErrorContains(t, tensor.Try(table[name]), "want ")
		})
	}
	table["LabelWeightSum"] = func() { nn.LabelWeightSum(c, labels, weights) }
	labels, row = nil, nil // as of a name that the batch lacks
	for name, loss := range table {
		require.ErrorIs(t, tensor.Try(loss), tensor.ErrNilOperand, name)
	}
}
