// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/comm/internal/wire"
	"github.com/lockstep-ml/lockstep/internal/loopback"
)

// What may be said to a rank that comes to the store of a job which it does not belong to: one before its restart.
var (
	errOver = errors.New("the ranks have already met")
	errGone = errors.New("the store is gone")
)

// Store is a connection to a [Server]. Its methods may be called from several goroutines.
type Store struct {
	conn    net.Conn
	writing sync.Mutex
	reader  sync.WaitGroup

	mu      sync.Mutex
	next    uint64
	pending map[uint64]chan response
	gone    error // why there is no store any more
}

// Dial connects to the store at address and proves knowledge of the token. It tries again while nobody listens or the
// name is unknown, for processes start in any order and name services lag, until ctx ends. A wrong token is an error at
// once, and so is a store that needs TLS where this process does not, or the other way round.
func Dial(ctx context.Context, address string, token []byte, rank int, security TLS) (*Store, error) {
	key, err := security.key(token)
	if err != nil {
		return nil, err
	}
	return dial(ctx, address, key, rank)
}

func dial(ctx context.Context, address string, key *wire.Key, rank int) (*Store, error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		s, err := dialOnce(ctx, address, key, rank)
		if err == nil {
			return s, nil
		}
		if errors.Is(err, wire.ErrToken) {
			return nil, fmt.Errorf("rendezvous: rank %d: the store at %s belongs to another job: %w", rank, address,
				err)
		}
		if Refused(err) {
			return nil, fmt.Errorf("rendezvous: rank %d: the store at %s: %w", rank, address, err)
		}
		if down := loopback.Down(address); down != nil {
			return nil, fmt.Errorf("rendezvous: rank %d cannot reach the store at %s: %w: %w", rank, address, err, down)
		}
		if sleep(ctx, pause) != nil {
			return nil, fmt.Errorf("rendezvous: rank %d cannot reach the store at %s: %w (last attempt: %w)", rank,
				address, context.Cause(ctx), err)
		}
	}
}

func dialOnce(ctx context.Context, address string, key *wire.Key, rank int) (*Store, error) {
	c, err := key.Dial(ctx, address, wire.Hello{Kind: "store", Rank: rank})
	if err != nil {
		return nil, err
	}
	return newStore(c), nil
}

// Set gives key a value.
func (s *Store) Set(ctx context.Context, key string, value []byte) error {
	_, err := s.do(ctx, request{Op: "set", Key: key, Value: value})
	return err
}

// Get waits until key has a value, and returns it.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	r, err := s.do(ctx, request{Op: "get", Key: key})
	return r.Value, err
}

// Add adds delta to the counter of that name, which begins at 0, and returns the sum.
func (s *Store) Add(ctx context.Context, key string, delta int64) (int64, error) {
	r, err := s.do(ctx, request{Op: "add", Key: key, Delta: delta})
	return r.Count, err
}

// Delete removes a value and a counter.
func (s *Store) Delete(ctx context.Context, key string) error {
	_, err := s.do(ctx, request{Op: "delete", Key: key})
	return err
}

// Exchange waits until n ranks have called it with this key, and returns the values of all in rank order. It fails for
// all of them if one dies or does not come before ctx ends.
func (s *Store) Exchange(ctx context.Context, key string, rank, n int, value []byte) ([][]byte, error) {
	return s.exchange(ctx, request{Key: key, Rank: rank, N: n, Value: value})
}

func (s *Store) exchange(ctx context.Context, ask request) ([][]byte, error) {
	ask.Op = "exchange"
	r, err := s.do(ctx, ask)
	if err == nil && len(r.Values) != ask.N {
		return nil, fmt.Errorf("rendezvous: exchange %s: %d values: want %d", ask.Key, len(r.Values), ask.N)
	}
	return r.Values, err
}

// Close says good-bye; requests that wait fail.
func (s *Store) Close() error {
	_ = s.send(request{Op: "bye"}) // a store that is gone needs no good-bye
	err := s.conn.Close()
	s.reader.Wait()
	return err
}

func newStore(c net.Conn) *Store {
	s := &Store{conn: c, pending: map[uint64]chan response{}}
	s.reader.Go(s.read)
	return s
}

// read hands answers to those who wait for them.
func (s *Store) read() {
	for {
		var a response
		err := wire.Read(s.conn, &a, wire.MaxFrame)
		s.mu.Lock()
		if err != nil {
			s.gone = fmt.Errorf("%w: %w", errGone, err)
			for id, c := range s.pending {
				close(c)
				delete(s.pending, id)
			}
			s.mu.Unlock()
			return
		}
		if c := s.pending[a.ID]; c != nil {
			c <- a
			delete(s.pending, a.ID)
		}
		s.mu.Unlock()
	}
}

func (s *Store) send(r request) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(wire.Patience))
	return wire.Write(s.conn, r, wire.MaxFrame)
}

// begin registers a request.
func (s *Store) begin() (uint64, chan response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return 0, nil, s.gone
	}
	s.next++
	c := make(chan response, 1)
	s.pending[s.next] = c
	return s.next, c, nil
}

func (s *Store) forget(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, id)
}

// defaultWait is how long a request without a deadline waits.
const defaultWait = 5 * time.Minute

func (s *Store) do(ctx context.Context, r request) (response, error) {
	a, err := s.roundTrip(ctx, r)
	switch {
	case err == nil && a.Over:
		err = errOver
	case err == nil && len(a.Missing) > 0:
		err = missing(a.Missing, r.members, a.Error)
	case err == nil && len(a.Lost) > 0:
		err = missing(a.Lost, nil, a.Error)
	case err == nil && a.Error != "":
		err = errors.New(a.Error)
	}
	if err != nil {
		return a, fmt.Errorf("rendezvous: %s %s: %w", r.Op, r.Key, err)
	}
	return a, nil
}

// roundTrip sends a request and waits for its answer. The store keeps the deadline itself, since it knows who is
// missing; it is given a little longer than that.
func (s *Store) roundTrip(ctx context.Context, r request) (response, error) {
	r.Timeout = defaultWait
	if deadline, ok := ctx.Deadline(); ok {
		r.Timeout = max(time.Until(deadline), 0)
	}
	id, answer, err := s.begin()
	if err != nil {
		return response{}, err
	}
	defer s.forget(id)
	r.ID = id
	if err := s.send(r); err != nil {
		return response{}, fmt.Errorf("%w: %w", errGone, err)
	}
	canceled := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			close(canceled)
		}
	})()
	timer := time.NewTimer(r.Timeout + wire.Patience)
	defer timer.Stop()
	select {
	case a, ok := <-answer:
		if !ok {
			s.mu.Lock()
			defer s.mu.Unlock()
			return response{}, s.gone
		}
		return a, nil
	case <-canceled:
		return response{}, context.Cause(ctx)
	case <-timer.C:
		return response{}, fmt.Errorf("no answer within %v", r.Timeout)
	}
}
