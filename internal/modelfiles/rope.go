// SPDX-License-Identifier: Apache-2.0

package modelfiles

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/gguf"
)

// rope reads how positions rotate queries and keys, in transformers 4's spelling.
func rope(m *metadata, c settings) {
	c["rope_theta"] = m.floatOr("rope.freq_base", 10_000)
	kind, factor := m.text("rope.scaling.type"), m.floatOr("rope.scaling.factor", m.floatOr("rope.scale_linear", 0))
	original := m.numberOr("rope.scaling.original_context_length", 0)
	magnitude := m.floatOr("rope.scaling.attn_factor", 0)
	_, freqs := m.file.Tensor(ropeFreqs)
	_, long := m.file.Tensor(ropeLong)
	switch {
	case freqs:
		llama3(m, c)
	case long:
		longRoPE(m, c, original, magnitude)
	case kind == "yarn":
		yarn(m, c, factor, original)
		if magnitude != 0 && magnitude != 1 {
			m.fault("%s.rope.scaling.attn_factor is %g with yarn: want none", m.arch, magnitude)
		}
	case kind == "linear" || kind == "" && factor > 0:
		if factor != 1 {
			c["rope_scaling"] = settings{"rope_type": "linear", "factor": factor}
		}
	case kind == "" || kind == "none":
	default:
		m.fault("%s.rope.scaling.type is %.100q: want none, linear or yarn, or longrope with its factors", m.arch, kind)
	}
	if original > 0 && m.arch == "phi3" {
		c["original_max_position_embeddings"] = original
	}
}

func yarn(m *metadata, c settings, factor float64, original int) {
	s := settings{"rope_type": "yarn", "factor": factor}
	if original > 0 {
		s["original_max_position_embeddings"] = original
	}
	for _, beta := range []string{"beta_fast", "beta_slow"} {
		if x := m.floatOr("rope.scaling.yarn_"+beta, m.floatOr("rope.scaling."+beta, 0)); x > 0 {
			s[beta] = x
		}
	}
	m.only("rope.scaling.yarn_ext_factor", 1, "another mix of frequencies")
	m.only("rope.scaling.yarn_attn_factor", 1, "another magnitude")
	m.only("rope.scaling.yarn_log_multiplier", 0, "another magnitude")
	c["rope_scaling"] = s
}

// longRoPE reads the two lists of factors.
func longRoPE(m *metadata, c settings, original int, magnitude float64) {
	s := settings{"rope_type": "longrope"}
	for name, key := range map[string]string{ropeLong: "long_factor", ropeShort: "short_factor"} {
		list, err := factors(m.file, name)
		if err != nil {
			m.fault("%v", err)
		}
		s[key] = list
	}
	if magnitude > 0 {
		s["attention_factor"] = magnitude
	}
	if original == 0 {
		m.fault("%s has no %s.rope.scaling.original_context_length: want the length up to which %s counts", ropeLong,
			m.arch, ropeShort)
	}
	c["rope_scaling"] = s
}

// llama3 finds the settings of Llama 3.1's RoPE of which the converter made the factors of a file: the factor is the
// largest, and the other settings are those that all files have.
func llama3(m *metadata, c settings) {
	list, err := factors(m.file, ropeFreqs)
	if err != nil {
		m.fault("%v", err)
		return
	}
	const low, high, original = 1, 4, 8192
	factor, theta := slices.Max(list), c["rope_theta"].(float64)
	if factor == 1 && slices.Min(list) == 1 {
		return
	}
	for i, got := range list {
		turns := original * math.Pow(theta, -float64(i)/float64(len(list))) / (2 * math.Pi) // over original tokens
		smooth := min(max((turns-low)/(high-low), 0), 1)
		if want := 1 / ((1-smooth)/factor + smooth); math.Abs(got-want) > 1e-4*want {
			m.fault("%s has %g at %d: want %g, of RoPE as Llama 3.1 has it", ropeFreqs, got, i, want)
			return
		}
	}
	c["rope_scaling"] = settings{"rope_type": "llama3", "factor": factor, "low_freq_factor": low,
		"high_freq_factor": high, "original_max_position_embeddings": original}
}

// maxFactors bounds the numbers in a tensor of settings.
const maxFactors = 4096

// factors reads a tensor of settings.
func factors(f *gguf.File, name string) ([]float64, error) {
	t, ok := f.Tensor(name)
	if !ok || t.Type != gguf.F32 || t.Numel() > maxFactors {
		return nil, fmt.Errorf("%s: want a tensor of at most %d numbers of F32", name, maxFactors)
	}
	r, err := f.Elements(t)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, 4*t.Numel())
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, int64(len(raw))), raw); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	list := make([]float64, t.Numel())
	for i := range list {
		x, ok := gguf.Shortest(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])))
		if !ok || x <= 0 {
			return nil, fmt.Errorf("%s has %g at %d: want positive numbers", name, x, i)
		}
		list[i] = x
	}
	return list, nil
}
