// Kernels compares matrix products, streaming kernels, attention and training steps with other engines on the CPU.
//
// Both sides run the same rows, in turns, since a machine's speed drifts: ours, theirs, ours, theirs …; a row's value is the median over the
// rounds of theirs divided by ours, above 1 where Lockstep is faster. The peers are peer.py and openblas.py under the Python that the environment
// variable PYTHON names, and the program that GOMLX names; a row whose peer is missing says so. The machine's own ceilings (FMA peak, copy) are
// measured between the rounds.
//
//	PYTHON=venv/bin/python go run ./bench/kernels --threads 1,2 --rounds 5 --rows 'gelu|adamw'
package main

import (
	"fmt"
	"log"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// bench is what the flags say.
type bench struct {
	rounds int
	turn   time.Duration
	dir    string
	quick  bool
	wanted *regexp.Regexp
}

func main() {
	log.SetFlags(0)
	var b bench
	threads := pflag.IntSlice("threads", []int{1, 2}, "numbers of threads to compare at")
	pflag.IntVar(&b.rounds, "rounds", 5, "turns of each side per row")
	pattern := pflag.String("rows", "", "regular expression of the rows to run; empty: all")
	pflag.DurationVar(&b.turn, "turn", 300*time.Millisecond, "time of one turn, at least one run")
	pflag.StringVar(&b.dir, "dir", "bench/kernels", "the folder that holds peer.py")
	pflag.BoolVar(&b.quick, "quick", false, "leave out rows that take long")
	peak := pflag.String("peak", "", "run one row and print the peak of resident memory, for a process of its own")
	pflag.Parse()
	if err := kernels.Init(); err != nil {
		log.Fatal(err)
	}
	var err error
	if b.wanted, err = regexp.Compile(*pattern); err != nil {
		log.Fatal(err)
	}
	for _, n := range *threads {
		if *peak != "" {
			if err := printPeak(*peak, n); err != nil {
				log.Fatal(err)
			}
			continue
		}
		if err := b.compare(n); err != nil {
			log.Fatal(err)
		}
	}
}

// compare runs all wanted rows at one number of threads.
func (b *bench) compare(threads int) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	fmt.Printf("# %d threads; kernels %s\n", threads, kernels.Active())
	if err := printCeilings(threads); err != nil {
		return err
	}
	peers := peers{dir: b.dir, threads: threads, turn: b.turn}
	defer peers.close()
	for _, r := range rows() {
		if b.quick && r.long || !b.keep(&r) {
			continue
		}
		b.row(r, threads, &peers)
	}
	for _, row := range peakRows {
		if err := b.memory(row, threads, &peers); err != nil {
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

// row measures one row against each of its sides in turn.
func (b *bench) row(r row, threads int, peers *peers) {
	run, end := r.open(threads)
	defer end()
	if r.flops > manyFlops { // a peer that keeps its memory would keep much
		defer peers.forget(r.against...)
	}
	timed(run, b.turn) // for caches and allocators
	ours := func() float64 { return timed(run, b.turn) }
	if b.once(r) {
		ours = sync.OnceValue(ours)
	}
	var all, shares []float64
	for _, s := range r.against {
		t, err := b.side(r, ours, s, threads, peers)
		if err != nil {
			fmt.Printf("# no row %s: %v\n", r.name+s.suffix, err)
			continue
		}
		all, shares = append(all, t.ours...), append(shares, t.shares...)
		fmt.Printf("ROW %s %d %.4f %.4f ms %s\n", r.name+s.suffix, threads, 1e3*stats.Median(t.ours), 1e3*stats.Median(t.theirs), r.rate(stats.Median(t.ours)))
		fmt.Printf("RATIO %s %d %.3f\n", r.name+s.suffix, threads, stats.Median(t.ratios))
		if len(t.trips) > 0 {
			fmt.Printf("TRIP %s %d %.0f ns\n", r.name+s.suffix, threads, 1e9*stats.Median(t.trips))
		}
	}
	if !r.ofCeiling {
		return
	}
	if len(all) == 0 { // no side: ours alone
		for range b.rounds {
			x := ours()
			all, shares = append(all, x), append(shares, r.share(x, threads))
		}
	}
	if share := stats.Median(shares); share > 0 {
		fmt.Printf("ROW %s %d %.4f %.4f ms %s\n", r.name+r.ceiling(), threads, 1e3*stats.Median(all), 1e3*stats.Median(all)*share, r.rate(stats.Median(all)))
		fmt.Printf("RATIO %s %d %.3f\n", r.name+r.ceiling(), threads, share)
	}
}

// once tells that a row has one run a side that counts, ours for all sides.
func (b *bench) once(r row) bool { return b.quick && r.flops > manyFlops }

// manyFlops is the number of operations from which on a run takes seconds.
const manyFlops = 1e11

// turns are the times of a row's turns: ours, theirs, the quotients, our shares of the ceiling, and how far apart the cores were.
type turns struct{ ours, theirs, ratios, shares, trips []float64 }

// side lets a row and one side of it take turns.
func (b *bench) side(r row, ours func() float64, s side, threads int, peers *peers) (t turns, err error) {
	p, err := peers.get(s)
	if err != nil {
		return t, err
	}
	rounds := b.rounds
	if s.slow || b.once(r) {
		rounds = 1
	}
	name := r.name + s.form
	if !b.once(r) || s.form != "" { // a turn for caches and allocators, or for compiling; where one run takes seconds, reserved memory does
		if _, err := p.time(name); err != nil {
			peers.forget(s)
			return t, err
		}
	}
	for range rounds {
		if threads > 1 {
			t.trips = append(t.trips, roundTrip().Seconds())
		}
		x := ours()
		y, err := p.time(name)
		if err != nil {
			peers.forget(s)
			return t, err
		}
		t.ours, t.theirs, t.ratios, t.shares = append(t.ours, x), append(t.theirs, y), append(t.ratios, y/x), append(t.shares, r.share(x, threads))
	}
	return t, p.drop()
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
