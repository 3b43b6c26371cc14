// SPDX-License-Identifier: Apache-2.0

package transformer

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
)

// RoPE is how positions rotate queries and keys: rope_parameters of transformers 5's config.json, which are
// rope_scaling and rope_theta in files of transformers 4. The formulas are those of its modeling_rope_utils.
type RoPE struct {
	Type    string  `json:"rope_type"`                       // default, linear, dynamic, yarn, longrope or llama3
	Theta   float64 `json:"rope_theta,omitempty"`            // base of the wavelengths
	Partial float64 `json:"partial_rotary_factor,omitempty"` // share of a head that is rotated; 0: all of it
	// Factor is how many times longer sequences may become; 0: max_position_embeddings/OriginalPositions.
	Factor float64 `json:"factor,omitempty"`
	// OriginalPositions is the length of the sequences before that.
	OriginalPositions int `json:"original_max_position_embeddings,omitempty"`
	// AttentionFactor scales cosines and sines (yarn, longrope); nil: what the papers say.
	AttentionFactor *float64  `json:"attention_factor,omitempty"`
	BetaFast        float64   `json:"beta_fast,omitempty"`      // yarn; 0: 32
	BetaSlow        float64   `json:"beta_slow,omitempty"`      // yarn; 0: 1
	MScale          float64   `json:"mscale,omitempty"`         // yarn
	MScaleAllDim    float64   `json:"mscale_all_dim,omitempty"` // yarn
	Truncate        *bool     `json:"truncate,omitempty"`       // yarn; nil: true
	ShortFactor     []float64 `json:"short_factor,omitempty"`   // longrope, up to OriginalPositions tokens
	LongFactor      []float64 `json:"long_factor,omitempty"`    // longrope, beyond
	LowFreqFactor   float64   `json:"low_freq_factor,omitempty"`
	HighFreqFactor  float64   `json:"high_freq_factor,omitempty"`
}

// The values of RoPE.Type.
const (
	ropeDefault  = "default"
	ropeLinear   = "linear"   // kaiokendev 2023, Chen et al. 2023
	ropeDynamic  = "dynamic"  // emozilla 2023
	ropeYaRN     = "yarn"     // Peng et al. 2023
	ropeLongRoPE = "longrope" // Ding et al. 2024
	ropeLlama3   = "llama3"   // Llama 3.1, 2024
)

// parse reads an object of rope_parameters or rope_scaling. What is null or missing keeps the values of r.
func (r *RoPE) parse(key string, text json.RawMessage) error {
	if len(text) == 0 || string(text) == "null" {
		return nil
	}
	old := struct {
		*RoPE
		Old string `json:"type"` // its name until transformers 4.42
	}{RoPE: r}
	r.Type = ""
	if err := (jsonfile.Options{KnownKeys: true, Nulls: true}).Unmarshal(text, &old); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	given := map[string]json.RawMessage{}
	if err := jsonfile.Unmarshal(text, &given); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	if err := refuseZeros(key+".", given); err != nil {
		return err
	}
	if r.Type == "" {
		r.Type = old.Old
	}
	if r.Type == "" {
		r.Type = ropeDefault
	}
	return nil
}

// readRoPE reads all spellings of RoPE, by transformers' precedence: rope_scaling before rope_parameters, and what
// these lack from the keys beside them.
func (c *Config) readRoPE(given map[string]json.RawMessage) error {
	c.RoPE = RoPE{Type: ropeDefault}
	if given["rope_local_base_freq"] != nil {
		return c.readTwoRoPEs(given)
	}
	key := "rope_scaling"
	if text := string(given[key]); text == "" || text == "null" || text == "{}" {
		key = "rope_parameters"
	}
	if err := c.RoPE.parse(key, given[key]); err != nil {
		return err
	}
	if err := fallBack(&c.RoPE.Partial, given, "partial_rotary_factor", 0); err != nil {
		return err
	}
	if c.OriginalPositions > 0 && (c.RoPE.Type == "su" || c.RoPE.Type == ropeYaRN) {
		c.RoPE.Type = ropeLongRoPE // their names in early files of Phi-3
	}
	if err := fallBack(&c.RoPE.Theta, given, "rope_theta", 10_000); err != nil {
		return err
	}
	c.completeRoPE(&c.RoPE)
	return nil
}

// readTwoRoPEs reads those of Gemma 3, by the kind of layer; its rope_scaling is of layers without a window.
func (c *Config) readTwoRoPEs(given map[string]json.RawMessage) error {
	c.LocalRoPE = &RoPE{Type: ropeDefault}
	kinds := struct {
		Full    json.RawMessage `json:"full_attention"`
		Sliding json.RawMessage `json:"sliding_attention"`
	}{}
	if text := given["rope_parameters"]; text != nil {
		if err := jsonfile.Strict(text, &kinds); err != nil {
			return fmt.Errorf("rope_parameters: %w: want %s and %s", err, FullAttention, SlidingAttention)
		}
	}
	for _, p := range []struct {
		r      *RoPE
		key    string
		text   json.RawMessage
		theta  string
		wanted float64
	}{
		{&c.RoPE, "rope_parameters", kinds.Full, "", 0},
		{&c.RoPE, "rope_scaling", given["rope_scaling"], "rope_theta", 1e6},
		{c.LocalRoPE, "rope_parameters", kinds.Sliding, "rope_local_base_freq", 10_000},
	} {
		if err := p.r.parse(p.key, p.text); err != nil {
			return err
		}
		if p.theta == "" {
			continue
		}
		if err := fallBack(&p.r.Theta, given, p.theta, p.wanted); err != nil {
			return err
		}
		c.completeRoPE(p.r)
	}
	return nil
}

// fallBack sets x, if it is 0, to the value of a key, or else to what it stands for.
func fallBack(x *float64, given map[string]json.RawMessage, key string, otherwise float64) error {
	if text := given[key]; *x == 0 && text != nil {
		if err := (jsonfile.Options{Nulls: true}).Unmarshal(text, x); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	if *x == 0 {
		*x = otherwise
	}
	return nil
}

// completeRoPE fills in OriginalPositions.
func (c *Config) completeRoPE(r *RoPE) {
	if r.Type != ropeLlama3 && r.Type != ropeYaRN && r.Type != ropeLongRoPE {
		return
	}
	if c.OriginalPositions > 0 {
		r.OriginalPositions = c.OriginalPositions
	}
	if r.OriginalPositions == 0 {
		r.OriginalPositions = c.MaxPositions
	}
}

// ropeFields are the fields of config.json, in the spellings of transformers 4 and 5.
func (c *Config) ropeFields() document {
	full := c.RoPE
	var scaling any
	if full.Type != ropeDefault {
		old := full
		old.Theta, old.Partial = 0, 0
		scaling = old
	}
	if c.LocalRoPE != nil {
		kinds := map[string]RoPE{FullAttention: full, SlidingAttention: *c.LocalRoPE}
		return document{{"rope_parameters", kinds}, {"rope_theta", c.RoPE.Theta},
			{"rope_local_base_freq", c.LocalRoPE.Theta}, {"rope_scaling", scaling}}
	}
	doc := document{{"rope_parameters", full}, {"rope_theta", c.RoPE.Theta}, {"rope_scaling", scaling}}
	if full.Partial != 0 {
		doc = append(doc, field{"partial_rotary_factor", full.Partial})
	}
	return doc
}

// dim is the number of elements of a head that are rotated.
func (r *RoPE) dim(c *Config) int {
	if r.Partial == 0 {
		return c.HeadDim
	}
	return int(float64(c.HeadDim) * r.Partial)
}

// check reports what no table can be made of. The other fields of c are valid.
func (r *RoPE) check(bad *models.Faults, c *Config) {
	dim := r.dim(c)
	bad.Want(dim >= 2 && dim%2 == 0 && dim <= c.HeadDim, "RoPE of %d of %d elements of a head: want an even number",
		dim, c.HeadDim)
	bad.Want(r.Theta > 0, "rope_theta = %g: want a positive number", r.Theta)
	positive := func(name string, v float64) {
		bad.Want(v > 0, "%s's %s = %g: want a positive number", r.Type, name, v)
	}
	switch r.Type {
	case ropeDefault:
	case ropeLinear:
		positive("factor", r.Factor)
	case ropeDynamic:
		bad.Want(r.Factor >= 1, "dynamic's factor = %g: want at least 1", r.Factor)
		bad.Want(dim > 2, "dynamic RoPE of %d elements: want more than 2", dim)
	case ropeYaRN:
		bad.Want(r.Factor >= 0 && r.BetaFast >= 0 && r.BetaSlow >= 0 && r.OriginalPositions > 0,
			"yarn's factor = %g, beta_fast = %g, beta_slow = %g, original_max_position_embeddings = %d: want none "+
				"negative", r.Factor, r.BetaFast, r.BetaSlow, r.OriginalPositions)
		bad.Want(r.Theta != 1, "yarn's rope_theta = 1: want another number")
	case ropeLlama3:
		positive("factor", r.Factor)
		positive("low_freq_factor", r.LowFreqFactor)
		bad.Want(r.HighFreqFactor > r.LowFreqFactor, "llama3's high_freq_factor = %g: want more than low_freq_factor "+
			"= %g", r.HighFreqFactor, r.LowFreqFactor)
	case ropeLongRoPE:
		bad.Want(r.OriginalPositions > 1, "longrope's original_max_position_embeddings = %d: want at least 2",
			r.OriginalPositions)
		for _, list := range [][]float64{r.ShortFactor, r.LongFactor} {
			ok := len(list) == dim/2
			for _, f := range list {
				ok = ok && f > 0
			}
			bad.Want(ok, "longrope's short_factor and long_factor: want %d positive numbers each", dim/2)
		}
	default:
		bad.Want(false, "rope_type = %.100q: want default, linear, dynamic, yarn, longrope or llama3", r.Type)
	}
}

// byLength reports whether the angles depend on the length of the sequence.
func (r *RoPE) byLength() bool { return r.Type == ropeDynamic || r.Type == ropeLongRoPE }

// table are the angles for sequences of length tokens.
func (r *RoPE) table(c *Config, length int) nn.RoPE {
	dim := r.dim(c)
	t := nn.RoPE{Dim: dim, Theta: r.Theta, Frequencies: make([]float64, dim/2), Scale: 1}
	base := r.Theta
	if r.Type == ropeDynamic {
		limit := float64(c.MaxPositions)
		grown := r.Factor*max(float64(length), limit)/limit - (r.Factor - 1)
		base *= math.Pow(grown, float64(dim)/float64(dim-2))
	}
	for i := range t.Frequencies {
		t.Frequencies[i] = math.Pow(base, -2*float64(i)/float64(dim))
	}
	switch r.Type {
	case ropeLinear:
		for i := range t.Frequencies {
			t.Frequencies[i] /= r.Factor
		}
	case ropeYaRN:
		t.Scale = r.yarn(c, t.Frequencies)
	case ropeLongRoPE:
		t.Scale = r.longRoPE(c, t.Frequencies, length)
	case ropeLlama3:
		r.llama3(t.Frequencies)
	}
	return t
}

// factorOf is Factor, or what follows from the lengths.
func (r *RoPE) factorOf(c *Config) float64 {
	if r.Factor > 0 {
		return r.Factor
	}
	return float64(c.MaxPositions) / float64(r.OriginalPositions)
}

// yarn divides low frequencies by the factor, keeps high ones and interpolates between, and returns the scale of
// cosines and sines.
func (r *RoPE) yarn(c *Config, frequencies []float64) float64 {
	factor, dim := r.factorOf(c), float64(2*len(frequencies))
	fast, slow := r.BetaFast, r.BetaSlow
	if fast == 0 {
		fast = 32
	}
	if slow == 0 {
		slow = 1
	}
	// turning is the number of the element that turns so many times over the original length.
	turning := func(times float64) float64 {
		return dim * math.Log(float64(r.OriginalPositions)/(times*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	low, high := turning(fast), turning(slow)
	if r.Truncate == nil || *r.Truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, dim-1)
	if low == high {
		high += 0.001
	}
	for i, f := range frequencies {
		kept := 1 - min(max((float64(i)-low)/(high-low), 0), 1)
		frequencies[i] = f/factor*(1-kept) + f*kept
	}
	scaled := func(by float64) float64 {
		if factor <= 1 {
			return 1
		}
		return 0.1*by*math.Log(factor) + 1
	}
	switch {
	case r.AttentionFactor != nil:
		return *r.AttentionFactor
	case r.MScale != 0 && r.MScaleAllDim != 0:
		return scaled(r.MScale) / scaled(r.MScaleAllDim)
	}
	return scaled(1)
}

// longRoPE divides each frequency by its own factor, and returns the scale of cosines and sines.
func (r *RoPE) longRoPE(c *Config, frequencies []float64, length int) float64 {
	by := r.ShortFactor
	if length > r.OriginalPositions {
		by = r.LongFactor
	}
	for i := range frequencies {
		frequencies[i] /= by[i]
	}
	if r.AttentionFactor != nil {
		return *r.AttentionFactor
	}
	factor := r.factorOf(c)
	if factor <= 1 {
		return 1
	}
	return math.Sqrt(1 + math.Log(factor)/math.Log(float64(r.OriginalPositions)))
}

// llama3 divides low frequencies by the factor, keeps high ones and interpolates between.
func (r *RoPE) llama3(frequencies []float64) {
	length := float64(r.OriginalPositions)
	for i, f := range frequencies {
		turns := length * f / (2 * math.Pi) // over the original length
		switch {
		case turns < r.LowFreqFactor:
			frequencies[i] = f / r.Factor
		case turns <= r.HighFreqFactor:
			smooth := (turns - r.LowFreqFactor) / (r.HighFreqFactor - r.LowFreqFactor)
			frequencies[i] = (1-smooth)*f/r.Factor + smooth*f
		}
	}
}
