// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/internal/wire"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// elsewhere is where a relay has the ranks connect instead of to rank 0.
const elsewhere = "127.0.0.1:9"

// relayTo hands on what a rank says to a store and back, and changes rank 0's address in the answers. With encrypted,
// it speaks TLS to both. It knows no token.
func relayTo(t *testing.T, store string, encrypted bool) (address string, rewritten *atomic.Bool) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	rewritten = &atomic.Bool{}
	certificate := someCertificate(t, "relay", nil)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", store)
			if err != nil {
				_ = a.Close()
				continue
			}
			if encrypted {
				a = tls.Server(a, &tls.Config{Certificates: []tls.Certificate{certificate}})
				b = tls.Client(b, &tls.Config{InsecureSkipVerify: true})
			}
			running.Go(func() { carry(a, b, nil) })
			running.Go(func() { carry(b, a, rewritten) })
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		running.Wait()
	})
	return l.Addr().String(), rewritten
}

// carry hands on frames; it changes the address of rank 0 if rewritten is not nil.
func carry(from, to net.Conn, rewritten *atomic.Bool) {
	defer from.Close()
	defer to.Close()
	for {
		var message map[string]any
		if wire.Read(from, &message, wire.MaxFrame) != nil {
			return
		}
		if values, ok := message["values"].([]any); ok && rewritten != nil && len(values) > 0 {
			var all [][]byte
			text, _ := json.Marshal(values)
			if json.Unmarshal(text, &all) == nil && bytes.Contains(all[0], []byte(`"address"`)) {
				var peer map[string]any
				_ = json.Unmarshal(all[0], &peer)
				peer["address"] = elsewhere
				all[0], _ = json.Marshal(peer)
				message["values"] = all
				rewritten.Store(true)
			}
		}
		if wire.Write(to, message, wire.MaxFrame) != nil {
			return
		}
	}
}

// someCertificate makes a certificate, signed by the parent's key or by its own.
func someCertificate(t *testing.T, name string, parent *tls.Certificate) tls.Certificate {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	form := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}, IsCA: parent == nil, BasicConstraintsValid: true,
	}
	by, key := form, any(private)
	if parent != nil {
		by, key = parent.Leaf, parent.PrivateKey
	}
	text, err := x509.CreateCertificate(rand.Reader, form, by, private.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(text)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{text}, PrivateKey: private, Leaf: leaf}
}

// A relay that does not know the token cannot change what the ranks tell each other: not by speaking TLS to both sides,
// since the proofs cover the connection's keys. Without TLS nobody notices.
func TestRelayCannotRewriteAnAddress(t *testing.T) {
	for _, mode := range []rendezvous.TLSMode{rendezvous.TLSAlways, rendezvous.TLSNone} {
		t.Run(string(mode), func(t *testing.T) {
			security := rendezvous.TLS{Mode: mode}
			server, err := rendezvous.Serve("127.0.0.1:0", commtest.Token, security)
			require.NoError(t, err)
			where, rewritten := relayTo(t, server.Addr().String(), mode == rendezvous.TLSAlways)
			list := configs(2, server.Addr().String(), commtest.Token)
			list[0].TLS, list[1].TLS, list[0].Server, list[1].Address = security, security, server, where
			list[0].Timeout, list[1].Timeout = 500*time.Millisecond, 500*time.Millisecond
			_, errs := join(list...)
			if mode == rendezvous.TLSNone {
				require.True(t, rewritten.Load())
				require.ErrorContains(t, errs[1], "rank 1 cannot reach rank 0", "it went where the relay sent it")
				require.ErrorContains(t, errs[1], elsewhere)
			} else {
				require.False(t, rewritten.Load())
				require.ErrorIs(t, errs[1], wire.ErrToken)
				require.ErrorContains(t, errs[0], "refused: 1 connection that did not know the job token")
			}
			require.NoError(t, server.Close())
		})
	}
}
