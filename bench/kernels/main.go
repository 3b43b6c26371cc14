// SPDX-License-Identifier: Apache-2.0

// Kernels compares matrix products, streaming kernels, attention and training steps with other engines on the CPU.
//
// Both sides run the same rows, alternately, since a machine's speed drifts: ours, theirs, ours, theirs …; a row's
// value is the median over the rounds of theirs divided by ours, above 1 where Lockstep is faster. Each row runs at all
// numbers of threads before the next, so that peers start once and keep their memory. The peers are peer.py and
// openblas.py under the Python that the environment variable PYTHON names, and the program that GOMLX names; a row
// whose peer is missing reports that. The machine's own ceilings (FMA peak, copy) are measured between the rounds; a
// share of the FMA peak is of what its loop reached right before and after.
//
//	PYTHON=$PWD/venv/bin/python go run -C bench ./kernels --threads 1,2 --rounds 5 --rows 'gelu|adamw'
package main

import (
	"fmt"
	"log"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// bench is what the flags say.
type bench struct {
	threads []int
	rounds  int
	turn    time.Duration
	dir     string
	quick   bool
	wanted  *regexp.Regexp
	runs    map[key]alone // of rows in processes of their own
}

func main() {
	log.SetFlags(0)
	var b bench
	pflag.IntSliceVar(&b.threads, "threads", []int{1, 2}, "numbers of threads to compare at")
	pflag.IntVar(&b.rounds, "rounds", 5, "turns of each side per row")
	pattern := pflag.String("rows", "", "regular expression of the rows to run; empty: all")
	pflag.DurationVar(&b.turn, "turn", 300*time.Millisecond, "time of one turn, at least one run")
	pflag.StringVar(&b.dir, "dir", "kernels", "the folder that holds peer.py")
	pflag.BoolVar(&b.quick, "quick", false, "leave out rows that take long")
	single := pflag.String("alone", "", "run one row twice and print the peak of resident memory and the second "+
		"run's seconds, for its own process")
	pflag.Parse()
	if err := kernels.Init(); err != nil {
		log.Fatal(err)
	}
	var err error
	if b.wanted, err = regexp.Compile(*pattern); err != nil {
		log.Fatal(err)
	}
	if *single != "" {
		err = b.printAlone(*single, b.threads[0])
	} else {
		err = b.compare()
	}
	if err != nil {
		log.Fatal(err)
	}
}

// compare runs all wanted rows.
func (b *bench) compare() error {
	fmt.Printf("# kernels %s\n", kernels.Active())
	for _, n := range b.threads {
		if err := printCeilings(n); err != nil {
			return err
		}
	}
	peers := peers{dir: b.dir, most: slices.Max(b.threads), turn: b.turn}
	defer peers.close()
	for _, r := range rows() {
		if b.quick && r.extra || !b.keep(&r) {
			continue
		}
		for _, n := range b.threads {
			b.row(r, n, &peers)
		}
		peers.drop(r)
	}
	for _, row := range peakRows {
		if err := b.memory(row, &peers); err != nil {
			return fmt.Errorf("memory of row %s: %w", row, err)
		}
	}
	return nil
}

// keep takes out of a row the ratios that are not wanted, and says whether any is left.
func (b *bench) keep(r *row) bool {
	if r.against == nil {
		r.against = []side{eager}
	}
	r.against = slices.DeleteFunc(slices.Clone(r.against), func(s side) bool {
		return b.quick && s.slow || !b.wanted.MatchString(r.name+s.suffix)
	})
	r.ofCeiling = r.ofCeiling && b.wanted.MatchString(r.name+r.ceiling())
	return len(r.against) > 0 || r.ofCeiling
}

// row measures one row at one number of threads, against each of its sides in turn.
func (b *bench) row(r row, threads int, peers *peers) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	var ours func() (seconds, ceiling float64)
	if b.once(r) {
		a, err := b.alone(r.name, threads)
		if err != nil {
			fmt.Printf("# no row %s: %v\n", r.name, err)
			return
		}
		ours = func() (seconds, ceiling float64) { return a.seconds, a.ceiling }
	} else {
		run, end := r.open(threads)
		defer end()
		timed(run, b.turn) // for caches and allocators
		ours = func() (seconds, ceiling float64) {
			return r.beside(threads, b.turn, func() float64 { return timed(run, b.turn) })
		}
	}
	var all turns
	for _, s := range r.against {
		t, err := b.side(r, ours, s, threads, peers)
		if err != nil {
			fmt.Printf("# no row %s: %v\n", r.name+s.suffix, err)
			continue
		}
		fmt.Printf("ROW %s %d %.4f %.4f ms %s\n", r.name+s.suffix, threads, 1e3*stats.Median(t.ours),
			1e3*stats.Median(t.theirs), r.rate(stats.Median(t.ours)))
		fmt.Printf("RATIO %s %d %.3f\n", r.name+s.suffix, threads, stats.Median(t.ratios))
		t.printApart(r.name+s.suffix, threads)
		all.add(t)
	}
	if r.own != nil {
		b.beside(r, ours, threads)
	}
	if !r.ofCeiling {
		return
	}
	if len(all.ours) == 0 { // no side: ours alone
		for range b.rounds {
			all.take(r, threads, ours)
		}
	}
	share := stats.Median(all.shares)
	if share == 0 {
		return
	}
	name, median := r.name+r.ceiling(), stats.Median(all.ours)
	fmt.Printf("ROW %s %d %.4f %.4f ms %s\n", name, threads, 1e3*median, 1e3*median*share, r.rate(median))
	fmt.Printf("RATIO %s %d %.3f\n", name, threads, share)
	if r.flops > 0 {
		fmt.Printf("FMA %s %d %.1f GFLOP/s\n", kernels.Vectors(), threads, stats.Median(all.ceilings)/1e9)
		all.printApart(name, threads)
	}
}

// beside lets a row and another of ours take turns.
func (b *bench) beside(r row, ours func() (seconds, ceiling float64), threads int) {
	run, end := r.own.open(threads)
	defer end()
	timed(run, b.turn) // for caches and allocators
	var t turns
	for range b.rounds {
		t.take(r, threads, ours)
		y := timed(run, b.turn)
		t.theirs, t.ratios = append(t.theirs, y), append(t.ratios, y/t.ours[len(t.ours)-1])
	}
	name := r.name + "_against_" + r.own.name
	fmt.Printf("ROW %s %d %.4f %.4f ms %s\n", name, threads, 1e3*stats.Median(t.ours), 1e3*stats.Median(t.theirs),
		r.rate(stats.Median(t.ours)))
	fmt.Printf("RATIO %s %d %.3f\n", name, threads, stats.Median(t.ratios))
	t.printApart(name, threads)
}

// once tells that a row has one run a side that counts, after one for caches and allocators; ours, for all sides, in
// its own process, whose peak of memory counts, too.
func (b *bench) once(r row) bool { return b.quick && r.flops > manyFlops }

// manyFlops is the number of operations from which on a run takes seconds.
const manyFlops = 1e11

// turns are a row's turns: seconds of ours and theirs and their quotients, the ceiling beside ours and its share, how
// far apart the cores were and how many.
type turns struct{ ours, theirs, ratios, ceilings, shares, trips, cores []float64 }

// take adds a turn of ours.
func (t *turns) take(r row, threads int, ours func() (seconds, ceiling float64)) {
	if threads > 1 {
		t.trips = append(t.trips, roundTrip().Seconds())
		if c := coresOf(threads); c > 0 {
			t.cores = append(t.cores, c)
		}
	}
	x, ceiling := ours()
	t.ours, t.ceilings, t.shares = append(t.ours, x), append(t.ceilings, ceiling), append(t.shares, r.share(x, ceiling))
}

// add adds the turns of another side.
func (t *turns) add(u turns) {
	t.ours, t.ceilings, t.shares = append(t.ours, u.ours...), append(t.ceilings, u.ceilings...),
		append(t.shares, u.shares...)
	t.trips, t.cores = append(t.trips, u.trips...), append(t.cores, u.cores...)
}

// printApart says how far apart a row's cores were, and how many.
func (t *turns) printApart(row string, threads int) {
	if len(t.trips) > 0 {
		fmt.Printf("TRIP %s %d %.0f ns\n", row, threads, 1e9*stats.Median(t.trips))
	}
	if len(t.cores) > 0 {
		fmt.Printf("CORES %s %d %.2f\n", row, threads, stats.Median(t.cores))
	}
}

// side lets a row and one side of it take turns.
func (b *bench) side(r row, ours func() (seconds, ceiling float64), s side, threads int, peers *peers) (t turns,
	err error) {
	p, err := peers.get(s, threads)
	if err != nil {
		return t, err
	}
	rounds := b.rounds
	if s.slow || b.once(r) {
		rounds = 1
	}
	name := r.name + s.form
	if !b.once(r) || s.form != "" || threads == b.threads[0] { // a turn for caches and allocators, or for compiling
		if _, err := p.time(name); err != nil {
			peers.forget(s)
			return t, err
		}
	}
	for range rounds {
		t.take(r, threads, ours)
		y, err := p.time(name)
		if err != nil {
			peers.forget(s)
			return t, err
		}
		t.theirs, t.ratios = append(t.theirs, y), append(t.ratios, y/t.ours[len(t.ours)-1])
	}
	return t, nil
}

// timed is the median time of one run, of as many as fit in a turn.
func timed(run func(), turn time.Duration) float64 {
	var times []float64
	for start := time.Now(); len(times) == 0 || time.Since(start) < turn; {
		t := time.Now()
		run()
		times = append(times, time.Since(t).Seconds())
	}
	return stats.Median(times)
}
