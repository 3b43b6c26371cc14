// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-ml/lockstep/comm/internal/wire"
	"github.com/lockstep-ml/lockstep/internal/loopback"
)

// Job is this process among the others of its job: who they are, the store, and a control connection to each. Engines
// register their groups with it.
type Job struct {
	Config
	Peers []Peer // by rank
	Store *Store
	Place Place // what rank 0 announced, if the configuration has a Meeting

	server   *Server // if this process started it
	listener *wire.Listener
	links    []*link // by rank; nil for this one

	mu      sync.Mutex
	groups  map[string]*Membership
	early   map[string][]early // what came for groups that this process has not made yet
	lost    []departure        // by rank
	gone    []chan struct{}    // by rank; closed when lost is set
	waiting map[wire.Hello]chan net.Conn
	holds   int

	key       *wire.Key // of Token
	given     []byte    // the configuration's token
	announced bool      // rank 0's place stands where the others look for it

	probes    map[uint64]chan answer // that wait
	lastProbe uint64

	wanted  atomic.Pointer[func() string] // what is waited for while joining; "" if nothing
	closed  bool
	readers sync.WaitGroup
}

// Join waits for all processes of the job and connects to them. It returns a clear error if the token is wrong, if two
// processes claim one rank or disagree on the number of ranks or on the kernels' variant, or if some do not come in
// time. The job is closed by as many calls of Release as there were of Hold, plus Close.
func Join(ctx context.Context, c Config) (*Job, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.Timeout = cmp.Or(max(c.Timeout, 0), DefaultTimeout)
	c.Silence = cmp.Or(max(c.Silence, 0), DefaultSilence)
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	j := &Job{
		Config: c, links: make([]*link, c.World), lost: make([]departure, c.World),
		gone: make([]chan struct{}, c.World), groups: map[string]*Membership{}, early: map[string][]early{},
		waiting: map[wire.Hello]chan net.Conn{}, holds: 1, probes: map[uint64]chan answer{}, given: c.Token,
	}
	for r := range j.gone {
		j.gone[r] = make(chan struct{})
	}
	if err := j.join(ctx); err != nil {
		j.shutdown()
		return nil, err
	}
	return j, nil
}

func (j *Job) join(ctx context.Context) error {
	j.want(func() string { return "" })
	quiet := j.remind(firstReminder)
	watched, stop, err := j.enterNew(ctx)
	quiet()
	if err != nil {
		return err
	}
	defer stop()
	for r := range j.World {
		if r == j.Rank {
			continue
		}
		conn, err := j.Connect(watched, "control", r)
		if err != nil {
			return err
		}
		listenFor(conn, j.Silence)
		j.links[r] = &link{conn: conn}
	}
	for r, l := range j.links {
		if l != nil {
			j.readers.Go(func() { j.read(r, l) })
		}
	}
	return nil
}

// firstReminder is after how long of waiting for others the log says so; each further one comes after twice the time.
const firstReminder = 10 * time.Second

// remind logs now and then what this process waits for, unless that is for another rank to say, until the function that
// it returns is called.
func (j *Job) remind(pause time.Duration) (quiet func()) {
	began, ended := time.Now(), make(chan struct{})
	var reminding sync.WaitGroup
	reminding.Go(func() {
		for timer := time.NewTimer(pause); ; timer.Reset(pause) {
			select {
			case <-ended:
				timer.Stop()
				return
			case <-timer.C:
			}
			if what := (*j.wanted.Load())(); what != "" {
				slog.Warn("rendezvous: waiting for "+what, "rank", j.Rank, "since",
					time.Since(began).Round(time.Second), "timeout", j.Timeout)
			}
			pause *= 2
		}
	})
	return func() {
		close(ended)
		reminding.Wait()
	}
}

func (j *Job) want(what func() string) { j.wanted.Store(&what) }

// startPatience is how long a process that was started again waits for the rest of the job to be.
const startPatience = 5 * time.Minute

// enterNew is enter, but it does not take the job as it was before a restart for the new one.
func (j *Job) enterNew(ctx context.Context) (watched context.Context, stop func(), err error) {
	for began := time.Now(); ; {
		watched, stop, err = j.enter(ctx)
		if err == nil || !j.tooSoon(err) || time.Since(began) > startPatience {
			return watched, stop, err
		}
		_ = j.Store.Close() // it may be gone
		if sleep(ctx, 50*time.Millisecond) != nil {
			return nil, nil, err
		}
	}
}

// enter meets the other processes at the store. watched and stop are those of watch.
func (j *Job) enter(ctx context.Context) (watched context.Context, stop func(), err error) {
	if err := j.openStore(ctx); err != nil {
		return nil, nil, err
	}
	if j.listener == nil {
		host := cmp.Or(j.Listen, j.Store.conn.LocalAddr().(*net.TCPAddr).IP.String())
		if j.listener, err = wire.Listen(net.JoinHostPort(host, "0"), j.key, j.arrived); err != nil {
			return nil, nil, fmt.Errorf("rendezvous: rank %d cannot listen: %w", j.Rank, err)
		}
	}
	watched, stop = j.watch(ctx)
	if err := j.meet(ctx, self(j.Config, j.listener.Addr().String())); err != nil {
		stop()
		return nil, nil, err
	}
	return watched, stop, nil
}

// tooSoon reports whether this process, started again, has met the store of the job as it was before, which is about to
// end: ranks of other hosts may notice a failure later.
func (j *Job) tooSoon(err error) bool {
	return j.Restarted && j.Server == nil && !j.External && (errors.Is(err, errOver) || errors.Is(err, errGone))
}

// openStore serves the store, if it is this process's part, and connects to it.
func (j *Job) openStore(ctx context.Context) error {
	if j.Meeting != nil {
		return j.openMeeting(ctx)
	}
	var err error
	if j.Rank == 0 && j.Server == nil && !j.External {
		err = j.serve()
	} else {
		j.key, err = j.TLS.key(j.Token)
	}
	if err != nil {
		return err
	}
	if j.Server != nil {
		j.Address = j.Server.Addr().String()
	}
	address := j.Address
	j.want(func() string { return "the store at " + address })
	j.Store, err = dial(ctx, j.Address, j.key, j.Rank)
	if err == nil {
		listenFor(j.Store.conn, j.Silence)
	} else if j.Server == nil && !j.External && ctx.Err() != nil {
		err = absent(err, 0)
	}
	return err
}

// serve serves the store.
func (j *Job) serve() (err error) {
	if j.key, err = j.TLS.key(j.Token); err != nil {
		return err
	}
	if j.server, err = Serve(j.Address, j.Token, j.TLS); err == nil {
		j.Server = j.server
	}
	return err
}

// watch returns a context that ends, beside the reasons of ctx, when a process that has come dies. Until there are
// control connections only the store can tell: it fails the exchanges under way, and this one waits for one process
// more than there are.
func (j *Job) watch(ctx context.Context) (context.Context, func()) {
	watched, cancel := context.WithCancelCause(ctx)
	// Who does not come in time is for others to say.
	patient, stop := context.WithTimeout(context.WithoutCancel(ctx), j.Timeout+wire.Patience)
	var watching sync.WaitGroup
	watching.Go(func() {
		_, err := j.Store.Exchange(patient, fmt.Sprintf("deaths/%d", j.World), j.Rank, j.World+1, nil)
		cancel(err)
	})
	return watched, func() {
		stop()
		watching.Wait()
	}
}

// lastWords is how long an answer may be under way after one of those who were asked has left.
const lastWords = time.Second

// Exchange is [Store.Exchange] among some ranks of the job, this one among them, with their values in the order of
// members. It also fails, within a second or two, when one of them is gone, before the exchange has begun or since.
func (j *Job) Exchange(ctx context.Context, key string, members []int, value []byte) ([][]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, r := range members {
		if r == j.Rank {
			continue
		}
		go func() {
			select {
			case <-ctx.Done():
				return
			case <-j.gone[r]:
			}
			if sleep(ctx, lastWords) == nil {
				cancel(j.departed(r))
			}
		}()
	}
	return j.Store.exchange(ctx, request{Key: key, Rank: slices.Index(members, j.Rank), N: len(members), Value: value,
		members: members})
}

// Agree exchanges errors, by [Job.Exchange], so that all members go the same way. theirs are those of all; nil: no
// member has one. err says that the exchange itself has failed.
func (j *Job) Agree(key string, members []int, mine error) (theirs, err error) {
	var text []byte
	if mine != nil {
		text = []byte(mine.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), j.Timeout)
	defer cancel()
	all, err := j.Exchange(ctx, key, members, text)
	var faults []string
	for i, text := range all {
		if len(text) > 0 {
			faults = append(faults, fmt.Sprintf("rank %d: %s", members[i], text))
		}
	}
	if faults != nil {
		theirs = errors.New(strings.Join(faults, "; "))
	}
	return theirs, err
}

// departed says that a rank is gone, and why.
func (j *Job) departed(rank int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.Peers[rank]
	return absent(fmt.Errorf("rank %d (process %d on %s) is lost: %s", rank, p.PID, p.Host, j.lost[rank].why), rank)
}

// meet exchanges what the ranks know of themselves.
func (j *Job) meet(ctx context.Context, me Peer) error {
	text, _ := json.Marshal(me) // strings and numbers cannot fail
	server := j.Server
	j.want(func() string { return server.missing("peers") })
	waiting, stop := context.WithCancel(ctx)
	var warning sync.WaitGroup
	warning.Go(func() { j.warnOfRefusal(waiting, wrongToken, "its job token", "token") })
	warning.Go(func() { j.warnOfRefusal(waiting, wrongTLS, EnvTLS, "value") })
	all, err := j.Store.exchange(ctx, request{Key: "peers", Rank: j.Rank, N: j.World, Value: text,
		Once: !j.External}) // a launcher's store sees every restart
	stop()
	warning.Wait()
	if errors.Is(err, errOver) {
		return fmt.Errorf("rendezvous: the job at %s already has a rank %d and has started: %w", j.Address, j.Rank, err)
	}
	if err != nil {
		return err
	}
	j.withdraw(ctx)
	return j.introduce(all)
}

// introduce takes what the ranks have said of themselves.
func (j *Job) introduce(all [][]byte) error {
	j.Peers = make([]Peer, j.World)
	for r := range all {
		if err := json.Unmarshal(all[r], &j.Peers[r]); err != nil {
			return fmt.Errorf("rendezvous: rank %d sent an invalid introduction: %w", r, err)
		}
		if j.Peers[r].Rank != r {
			return fmt.Errorf("rendezvous: rank %d sent an invalid introduction: it claims to be rank %d", r,
				j.Peers[r].Rank)
		}
		if a, b := j.Peers[0], j.Peers[r]; a.Kernels != b.Kernels {
			return fmt.Errorf("rendezvous: rank 0 (%s) computes with %s kernels, rank %d (%s) with %s: their bits "+
				"would differ; set LOCKSTEP_KERNELS to the same variant for all ranks",
				a.Host, a.Kernels, r, b.Host, b.Kernels)
		}
	}
	return j.sameEngine()
}

// sameEngine is an error if ranks want to exchange over different engines: each would wait for the other.
func (j *Job) sameEngine() error {
	for r := range j.Peers {
		if a, b := j.engineOf(0), j.engineOf(r); a != b {
			return fmt.Errorf("rendezvous: rank 0 (%s) exchanges over %s, and rank %d (%s) over %s: want the same "+
				"engine on all ranks (ddp_backend)", j.Peers[0].Host, a, r, j.Peers[r].Host, b)
		}
	}
	return nil
}

// engineOf is what a rank exchanges over.
func (j *Job) engineOf(rank int) string {
	auto := TCP
	if j.OneHost() {
		auto = SharedMemory
	}
	return cmp.Or(j.Peers[rank].Engine, auto)
}

// warnOfRefusal says in the log, as long as this process waits for the others, that one was refused. Anybody can come
// with a wrong token: the others end only if the rank that it claims to be does not come either.
func (j *Job) warnOfRefusal(ctx context.Context, key, setting, same string) {
	if who, err := j.Store.Get(ctx, key); err == nil {
		slog.Warn(fmt.Sprintf("rendezvous: a process was refused since %s is another one; if it belongs to this job, "+
			"give it the same %s", setting, same),
			"rank", j.Rank, "refused", string(who))
	}
}

// OneHost reports whether all processes can share memory, as far as they know.
func (j *Job) OneHost() bool {
	return !slices.ContainsFunc(j.Peers, func(p Peer) bool { return p.HostID != j.Peers[0].HostID })
}

// Connect returns a connection of the given kind between this process and rank's: the higher rank dials. Both call it.
func (j *Job) Connect(ctx context.Context, kind string, rank int) (net.Conn, error) {
	if rank > j.Rank {
		return j.accept(ctx, wire.Hello{Kind: kind, Rank: rank})
	}
	peer := j.Peers[rank]
	began := time.Now()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		c, err := j.key.Dial(ctx, peer.Address, wire.Hello{Kind: kind, Rank: j.Rank})
		if err == nil {
			return c, nil
		}
		nobody := (*net.OpError)(nil)
		listens := !errors.As(err, &nobody) || nobody.Op != "dial" // and may have been busy with others
		if !listens || Refused(err) || time.Since(began) > dialPatience || sleep(ctx, pause) != nil {
			if down := loopback.Down(peer.Address); down != nil {
				err = fmt.Errorf("%w: %w", err, down)
			}
			return nil, absent(fmt.Errorf("rendezvous: rank %d cannot reach rank %d (process %d on %s) at %s: %w",
				j.Rank, rank, peer.PID, peer.Host, peer.Address, err), rank)
		}
	}
}

// dialPatience is how long a rank that listens may be too busy with strangers.
const dialPatience = time.Minute

// sleep waits, and returns an error if ctx ends before.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// accept waits for a connection that another rank dials, until that rank is gone.
func (j *Job) accept(ctx context.Context, h wire.Hello) (net.Conn, error) {
	defer func() {
		j.mu.Lock()
		delete(j.waiting, h)
		j.mu.Unlock()
	}()
	select {
	case c := <-j.place(h):
		return c, nil
	case <-j.gone[h.Rank]:
		return nil, fmt.Errorf("rendezvous: no connection to rank %d: %w", j.Rank, j.departed(h.Rank))
	case <-ctx.Done():
		p := j.Peers[h.Rank]
		return nil, absent(fmt.Errorf("rendezvous: rank %d (process %d on %s) did not connect to rank %d: %w", h.Rank,
			p.PID, p.Host, j.Rank, context.Cause(ctx)), h.Rank)
	}
}

// place returns the channel through which an expected connection comes.
func (j *Job) place(h wire.Hello) chan net.Conn {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.waiting[h] == nil {
		j.waiting[h] = make(chan net.Conn, 1)
	}
	return j.waiting[h]
}

// arrived puts a connection where it is, or will be, expected.
func (j *Job) arrived(c net.Conn, h wire.Hello) {
	select {
	case j.place(h) <- c:
	default: // a second one of that kind
		_ = c.Close()
	}
}

// Hold keeps the job open until one more Release.
func (j *Job) Hold() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.holds++
}

// Release undoes a Hold. The last one says good-bye to the other ranks and closes all connections.
func (j *Job) Release() error {
	j.mu.Lock()
	j.holds--
	last := j.holds == 0
	j.mu.Unlock()
	if last {
		return j.shutdown()
	}
	return nil
}

// Close is the Release that belongs to Join.
func (j *Job) Close() error { return j.Release() }

func (j *Job) shutdown() error {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	for _, l := range j.links {
		if l != nil {
			_ = l.send(notice{Kind: "bye"}) // one that is gone needs no good-bye
			_ = l.conn.Close()
		}
	}
	j.readers.Wait()
	var errs []error
	if j.Store != nil {
		errs = append(errs, j.Store.Close())
	}
	if j.listener != nil {
		errs = append(errs, j.listener.Close())
	}
	for _, c := range j.waiting { // nobody else is left to touch it
		select {
		case conn := <-c:
			_ = conn.Close()
		default:
		}
	}
	if j.server != nil {
		j.withdraw(context.Background()) // if the ranks have not met
		errs = append(errs, j.server.Close())
	}
	if err := errors.Join(errs...); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
