// SPDX-License-Identifier: Apache-2.0

//go:build unix

package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/comm/env"
)

// role makes the test binary play a rank, a launcher or a guard.
const role = "LAUNCH_TEST_ROLE"

// raceAtOnce spares the processes the second that the race detector waits at their exit.
const raceAtOnce = "GORACE=atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	if os.Getenv(role) != "" {
		os.Exit(play(os.Args[1], os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

// play is what the processes of the tests do. Those that wait end by themselves after a
// minute, so that a broken launcher leaves none for ever.
func play(part string, a []string) int {
	rank := os.Getenv("RANK")
	chosen := len(a) > 0 && a[0] == rank
	switch part {
	case "environ":
		for _, entry := range os.Environ() {
			fmt.Println(entry)
		}
	case "exit": // RANK CODE: that rank exits, the others wait
		if !chosen {
			return hang()
		}
		code, _ := strconv.Atoi(a[1])
		fmt.Fprintln(os.Stderr, "about to exit")
		return code
	case "together": // CODE: all ranks exit
		code, _ := strconv.Atoi(a[0])
		return code
	case "say": // TEXT to stdout, "err" to stderr
		fmt.Print(a[0])
		fmt.Fprint(os.Stderr, "err\n")
	case "hang":
		return hang()
	case "ignore":
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
		return hang()
	case "polite":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
		fmt.Println("ready")
		<-c
		fmt.Println("saved")
	case "killed":
		if !chosen {
			return hang()
		}
		fmt.Println("last words")
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		return hang()
	case "panic":
		if !chosen {
			return hang()
		}
		var p *int
		*p = 1
	case "blame": // the chosen rank dies last, the others have said that it is the reason
		return blame(chosen, a[0])
	case "flaky": // FAILURES: rank 1 fails that often
		n, _ := strconv.Atoi(a[0])
		restarts, _ := strconv.Atoi(os.Getenv("TORCHELASTIC_RESTART_COUNT"))
		if restarts >= n {
			return 0
		}
		if rank != "1" {
			return hang()
		}
		return 4
	case "hopeless": // rank 1 records an error that would come again
		if rank != "1" {
			return hang()
		}
		if RecordError(os.LookupEnv, fmt.Errorf("deep down: %w", hopeless{})) != nil {
			return 98
		}
		return 2
	case "parent": // GROUP: leaves a child behind that waits; GROUP "own" in a session of its own
		return parent(a[0])
	case "dynasty": // GENERATIONS: waits, and so do its descendants, every second one in a session of its own
		return dynasty(a[0])
	case "family": // waits, and so does its child in the same group
		parent("same")
		time.Sleep(time.Minute)
	case "secret": // says the token, and what a child can find of it
		return secret()
	case "meet":
		return meet()
	case "place":
		e, err := env.Detect(os.LookupEnv)
		if err != nil {
			return 97
		}
		fmt.Printf("%d/%d %d/%d %d/%d\n", e.Rank, e.WorldSize, e.LocalRank, e.LocalWorldSize, e.NodeRank, e.Nodes)
	case "launcher":
		return launcher(a, nil)
	case "elastic":
		return launcher(a, &Elastic{MinNodes: 1, MaxNodes: 2, Endpoint: "127.0.0.1:29500"})
	case "guard":
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
		if _, err := Guard(os.Stdin); err != nil {
			return 1
		}
	}
	return 0
}

func hang() int {
	fmt.Println("ready")
	time.Sleep(time.Minute)
	return 99
}

func blame(chosen bool, other string) int {
	lookup := env.Lookup(os.LookupEnv)
	if chosen {
		time.Sleep(300 * time.Millisecond)
		if RecordError(lookup, errors.New("the cause")) != nil {
			return 90
		}
		return 3
	}
	n, _ := strconv.Atoi(other)
	if RecordError(lookup, fmt.Errorf("rank %d is lost", n), n) != nil {
		return 90
	}
	return 1
}

func parent(group string) int {
	child := exec.Command(os.Args[0], "ignore")
	child.Stdout = os.Stdout
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: group == "own"}
	if err := child.Start(); err != nil {
		return 98
	}
	fmt.Println("child", child.Process.Pid)
	return 0
}

func dynasty(generations string) int {
	n, _ := strconv.Atoi(generations)
	if n > 1 {
		child := exec.Command(os.Args[0], "dynasty", strconv.Itoa(n-1))
		child.Stdout, child.SysProcAttr = os.Stdout, &syscall.SysProcAttr{Setsid: n%2 == 0}
		if err := child.Start(); err != nil {
			return 98
		}
		go child.Wait()
	}
	fmt.Println(os.Getpid(), "ready")
	time.Sleep(time.Minute)
	return 99
}

func secret() int {
	e, err := env.Detect(os.LookupEnv)
	if err != nil {
		return 97
	}
	for range 2 {
		token, err := e.JobToken()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 96
		}
		fmt.Println("token", token)
	}
	text, _ := os.ReadFile("/proc/self/environ")
	fmt.Printf("environ %q\n", text)
	if os.Getenv("SECRET_CHILD") != "" {
		return 0
	}
	child := exec.Command(os.Args[0], "secret")
	child.Env = append(os.Environ(), "SECRET_CHILD=1")
	out, err := child.CombinedOutput()
	fmt.Printf("child %v %q\n", err, out)
	return 0
}

// meet lets rank 0 accept the others at the master's address.
func meet() int {
	e, err := env.Detect(os.LookupEnv)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 97
	}
	address := net.JoinHostPort(e.MasterAddr, strconv.Itoa(e.MasterPort))
	if e.Rank != 0 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 96
		}
		fmt.Fprintln(c, e.Rank)
		return 0
	}
	l, err := e.MasterListener()
	if err != nil || l == nil || l.Addr().String() != address {
		fmt.Fprintln(os.Stderr, "listener", l, err)
		return 95
	}
	for range e.WorldSize - 1 {
		c, err := l.Accept()
		if err != nil {
			return 94
		}
		line, _ := bufio.NewReader(c).ReadString('\n')
		fmt.Print("met ", line)
	}
	return 0
}

// launcher runs Run in a process that can be signalled: GRACE GUARD RANKS PART...
func launcher(a []string, hosts *Elastic) int {
	grace, _ := time.ParseDuration(a[0])
	ranks, _ := strconv.Atoi(a[2])
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	c := Config{Program: os.Args[0], Args: a[3:], ProcsPerNode: ranks, Grace: grace, Signals: signals,
		Stdout: os.Stdout, Stderr: os.Stderr, Elastic: hosts}
	if hosts != nil {
		c.Token = "a token of this test alone, and of no other one"
	}
	if a[1] == "guard" {
		c.Guard = []string{os.Args[0], "guard"}
	}
	err := Run(context.Background(), c)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return ExitCode(err)
}

// readyLines reads until n lines end in "ready", then passes the rest over.
func readyLines(r io.Reader, n int) (seen []string, err error) {
	s := bufio.NewScanner(r)
	for n > 0 && s.Scan() {
		seen = append(seen, s.Text())
		if strings.HasSuffix(s.Text(), "ready") {
			n--
		}
	}
	if n > 0 {
		return seen, errors.Join(s.Err(), fmt.Errorf("the output ended before all were ready: %q", seen))
	}
	return seen, nil
}

// hopeless is an error that every attempt meets.
type hopeless struct{}

func (hopeless) Error() string   { return "a typing error" }
func (hopeless) Permanent() bool { return true }
