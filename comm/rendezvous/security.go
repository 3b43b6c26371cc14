// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/internal/wire"
)

// The environment variables that say how connections between hosts are protected; see [Config.ReadEnv].
const (
	EnvTLS     = "LOCKSTEP_TLS"      // a TLSMode
	EnvTLSCert = "LOCKSTEP_TLS_CERT" // a file with this process's certificate, PEM
	EnvTLSKey  = "LOCKSTEP_TLS_KEY"  // a file with the certificate's key, PEM, which only its owner can read
	EnvTLSCA   = "LOCKSTEP_TLS_CA"   // a file with the certificates of the job's authority, PEM
)

// TLSMode says which connections of a job are encrypted. All its processes have the same.
type TLSMode string

// The modes.
const (
	TLSBetweenHosts TLSMode = ""       // those that leave the host; "auto" is the same
	TLSAlways       TLSMode = "always" // those within a host, too
	// none: who can reach the network can read and change what the ranks say
	TLSNone TLSMode = "insecure-plaintext"
)

// TLS says how the connections of a job are encrypted. Both sides always prove that they know the job's token, and the
// proofs cover the keys of the connection. Certificates are wanted beside the token if the files are named: all three,
// on all processes.
type TLS struct {
	Mode     TLSMode
	CertFile string
	KeyFile  string
	CAFile   string
}

// readTLS reads the variables.
func readTLS(lookup env.Lookup) (TLS, error) {
	t := TLS{Mode: TLSMode(lookup.Get(EnvTLS)), CertFile: lookup.Get(EnvTLSCert), KeyFile: lookup.Get(EnvTLSKey),
		CAFile: lookup.Get(EnvTLSCA)}
	switch t.Mode {
	case "auto":
		t.Mode = TLSBetweenHosts
	case TLSBetweenHosts, TLSAlways, TLSNone:
	default:
		return t, fmt.Errorf("rendezvous: %s=%q: want auto (between hosts), %s or %s", EnvTLS, string(t.Mode),
			TLSAlways, TLSNone)
	}
	return t, nil
}

// key makes what connections of a job are opened and accepted with.
func (t TLS) key(token []byte) (*wire.Key, error) {
	if err := CheckToken(token); err != nil {
		return nil, fmt.Errorf("rendezvous: %w", err)
	}
	o := wire.Options{Always: t.Mode == TLSAlways, Plain: t.Mode == TLSNone}
	if err := t.certificates(&o); err != nil {
		return nil, fmt.Errorf("rendezvous: TLS: %w", err)
	}
	return wire.NewKey(token, o)
}

// certificates reads the files.
func (t TLS) certificates(o *wire.Options) error {
	if t.CertFile == "" && t.KeyFile == "" && t.CAFile == "" {
		return nil
	}
	if t.CertFile == "" || t.KeyFile == "" || t.CAFile == "" {
		return fmt.Errorf("certificate file %q, key file %q, authority's file %q: want all three (%s, %s, %s) or none",
			t.CertFile, t.KeyFile, t.CAFile, EnvTLSCert, EnvTLSKey, EnvTLSCA)
	}
	if t.Mode == TLSNone {
		return fmt.Errorf("certificates are given, and %s is %s", EnvTLS, TLSNone)
	}
	info, err := os.Stat(t.KeyFile)
	if err != nil {
		return err
	}
	if env.Exposed(info.Mode()) {
		return fmt.Errorf("%s has mode %v, so that others can read the key: want 0600", t.KeyFile, info.Mode().Perm())
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(t.CAFile)
	if err != nil {
		return err
	}
	o.Certificate, o.CAs = &pair, x509.NewCertPool()
	if !o.CAs.AppendCertsFromPEM(text) {
		return fmt.Errorf("%s holds no certificate in PEM", t.CAFile)
	}
	return nil
}

// MinToken is the least length of a job token in bytes; [NewToken] makes longer ones.
const MinToken = 24

// minTokenBits is the least that a token must differ from others, by a generous estimate. 24 random hexadecimal digits
// have 96 bits; their estimate is below 64 once in 4,000 tokens, and was above 55 in 400,000.
const minTokenBits = 48

// ErrWeakToken is the error for a token that could be guessed.
var ErrWeakToken = errors.New("the job token can be guessed")

// CheckToken returns an error for a token that is too short or too regular to be a secret. Others may still be guessed
// if people have thought of them; a guess costs a hundred thousand hashes.
func CheckToken(token []byte) error {
	const how = "make one with `openssl rand -hex 32`"
	if len(token) < MinToken {
		return fmt.Errorf("%w: it has %d bytes: want at least %d random ones: %s", ErrWeakToken, len(token), MinToken,
			how)
	}
	if bits := tokenBits(token); bits < minTokenBits {
		return fmt.Errorf("%w: it is so regular, or consists of so few common words, that it has "+
			"only %.0f bits of randomness: want at least %d: %s", ErrWeakToken, bits,
			minTokenBits, how)
	}
	return nil
}
