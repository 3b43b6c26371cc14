// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-ml/lockstep/comm/internal/tcpstore"
)

// torchStore is a Meeting in the TCPStore of torchrun's agent.
//
// Keys do not hold TORCHELASTIC_RESTART_COUNT: each agent counts the failures of its own workers, so that after a
// restart ranks on different hosts may see different counts. A new rank 0 replaces the place of the last one instead;
// torchrun ends all workers of an attempt before it starts those of the next.
type torchStore struct {
	address, prefix string
}

// TorchStore returns a meeting in the TCPStore that torchrun serves at address (HOST:PORT; MASTER_ADDR and MASTER_PORT
// where TORCHELASTIC_USE_AGENT_STORE is True), for the job of the given run id. A TCPStore authenticates nobody: who
// can reach it can join the job, as with torchrun's own jobs.
func TorchStore(address, runID string) Meeting {
	if len(runID) > tcpstore.MaxKey/2 {
		runID = runID[:tcpstore.MaxKey/2]
	}
	return &torchStore{address: address, prefix: "/lockstep/" + runID + "/"}
}

// String implements Meeting.
func (t *torchStore) String() string { return "torchrun's store at " + t.address }

// storePatience is how long torchrun's store may refuse connections: it is there before the ranks are, but names of
// hosts may not be known everywhere yet.
const storePatience = time.Minute

// open connects to the store.
func (t *torchStore) open(ctx context.Context) (*tcpstore.Client, error) {
	began := time.Now()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		c, err := tcpstore.Dial(ctx, t.address)
		if err == nil || errors.Is(err, tcpstore.ErrProtocol) || time.Since(began) > storePatience ||
			sleep(ctx, pause) != nil {
			return c, err
		}
	}
}

// Announce implements Meeting.
func (t *torchStore) Announce(ctx context.Context, p *Place) (err error) {
	c, err := t.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	mine := NewToken() // a random text
	launch, err := c.CompareSet(ctx, t.prefix+"launch", nil, mine)
	if err != nil {
		return err
	}
	p.Launch, p.Restarted = string(launch), !bytes.Equal(launch, mine)
	text := p.encode()
	if err := c.Set(ctx, t.prefix+"rank0", text); err != nil {
		return err
	}
	now, err := c.Get(ctx, t.prefix+"rank0") // Set is not confirmed
	if err == nil && !bytes.Equal(now, text) {
		err = errors.New("another process announced itself as rank 0 of this job at the same time")
	}
	return err
}

// Look implements Meeting.
func (t *torchStore) Look(ctx context.Context) (p Place, err error) {
	c, err := t.open(ctx)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	text, err := c.Get(ctx, t.prefix+"rank0")
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("rank 0 did not announce itself: %w", err)
	}
	if err != nil {
		return p, err
	}
	return decodePlace(text)
}

// Withdraw implements Meeting.
func (t *torchStore) Withdraw(ctx context.Context) (err error) {
	c, err := tcpstore.Dial(ctx, t.address)
	if err != nil {
		return err
	}
	_, err = c.Delete(ctx, t.prefix+"rank0")
	return errors.Join(err, c.Close())
}
