// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"time"
)

// Patience is how long one side of a handshake waits for the other.
const Patience = 5 * time.Second

// ErrToken is returned by both sides if they do not have the same job token.
var ErrToken = errors.New("the job tokens differ")

const protocol = "lockstep/1"

// Hello is what the dialling side says about itself. It is covered by the proof.
type Hello struct {
	Kind string `json:"kind"` // what the connection is for
	Rank int    `json:"rank"` // who dials
}

type greeting struct {
	Protocol string `json:"protocol"`
	Hello    Hello  `json:"hello"`
	Nonce    []byte `json:"nonce"`
}

type answer struct {
	Nonce []byte `json:"nonce"`
	Proof []byte `json:"proof"`
}

type verdict struct {
	Proof []byte `json:"proof,omitempty"` // from the dialling side
	Error string `json:"error,omitempty"` // from the listening side
}

// proof binds the token, the side, both nonces and the hello.
func proof(token []byte, side string, client, server []byte, h Hello) []byte {
	mac := hmac.New(sha256.New, token)
	fmt.Fprintf(mac, "%s|%s|%d:%s|%d|%x|%x", protocol, side, len(h.Kind), h.Kind, h.Rank, client, server)
	return mac.Sum(nil)
}

func nonce() []byte {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails: crypto/rand ends the process instead
	return b
}

// Greet is the dialling side's handshake. The deadline of c is cleared at the end.
func Greet(c net.Conn, token []byte, h Hello) error {
	_ = c.SetDeadline(time.Now().Add(Patience))
	mine := nonce()
	if err := Write(c, greeting{Protocol: protocol, Hello: h, Nonce: mine}, MaxGreeting); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	var a answer
	if err := Read(c, &a, MaxGreeting); err != nil {
		return fmt.Errorf("handshake: invalid answer: %w", err)
	}
	if !hmac.Equal(a.Proof, proof(token, "listen", mine, a.Nonce, h)) {
		_ = Write(c, verdict{}, MaxGreeting) // so that the other side knows too
		return fmt.Errorf("handshake: %w", ErrToken)
	}
	if err := Write(c, verdict{Proof: proof(token, "dial", mine, a.Nonce, h)}, MaxGreeting); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	var v verdict
	if err := Read(c, &v, MaxGreeting); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	if v.Error != "" {
		return fmt.Errorf("handshake: refused: %s", v.Error)
	}
	return c.SetDeadline(time.Time{})
}

// Receive is the listening side's handshake: it returns what the other side said, once it has proved that it knows the token.
func Receive(c net.Conn, token []byte) (Hello, error) {
	_ = c.SetDeadline(time.Now().Add(Patience))
	var g greeting
	if err := Read(c, &g, MaxGreeting); err != nil {
		return Hello{}, fmt.Errorf("handshake: %w", err)
	}
	if g.Protocol != protocol || len(g.Nonce) != 16 {
		return Hello{}, fmt.Errorf("handshake: protocol %.20q, want %q", g.Protocol, protocol)
	}
	mine := nonce()
	if err := Write(c, answer{Nonce: mine, Proof: proof(token, "listen", g.Nonce, mine, g.Hello)}, MaxGreeting); err != nil {
		return Hello{}, fmt.Errorf("handshake: %w", err)
	}
	var v verdict
	if err := Read(c, &v, MaxGreeting); err != nil {
		return Hello{}, fmt.Errorf("handshake: %w", err)
	}
	if !hmac.Equal(v.Proof, proof(token, "dial", g.Nonce, mine, g.Hello)) {
		_ = Write(c, verdict{Error: ErrToken.Error()}, MaxGreeting)
		return Hello{}, fmt.Errorf("handshake: %w", ErrToken)
	}
	if err := Write(c, verdict{}, MaxGreeting); err != nil {
		return Hello{}, fmt.Errorf("handshake: %w", err)
	}
	return g.Hello, c.SetDeadline(time.Time{})
}
