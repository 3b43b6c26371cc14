// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// The environment variables that [FromEnv] reads, beside RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
const (
	EnvToken     = "LOCKSTEP_JOB_TOKEN"      // the token itself
	EnvTokenFile = "LOCKSTEP_JOB_TOKEN_FILE" // a file that holds it
	EnvStore     = "LOCKSTEP_STORE"          // "external": the launcher serves the store, not rank 0
	EnvHost      = "LOCKSTEP_HOST_ID"        // what tells hosts apart; processes with the same one try to share memory
	EnvListen    = "LOCKSTEP_LISTEN"         // local address for the connections of other ranks
	EnvSilence   = "LOCKSTEP_SILENCE"        // after how long a silent host is lost, such as 30s
)

// DefaultTimeout is how long ranks wait for each other to come, torchrun's join_timeout.
const DefaultTimeout = 10 * time.Minute

// DefaultSilence is how long another host may be silent, its kernel included, before its ranks are lost.
const DefaultSilence = 4 * time.Second

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
	Listen  string
	HostID  string        // "": found out
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

// FromEnv reads the configuration from the variables that launchers set. It takes the token out of the environment, as
// [LookupEnv] does.
func FromEnv() (Config, error) { return fromEnv(Getenv) }

func fromEnv(getenv func(string) string) (Config, error) {
	c := Config{External: getenv(EnvStore) == "external", HostID: getenv(EnvHost), Listen: getenv(EnvListen)}
	for _, v := range []struct {
		name string
		to   *int
	}{{"RANK", &c.Rank}, {"WORLD_SIZE", &c.World}} {
		n, err := strconv.Atoi(getenv(v.name))
		if err != nil {
			return c, fmt.Errorf("rendezvous: %s=%q: want a number: is this process started by a launcher?", v.name,
				getenv(v.name))
		}
		*v.to = n
	}
	host, port := getenv("MASTER_ADDR"), getenv("MASTER_PORT")
	if host == "" {
		host = "127.0.0.1"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return c, fmt.Errorf("rendezvous: MASTER_PORT=%q: want a port in [1, 65535]", port)
	}
	c.Address = net.JoinHostPort(host, port)
	var err error
	if c.Silence, err = ParseSilence(getenv(EnvSilence)); err != nil {
		return c, err
	}
	if c.TLS, err = TLSFromEnv(getenv); err != nil {
		return c, err
	}
	c.Token = []byte(getenv(EnvToken))
	if name := getenv(EnvTokenFile); name != "" {
		info, err := os.Stat(name)
		if err != nil {
			return c, fmt.Errorf("rendezvous: %s: %w", EnvTokenFile, err)
		}
		if Exposed(info.Mode()) {
			return c, fmt.Errorf("rendezvous: %s: %s has mode %v, so that others can read the secret: want 0600",
				EnvTokenFile, name, info.Mode().Perm())
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return c, fmt.Errorf("rendezvous: %s: %w", EnvTokenFile, err)
		}
		c.Token = []byte(strings.TrimSpace(string(text)))
	}
	return c, c.check()
}

// ParseSilence returns the duration that a value of [EnvSilence] means; "" is the default.
func ParseSilence(text string) (time.Duration, error) {
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
		return fmt.Errorf("rendezvous: no job token: set %s or %s to the same random text for all ranks", EnvToken,
			EnvTokenFile)
	}
	if len(c.Token) > 0 {
		if err := CheckToken(c.Token); err != nil {
			return fmt.Errorf("rendezvous: %s or %s: %w", EnvToken, EnvTokenFile, err)
		}
	}
	if _, _, err := net.SplitHostPort(c.Address); err != nil && c.Server == nil && (c.Meeting == nil || c.Rank == 0) {
		return fmt.Errorf("rendezvous: store address %q: want HOST:PORT: %w", c.Address, err)
	}
	return nil
}
