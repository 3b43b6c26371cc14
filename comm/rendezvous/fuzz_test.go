// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"encoding/json"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/wire"
)

// script is a connection at whose other end somebody has said all there is to hear.
type script struct {
	mu    sync.Mutex
	heard *bytes.Reader
}

func (s *script) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard.Read(b)
}
func (s *script) Write(b []byte) (int, error)      { return len(b), nil }
func (s *script) Close() error                     { return nil }
func (s *script) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (s *script) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

func heard(b []byte) *script { return &script{heard: bytes.NewReader(b)} }

// frames are messages as they come over a connection.
func frames(t testing.TB, messages ...any) []byte {
	var b bytes.Buffer
	for _, m := range messages {
		require.NoError(t, wire.Write(&b, m, wire.MaxFrame))
	}
	return b.Bytes()
}

// FuzzStoreRequests: no client, even one that has proved itself, makes the store panic or hang.
func FuzzStoreRequests(f *testing.F) {
	f.Add(frames(f, request{ID: 1, Op: "set", Key: "k", Value: []byte("v")}, request{ID: 2, Op: "get", Key: "k"},
		request{Op: "bye"}))
	f.Add(frames(f, request{ID: 1, Op: "exchange", Key: "k", Rank: 0, N: 1, Timeout: time.Second},
		request{ID: 2, Op: "add", Key: "k", Delta: -1}))
	f.Add(frames(f, request{ID: 1, Op: "exchange", Key: "k", Rank: 1, N: 1 << 40},
		request{ID: 2, Op: "exchange", Key: "k", Rank: 1, N: 1 << 40, Timeout: -1}))
	f.Add(frames(f, request{ID: 1, Op: "exchange", Key: "k", N: -1}, request{ID: 2, Op: "delete", Key: "k"},
		request{Op: "?"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newServer()
		s.listener = new(wire.Listener) // counts strangers
		c := heard(b)
		s.serve(c, wire.Hello{Kind: "store", Rank: 1})
		require.Empty(t, s.conns)
		require.Zero(t, s.busy)
	})
}

// FuzzStoreAnswers: no store makes a client panic, or keeps one that asks waiting when it has gone.
func FuzzStoreAnswers(f *testing.F) {
	f.Add(frames(f, response{ID: 1, Value: []byte("v"), Count: 3}))
	f.Add(frames(f, response{ID: 1, Values: [][]byte{nil, []byte("{}")}}, response{ID: 1}))
	f.Add(frames(f, response{ID: 1, Error: "no", Over: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newStore(heard(b))
		all, err := s.Exchange(t.Context(), "peers", 0, 2, nil)
		if err == nil {
			require.Len(t, all, 2)
		}
		_ = s.Close()
	})
}

// FuzzNotices: no rank makes another one panic by what it sends over a control connection, and its end is noticed.
func FuzzNotices(f *testing.F) {
	whole := notice{Kind: "abort", Group: "g",
		Error: comm.EncodeError(&comm.RankLostError{Group: "g", Rank: 1}, 1, 1)}
	f.Add(frames(f, whole, notice{Kind: "leave", Group: "g"}, notice{Kind: "bye"}))
	f.Add(frames(f, notice{Kind: "probe", Group: "g", ID: 1}, notice{Kind: "answer", ID: 1, Seq: 7},
		notice{Kind: "answer", ID: 1, Seq: 8}))
	f.Add(frames(f, notice{Kind: "abort", Group: "later", Error: []byte("{")}, notice{Kind: "leave", Group: "later"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		j := &Job{
			Config: Config{World: 2}, Peers: make([]Peer, 2), links: make([]*link, 2), lost: make([]departure, 2),
			gone: []chan struct{}{make(chan struct{}), make(chan struct{})}, groups: map[string]*Membership{},
			early: map[string][]early{}, probes: map[uint64]chan answer{},
		}
		j.probes[1] = make(chan answer, 1)
		quiet := Listener{Fail: func(err error) {
			_ = err.Error()
		}, Gone: func(int, *comm.RankLostError) {}, At: func() uint64 { return 3 }}
		j.Register("g", []int{0, 1}, quiet)
		l := &link{conn: heard(b)}
		j.links[1] = l
		j.read(1, l)
		<-j.gone[1]
		require.LessOrEqual(t, len(j.early), maxEarly)
		for group := range j.early {
			j.Register(group, []int{0, 1}, quiet)
		}
	})
}

// FuzzPlace: what somebody has announced is a place or an error, and one that is encoded again reads the same.
func FuzzPlace(f *testing.F) {
	f.Add([]byte(`{"address":"127.0.0.1:29500","token":"c2VjcmV0","launch":"x","restarted":true}`))
	f.Add([]byte(`{"address":7}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePlace(b)
		if err != nil {
			return
		}
		text := p.encode()
		again, err := decodePlace(text)
		if len(text) <= maxPlace {
			require.NoError(t, err)
			require.Equal(t, p.Address, again.Address)
			require.True(t, bytes.Equal(p.Token, again.Token))
		}
	})
}

// FuzzPeers: what the others say of themselves is taken or is an error.
func FuzzPeers(f *testing.F) {
	text, err := json.Marshal(Peer{Rank: 1, Host: "h", HostID: "i", PID: 7, Address: "127.0.0.1:1", Kernels: "generic"})
	require.NoError(f, err)
	f.Add(text, text)
	f.Add([]byte("{}"), []byte("null"))
	f.Add([]byte("[]"), []byte{})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		j := &Job{Config: Config{World: 2}}
		if err := j.introduce([][]byte{a, b}); err == nil {
			require.Len(t, j.Peers, 2)
			require.Equal(t, []int{0, 1}, []int{j.Peers[0].Rank, j.Peers[1].Rank})
			_ = j.OneHost()
		}
	})
}
