// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"sync"
	"time"
)

// Options say which connections are encrypted, beside the usual ones: those between hosts.
type Options struct {
	Always      bool             // within a host, too
	Plain       bool             // never
	Certificate *tls.Certificate // of this process, beside the token; nil: none
	CAs         *x509.CertPool   // who must have signed the other side's; set if Certificate is
}

// Key is what a process knows the others of its job by.
type Key struct {
	secret  []byte // from the token; what the proofs are made with
	options Options
	listen  *tls.Config
	dial    *tls.Config
}

// NewKey derives the key from the job's token. The same token gives the same key in all processes; what else TLS needs
// is made here and tells nothing of the token.
func NewKey(token []byte, o Options) (*Key, error) {
	k := &Key{options: o}
	var err error
	if k.secret, err = secret(string(token)); err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	if o.Plain {
		return k, nil
	}
	own, err := ownCertificate()
	if err != nil {
		return nil, fmt.Errorf("wire: certificate: %w", err)
	}
	k.listen = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, SessionTicketsDisabled: true,
		DynamicRecordSizingDisabled: true,
	}
	// The certificate proves nothing; the token's proof covers the connection's keys instead (see prove).
	k.dial = &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, DynamicRecordSizingDisabled: true}
	if o.Certificate != nil {
		for _, c := range []*tls.Config{k.listen, k.dial} {
			c.Certificates = []tls.Certificate{*o.Certificate}
			c.VerifyConnection = o.verify
		}
		k.listen.ClientAuth = tls.RequireAnyClientCert
	}
	return k, nil
}

// verify checks that the authority of the job has signed the other side's certificate. Names do not matter: that it is
// a process of this job follows from the token.
func (o *Options) verify(s tls.ConnectionState) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: o.CAs, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err
}

// stretching is how often a token that people may have thought of is hashed: what a guess costs.
const stretching = 100_000

// secrets are those of the last tokens, since stretching takes time.
var secrets struct {
	mu   sync.Mutex
	last map[[sha256.Size]byte][]byte
}

// secret derives from a token what the proofs are made with.
func secret(token string) ([]byte, error) {
	const label = "lockstep job token"
	if generated(token) {
		return hkdf.Key(sha256.New, []byte(token), nil, label, sha256.Size)
	}
	name := sha256.Sum256([]byte(token))
	secrets.mu.Lock()
	defer secrets.mu.Unlock()
	if s := secrets.last[name]; s != nil {
		return s, nil
	}
	s, err := pbkdf2.Key(sha256.New, token, []byte(label), stretching, sha256.Size)
	if err != nil {
		return nil, err
	}
	if secrets.last == nil || len(secrets.last) > 16 {
		secrets.last = map[[sha256.Size]byte][]byte{}
	}
	secrets.last[name] = s
	return s, nil
}

// generated reports whether a token has the form of those that programs make: at least 256 bits in hexadecimal digits.
func generated(token string) bool {
	return len(token) >= 64 && strings.Trim(token, "0123456789abcdef") == ""
}

// ownCertificate is a certificate of a key that nobody else has.
func ownCertificate() (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	form := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-24 * time.Hour),
		NotAfter: now.AddDate(10, 0, 0)}
	text, err := x509.CreateCertificate(rand.Reader, form, form, public, private)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{text}, PrivateKey: private}, nil
}

// encrypts reports whether a connection is encrypted. Both sides decide for themselves, by what their own kernel says,
// so that nobody between them can talk them out of it.
func (k *Key) encrypts(c net.Conn) bool {
	return !k.options.Plain && (k.options.Always || !WithinHost(c))
}

// WithinHost reports whether a connection does not leave this host: both ends are the loopback interface's, or have the
// same address.
func WithinHost(c net.Conn) bool {
	local, ok1 := c.LocalAddr().(*net.TCPAddr)
	remote, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return true // a pipe
	}
	return local.IP.IsLoopback() && remote.IP.IsLoopback() || local.IP.Equal(remote.IP) && local.Zone == remote.Zone
}

// sealed is an encrypted connection. Closing it says no good-bye, which might have to wait for the other side: who ends
// in good order has said so in a message.
type sealed struct {
	*tls.Conn
}

// Close implements net.Conn.
func (s sealed) Close() error { return s.NetConn().Close() }

// TCP returns the connection of the kernel below c; nil if there is none.
func TCP(c net.Conn) *net.TCPConn {
	if s, ok := c.(sealed); ok {
		c = s.NetConn()
	}
	t, _ := c.(*net.TCPConn)
	return t
}

// seal makes a connection encrypted, and returns what tells it from all others.
func seal(c *tls.Conn) (net.Conn, []byte, error) {
	if err := c.Handshake(); err != nil {
		return nil, nil, err
	}
	s := c.ConnectionState()
	binding, err := s.ExportKeyingMaterial("EXPORTER-lockstep-job", nil, sha256.Size)
	if err != nil {
		return nil, nil, err
	}
	return sealed{c}, binding, nil
}
