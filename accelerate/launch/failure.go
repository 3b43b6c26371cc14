// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// Failure is how one rank ended.
type Failure struct {
	Rank, LocalRank int
	PID             int
	// ExitCode is the process's exit code, Unknown (-1) if a signal ended it.
	ExitCode int
	// Signal ended the process; 0 if none did.
	Signal syscall.Signal
	// BySelf says that the rank ended before this launcher sent it any signal.
	BySelf bool
	// Stopped says that the process stood still (SIGSTOP, a debugger) when the launcher ended it.
	Stopped bool
	// Blamed says that other ranks failed since they waited for this one in vain.
	Blamed bool
	// Message is what the rank's error file says; "" if it left none.
	Message string
	// Permanent says that the rank expects the same failure of every further attempt.
	Permanent bool
	// ErrorFile is the path of its error.json, gone with the launch unless logs are kept.
	ErrorFile string
	// Hint says whether a SIGKILL was for want of memory, as far as the kernel tells.
	Hint string
	// MaxRSS is the most memory that the process held at once, in bytes; 0 if not known.
	MaxRSS int64
	// After is how long it ran.
	After time.Duration
	// Log is the end of its output, or the beginning of what a panic printed.
	Log []string
	// LogFile is where the whole output is; "" if it is not kept.
	LogFile string

	at     time.Time
	blames []int
}

// Unknown stands for an exit code that there is none of.
const Unknown = -1

// FailureError says that the job failed, and which rank failed first.
type FailureError struct {
	// Root is the rank whose failure the others' followed.
	Root Failure
	// Others are the other ranks that did not end with exit code 0, by rank.
	Others []Failure
	// Attempt is the number of the last start, from 0.
	Attempt int
	// Waits says of each group of ranks which call some waited in and who did not come, as far as this host's flight
	// records tell; they lie in FlightDir, "" if there are none.
	Waits     []string
	FlightDir string
}

// InterruptedError says that a signal or the end of the context ended the job.
type InterruptedError struct {
	Signal syscall.Signal
	// Cause is the context's, nil for a signal.
	Cause error
	// Elsewhere says that the ranks ended together with the exit code of an interrupt that
	// did not come from this launcher: several hosts stop as one.
	Elsewhere bool
	// Killed are the ranks that had to be killed.
	Killed []int
}

// Error names the signal, and the ranks that did not heed it.
func (e *InterruptedError) Error() string {
	s := "launch: interrupted by " + signalName(e.Signal)
	if e.Elsewhere {
		s += " that another process or host was sent"
	}
	if e.Cause != nil {
		s = "launch: interrupted: " + e.Cause.Error()
	}
	if len(e.Killed) > 0 {
		s += fmt.Sprintf("; killed since they did not end in time: rank %s", join(e.Killed))
	}
	return s
}

// Unwrap is the context's cause.
func (e *InterruptedError) Unwrap() error { return e.Cause }

func join(ranks []int) string { return strings.Trim(fmt.Sprint(ranks), "[]") }

// ExitRefused is the exit code of a launcher that another one has refused, for a job token or LOCKSTEP_TLS that differ:
// that of settings that are wrong.
const ExitRefused = 2

// ExitCode is what a launcher's process should end with: 0 for nil, the first failing
// rank's own code, 128 + n if signal n ended the rank or the job, [ExitRefused], else 1.
func ExitCode(err error) int {
	var failure *FailureError
	var interrupted *InterruptedError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &failure):
		return failure.Root.code()
	case errors.As(err, &interrupted):
		return 128 + int(interrupted.Signal)
	case rendezvous.Refused(err):
		return ExitRefused
	}
	return 1
}

func (f *Failure) code() int {
	switch {
	case f.Blamed: // how it ended is the launcher's doing
		return 1
	case f.Signal != 0:
		return 128 + int(f.Signal)
	case f.ExitCode > 0:
		return f.ExitCode
	}
	return 1
}

// how is the rank's end in words.
func (f *Failure) how() string {
	switch {
	case f.Stopped:
		return "its process was stopped, so that the others waited in vain"
	case f.Blamed:
		return "the others waited for it in vain"
	case f.Signal != 0 && f.BySelf:
		return "killed by " + signalName(f.Signal)
	case f.Signal != 0:
		return "ended by " + signalName(f.Signal) + " on the launcher's request"
	case f.ExitCode == Unknown:
		return "lost"
	}
	return fmt.Sprintf("exit code %d", f.ExitCode)
}

// Error is the report: the root cause, then one line about the others.
func (e *FailureError) Error() string {
	var b strings.Builder
	f := &e.Root
	fmt.Fprintf(&b, "launch: rank %d failed first: %s", f.Rank, f.how())
	if f.Hint != "" {
		fmt.Fprintf(&b, " (%s)", f.Hint)
	}
	fmt.Fprintf(&b, "\n  process %d, local rank %d, attempt %d, after %v", f.PID, f.LocalRank, e.Attempt,
		f.After.Round(time.Millisecond))
	if f.MaxRSS > 0 {
		fmt.Fprintf(&b, ", at most %.1f MiB of memory", float64(f.MaxRSS)/(1<<20))
	}
	if f.Message != "" {
		fmt.Fprintf(&b, "\n  error: %s", strings.ReplaceAll(f.Message, "\n", "\n    "))
	}
	if len(f.Log) > 0 {
		fmt.Fprintf(&b, "\n  its output:\n    %s", strings.Join(f.Log, "\n    "))
	}
	if f.LogFile != "" {
		fmt.Fprintf(&b, "\n  the whole output: %s", f.LogFile)
	}
	if len(e.Others) > 0 {
		b.WriteString("\n  then:")
		for i := range e.Others {
			o := &e.Others[i]
			fmt.Fprintf(&b, "%s rank %d %s", strings.Repeat(",", min(i, 1)), o.Rank, o.how())
		}
	}
	for _, w := range e.Waits {
		fmt.Fprintf(&b, "\n  flight record: %s", w)
	}
	if e.FlightDir != "" {
		fmt.Fprintf(&b, "\n  flight records: %s", e.FlightDir)
	}
	return b.String()
}

// verdict is nil, or who failed and who first.
func (a *attempt) verdict() error {
	var all []Failure
	for _, w := range a.workers {
		if w.failed() {
			all = append(all, a.failure(w))
		}
	}
	if len(all) == 0 {
		return nil
	}
	markBlamed(all)
	root := rootCause(all)
	e := &FailureError{Root: all[root], Attempt: a.number, Others: slices.Delete(slices.Clone(all), root, root+1)}
	a.explain(&e.Root)
	e.readFlights(a.run.flightDir(a.number), a.began)
	return e
}

// readFlights takes what the flight records tell that ranks wrote since the attempt began.
func (e *FailureError) readFlights(dir string, began time.Time) {
	report, err := comm.Diagnose(dir)
	if err != nil { // as a rule there are none: no rank got as far
		return
	}
	if !slices.ContainsFunc(report.Records, func(r comm.FlightRecord) bool { return r.Time.After(began) }) {
		return // an earlier job's, in a folder that the user chose
	}
	e.FlightDir = dir
	for _, f := range report.Findings {
		if f.Kind == comm.FindingMissing || f.Kind == comm.FindingMismatch {
			e.Waits = append(e.Waits, f.Text)
		}
	}
}

// failure describes a rank's end, and leaves an error file where the rank could not.
func (a *attempt) failure(w *worker) Failure {
	f := Failure{
		Rank: w.rank, LocalRank: w.localRank, PID: w.pid(), ExitCode: Unknown, BySelf: w.unprompted, Stopped: w.stopped,
		ErrorFile: w.errorFile, MaxRSS: w.maxRSS, After: w.at.Sub(w.started), at: w.at,
	}
	switch {
	case w.waitProblem != nil:
	case w.status.Signaled():
		f.Signal = w.status.Signal()
	default:
		f.ExitCode = w.status.ExitStatus()
	}
	f.Log, f.LogFile = w.err.lines(), w.logFile("stderr.log")
	if len(f.Log) == 0 {
		f.Log, f.LogFile = w.out.lines(), w.logFile("stdout.log")
	}
	if file, ok := readErrorFile(f.ErrorFile); ok {
		f.Message, f.blames, f.Permanent = file.Message.Message, file.Message.Extra.Blames, file.Message.Extra.Permanent
		return f
	}
	if err := writeErrorFile(f.ErrorFile, errorFile{Message: errorMessage{
		Message: f.how(), ErrorCode: f.code(),
		Extra: errorInfo{Stack: strings.Join(f.Log, "\n"), Timestamp: seconds(f.at)},
	}}); err != nil {
		a.run.config.Logger.Warn("no error file for a rank", "rank", f.Rank, "error", err)
	}
	return f
}

// logFile is the path of a log that was kept, else "".
func (w *worker) logFile(name string) string {
	path := w.dir + string(os.PathSeparator) + name
	if _, err := os.Stat(path); w.dir == "" || err != nil {
		return ""
	}
	return path
}

// explain adds what only the root cause needs.
func (a *attempt) explain(f *Failure) {
	if f.Signal == syscall.SIGKILL && f.BySelf {
		f.Hint = a.oom.hint(readOOMKills(os.DirFS("/")))
	}
}

// markBlamed marks the ranks that the launcher ended since others had given them up. A process that stood still is
// blamed whoever they gave up: ranks that wait for each other reach their deadlines in any order.
func markBlamed(all []Failure) {
	for i := range all {
		f := &all[i]
		f.Blamed = !f.BySelf && slices.ContainsFunc(all, func(o Failure) bool {
			return o.BySelf && (slices.Contains(o.blames, f.Rank) || f.Stopped && len(o.blames) > 0)
		})
		f.Stopped = f.Stopped && f.Blamed
	}
}

// rootCause is the index of the rank whose failure the others' followed: not one that the
// launcher ended, unless others blame it; one whose process stood still; not one that blames a rank that failed
// too; one that a signal ended rather than one that gave up, since losing a peer makes a rank give up but sends it no
// signal; then the earliest.
func rootCause(all []Failure) int {
	failed := map[int]bool{}
	for i := range all {
		failed[all[i].Rank] = all[i].BySelf || all[i].Blamed
	}
	order := func(i int) (k [4]bool) {
		f := &all[i]
		k[0] = !f.BySelf && !f.Blamed
		k[1] = !f.Stopped
		k[2] = slices.ContainsFunc(f.blames, func(r int) bool { return r != f.Rank && failed[r] })
		k[3] = f.Signal == 0 || !f.BySelf
		return k
	}
	index := make([]int, len(all))
	for i := range index {
		index[i] = i
	}
	return slices.MinFunc(index, func(i, j int) int {
		a, b := order(i), order(j)
		for k := range a {
			if a[k] != b[k] {
				if b[k] {
					return -1
				}
				return 1
			}
		}
		return cmp.Or(all[i].at.Compare(all[j].at), cmp.Compare(all[i].Rank, all[j].Rank))
	})
}
