// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/tests/internal/twohosts"

	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
)

const (
	patience = 90 * time.Second // for a job to end that nothing disturbs any more
	partner  = 5 * time.Second  // for a launcher to end by itself after the other one failed
	maxTries = 60
)

// counts are what is counted of a job.
type counts struct {
	tries, restarts, kills, helped int
	applied                        map[kind]int
	connections                    int // of strangers
}

// job is one that is resumed until it ends.
type job struct {
	scenario
	h          *harness
	dir        string
	disk       *disk
	hosts      *twohosts.Hosts
	relay      *relay
	clocks     *clocks
	marker     string
	port       int
	began      time.Time
	background sync.WaitGroup // peers
	log        *syncbuffer.Buffer
	grace      time.Duration // for processes to go
	sabotage   func() error  // of a drill, before the check

	mu        sync.Mutex
	programs  []*program // of the present try
	disturbed bool       // the present try, by what may do harm
	active    int        // harmful faults that last
	healed    time.Time  // when the last one ended
	counts    counts
}

// newJob makes what a job needs.
func (h *harness) newJob(s scenario) (*job, error) {
	j := &job{
		scenario: s, h: h, dir: filepath.Join(h.dir, "job"), marker: fmt.Sprintf("CHAOS_JOB=%016x", rand.Uint64()),
		port: 20000 + rand.IntN(9000),
		log:  &syncbuffer.Buffer{}, grace: grace, began: time.Now(), counts: counts{applied: map[kind]int{}},
	}
	if err := os.Mkdir(j.dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	if h.disks {
		j.disk, err = mountDisk(j.dir)
	}
	for _, dir := range []string{"tmp", "home"} {
		if err == nil {
			err = os.Mkdir(filepath.Join(j.dir, dir), 0o755)
		}
	}
	if err == nil && s.layout == hosts {
		j.hosts, err = twohosts.New("chaos", 0, nil)
	}
	if err == nil && s.layout == relayed {
		j.relay, err = newRelay(j.port)
	}
	if err == nil && (s.has(clockWall) || s.has(clockMono)) {
		j.clocks, err = newClocks(h.bin("chaos"), filepath.Join(h.dir, "clocks"))
	}
	if err != nil {
		return nil, errors.Join(err, j.close())
	}
	return j, nil
}

// close removes what newJob has made.
func (j *job) close() error {
	var err error
	if j.clocks != nil {
		err = errors.Join(err, j.clocks.close())
	}
	if j.relay != nil {
		err = errors.Join(err, j.relay.close())
	}
	if j.hosts != nil {
		err = errors.Join(err, j.hosts.Close())
	}
	if j.disk != nil {
		err = errors.Join(err, j.disk.unmount())
	}
	err = errors.Join(err, os.RemoveAll(j.dir))
	for _, dir := range temporary {
		if j.h.disks {
			err = errors.Join(err, leftFiles(dir, j.h.known[dir]...))
		}
	}
	if j.h.disks && j.layout == hosts {
		err = errors.Join(err, leftFiles("/run/netns"))
	}
	return err
}

func (j *job) out() string { return filepath.Join(j.dir, "out") }

// note writes into the job's log.
func (j *job) note(format string, a ...any) {
	fmt.Fprintf(j.log, "--- %7.3f s: %s\n", time.Since(j.began).Seconds(), fmt.Sprintf(format, a...))
}

// run runs the job to its end, with its faults, and checks what it leaves.
func (j *job) run() (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var faults sync.WaitGroup
	failures := make(chan error, len(j.faults))
	for _, f := range j.faults {
		faults.Go(func() {
			if err := j.apply(ctx, f); err != nil {
				failures <- fmt.Errorf("harness: %s: %w", f, err)
			}
		})
	}
	defer func() {
		cancel()
		faults.Wait()
		j.background.Wait()
		close(failures)
		for e := range failures {
			err = errors.Join(err, e)
		}
		for _, p := range living(j.marker) {
			_ = syscall.Kill(p.pid, syscall.SIGKILL) // told above as left over
		}
		if err == nil && j.sabotage != nil {
			err = j.sabotage()
		}
		if err == nil {
			err = j.check()
		}
		if err != nil && j.index >= 0 {
			err = errors.Join(err, j.h.keep(j, err))
		}
	}()
	for {
		ended, err := j.try()
		if err != nil || ended {
			return err
		}
		if j.counts.tries == maxTries {
			return fmt.Errorf("it has not ended after %d tries", maxTries)
		}
		if j.h.stopped.Load() {
			return errors.New("stopped")
		}
		time.Sleep(200 * time.Millisecond) // who starts it again is no faster
	}
}

// check looks at what is there at the end.
func (j *job) check() error {
	got, err := readResult(j.out())
	if err != nil {
		return err
	}
	if j.counts.tries+j.counts.restarts > 1 { // a run that starts afresh keeps the log of the one before
		got.names = slices.DeleteFunc(got.names, func(name string) bool { return name == "log.jsonl.old" })
	}
	err = j.h.want[batch(j.ranks)].compare(got)
	err = errors.Join(err, leftFiles(filepath.Join(j.dir, "tmp"), j.orphans()...),
		leftFiles(filepath.Join(j.dir, "home")))
	if j.has(clockWall) && j.clocks.asked.Load() == 0 {
		err = errors.Join(err, errors.New("harness: nobody asked for the time, so no clock was moved"))
	}
	if j.harmless() && (j.counts.tries > 1 || j.counts.restarts > 0) {
		err = errors.Join(err, fmt.Errorf("it started %d times and restarted %d times, though nothing did it harm",
			j.counts.tries, j.counts.restarts))
	}
	return err
}

// orphans are folders that nobody was left to remove: a launcher's, in TMPDIR, that was killed as its guards were, or
// as one of them was while the other one was being replaced.
func (j *job) orphans() []string {
	if j.layout.launchers() == 0 || !j.has(killAll) && !(j.has(killBoth) && j.has(killGuard)) {
		return nil
	}
	list := slices.DeleteFunc(names(filepath.Join(j.dir, "tmp")), func(name string) bool {
		return !launcherFolder.MatchString(name)
	})
	return list[:min(len(list), j.layout.launchers()*(j.counts.applied[killBoth]+j.counts.applied[killAll])+
		j.counts.applied[killLauncher])]
}

var launcherFolder = regexp.MustCompile(`^[0-9a-z]+_[0-9]+$`)

// try starts the job, from its last checkpoint if there is one, and waits until it ends, well or not.
func (j *job) try() (ended bool, err error) {
	j.mu.Lock()
	j.disturbed = j.active > 0
	j.counts.tries++
	number := j.counts.tries
	lines := j.lines()
	j.programs = nil
	for i, line := range lines {
		p, e := start(fmt.Sprintf("try %d, program %d", number, i), line, j.dir, j.environ(i))
		if e != nil {
			err = e
			break
		}
		j.programs = append(j.programs, p)
	}
	programs := slices.Clone(j.programs)
	j.mu.Unlock()
	j.note("try %d: %q", number, lines)
	if err == nil {
		err = j.await(programs)
	}
	if err != nil {
		j.dump()
		for _, p := range living(j.marker) {
			_ = syscall.Kill(p.pid, syscall.SIGKILL) // it is over
		}
	}
	for _, p := range programs {
		<-p.ended
		j.note("%s ended with code %d and had printed:\n%s", p.name, p.code(), p.printed)
		err = errors.Join(err, traces(p.printed.String()))
		j.counts.restarts += strings.Count(p.printed.String(), "all ranks are started again")
	}
	if err == nil {
		err = leftProcesses(j.marker, j.grace)
	}
	if err != nil {
		return false, err
	}
	return j.judge(programs)
}

// judge tells whether a try has ended well, and that it failed for a reason if it failed.
func (j *job) judge(programs []*program) (ended bool, err error) {
	if !slices.ContainsFunc(programs, func(p *program) bool { return p.code() != 0 }) {
		return true, nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.disturbed {
		return false, fmt.Errorf("try %d failed, though nothing that does harm had happened", j.counts.tries)
	}
	return false, nil
}

// await waits until all programs have ended. If one has failed and the other, on the other host, does not notice, it is
// told, as a cluster's scheduler would.
func (j *job) await(programs []*program) error {
	begin := time.Now()
	var first time.Time // when a program had ended that is not the last
	told := false
	for ; ; time.Sleep(5 * time.Millisecond) {
		over := 0
		for _, p := range programs {
			if p.over() {
				over++
			}
		}
		switch {
		case over == len(programs):
			return nil
		case over > 0 && first.IsZero():
			first = time.Now()
		case over > 0 && !told && time.Since(first) > partner:
			told = true
			j.counts.helped++
			j.note("the other launcher is told to end")
			for _, p := range programs {
				p.signal(syscall.SIGTERM)
			}
		}
		j.mu.Lock()
		since := begin
		if j.healed.After(since) {
			since = j.healed
		}
		waits := j.active > 0
		j.mu.Unlock()
		if !waits && time.Since(since) > patience {
			return fmt.Errorf("it does not end: nothing has disturbed it for %v", patience)
		}
		if j.h.stopped.Load() {
			return errors.New("stopped")
		}
	}
}

// dump has every process that still runs print its goroutines.
func (j *job) dump() {
	for _, p := range living(j.marker) {
		state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", p.pid)) // it may be gone
		j.note("still there: %s, waits in %q", p, state)
		_ = syscall.Kill(p.pid, syscall.SIGCONT)
		_ = syscall.Kill(p.pid, syscall.SIGQUIT)
	}
	time.Sleep(time.Second)
}

// lines are the command lines of a try.
func (j *job) lines() [][]string {
	program := append([]string{j.h.bin("clm")}, j.h.argv(j.out(), batch(j.ranks))...)
	if newest(j.out()) > 0 {
		program = append(program, "--resume_from_checkpoint", "last")
	}
	if j.stages > 1 && j.counts.tries%2 == 1 { // the tries between continue without
		program = append(program, "--pp_size", strconv.Itoa(j.stages))
	}
	if j.has(freezeRank) {
		program = append(program, "--ddp_timeout", "6")
	}
	if j.clocks != nil {
		program = append(j.clocks.wrap(j.has(clockWall)), program...)
	}
	switch j.layout {
	case goroutines:
		return [][]string{append(program, "--num_replicas", strconv.Itoa(j.ranks))}
	case shm, tcp:
		return [][]string{append(j.launch(j.ranks),
			append(append([]string{"--"}, program...), "--ddp_backend", string(j.layout))...)}
	}
	var lines [][]string
	for i := range 2 {
		address, port := "127.0.0.1", j.port
		if j.layout == hosts {
			address = twohosts.Address(0)
		} else if i == 1 {
			port = j.relay.port()
		}
		line := append(j.launch(j.ranks/2), "--nnodes", "2", "--node_rank", strconv.Itoa(i), "--master_addr", address,
			"--master_port", strconv.Itoa(port), "--")
		line = append(line, program...)
		if j.layout == hosts {
			line = j.hosts.Command(i, line...)
		}
		lines = append(lines, line)
	}
	return lines
}

// launch is the launcher's command line on one host.
func (j *job) launch(ranks int) []string {
	return []string{j.h.bin("lockstep"), "launch", "--nproc_per_node", strconv.Itoa(ranks), "--max_restarts",
		strconv.Itoa(j.restarts),
		"--restart_delay", "0.1", "--settle_time", "0.5", "--grace_period", "2"}
}

// environ is the environment of a program of a try.
func (j *job) environ(i int) []string {
	list := environ(j.marker, "LOCKSTEP_FLIGHT_DIR="+filepath.Join(j.dir, "flight"),
		"TMPDIR="+filepath.Join(j.dir, "tmp"),
		"HOME="+filepath.Join(j.dir, "home"), "XDG_RUNTIME_DIR="+filepath.Join(j.dir, "tmp"))
	if j.layout.launchers() == 2 {
		list = append(list, fmt.Sprintf("LOCKSTEP_HOST_ID=host%d", i),
			fmt.Sprintf("LOCKSTEP_JOB_TOKEN=%x", sha256.Sum256([]byte(j.marker))))
	}
	if j.has(linkCut) || j.has(linkOneWay) {
		list = append(list, "LOCKSTEP_SILENCE=1s")
	}
	return list
}

var checkpointName = regexp.MustCompile(`^checkpoint-(\d+)$`)

// newest is the step of a run's newest checkpoint, 0 if there is none.
func newest(out string) int {
	last := 0
	for _, name := range names(out) {
		if m := checkpointName.FindStringSubmatch(name); m != nil {
			n, _ := strconv.Atoi(m[1]) // digits
			last = max(last, n)
		}
	}
	return last
}
