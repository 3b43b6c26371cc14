// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

func init() { roles["eachnode"] = saveOnEachNode }

// saveOnEachNode trains, and then saves all that a script of transformers' saves.
func saveOnEachNode(ctx context.Context, p *program.Process) error {
	a := args.Default(p.Args[0])
	a.MaxSteps, a.SaveSteps, a.LoggingSteps, a.SaveOnEachNode, a.DDPBackend = 4, 2, 1, true, args.BackendTCP
	m, err := mlp.New(nn.NewInit(tensor.CPU(), 1), mlp.Config{Sizes: []int{1, 8, 1}, Loss: "mse"})
	if err != nil {
		return err
	}
	t := trainer.New(m, a, trainer.WithDisplay(nil),
		trainer.WithTrainData(data.NewSource(make(data.Slice[point], 64), data.Stack[point])))
	out, err := t.TrainContext(ctx)
	if err != nil {
		return err
	}
	if err := t.SaveModel(""); err != nil {
		return err
	}
	if err := t.SaveMetrics("train", out.Metrics); err != nil {
		return err
	}
	return t.SaveState()
}

// With save_on_each_node the folder of each host has every file of rank 0's: state and results too.
func TestEachHostHasAllFiles(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	dir, port, ranks := t.TempDir(), commtest.FreePort(t), []*process(nil)
	var dirs [2]string
	for rank := range dirs {
		dirs[rank] = filepath.Join(dir, strconv.Itoa(rank))
		ranks = append(ranks, start(t, []string{self, dirs[rank]}, role+"=eachnode", "RANK="+strconv.Itoa(rank),
			"WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "GROUP_RANK="+strconv.Itoa(rank),
			"GROUP_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, "GOMAXPROCS=1",
			"LOCKSTEP_HOST_ID=host"+strconv.Itoa(rank), "LOCKSTEP_JOB_TOKEN=a token that both hosts of the test know"))
	}
	for rank, p := range ranks {
		p.wait()
		require.Equal(t, 0, p.code(), "rank %d: %s", rank, p.stderr)
	}
	var files [2]map[string]string
	for rank, dir := range dirs {
		files[rank] = map[string]string{}
		require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			name, relErr := filepath.Rel(dir, path)
			require.NoError(t, relErr)
			files[rank][name] = string(text)
			return err
		}))
	}
	require.Contains(t, files[0], "trainer_state.json")
	require.Contains(t, files[0], "train_results.json")
	for name := range files[0] {
		require.Contains(t, files[1], name)
	}
}
