// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/lockstep-ml/lockstep/comm/env"
)

// The environment variables that [Config.ReadEnv] reads, beside those of [TLS].
const (
	EnvStore   = "LOCKSTEP_STORE"   // "external": the launcher serves the store, not rank 0
	EnvHost    = "LOCKSTEP_HOST_ID" // what tells hosts apart; processes with the same one try to share memory
	EnvListen  = "LOCKSTEP_LISTEN"  // local address for the connections of other ranks
	EnvSilence = "LOCKSTEP_SILENCE" // after how long a silent host is lost, such as 30s
)

// DefaultTimeout is how long ranks wait for each other to come, torchrun's join_timeout.
const DefaultTimeout = 10 * time.Minute

// DefaultSilence is how long another host may be silent, its kernel included, before its ranks are lost.
const DefaultSilence = 4 * time.Second

// The engines that are always there, by their names.
const (
	SharedMemory = "shm"
	TCP          = "tcp"
)

// Config says which job this process belongs to and which rank it is.
type Config struct {
	Rank     int
	World    int
	Address  string  // HOST:PORT of the store; with a Meeting, where rank 0 listens
	Token    []byte  // what all processes of the job know and nobody else; at least MinToken bytes
	Meeting  Meeting // how rank 0 tells the others where its store is; nil: all know it, it is at Address
	External bool    // the store is served by another process; otherwise rank 0 serves it
	// a store that this process serves already; rank 0 uses it instead of a new one and does not close it
	Server *Server
	// the process was started again after a failure, and may meet what is left of the job as it was before
	Restarted bool
	// IP address for connections from other ranks; "": loopback if the store is there, else the interface that leads to
	// the store
	Listen string
	HostID string // "": found out
	// Engine is what the ranks exchange over, which is the same for all: "" is shared memory on one host, and TCP on
	// several
	Engine  string
	Timeout time.Duration // for all ranks to come; 0 is DefaultTimeout
	Silence time.Duration // of another host, after which its ranks are lost; 0 is DefaultSilence
	TLS     TLS           // how connections are encrypted; the zero value encrypts those between hosts
}

// NewToken returns a random job token of 64 hexadecimal characters, 256 bits.
func NewToken() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails: crypto/rand ends the process instead
	return []byte(hex.EncodeToString(b))
}

// FromEnv is the configuration of a process that a launcher started: its place by [env.Detect], the job's token, and
// what ReadEnv reads. It takes the token out of the environment, as [LookupEnv] does.
func FromEnv() (Config, error) {
	e, err := env.Detect(LookupEnv)
	switch {
	case err != nil:
		return Config{}, fmt.Errorf("rendezvous: %w", err)
	case e.Kind == env.None:
		return Config{}, fmt.Errorf("rendezvous: no launcher's variables are set: want %s, %s, %s and %s", env.VarRank,
			env.VarWorldSize, env.VarMasterAddr, env.VarMasterPort)
	}
	token, err := e.JobToken()
	if err != nil {
		return Config{}, fmt.Errorf("rendezvous: %w", err)
	}
	c := Config{Rank: e.Rank, World: e.WorldSize, Token: []byte(token), Restarted: e.RestartCount > 0,
		Address: net.JoinHostPort(cmp.Or(e.MasterAddr, "127.0.0.1"), strconv.Itoa(e.MasterPort))}
	if err := c.ReadEnv(LookupEnv); err != nil {
		return c, err
	}
	return c, c.check()
}

// ReadEnv reads what users set for all processes of a job, whoever started them: [EnvStore], [EnvHost], [EnvListen],
// [EnvSilence] and the variables of [TLS].
func (c *Config) ReadEnv(lookup env.Lookup) (err error) {
	c.External, c.HostID, c.Listen = lookup.Get(EnvStore) == "external", lookup.Get(EnvHost), lookup.Get(EnvListen)
	if c.Silence, err = parseSilence(lookup.Get(EnvSilence)); err != nil {
		return err
	}
	c.TLS, err = readTLS(lookup)
	return err
}

// parseSilence is the duration that a value of EnvSilence means; "" is the default.
func parseSilence(text string) (time.Duration, error) {
	if text == "" {
		return DefaultSilence, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second {
		return 0, fmt.Errorf("rendezvous: %s=%q: want a duration of at least a second, such as 30s", EnvSilence, text)
	}
	return d, nil
}

func (c *Config) check() error {
	switch {
	case c.World < 1 || c.Rank < 0 || c.Rank >= c.World:
		return fmt.Errorf("rendezvous: rank %d of %d: want a rank in [0, world size)", c.Rank, c.World)
	case len(c.Token) == 0 && c.Meeting == nil:
		return fmt.Errorf("rendezvous: no job token: set %s or %s to the same random text for all ranks",
			env.VarJobToken, env.VarJobTokenFile)
	}
	if len(c.Token) > 0 {
		if err := CheckToken(c.Token); err != nil {
			return fmt.Errorf("rendezvous: %s or %s: %w", env.VarJobToken, env.VarJobTokenFile, err)
		}
	}
	if _, _, err := net.SplitHostPort(c.Address); err != nil && c.Server == nil && (c.Meeting == nil || c.Rank == 0) {
		return fmt.Errorf("rendezvous: store address %q: want HOST:PORT: %w", c.Address, err)
	}
	return nil
}
