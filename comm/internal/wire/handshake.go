// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Patience is how long one side of a handshake waits for the other, all in all.
const Patience = 5 * time.Second

// ErrToken is returned by both sides if they do not have the same job token, or if somebody between them speaks to
// both.
var ErrToken = errors.New("the job tokens differ")

// ErrTLS is returned by both sides if one of them requires an encrypted connection and the other one a plain one.
var ErrTLS = errors.New("one side requires TLS and the other one does not: set LOCKSTEP_TLS to the same value for " +
	"all ranks")

const protocol = "lockstep/2"

// Hello is what the dialling side says about itself. It is covered by the proof.
type Hello struct {
	Kind string `json:"kind"` // what the connection is for
	Rank int    `json:"rank"` // who dials
}

// greeting is the dialling side's first message.
type greeting struct {
	Protocol string `json:"protocol"`
	Hello    Hello  `json:"hello"`
	Nonce    []byte `json:"nonce"`
}

// claim is the dialling side's second message: its proof.
type claim struct {
	Proof []byte `json:"proof"`
}

// reply is what the listening side says: first a nonce, which depends on nothing, and then, to those alone that have
// proved that they know the token, its own proof.
type reply struct {
	Nonce []byte `json:"nonce,omitempty"`
	Proof []byte `json:"proof,omitempty"`
	Error string `json:"error,omitempty"`
}

// The errors that a reply may name.
const (
	saysToken = "token"
	saysTLS   = "tls"
)

// nonceBytes is the length of a nonce.
const nonceBytes = 16

// conversation is what the proofs cover.
type conversation struct {
	hello          Hello
	dialer, listen []byte // nonces
	binding        []byte // what tells the encrypted connection from all others; nil if it is plain
}

// proof binds the secret, the side, both nonces, the hello and the keys of the connection.
func (k *Key) proof(side string, c conversation) []byte {
	mac := hmac.New(sha256.New, k.secret)
	fmt.Fprintf(mac, "%s|%s|%d:%s|%d|%x|%x|%x", protocol, side, len(c.hello.Kind), c.hello.Kind, c.hello.Rank, c.dialer,
		c.listen, c.binding)
	return mac.Sum(nil)
}

func nonce() []byte {
	b := make([]byte, nonceBytes)
	_, _ = rand.Read(b) // never fails: crypto/rand ends the process instead
	return b
}

// Dial connects to the listener at an address and passes its handshake; it makes one attempt.
func (k *Key) Dial(ctx context.Context, address string, h Hello) (net.Conn, error) {
	dialer := net.Dialer{Timeout: Patience}
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	proven, err := k.Greet(c, h)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return proven, nil
}

// Greet is the dialling side's handshake. It returns the connection to use from now on, without a deadline; on error c
// is the caller's to close.
func (k *Key) Greet(c net.Conn, h Hello) (proven net.Conn, err error) {
	defer named(&err)
	if err := trusts(c); err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(Patience))
	said := conversation{hello: h, dialer: nonce()}
	if k.encrypts(c) {
		if c, said.binding, err = seal(tls.Client(c, k.dial)); err != nil {
			if remote := (*net.OpError)(nil); errors.As(err, &remote) && remote.Op == "remote error" &&
				remote.Err.Error() == alertPlain.Error() {
				return nil, ErrTLS
			}
			return nil, fmt.Errorf("TLS: %w", err)
		}
	}
	if err := Write(c, greeting{Protocol: protocol, Hello: h, Nonce: said.dialer}, MaxGreeting); err != nil {
		return nil, err
	}
	r, err := hear(c)
	if err != nil {
		return nil, err
	}
	if len(r.Nonce) != nonceBytes {
		return nil, fmt.Errorf("invalid answer: a nonce of %d bytes: want %d", len(r.Nonce), nonceBytes)
	}
	said.listen = r.Nonce
	if err := Write(c, claim{Proof: k.proof("dial", said)}, MaxGreeting); err != nil {
		return nil, err
	}
	if r, err = hear(c); err != nil {
		return nil, err
	}
	if !hmac.Equal(r.Proof, k.proof("listen", said)) {
		return nil, ErrToken
	}
	return c, c.SetDeadline(time.Time{})
}

// named says that an error is one of the handshake.
func named(err *error) {
	if *err != nil {
		*err = fmt.Errorf("handshake: %w", *err)
	}
}

// hear reads a reply.
func hear(c net.Conn) (r reply, err error) {
	if err := Read(c, &r, MaxGreeting); err != nil {
		return r, fmt.Errorf("invalid answer: %w", err)
	}
	switch r.Error {
	case "":
		return r, nil
	case saysToken:
		return r, ErrToken
	case saysTLS:
		return r, ErrTLS
	}
	return r, fmt.Errorf("refused: %.100q", r.Error)
}

// Receive is the listening side's handshake: it returns the connection to use from now on, and what the other side
// said, once that has proved that it knows the token. On error c is the caller's to close; with [ErrToken] comes what
// the other side claimed.
func (k *Key) Receive(c net.Conn) (proven net.Conn, h Hello, err error) {
	defer named(&err)
	_ = c.SetDeadline(time.Now().Add(Patience))
	var said conversation
	if k.encrypts(c) {
		plain := c
		if c, said.binding, err = seal(tls.Server(c, k.listen)); err != nil {
			// the length of a greeting
			if head := (tls.RecordHeaderError{}); errors.As(err, &head) && head.RecordHeader[0] == 0 {
				_ = Write(plain, reply{Error: saysTLS}, MaxGreeting)
				linger(plain)
				return nil, Hello{}, ErrTLS
			}
			return nil, Hello{}, fmt.Errorf("TLS: %w", err)
		}
	}
	var g greeting
	if err := Read(c, &g, MaxGreeting); err != nil {
		if long := (*lengthError)(nil); errors.As(err, &long) && long.length>>8 == clientHello>>8 {
			_, _ = c.Write([]byte{21, 3, 3, 0, 2, 2, byte(alertPlain)})
			linger(c)
			return nil, Hello{}, ErrTLS
		}
		return nil, Hello{}, err
	}
	if g.Protocol != protocol || len(g.Nonce) != nonceBytes {
		err := fmt.Errorf("protocol %.20q: want %q: do all ranks run the same version?", g.Protocol, protocol)
		_ = Write(c, reply{Error: err.Error()}, MaxGreeting)
		return nil, Hello{}, err
	}
	said.hello, said.dialer, said.listen = g.Hello, g.Nonce, nonce()
	if err := Write(c, reply{Nonce: said.listen}, MaxGreeting); err != nil {
		return nil, Hello{}, err
	}
	var p claim
	if err := Read(c, &p, MaxGreeting); err != nil {
		return nil, Hello{}, err
	}
	if !hmac.Equal(p.Proof, k.proof("dial", said)) {
		_ = Write(c, reply{Error: saysToken}, MaxGreeting)
		return nil, g.Hello, ErrToken
	}
	if err := Write(c, reply{Proof: k.proof("listen", said)}, MaxGreeting); err != nil {
		return nil, Hello{}, err
	}
	return c, g.Hello, c.SetDeadline(time.Time{})
}

// linger reads what is still to come: a connection that is closed before would be reset, and the other side might not
// hear why.
func linger(c net.Conn) {
	_ = c.SetReadDeadline(time.Now().Add(time.Second / 2))
	_, _ = io.CopyN(io.Discard, c, 1<<16)
}

// clientHello are the first bytes of a TLS connection, as the length of a frame; the last of them differs.
const clientHello = 0x16030100

// alertPlain is the alert (protocol_version) by which a listener without TLS answers who does.
const alertPlain tls.AlertError = 70
