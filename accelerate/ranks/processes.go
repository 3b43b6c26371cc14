// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/flight"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
)

// processes is this process's part in a job of several. A process joins a job once and is in it until it ends; each
// accelerator has its own group there, so that a program may train one model after the other, whether it closes its
// trainers or not.
type processes struct {
	env    *env.Environment
	server *rendezvous.Server // the store, if this process serves it on a socket that the launcher opened

	mu     sync.Mutex // held while a group is made: all ranks make theirs in the same order
	job    *rendezvous.Job
	groups int // made so far
}

// memberships are the parts of this process in jobs, by place.
var memberships struct {
	sync.Mutex
	of map[string]*processes
}

// membership is the part of this process in the job that the environment describes.
func membership(e *env.Environment) *processes {
	place := fmt.Sprintf("%s|%s|%s|%d|%d of %d", e.Kind, e.JobID, e.MasterAddr, e.MasterPort, e.Rank, e.WorldSize)
	memberships.Lock()
	defer memberships.Unlock()
	if memberships.of == nil {
		memberships.of = map[string]*processes{}
	}
	if memberships.of[place] == nil {
		memberships.of[place] = &processes{env: e}
	}
	return memberships.of[place]
}

// Locate finds this process's place among those that a launcher started with it, as New does. A
// place from which it could not join the others, for want of a token, is an error: programs call
// Locate first, so that a job that cannot run ends before it has read any data.
func Locate() (*env.Environment, error) {
	e, err := env.Detect(rendezvous.LookupEnv) // which takes the token out of the environment
	if err != nil {
		return nil, fmt.Errorf("accelerate: %w", err)
	}
	if e.Distributed() {
		if _, _, err := meet(e); err != nil {
			return nil, fmt.Errorf("accelerate: %w", err)
		}
	}
	return e, nil
}

// meet says by what the ranks of a job know each other: the token, and where rank 0 announces
// itself, nil if that is known to listen at MasterAddr and MasterPort.
func meet(e *env.Environment) (token string, meeting rendezvous.Meeting, err error) {
	token, err = e.JobToken()
	if err != nil && !errors.Is(err, env.ErrNoToken) {
		return "", nil, err
	}
	if err == nil {
		if err := rendezvous.CheckToken([]byte(token)); err != nil {
			return "", nil, fmt.Errorf("%s or %s: %w", env.VarJobToken, env.VarJobTokenFile, err)
		}
	}
	master := net.JoinHostPort(e.MasterAddr, strconv.Itoa(e.MasterPort))
	switch {
	case e.AgentStore:
		return token, rendezvous.TorchStore(master, e.JobID), nil
	case token != "":
		return token, nil, nil
	case e.OneHost():
		return "", rendezvous.MeetingFile(fmt.Sprintf("%s|%s|%s|%d", e.Kind, e.JobID, master, e.WorldSize)), nil
	case e.Kind == env.Torchrun && e.JobID != "":
		return torchrunToken(e), nil, nil
	}
	if e.Kind == env.Torchrun {
		return "", nil,
			fmt.Errorf("%d ranks on several hosts (if they are on one, set LOCAL_RANK and LOCAL_WORLD_SIZE): %w",
				e.WorldSize, err)
	}
	return "", nil, fmt.Errorf("%d ranks on several hosts, started by %s: %w", e.WorldSize, e.Kind, err)
}

// torchrunToken is the token of a job on several hosts whose torchrun shares no store. It keeps
// jobs apart; it is a secret only as far as the run id is, of which torchrun's own store at that
// port asks nothing at all.
func torchrunToken(e *env.Environment) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "lockstep|%q|%q|%d|%d", e.JobID, e.MasterAddr, e.MasterPort, e.WorldSize))
	return hex.EncodeToString(sum[:16])
}

// config says where the job meets, and with what token.
func (p *processes) config(timeout time.Duration, engine string) (rendezvous.Config, error) {
	token, meeting, err := meet(p.env)
	if err != nil {
		return rendezvous.Config{}, err
	}
	c := rendezvous.Config{
		Restarted: p.env.RestartCount > 0, Rank: p.env.Rank, World: p.env.WorldSize, Timeout: timeout,
		Token: []byte(token), Meeting: meeting, Engine: engine,
		Address: net.JoinHostPort(p.env.MasterAddr, strconv.Itoa(p.env.MasterPort)),
	}
	if err := c.ReadEnv(os.LookupEnv); err != nil {
		return c, err
	}
	if err := listen(&c, p.env, net.LookupHost, outward); err != nil {
		return c, err
	}
	l, err := p.env.MasterListener()
	if err != nil || l == nil {
		return c, err
	}
	p.server, err = rendezvous.ServeOn(l, c.Token, c.TLS)
	c.Server = p.server
	return c, err
}

// listen decides on which addresses this process waits for others. lookup resolves names of hosts,
// outward is the function of that name.
func listen(c *rendezvous.Config, e *env.Environment, lookup func(string) ([]string, error),
	outward func() string) error {
	torchrun := e.Kind == env.Torchrun && e.JobID != ""
	switch {
	case e.OneHost():
		if c.Meeting != nil {
			c.Address = loopback + ":0"
		}
		return nil
	case !torchrun && e.Rank > 0:
		return nil
	}
	err := reachable(e.MasterAddr, lookup)
	if !torchrun {
		return err
	}
	// torchrun's own store listens on all addresses, so that its users never learn that the name of
	// a host means loopback there.
	host := e.MasterAddr
	if err != nil {
		if c.Listen == "" {
			c.Listen = outward()
		}
		if c.Listen == "" {
			return err
		}
		host = "" // other hosts come by the name, the ranks of this one by what it means here
	}
	if c.Meeting != nil {
		c.Address = net.JoinHostPort(cmp.Or(c.Listen, e.MasterAddr), "0")
	} else if e.Rank == 0 {
		c.Address = net.JoinHostPort(host, strconv.Itoa(e.MasterPort))
	}
	return nil
}

const loopback = "127.0.0.1"

// outward is this host's address in the network that leads to all others, else in the first one
// that it is in, "" if it is in none. No packet is sent.
func outward() string {
	if c, err := net.Dial("udp", "198.51.100.1:9"); err == nil { // an address for documentation, which no host has
		defer c.Close()
		return c.LocalAddr().(*net.UDPAddr).IP.String()
	}
	list, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// reachable returns an error if a host's name means this host alone, as the own name does
// on many: other hosts would look for rank 0 where it does not listen.
func reachable(name string, lookup func(string) ([]string, error)) error {
	if name == "localhost" || net.ParseIP(name) != nil { // meant so
		return nil
	}
	addresses, err := lookup(name)
	if err != nil {
		return nil // who listens there will say so
	}
	for _, a := range addresses {
		if ip := net.ParseIP(a); ip == nil || !ip.IsLoopback() {
			return nil
		}
	}
	return fmt.Errorf("MASTER_ADDR %s is %s on this host (see /etc/hosts), where no other host can reach it: want "+
		"its address on the network between the hosts", name, strings.Join(addresses, ", "))
}

// join joins the job, unless the process is in it. timeout and engine are those of the first accelerator.
func (p *processes) join(ctx context.Context, timeout time.Duration, engine string) error {
	if p.job != nil {
		return nil
	}
	config, err := p.config(timeout, engine)
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	if p.job, err = rendezvous.Join(ctx, config); err != nil {
		p.job = nil
		return fmt.Errorf("accelerate: joining the job (%s): %w", p.env, err)
	}
	return nil
}

// leave leaves the job, whose first group could not be made.
func (p *processes) leave() error {
	err := p.job.Close()
	if p.server != nil {
		err = errors.Join(err, p.server.Close())
	}
	p.job, p.server = nil, nil
	return err
}

// detect reads the process's place from its launcher's environment, and finds this rank's number.
func (r *Ranks) detect() error {
	e, err := Locate()
	if err != nil {
		return err
	}
	r.place = e
	switch n := r.options.Replicas; {
	case e.Distributed() && n > 1:
		return fmt.Errorf("accelerate: num_replicas is %d in a job of %d processes (%s): want ranks as goroutines or "+
			"as processes, not both", n, e.WorldSize, e)
	case e.Distributed():
		r.processes, r.rank, r.size = membership(e), e.Rank, e.WorldSize
	case n > 1 && r.options.Replica >= 0:
		r.rank, r.size = r.options.Replica, n
	}
	return nil
}

// The engines between processes by their names.
const (
	shmEngine = rendezvous.SharedMemory
	tcpEngine = rendezvous.TCP
	mpiEngine = "mpi"
)

// engine makes the group over what ddp_backend names.
func (r *Ranks) engine(job *rendezvous.Job, name string) (*comm.Group, error) {
	opts := r.groupOptions()
	opts.Name = name
	opts.FlightDir = flight.Dir(r.flightJob())
	switch r.options.Engine {
	case "":
		if job.OneHost() {
			return shm.New(job, opts)
		}
		return tcp.New(job, opts)
	case shmEngine:
		return shm.New(job, opts)
	case tcpEngine:
		return tcp.New(job, opts)
	}
	f, err := rendezvous.Engine(r.options.Engine)
	if err != nil {
		return nil, err
	}
	return f(job, opts)
}

// groupOptions are those of any group.
func (r *Ranks) groupOptions() comm.Options {
	opts := r.options.Group
	opts.Devices = r.DeviceEngine
	return opts
}

// checkEngine refuses an engine that the program does not have, before any work is done.
func checkEngine(name string) error {
	if name == "" || name == shmEngine || name == tcpEngine {
		return nil
	}
	if _, err := rendezvous.Engine(name); err != nil {
		return fmt.Errorf("accelerate: ddp_backend: %w", err)
	}
	return nil
}

// flightJob names the folder that the ranks of this host share for their flight records.
func (r *Ranks) flightJob() string {
	if id, _ := r.Job(); id != "" {
		return id
	}
	if r.processes != nil {
		return fmt.Sprintf("%s-%d", r.processes.env.MasterAddr, r.processes.env.MasterPort)
	}
	return fmt.Sprintf("process-%d", os.Getpid())
}
