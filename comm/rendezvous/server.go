// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/wire"
	"github.com/lockstep-ml/lockstep/internal/loopback"
	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// Server is the store: a map from keys to small values that the processes of a job read and write. It is served by rank
// 0, or by the launcher, whose store outlives a rank.
type Server struct {
	listener *wire.Listener

	mu        sync.Mutex
	values    map[string][]byte
	counters  map[string]int64
	exchanges map[string]*exchange
	met       map[string]bool // exchanges that come once, and have
	conns     map[net.Conn]wire.Hello
	changed   chan struct{} // closed and replaced at each change of values
	closed    bool
	busy      int // requests whose answers have not left

	patience time.Duration // with a rank that has not come while another token claims its place
	redial   time.Duration // for which a rank may come again that was gone before it asked for anything
	verdicts []*time.Timer // that run
}

// wrongTokenPatience is how long a rank may still come after a process with another token has claimed its place. As a
// rule that process is the rank, and the others would wait for it in vain; a stranger can stop no job whose ranks come
// within that time.
const wrongTokenPatience = 15 * time.Second

// lastAnswers is how long Close waits for answers to leave.
const lastAnswers = time.Second

// requestsAtOnce is how many requests of one client may wait; further ones are not read.
const requestsAtOnce = 256

// maxRanks is how many may meet in an exchange.
const maxRanks = 1 << 20

// exchange is a meeting of n ranks at one key.
type exchange struct {
	n      int
	values map[int][]byte
	done   chan struct{}
	fault  *response // why it failed
	once   bool      // the ranks of the job meet
}

// request is what a client asks; exactly one answer with the same number follows, in any order.
type request struct {
	ID      uint64        `json:"id"`
	Op      string        `json:"op"` // set, get, add, delete, exchange, bye
	Key     string        `json:"key"`
	Value   []byte        `json:"value,omitempty"`
	Delta   int64         `json:"delta,omitempty"`
	Rank    int           `json:"rank,omitempty"`
	N       int           `json:"n,omitempty"`
	Once    bool          `json:"once,omitempty"` // the exchange comes once: who is late learns that it is over
	Timeout time.Duration `json:"timeout,omitempty"`

	members []int // job ranks of those who meet in the exchange; nil: all
}

type response struct {
	ID     uint64   `json:"id"`
	Value  []byte   `json:"value,omitempty"`
	Values [][]byte `json:"values,omitempty"`
	Count  int64    `json:"count,omitempty"`
	Error  string   `json:"error,omitempty"`
	// the exchange failed for want of these, by their numbers in it, or since these ranks of the job went away: Error
	// is what follows their names
	Missing []int `json:"missing,omitempty"`
	Lost    []int `json:"lost,omitempty"`
	Over    bool  `json:"over,omitempty"` // the exchange comes once, and has been
}

// Serve starts a store on address (HOST:PORT, port 0 for a free one) for those who know the token.
func Serve(address string, token []byte, security TLS) (*Server, error) {
	err := loopback.Down(address)
	var l net.Listener
	if err == nil {
		l, err = net.Listen("tcp", address)
	}
	if err != nil {
		return nil, fmt.Errorf("rendezvous: the store cannot listen: %w", err)
	}
	return ServeOn(l, token, security)
}

// ServeOn is Serve on a TCP socket that listens already, as a launcher hands it to rank 0. It takes the socket over,
// also on error.
func ServeOn(l net.Listener, token []byte, security TLS) (*Server, error) {
	key, err := security.key(token)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s := newServer()
	s.mu.Lock() // clients may come at once
	defer s.mu.Unlock()
	s.listener = wire.ListenOn(l, key, s.serve, s.tellOfRefusal)
	return s, nil
}

func newServer() *Server {
	return &Server{
		values: map[string][]byte{}, counters: map[string]int64{}, exchanges: map[string]*exchange{},
		met:      map[string]bool{},
		patience: wrongTokenPatience, redial: wire.Patience,
		conns: map[net.Conn]wire.Hello{}, changed: make(chan struct{}),
	}
}

// Addr returns the host and port that the store listens on.
func (s *Server) Addr() *net.TCPAddr { return s.listener.Addr() }

// Refused returns the number of connections that did not know the token.
func (s *Server) Refused() int { return s.listener.Refused() }

// wrongToken and wrongTLS are the keys of the first process that was refused since its token or its LOCKSTEP_TLS is
// another one. Who waits for the others to come reads them and warns.
const (
	wrongToken = "wrong-token"
	wrongTLS   = "wrong-tls"
)

// tellOfRefusal tells those who read wrongToken and wrongTLS. If the rank that a process with another token claims to
// be does not come soon, the meeting of the ranks ends.
func (s *Server) tellOfRefusal(from net.Addr, claimed wire.Hello, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	key, who := wrongTLS, from.String()
	if errors.Is(why, wire.ErrToken) {
		key, who = wrongToken, fmt.Sprintf("%v, which calls itself rank %d", from, claimed.Rank)
	}
	if s.values[key] == nil {
		s.values[key] = []byte(who)
		s.notify()
	}
	if key == wrongToken && len(s.verdicts) < maxVerdicts {
		s.verdicts = append(s.verdicts, time.AfterFunc(s.patience, func() { s.giveUp(claimed.Rank, who) }))
	}
}

// maxVerdicts bounds what strangers can make a store keep.
const maxVerdicts = 1024

// giveUp ends the meeting of the ranks if it still waits for a rank that came with another token.
func (s *Server) giveUp(rank int, who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, x := range s.exchanges {
		if _, came := x.values[rank]; x.once && !came && rank >= 0 && rank < x.n {
			s.fail(key, response{Missing: []int{rank}, Error: fmt.Sprintf("did not come, and a process at %s, was "+
				"refused since its job token is another one: give all hosts the same token", who)})
		}
	}
}

// Close ends the store; requests that wait fail.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, timer := range s.verdicts {
		timer.Stop()
	}
	for key := range s.exchanges {
		s.fail(key, response{Error: "the store was closed"})
	}
	s.notify()
	// Those who wait have their answer now; let it leave before the connections end, so that they hear why.
	for begun := time.Now(); s.busy > 0 && time.Since(begun) < lastAnswers; {
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
		s.mu.Lock()
	}
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	return s.listener.Close()
}

func (s *Server) count(requests int) {
	s.mu.Lock()
	s.busy += requests
	s.mu.Unlock()
}

// notify wakes those who wait for a value. The lock is held.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// serve answers one client until it leaves. One that leaves without a word has died, and whoever waits to meet it is
// told.
func (s *Server) serve(c net.Conn, h wire.Hello) {
	defer c.Close()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.conns[c] = h
	s.mu.Unlock()
	asked, polite := s.answer(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	switch {
	case polite || s.closed:
	case asked || len(s.verdicts) >= maxVerdicts:
		s.lose(c, h)
	default:
		// The other side of a handshake that was too slow for it gives up and dials again.
		s.verdicts = append(s.verdicts, time.AfterFunc(s.redial, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if !s.closed && !slices.Contains(slices.Collect(maps.Values(s.conns)), h) {
				s.lose(c, h)
			}
		}))
	}
}

// lose ends all meetings, since a rank has died. The lock is held.
func (s *Server) lose(c net.Conn, h wire.Hello) {
	for key := range s.exchanges {
		s.fail(key, response{Lost: []int{h.Rank}, Error: fmt.Sprintf("(%v) went away", c.RemoteAddr())})
	}
}

// answer handles the requests of one client, each on its own goroutine, for many of them wait. It returns when the
// client is gone and all have ended, and says whether it has asked for anything.
func (s *Server) answer(c net.Conn) (asked, polite bool) {
	var running sync.WaitGroup
	var writing sync.Mutex
	gone := make(chan struct{})
	defer running.Wait()
	defer close(gone)
	places := make(chan struct{}, requestsAtOnce)
	for {
		var r request
		if err := wire.Read(c, &r, wire.MaxFrame); err != nil {
			return asked, false
		}
		if r.Op == "bye" {
			return asked, true
		}
		asked = true
		places <- struct{}{}
		s.count(1)
		running.Go(func() {
			defer func() { <-places }()
			defer s.count(-1)
			a := s.handle(r, gone)
			a.ID = r.ID
			writing.Lock()
			defer writing.Unlock()
			_ = c.SetWriteDeadline(time.Now().Add(wire.Patience))
			if err := wire.Write(c, a, wire.MaxFrame); err != nil {
				_ = c.Close() // ends the reading
			}
		})
	}
}

func (s *Server) handle(r request, gone <-chan struct{}) response {
	switch r.Op {
	case "get":
		return s.get(r, gone)
	case "exchange":
		return s.exchange(r, gone)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Op {
	case "set":
		s.values[r.Key] = r.Value
		s.notify()
	case "delete":
		delete(s.values, r.Key)
		delete(s.counters, r.Key)
	case "add":
		s.counters[r.Key] += r.Delta
	default:
		return response{Error: fmt.Sprintf("unknown operation %q", r.Op)}
	}
	return response{Count: s.counters[r.Key]}
}

// get waits for a value.
func (s *Server) get(r request, gone <-chan struct{}) response {
	timer := time.NewTimer(r.Timeout)
	defer timer.Stop()
	for {
		s.mu.Lock()
		value, ok := s.values[r.Key]
		changed, closed := s.changed, s.closed
		s.mu.Unlock()
		switch {
		case ok:
			return response{Value: value}
		case closed:
			return response{Error: "the store was closed"}
		}
		select {
		case <-changed:
		case <-gone:
			return response{Error: "gone"}
		case <-timer.C:
			return response{Error: fmt.Sprintf("no value for %q within %v", r.Key, r.Timeout)}
		}
	}
}

// exchange waits until n ranks have brought their values, and returns them all.
func (s *Server) exchange(r request, gone <-chan struct{}) response {
	x, fault := s.bring(r)
	if fault != nil {
		return *fault
	}
	timer := time.NewTimer(r.Timeout)
	defer timer.Stop()
	select {
	case <-x.done:
	case <-gone:
	case <-timer.C:
		s.mu.Lock()
		if s.exchanges[r.Key] == x {
			s.fail(r.Key, response{Missing: x.missing(), Error: fmt.Sprintf("did not come within %v%s",
				r.Timeout.Round(100*time.Millisecond), s.refusals())})
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.fault != nil {
		return *x.fault
	}
	all := make([][]byte, x.n)
	for rank, v := range x.values {
		all[rank] = v
	}
	return response{Values: all}
}

// refusals says whether there were strangers: a rank with a wrong token is one of them. The lock is held.
func (s *Server) refusals() string {
	n, from := s.listener.Refused(), ""
	if first := s.values[wrongToken]; first != nil {
		from = ", the first from " + string(first)
	} else if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (refused: %s that did not know the job token%s)", quantity.Of(n, "connection"), from)
}

// bring adds one rank's value to an exchange, and completes it with the last one.
func (s *Server) bring(r request) (*exchange, *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Once && s.met[r.Key] {
		return nil, &response{Error: errOver.Error(), Over: true}
	}
	if r.N < 1 || r.N > maxRanks {
		return nil, &response{Error: fmt.Sprintf("an exchange of %d ranks: want 1..%d", r.N, maxRanks)}
	}
	x := s.exchanges[r.Key]
	if x == nil {
		x = &exchange{n: r.N, values: map[int][]byte{}, done: make(chan struct{}), once: r.Once}
		s.exchanges[r.Key] = x
	}
	var fault string
	switch _, twice := x.values[r.Rank]; {
	case s.closed:
		fault = "the store was closed"
	case r.N != x.n:
		fault = fmt.Sprintf("rank %d believes in %d ranks, another one in %d", r.Rank, r.N, x.n)
	case r.Rank < 0 || r.Rank >= x.n:
		fault = fmt.Sprintf("rank %d of %d: want one in [0, %d)", r.Rank, x.n, x.n)
	case twice:
		fault = fmt.Sprintf("two processes came as rank %d", r.Rank)
	}
	if fault != "" {
		s.fail(r.Key, response{Error: fault})
		return nil, &response{Error: fault}
	}
	x.values[r.Rank] = r.Value
	if len(x.values) == x.n {
		s.met[r.Key] = r.Once
		close(x.done)
		delete(s.exchanges, r.Key)
	}
	return x, nil
}

// fail ends an exchange for all who wait in it. The lock is held.
func (s *Server) fail(key string, why response) {
	x := s.exchanges[key]
	x.fault = &why
	close(x.done)
	delete(s.exchanges, key)
}

// missing names the ranks that an exchange waits for, "" if there is none. A process that is not the server does not
// know.
func (s *Server) missing(key string) string {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.exchanges[key]; x != nil {
		return comm.RankList(x.missing())
	}
	return ""
}

// missing lists the ranks that have not come.
func (x *exchange) missing() (ranks []int) {
	for r := range x.n {
		if _, ok := x.values[r]; !ok {
			ranks = append(ranks, r)
		}
	}
	return ranks
}
