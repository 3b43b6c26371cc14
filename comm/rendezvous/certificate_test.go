// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// files writes a certificate, its key and its authority as files.
func files(t *testing.T, c, authority tls.Certificate) rendezvous.TLS {
	t.Helper()
	dir := t.TempDir()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	require.NoError(t, err)
	write := func(name, kind string, text []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: text}), 0o600))
		return path
	}
	return rendezvous.TLS{
		Mode: rendezvous.TLSAlways, CertFile: write("cert.pem", "CERTIFICATE", c.Certificate[0]),
		KeyFile: write("key.pem", "PRIVATE KEY", key), CAFile: write("ca.pem", "CERTIFICATE", authority.Certificate[0]),
	}
}

// Certificates from files are wanted on both sides, signed by the job's authority, beside the token.
func TestCertificatesFromFiles(t *testing.T) {
	authority, stranger := someCertificate(t, "authority", nil), someCertificate(t, "stranger", nil)
	ours := func() rendezvous.TLS { return files(t, someCertificate(t, "rank", &authority), authority) }
	list := configs(2, address(t), commtest.Token)
	list[0].TLS, list[1].TLS = ours(), ours()
	jobs, errs := join(list...)
	require.Equal(t, make([]error, 2), errs)
	closeAll(t, jobs)

	for name, security := range map[string]rendezvous.TLS{
		"another authority's": files(t, someCertificate(t, "rank", &stranger), authority),
		"none":                {Mode: rendezvous.TLSAlways},
	} {
		list := configs(2, address(t), commtest.Token)
		list[0].TLS, list[1].TLS = ours(), security
		list[0].Timeout, list[1].Timeout = 300*time.Millisecond, 300*time.Millisecond
		_, errs := join(list...)
		require.ErrorContains(t, errs[0], "rank 1 did not come", name)
		require.ErrorContains(t, errs[1], "rank 1 cannot reach the store", name)
	}
}

// Files that are not as they must be are an error before anything is connected.
func TestCertificateFilesAreChecked(t *testing.T) {
	authority := someCertificate(t, "authority", nil)
	fail := func(security rendezvous.TLS, want string) {
		t.Helper()
		_, err := rendezvous.Serve("127.0.0.1:0", commtest.Token, security)
		require.ErrorContains(t, err, want)
	}
	good := files(t, someCertificate(t, "rank", &authority), authority)
	some := good
	some.CAFile = ""
	fail(some, "want all three (LOCKSTEP_TLS_CERT, LOCKSTEP_TLS_KEY, LOCKSTEP_TLS_CA) or none")
	some = good
	some.Mode = rendezvous.TLSNone
	fail(some, "certificates are given, and LOCKSTEP_TLS is insecure-plaintext")
	some = good
	some.CAFile = good.KeyFile
	fail(some, "holds no certificate in PEM")
	if runtime.GOOS != "windows" {
		require.NoError(t, os.Chmod(good.KeyFile, 0o644))
		fail(good, "has mode -rw-r--r--, so that others can read the key: want 0600")
	}
	var c rendezvous.Config
	require.EqualError(t, c.ReadEnv(env.Map(map[string]string{rendezvous.EnvTLS: "off"})),
		`rendezvous: LOCKSTEP_TLS="off": want auto (between hosts), always or insecure-plaintext`)
}
