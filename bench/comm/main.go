// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Comm times an all-reduce of float32 between processes of this host, with comm's engines and with their peers, side by
// side: in each round every contender runs once, and the ratios are taken round by round.
//
//	go run -C bench -tags mpi ./comm [-bytes 26214400] [-ranks 2] [-rounds 5] [-iterations 20] \
//		[-contenders shm,shm-heap,tcp,tcp-fast,server,mpi,mpi-fast,openmpi,gloo] [-json FILE]
//
// server is a parameter server over tcp: all data go to rank 0 and back. MB is what rank 0 reads and writes by system
// calls for one all-reduce, which counts sockets and not shared memory.
//
// openmpi is peer/allreduce.c built with mpicc, gloo is peer/allreduce.py under $PYTHON (python3) with PyTorch; run.sh
// installs them. A contender that is not there is named as missing. It is NOT a measurement of networks: everything
// runs on one host, over loopback where sockets are used.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
)

// result is what one contender's rank 0 prints.
type result struct {
	Path    string    `json:"path"`
	Seconds []float64 `json:"seconds"` // of each iteration, after warming up
	Traffic float64   `json:"traffic"` // bytes that rank 0 read and wrote in one; 0: not known
}

type settings struct {
	bytes, ranks, rounds, iterations int
}

// report is the file that -json writes.
type report struct {
	Bytes     int                  `json:"bytes"`
	Ranks     int                  `json:"ranks"`
	Time      time.Time            `json:"time"`
	Median    map[string][]float64 `json:"median_seconds"` // by contender, one for each round
	Traffic   map[string]float64   `json:"traffic_bytes"`  // of rank 0, for one all-reduce
	Paths     map[string]string    `json:"paths"`
	Ratios    map[string]float64   `json:"ratios"` // medians over rounds: "A/B" is how many times A is faster than B
	Missing   map[string]string    `json:"missing,omitempty"`
	Processor string               `json:"processor,omitempty"`
}

func main() {
	if os.Getenv(envRank) != "" {
		if err := rank(); err != nil {
			fmt.Fprintln(os.Stderr, "bench/comm:", err)
			os.Exit(1)
		}
		return
	}
	var s settings
	flag.IntVar(&s.bytes, "bytes", 25<<20, "bytes of the buffer")
	flag.IntVar(&s.ranks, "ranks", 2, "number of processes")
	flag.IntVar(&s.rounds, "rounds", 5, "rounds of all contenders")
	flag.IntVar(&s.iterations, "iterations", 20, "timed all-reduces in each round")
	names := flag.String("contenders", "shm,shm-heap,tcp,tcp-fast,server,mpi,mpi-fast,openmpi,gloo",
		"who runs, in this order")
	file := flag.String("json", "", "write the report to this file")
	flag.Parse()
	if err := run(s, strings.Split(*names, ","), *file); err != nil {
		fmt.Fprintln(os.Stderr, "bench/comm:", err)
		os.Exit(1)
	}
}

func run(s settings, names []string, file string) error {
	dir, err := os.MkdirTemp("", "bench-comm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := report{Bytes: s.bytes, Ranks: s.ranks, Time: time.Now(), Median: map[string][]float64{},
		Traffic: map[string]float64{}, Paths: map[string]string{}, Ratios: map[string]float64{},
		Missing: map[string]string{}, Processor: processor()}
	var present []contender
	for _, name := range names {
		c, err := newContender(name, dir)
		if err != nil {
			r.Missing[name] = err.Error()
			continue
		}
		present = append(present, c)
	}
	for range s.rounds {
		for _, c := range present {
			got, err := c.run(s)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			r.Median[c.name] = append(r.Median[c.name], stats.Median(got.Seconds))
			r.Traffic[c.name], r.Paths[c.name] = got.Traffic, got.Path
		}
	}
	for _, a := range present {
		for _, b := range present {
			if a.name != b.name {
				r.Ratios[a.name+"/"+b.name] = stats.Median(ratios(r.Median[a.name], r.Median[b.name]))
			}
		}
	}
	if file != "" {
		text, err := json.MarshalIndent(r, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return r.print(present)
}

// ratios returns how many times a was faster than b, round by round.
func ratios(a, b []float64) []float64 {
	list := make([]float64, len(a))
	for i := range a {
		list[i] = b[i] / a[i]
	}
	return list
}

// megabytes is empty for a peer that does not count.
func megabytes(bytes float64) string {
	if bytes == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", bytes/1e6)
}

func (r *report) print(present []contender) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "all-reduce of %d bytes of float32 on %d processes, medians of %d rounds\n", r.Bytes, r.Ranks,
		len(r.Median[present[0].name]))
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\tms\tGB/s\tMB\t")
	for _, b := range present {
		fmt.Fprintf(w, "× %s\t", b.name)
	}
	fmt.Fprintln(w)
	for _, a := range present {
		m := stats.Median(r.Median[a.name])
		bus := float64(r.Bytes) / m / 1e9 * 2 * float64(r.Ranks-1) / float64(r.Ranks) // nccl-tests' bus bandwidth
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%s\t", a.name, m*1e3, bus, megabytes(r.Traffic[a.name]))
		for _, b := range present {
			if a.name == b.name {
				fmt.Fprint(w, "\t")
				continue
			}
			fmt.Fprintf(w, "%.2f\t", r.Ratios[a.name+"/"+b.name])
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, a := range present {
		fmt.Fprintf(&text, "%s: %s\n", a.name, r.Paths[a.name])
	}
	for name, why := range r.Missing {
		fmt.Fprintf(&text, "%s is missing: %s\n", name, why)
	}
	_, err := os.Stdout.Write(text.Bytes())
	return err
}
