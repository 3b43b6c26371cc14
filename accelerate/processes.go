package accelerate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/env"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/rendezvous"
	"github.com/lockstep-ml/lockstep/dist/shm"
	"github.com/lockstep-ml/lockstep/dist/tcp"
)

// processes is this process's part in a job of several, and what has to be closed with it.
type processes struct {
	env    *env.Environment
	server *rendezvous.Server // the store, if this process serves it on a socket that the launcher opened
	job    *rendezvous.Job
}

// detect reads the process's place from its launcher's environment.
func (a *Accelerator) detect() error {
	e, err := env.Detect(os.LookupEnv)
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	a.place = e
	if !e.Distributed() {
		return nil
	}
	if a.args.NumReplicas > 1 {
		return fmt.Errorf("accelerate: num_replicas is %d in a job of %d processes (%s): want ranks as goroutines or as processes, not both", a.args.NumReplicas, e.WorldSize, e)
	}
	a.processes, a.rank, a.world = &processes{env: e}, e.Rank, e.WorldSize
	return nil
}

// Job names the job that a launcher started this process for, "" if there is none;
// restarted says that the launcher has started it again after a failure.
func (a *Accelerator) Job() (id string, restarted bool) {
	if a.place == nil {
		return "", false
	}
	id = os.Getenv(env.VarLaunchID) // unlike a job's name, no other launch has it
	if id == "" {
		id = a.place.JobID
	}
	return id, a.place.RestartCount > 0
}

// Open joins the other processes of the job, if the process was started by a launcher as
// one of several; it waits for all of them. Further calls, and calls in a process that is
// alone, do nothing. It is called before collective work.
func (a *Accelerator) Open(ctx context.Context) error {
	if a.processes == nil || a.group != nil {
		return nil
	}
	config, err := a.processes.config(time.Duration(a.args.DDPTimeout) * time.Second)
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	job, err := rendezvous.Join(ctx, config)
	if err != nil {
		return fmt.Errorf("accelerate: joining the job (%s): %w", a.processes.env, err)
	}
	a.processes.job = job
	a.group, err = a.engine(job)
	if err != nil {
		return errors.Join(fmt.Errorf("accelerate: %w", err), job.Close())
	}
	if a.IsMain() {
		info := a.group.Describe()
		a.log.Info("joined the job", "ranks", a.world, "launcher", string(a.processes.env.Kind), "engine", info.Name, "path", info.Path)
	}
	return nil
}

// config says where the job meets, and with what token.
func (p *processes) config(timeout time.Duration) (rendezvous.Config, error) {
	token, err := p.env.JobToken()
	if err != nil {
		return rendezvous.Config{}, err
	}
	c := rendezvous.Config{
		Restarted: p.env.RestartCount > 0, Rank: p.env.Rank, World: p.env.WorldSize, Token: []byte(token), Timeout: timeout,
		Address: net.JoinHostPort(p.env.MasterAddr, strconv.Itoa(p.env.MasterPort)),
		HostID:  os.Getenv(rendezvous.EnvHost), Listen: os.Getenv(rendezvous.EnvListen), External: os.Getenv(rendezvous.EnvStore) == "external",
	}
	if c.Silence, err = rendezvous.ParseSilence(os.Getenv(rendezvous.EnvSilence)); err != nil {
		return c, err
	}
	if p.env.Rank == 0 && p.env.LocalWorldSize < p.env.WorldSize {
		if err := reachable(p.env.MasterAddr, net.LookupHost); err != nil {
			return c, err
		}
	}
	l, err := p.env.MasterListener()
	if err != nil || l == nil {
		return c, err
	}
	p.server, err = rendezvous.ServeOn(l, c.Token)
	c.Server = p.server
	return c, err
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
	return fmt.Errorf("MASTER_ADDR %s is %s on this host (see /etc/hosts), where no other host can reach it: want its address in the network between them", name, strings.Join(addresses, ", "))
}

// engine makes the group over what ddp_backend names.
func (a *Accelerator) engine(job *rendezvous.Job) (*dist.Group, error) {
	opts := a.groupOptions()
	opts.FlightDir = os.Getenv("LOCKSTEP_FLIGHT_DIR")
	backend := a.args.DDPBackend
	if backend == args.BackendAuto || backend == args.BackendGloo {
		backend = args.BackendTCP
		if job.OneHost() {
			backend = args.BackendSHM
		}
	}
	switch backend {
	case args.BackendSHM:
		return shm.New(job, opts)
	case args.BackendTCP:
		return tcp.New(job, opts)
	}
	f, err := rendezvous.Engine(string(backend))
	if err != nil {
		return nil, err
	}
	return f(job, opts)
}

// groupOptions are what the arguments say of any group.
func (a *Accelerator) groupOptions() dist.Options {
	return dist.Options{Timeout: time.Duration(a.args.DDPTimeout) * time.Second, Log: a.log, FastOrder: a.args.DDPReductionOrder == args.OrderFast}
}

// checkBackend refuses an engine that the program does not have, before any work is done.
func (a *Accelerator) checkBackend() error {
	switch a.args.DDPBackend {
	case args.BackendAuto, args.BackendGloo, args.BackendSHM, args.BackendTCP:
		return nil
	}
	if _, err := rendezvous.Engine(string(a.args.DDPBackend)); err != nil {
		return fmt.Errorf("accelerate: ddp_backend: %w", err)
	}
	return nil
}

// close leaves the job.
func (p *processes) close() error {
	var errs []error
	if p.job != nil {
		errs = append(errs, p.job.Close())
	}
	if p.server != nil {
		errs = append(errs, p.server.Close())
	}
	p.job, p.server = nil, nil
	return errors.Join(errs...)
}
