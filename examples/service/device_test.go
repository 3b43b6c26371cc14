// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/examples/internal/simulated"
)

// A GPU learns and answers as the CPU does: before a round, with the weights of it, and while it trains with either.
func TestDevice(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, under which the interpreter takes minutes
	}
	said, losses := map[string][]string{}, map[string]float64{}
	simulated.Compare(t, func(device string) {
		a := start(t, "--output_dir", t.TempDir(), "--learning_rate", "1e-2", "--max_steps", "4",
			"--per_device_train_batch_size", "2", "--assistant_only_loss", "--train_after", "4", "--device", device)
		const question = "Who is Bo 0?"
		said[device] = append(said[device], a.say(question))
		file, err := os.Open(rows)
		require.NoError(t, err)
		defer file.Close()
		lines, s := bufio.NewScanner(file), status{}
		for range 4 {
			require.True(t, lines.Scan())
			require.Equal(t, 202, a.ask("POST", "/examples", lines.Text(), &s))
		}
		var heard []string // while it trains, by the same device
		stop, heardAll := make(chan bool), make(chan bool)
		go func() {
			defer close(heardAll)
			for {
				select {
				case <-stop:
					return
				default:
					heard = append(heard, a.say(question))
				}
			}
		}()
		losses[device] = a.await(1).Loss
		close(stop)
		<-heardAll
		said[device] = append(said[device], a.say(question))
		require.NotEmpty(t, heard)
		for _, answer := range heard {
			require.Contains(t, said[device], answer)
		}
	})
	require.NotEqual(t, said["cpu"][0], said["cpu"][1])
	require.Equal(t, said["cpu"], said[simulated.Name])
	require.InEpsilon(t, losses["cpu"], losses[simulated.Name], 1e-4)
}

// A round that fails on a GPU leaves the weights that answer.
func TestFailedRoundOnDevice(t *testing.T) {
	if testing.Short() {
		return // see TestDevice
	}
	said := map[string]string{}
	simulated.Compare(t, func(device string) {
		a := start(t, "--output_dir", t.TempDir(), "--train_after", "0", "--max_steps", "3", "--learning_rate", "1e30",
			"--max_grad_norm", "0", "--device", device)
		var s status
		require.Equal(t, 202, a.ask("POST", "/examples", `{"text": "some text"}`, &s))
		before := a.say("Who is Bo 0?")
		for range 2 {
			a.ask("POST", "/training", "", &s)
			require.Eventually(t, func() bool {
				a.ask("GET", "/training", "", &s)
				return s.Fault != "" && !s.Training
			}, time.Minute, 5*time.Millisecond)
			require.Contains(t, s.Fault, "step 2: loss NaN")
		}
		said[device] = a.say("Who is Bo 0?")
		require.Equal(t, before, said[device])
	})
	require.Equal(t, said["cpu"], said[simulated.Name])
}
