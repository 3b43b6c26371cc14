package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/models/gpt2"
)

// A small run prints its three figures and draws its last step.
func TestRun(t *testing.T) {
	b := bench{model: gpt2.DefaultConfig(), batch: 1, block: 8, ranks: 2, steps: 2, rounds: 1, bucketMB: 1, hook: "no", svg: filepath.Join(t.TempDir(), "step.svg")}
	b.model.NLayer, b.model.NEmbd, b.model.NHead, b.model.VocabSize = 2, 192, 2, 500
	var out bytes.Buffer
	require.NoError(t, b.run(&out))
	require.Regexp(t, `(?m)^one rank +\d+ tokens/s$`, out.String())
	require.Regexp(t, `(?m)^2 ranks that know nothing +\d+ tokens/s  [\d.]+ × one rank$`, out.String())
	require.Regexp(t, `(?m)^2 goroutine ranks +\d+ tokens/s  [\d.]+ × one rank  [\d.]+ of ranks that know nothing$`, out.String())
	require.Regexp(t, `(?m)^\d+ % of [\d.]+ ms of bucket exchange lie under the backward pass$`, out.String())
	svg, err := os.ReadFile(b.svg)
	require.NoError(t, err)
	requireXML(t, string(svg))
	for _, class := range []string{"forward", "backward", "wait", "bucket"} {
		require.GreaterOrEqual(t, strings.Count(string(svg), `class="`+class+`"`), 2, "on both ranks")
	}
}

func requireXML(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else {
			require.NoError(t, err)
		}
	}
}

func TestOverlap(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond) }
	span := func(rank int, name string, from, to int) accelerate.Span {
		return accelerate.Span{Rank: rank, Name: name, Detail: "bucket 0 (a & <b>)", Queued: at(from), Start: at(from), End: at(to)}
	}
	spans := []accelerate.Span{span(0, "forward", 0, 10), span(0, "backward", 10, 30), span(0, "bucket", 15, 20), span(0, "bucket", 25, 34), span(0, "wait", 30, 34), span(1, "bucket", 0, 34)}
	hidden, total := overlap(spans)
	require.Equal(t, 10*time.Millisecond, hidden)
	require.Equal(t, 14*time.Millisecond, total)
	requireXML(t, draw(spans))
	requireXML(t, draw(nil))
	require.Contains(t, draw(spans), "one training step on 2 ranks, 34.0 ms")
	require.Equal(t, 2.0, middle([]float64{3, 1, 2}))
}

// The recorder keeps a step per rank.
func TestRecorder(t *testing.T) {
	var r recorder
	for range 3 {
		for rank := range 2 {
			r.begin(rank)
			r.add(accelerate.Span{Rank: rank, Name: "wait"})
		}
	}
	require.Len(t, r.last, 2)
}
