// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/internal/wire"
)

// Place is what rank 0 tells the other ranks before they can connect to it.
type Place struct {
	// Address is the HOST:PORT of rank 0's store.
	Address string `json:"address"`
	// Token is the job's token; empty if the ranks have it from elsewhere.
	Token []byte `json:"token,omitempty"`
	// Launch is a random text that is the same for all attempts of one launch; "" if the meeting cannot tell.
	Launch string `json:"launch,omitempty"`
	// Restarted says that an earlier attempt of this launch has come as far as this.
	Restarted bool `json:"restarted,omitempty"`
}

// Meeting is how rank 0 tells the other ranks where its store is and what the token is, if a launcher does not tell all
// of them. Whoever can read what is announced can join the job.
//
// A place outlives its rank 0 if that is killed before it withdraws it. Looking may therefore return the place of an
// earlier attempt, where nobody listens any more: the ranks look again until somebody does.
type Meeting interface {
	// Announce is called on rank 0 once it listens. It fills in Launch and Restarted where it can.
	Announce(ctx context.Context, p *Place) error
	// Look returns the place announced last. It waits for the first one.
	Look(ctx context.Context) (Place, error)
	// Withdraw removes what Announce has told, when all ranks have met or rank 0 gives up.
	Withdraw(ctx context.Context) error
	// String says where places are announced, for errors.
	String() string
}

// lookAgain is the longest pause between two attempts to reach the place that was announced.
const lookAgain = 500 * time.Millisecond

// maxPlace is the size of a place as JSON, at most.
const maxPlace = 4 << 10

// encode returns the place as JSON.
func (p *Place) encode() []byte {
	text, _ := json.Marshal(p) // strings cannot fail
	return text
}

// decodePlace reads what somebody announced.
func decodePlace(text []byte) (Place, error) {
	var p Place
	if len(text) > maxPlace {
		return p, fmt.Errorf("rendezvous: an address of %d bytes: want at most %d", len(text), maxPlace)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("rendezvous: no place: %w", err)
	}
	return p, nil
}

// openMeeting is openStore for a job with a meeting.
func (j *Job) openMeeting(ctx context.Context) error {
	if j.Rank == 0 {
		if err := j.announce(ctx); err != nil {
			return err
		}
		var err error
		j.Store, err = dial(ctx, j.Server.Addr().String(), j.key, j.Rank)
		return err
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, lookAgain) {
		j.want(func() string { return "rank 0 to say where it listens, by " + j.Meeting.String() })
		p, err := j.Meeting.Look(ctx)
		if err != nil {
			return absent(fmt.Errorf("rendezvous: rank %d looks for rank 0 by %s: %w", j.Rank, j.Meeting, err), 0)
		}
		if err = j.visit(ctx, p); err == nil {
			return nil
		}
		if errors.Is(err, errNoToken) || errors.Is(err, wire.ErrTLS) || errors.Is(err, wire.ErrToken) &&
			len(j.given) > 0 {
			return fmt.Errorf("rendezvous: rank %d: the store at %s belongs to another job: %w", j.Rank, p.Address, err)
		}
		if sleep(ctx, pause) != nil {
			return absent(fmt.Errorf("rendezvous: rank %d cannot reach rank 0 at %s, as %s says: %w (last attempt: %w)",
				j.Rank, p.Address, j.Meeting, context.Cause(ctx), err), 0)
		}
	}
}

// announce serves the store where there is room and tells the others.
func (j *Job) announce(ctx context.Context) error {
	if len(j.given) == 0 {
		j.Token = NewToken()
		j.Place.Token = j.Token
	}
	if err := j.serve(); err != nil {
		return err
	}
	j.Place.Address = j.Server.Addr().String()
	if err := j.Meeting.Announce(ctx, &j.Place); err != nil {
		return fmt.Errorf("rendezvous: rank 0 cannot publish its address by %s: %w", j.Meeting, err)
	}
	j.announced = true
	return nil
}

// errNoToken is the error of a rank that was given no token, while rank 0 was.
var errNoToken = fmt.Errorf("rank 0 was given a job token in %s or %s, and this rank was not: set it for all ranks, "+
	"or for none",
	env.VarJobToken, env.VarJobTokenFile)

// visit tries to reach rank 0 where a place says it is.
func (j *Job) visit(ctx context.Context, p Place) error {
	token := j.given
	if len(token) == 0 {
		if token = p.Token; len(token) == 0 {
			return errNoToken
		}
	}
	j.want(func() string { return "the store at " + p.Address })
	key, err := j.TLS.key(token)
	if err != nil {
		return err
	}
	s, err := dialOnce(ctx, p.Address, key, j.Rank)
	if err != nil {
		return err
	}
	if j.listener != nil && !bytes.Equal(token, j.Token) { // it was opened for an earlier attempt
		_ = j.listener.Close()
		j.listener = nil
	}
	listenFor(s.conn, j.Silence)
	j.Store, j.Token, j.key, j.Place = s, token, key, p
	return nil
}

// withdraw takes back what this process has announced. What cannot be taken back leads nowhere.
func (j *Job) withdraw(ctx context.Context) {
	if !j.announced {
		return
	}
	j.announced = false
	ctx, cancel := context.WithTimeout(ctx, wire.Patience)
	defer cancel()
	_ = j.Meeting.Withdraw(ctx)
}
