// SPDX-License-Identifier: Apache-2.0

package lora

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlclark/regexp2/v2"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
)

// defaults are the modules that PEFT takes for a family where target_modules says nothing.
var defaults = map[string][]string{
	"gpt2": {"c_attn"}, "llama": {"q_proj", "v_proj"}, "mistral": {"q_proj", "v_proj"}, "qwen2": {"q_proj", "v_proj"},
	"qwen3": {"q_proj", "v_proj"}, "gemma2": {"q_proj", "v_proj"}, "gemma3_text": {"q_proj", "v_proj"},
}

// heads are the names of a classifier's head.
var heads = []string{"classifier", "score"}

// layer is a linear layer as PEFT sees it: several of ours may be one of a saved model.
type layer struct {
	path    string
	members []member // one after the other in its outputs
	inOut   bool     // its weight is [in, out]
}

// member is a linear layer of ours.
type member struct {
	path string
	lora *nn.LoRA
	p    *nn.Parameter // the weight
	out  int
}

// in is the number of inputs.
func (l *layer) in() int {
	p := l.members[0].p
	return p.Numel() / l.members[0].out
}

// out is the number of outputs.
func (l *layer) out() (n int) {
	for _, m := range l.members {
		n += m.out
	}
	return n
}

// survey is what there is to choose from in a model.
type survey struct {
	layers []*layer          // in their order
	others map[string]string // paths of other modules, and their types
	params map[string]*nn.Parameter
	layout models.WeightsLayout // of the model without adapters
}

// look lists the linear layers of a model, under the paths that they have in saved files.
func look(m nn.Module) (*survey, error) {
	s := &survey{others: map[string]string{}, params: map[string]*nn.Parameter{}}
	tree := nn.Walk(m)
	tree.EachParameter(func(name string, p *nn.Parameter) { s.params[name] = p })
	layout, err := models.Layout(m)
	if err != nil {
		return nil, err
	}
	saved := map[string]string{} // by parameter
	for _, a := range layout.Arrays {
		if _, _, ok := nn.AdapterOf(a.Params[0]); ok {
			continue
		}
		s.layout.Arrays = append(s.layout.Arrays, a)
		for _, p := range a.Params {
			saved[p] = a.Name
		}
	}
	at := map[string]*layer{}
	tree.Modules(func(path string, m nn.Module) {
		if _, _, ok := nn.AdapterOf(path); ok || path == "" || strings.Contains(path, ".lora_dropout.") {
			return
		}
		own, ok := m.(interface{ Adapters() *nn.LoRA })
		weight := s.params[path+".weight"]
		if !ok || weight == nil {
			s.others[path] = strings.TrimPrefix(fmt.Sprintf("%T", m), "*")
			return
		}
		inOut := tree.Traits(path + ".weight").InOut
		out := weight.Size(0)
		if inOut {
			out = weight.Size(1)
		}
		name := strings.TrimSuffix(saved[path+".weight"], ".weight")
		if at[name] == nil {
			at[name] = &layer{path: name, inOut: inOut}
			s.layers = append(s.layers, at[name])
		}
		at[name].members = append(at[name].members, member{path, own.Adapters(), weight, out})
	})
	return s, nil
}

// choose lists the layers that a configuration adapts, and completes it: with the paths of AllLinear, as PEFT does, and
// with what a family has by default.
func (s *survey) choose(m models.Configured, cfg *Config) (chosen []*layer, err error) {
	if cfg.TargetModules.empty() {
		names, ok := defaults[m.ModelType()]
		if !ok {
			return nil, fmt.Errorf("PEFT has no target_modules for the model type %s: want all-linear, or some of %s",
				m.ModelType(), strings.Join(s.names(), ", "))
		}
		cfg.TargetModules = Targets{Names: names}
	}
	if cfg.TargetModules.all() {
		cfg.TargetModules = Targets{Names: s.all(cfg.TaskType)}
	}
	match := newMatcher(cfg)
	for _, l := range s.layers {
		if match.chosen(l.path) {
			chosen = append(chosen, l)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(s.others)) {
		if match.chosen(path) {
			return nil, fmt.Errorf("target_modules chooses %s, a %s, which is not built: want linear layers, such as "+
				"%s; modules_to_save trains others whole", path, s.others[path], strings.Join(s.names(), ", "))
		}
	}
	if match.err == nil && len(chosen) == 0 {
		return nil, fmt.Errorf("target_modules (%.200s) chooses no module: want some of %s, or all-linear",
			cfg.TargetModules, strings.Join(s.names(), ", "))
	}
	return chosen, match.err
}

// all are the paths of all linear layers but the head.
func (s *survey) all(task string) (paths []string) {
	for _, l := range s.layers {
		if task != "SEQ_CLS" || !slices.Contains(heads, l.path) {
			paths = append(paths, l.path)
		}
	}
	slices.Sort(paths)
	return paths
}

// names are the last elements of the paths of linear layers.
func (s *survey) names() (names []string) {
	for _, l := range s.layers {
		if name := l.path[strings.LastIndexByte(l.path, '.')+1:]; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// matcher compares paths with a configuration as PEFT does.
type matcher struct {
	cfg      *Config
	compiled map[string]*regexp2.Regexp
	err      error // the first of an expression
}

func newMatcher(cfg *Config) *matcher {
	return &matcher{cfg: cfg, compiled: map[string]*regexp2.Regexp{}}
}

// Bounds of the regular expressions of a configuration, which may be a stranger's.
const (
	maxPattern  = 4096 // bytes
	maxPatterns = 4096 // a compiled one takes 2 KB and more
	patternTime = time.Second
)

// match reports whether a regular expression of Python's matches all of a path.
func (m *matcher) match(pattern, path string) bool {
	re, ok := m.compiled[pattern]
	if !ok && m.err == nil {
		var err error
		switch {
		case len(pattern) > maxPattern:
			err = fmt.Errorf("%d bytes: want at most %d", len(pattern), maxPattern)
		case len(m.compiled) == maxPatterns:
			err = fmt.Errorf("one of more than %d: want fewer, or names", maxPatterns)
		default:
			if re, err = regexp2.Compile(`\A(?:` + pattern + `)\z`); err == nil {
				re.MatchTimeout = patternTime
			}
		}
		if m.compiled[pattern] = re; err != nil {
			m.err = fmt.Errorf("the regular expression %.60q: %w", pattern, err)
		}
	}
	if re == nil || m.err != nil {
		return false
	}
	yes, err := re.MatchString(path)
	if err != nil {
		m.err = fmt.Errorf("the regular expression %.60q for %s: %w", pattern, path, err)
	}
	return yes
}

// ends reports whether a regular expression matches the end of a path, from the beginning of an element on. There may
// be one for every layer: those that are names are compared without being compiled.
func (m *matcher) ends(path, pattern string) bool {
	if isPattern(pattern) {
		return m.match(`(?:.*\.)?(?:`+pattern+`)`, path)
	}
	at := len(path) - len(pattern)
	if at < 0 || at > 0 && path[at-1] != '.' {
		return false
	}
	for i := range len(pattern) {
		if pattern[i] != '.' && pattern[i] != path[at+i] {
			return false
		}
	}
	return true
}

// in reports whether targets choose a path.
func (m *matcher) in(t Targets, path string) bool {
	if t.Pattern != "" {
		return m.match(t.Pattern, path)
	}
	return slices.ContainsFunc(t.Names, func(name string) bool { return named(path, name) })
}

// named reports whether a path is a name or ends in it.
func named(path, name string) bool { return path == name || strings.HasSuffix(path, "."+name) }

// chosen reports whether the module of a path is adapted.
func (m *matcher) chosen(path string) bool {
	if m.in(m.cfg.ExcludeModules, path) || m.whole(path) || !m.in(m.cfg.TargetModules, path) {
		return false
	}
	if len(m.cfg.LayersToTransform) == 0 || slices.Contains(m.cfg.TargetModules.Names, path) {
		return true
	}
	elements := strings.Split(path, ".")
	for i := 1; i+1 < len(elements); i++ { // the first number behind the name of a list
		n, err := strconv.Atoi(elements[i])
		if err != nil {
			continue
		}
		if len(m.cfg.LayersPattern) == 0 && i > 1 || slices.Contains(m.cfg.LayersPattern, elements[i-1]) {
			return slices.Contains(m.cfg.LayersToTransform, n)
		}
	}
	return false
}

// whole reports whether the module of a path is in one that is trained whole.
func (m *matcher) whole(path string) bool {
	elements := strings.Split(path, ".")
	for i := range elements {
		if slices.ContainsFunc(m.cfg.ModulesToSave, func(name string) bool {
			return strings.HasSuffix(strings.Join(elements[:i+1], "."), name)
		}) {
			return true
		}
	}
	return false
}

// rank is that of a layer.
func (m *matcher) rank(path string) int {
	for _, key := range slices.Sorted(maps.Keys(m.cfg.RankPattern)) {
		if m.ends(path, key) {
			return m.cfg.RankPattern[key]
		}
	}
	return m.cfg.R
}

// alpha is that of a layer.
func (m *matcher) alpha(path string) float64 {
	for _, key := range slices.Sorted(maps.Keys(m.cfg.AlphaPattern)) {
		if m.ends(path, key) {
			return m.cfg.AlphaPattern[key]
		}
	}
	return m.cfg.Alpha
}
