// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
)

const warmUps = 5

// joins are comm's engines by contender; mpi is among them in a program built with -tags mpi.
var joins = map[string]func(context.Context, rendezvous.Config, comm.Options) (*comm.Group, error){
	"shm": shm.Join, "shm-heap": shm.Join, "tcp": tcp.Join, "server": tcp.Join,
}

// rank is one process of comm's own contenders: "shm" reduces in the engine's memory, as gradient buckets do;
// "shm-heap", "tcp" and "mpi" in ordinary memory; "tcp-fast" around a ring, and "mpi-fast" by MPI's own all-reduce;
// "server" sends all data to rank 0 and back, over tcp.
func rank() error {
	config, err := rendezvous.FromEnv()
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(os.Getenv("BENCH_BYTES"))
	if err != nil {
		return err
	}
	iterations, err := strconv.Atoi(os.Getenv("BENCH_ITERATIONS"))
	if err != nil {
		return err
	}
	name := os.Getenv(envRank)
	options := comm.Options{Timeout: time.Minute, FastOrder: strings.HasSuffix(name, "-fast")}
	g, err := joins[strings.TrimSuffix(name, "-fast")](context.Background(), config, options)
	if err != nil {
		return err
	}
	defer g.Close()
	memory, err := g.Alloc(size)
	if err != nil {
		return err
	}
	data := comm.View[float32](memory)
	if name == "shm-heap" {
		data = make([]float32, len(data))
	}
	reduce := allReduce
	if name == "server" {
		reduce = newServer(g, len(data)).allReduce
	}
	got, err := timeAllReduce(g, reduce, data, iterations)
	if err != nil {
		return err
	}
	if g.Rank() == 0 {
		return json.NewEncoder(os.Stdout).Encode(got)
	}
	return nil
}

// reducer adds up the data of all ranks.
type reducer func(ctx context.Context, g *comm.Group, data []float32) error

func allReduce(ctx context.Context, g *comm.Group, data []float32) error {
	return g.AllReduce(comm.Of(data), comm.Sum).Wait(ctx)
}

// timeAllReduce checks the sum once, then times sums of zeros, each after a barrier.
func timeAllReduce(g *comm.Group, reduce reducer, data []float32, iterations int) (result, error) {
	ctx := context.Background()
	for i := range data {
		data[i] = float32(g.Rank()+1) * float32(i%1000)
	}
	if err := reduce(ctx, g, data); err != nil {
		return result{}, err
	}
	for i, x := range data {
		if want := float32(g.Size()*(g.Size()+1)/2) * float32(i%1000); x != want {
			return result{}, fmt.Errorf("element %d is %v: want %v", i, x, want)
		}
	}
	clear(data)
	got := result{Path: g.Describe().Path}
	before := traffic()
	for i := range warmUps + iterations {
		if err := g.Barrier().Wait(ctx); err != nil {
			return result{}, err
		}
		start := time.Now()
		if err := reduce(ctx, g, data); err != nil {
			return result{}, err
		}
		if i >= warmUps {
			got.Seconds = append(got.Seconds, time.Since(start).Seconds())
		}
	}
	got.Traffic = (traffic() - before) / float64(warmUps+iterations)
	return got, nil
}

// traffic is how many bytes this process has read and written by system calls, sockets included (proc(5), io). It is 0
// where the system does not say.
func traffic() float64 {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	var read, written float64
	if _, err := fmt.Sscanf(string(text), "rchar: %g\nwchar: %g", &read, &written); err != nil {
		return 0
	}
	return read + written
}
