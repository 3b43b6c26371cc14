// SPDX-License-Identifier: Apache-2.0

package args

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// ConfigUse says what becomes of a key of another tool's configuration file.
type ConfigUse string

// The uses.
const (
	ConfigUsed     ConfigUse = "used"
	ConfigNoEffect ConfigUse = "no effect" // changes no result here
	ConfigRefused  ConfigUse = "refused"   // would change the result
	ConfigDefault  ConfigUse = "default"   // not in the file, and the default there changes the result
	configUnknown  ConfigUse = "unknown"
)

// ConfigRow is a key of another tool's configuration file and what it means here.
type ConfigRow struct {
	Key   string // with its path, as zero_optimization.stage
	Value string // as JSON
	Use   ConfigUse
	Text  string // the settings that it sets, or why it sets none
}

// ToolConfig is a configuration file of DeepSpeed, of FSDP in HuggingFace's form, or of accelerate, key by key.
type ToolConfig struct {
	Tool string // "DeepSpeed", "FSDP" or "accelerate"
	Rows []ConfigRow
	// Launch holds what is the launcher's to know: flags of lockstep launch, without dashes.
	Launch map[string]string

	sets  []configSetting
	unset map[string]string // by key or prefix, why it sets nothing in this file
	open  map[string]string // by prefix, why any key may stand there
	notes []string          // for the user, about the whole file
}

// configSetting is a setting that a file makes.
type configSetting struct {
	key  string
	raw  any
	from string // the key of the file
	// absent: the file does not have the key, whose default in that tool is the value.
	absent bool
	// implied: the tool does so whatever its file has, and another source may ask for something else.
	implied bool
	// when is a switch that must be on for the setting to count, "" for none.
	when string
}

// origin says where the value is from, for a file called name.
func (s configSetting) origin(name string) string {
	if s.absent {
		return fmt.Sprintf("file %s (no %s)", name, s.from)
	}
	return fmt.Sprintf("file %s (%s)", name, s.from)
}

// want is what another source should say.
func (s configSetting) want(value, name string) string {
	if s.absent {
		return fmt.Sprintf("%s, which is the default of %s in %s; or %q there", value, s.from, name, autoValue)
	}
	return fmt.Sprintf("%s, which %s has as %s; or %q there", value, name, s.from, autoValue)
}

// A configRule says what a value of a key means, and may set something.
type configRule func(t *ToolConfig, key string, v any) (ConfigUse, string)

// autoValue stands in a file for whatever the arguments say.
const autoValue = "auto"

// sets is the rule of a key that is a setting under another name; convert, which may be nil, gives the setting's value
// or says what was wanted.
func sets(setting string, convert func(v any) (any, string)) configRule {
	return func(t *ToolConfig, key string, v any) (ConfigUse, string) {
		if v == autoValue || v == nil {
			return ConfigUsed, setting + " as the arguments have it"
		}
		if convert != nil {
			value, want := convert(v)
			if want != "" {
				return ConfigRefused, want
			}
			v = value
		}
		return t.set(setting, v, key)
	}
}

// set notes a setting. Two keys may make it if they say the same.
func (t *ToolConfig) set(setting string, v any, from string) (ConfigUse, string) {
	for _, s := range t.sets {
		if s.key == setting && !sameValue(s.raw, v) {
			return ConfigRefused, fmt.Sprintf("%v, as %s has it: both are %s here", plain(s.raw), s.from, setting)
		}
	}
	t.sets = append(t.sets, configSetting{key: setting, raw: v, from: from})
	return ConfigUsed, fmt.Sprintf("%s %v", setting, v)
}

// absent notes the setting that a key means which is not in the file.
func (t *ToolConfig) absent(setting string, v any, key string) {
	t.sets = append(t.sets, configSetting{key: setting, raw: v, from: key, absent: true})
	t.add(key, nil, ConfigDefault, fmt.Sprintf("%s %v", setting, v))
}

// implies notes a setting that the tool has whatever its file says, if the switch when is on: another source may have
// another value.
func (t *ToolConfig) implies(setting string, v any, from, when string) {
	t.sets = append(t.sets, configSetting{key: setting, raw: v, from: from, implied: true, when: when})
}

// has reports whether the file makes a setting with that value.
func (t *ToolConfig) has(setting string, v any) bool {
	return slices.ContainsFunc(t.sets, func(s configSetting) bool { return s.key == setting && s.raw == v })
}

// anyKeys says that a section may have any keys, since it is refused as a whole.
func (t *ToolConfig) anyKeys(prefix, why string) {
	if t.open == nil {
		t.open = map[string]string{}
	}
	t.open[prefix] = why
}

// plain is a value as a person would write it.
func plain(v any) any {
	if list, ok := v.([]string); ok {
		return strings.Join(list, " ")
	}
	return v
}

// without says that a key sets nothing in this file, or that no key does under a prefix, which ends in a dot.
func (t *ToolConfig) without(keys, why string) {
	if t.unset == nil {
		t.unset = map[string]string{}
	}
	t.unset[keys] = why
}

// why is the reason why a key sets nothing in this file, or "": its own, or that of the longest prefix that has one.
func (t *ToolConfig) why(key string) string {
	for {
		if reason, ok := t.unset[key]; ok || key == "" {
			return reason
		}
		key = key[:strings.LastIndexByte(strings.TrimSuffix(key, "."), '.')+1]
	}
}

// ignore is the rule of a key that changes no result here.
func ignore(why string) configRule {
	return func(*ToolConfig, string, any) (ConfigUse, string) { return ConfigNoEffect, why }
}

// only is the rule of a key of which some values, and null and "auto", change nothing, while others would.
func only(why string, harmless ...any) configRule {
	return func(_ *ToolConfig, _ string, v any) (ConfigUse, string) {
		if v == nil || v == autoValue {
			return ConfigNoEffect, why
		}
		for _, h := range harmless {
			if sameValue(v, h) {
				return ConfigNoEffect, why
			}
		}
		if len(harmless) == 0 {
			return ConfigRefused, "nothing: " + why
		}
		return ConfigRefused, fmt.Sprintf("%s: %s", asJSON(harmless[0]), why)
	}
}

// sameValue compares values of files, whatever type their numbers have.
func sameValue(a, b any) bool {
	x, okX := configNumber(a)
	y, okY := configNumber(b)
	if okX && okY {
		return x == y
	}
	s, isText := a.(string)
	other, alsoText := b.(string)
	if isText && alsoText {
		return strings.EqualFold(s, other)
	}
	return reflect.DeepEqual(a, b)
}

func configNumber(v any) (float64, bool) {
	if n, ok := v.(json.Number); ok {
		f, err := n.Float64()
		return f, err == nil
	}
	return number(v)
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// walk applies rules to the keys of a section, in order.
func (t *ToolConfig) walk(rules map[string]configRule, prefix string, section map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(section)) {
		key, v := prefix+name, section[name]
		rule := rules[key]
		inner, isSection := v.(map[string]any)
		switch {
		case t.open[prefix] != "":
			t.add(key, v, ConfigNoEffect, t.open[prefix])
		case rule != nil && t.why(key) != "":
			t.add(key, v, ConfigNoEffect, t.why(key))
		case rule != nil && !(isSection && hasRules(rules, key+".")):
			use, text := rule(t, key, v)
			t.add(key, v, use, text)
		case isSection && hasRules(rules, key+"."):
			t.walk(rules, key+".", inner)
		case hasRules(rules, key+".") && v == nil:
			t.add(key, v, ConfigNoEffect, "it is empty")
		case hasRules(rules, key+"."):
			t.add(key, v, ConfigRefused, "a JSON object")
		default:
			t.add(key, v, configUnknown, didYouMean(name, prefix, names(rules, prefix), t.none()))
		}
	}
}

// none is said of a key that is like no other.
func (t *ToolConfig) none() string {
	if t.Tool == "DeepSpeed" {
		return "no DeepSpeed up to " + deepSpeedVersion + " has it"
	}
	return "it is none of " + t.Tool + "'s"
}

// names lists the names that a section may have.
func names(rules map[string]configRule, prefix string) []string {
	list := map[string]bool{}
	for key := range rules {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			name, _, _ := strings.Cut(rest, ".")
			list[name] = true
		}
	}
	return slices.Sorted(maps.Keys(list))
}

func hasRules(rules map[string]configRule, prefix string) bool {
	for key := range rules {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

func (t *ToolConfig) add(key string, v any, use ConfigUse, text string) {
	t.Rows = append(t.Rows, ConfigRow{key, asJSON(v), use, text})
}

// faults are what keeps a run from starting.
func (t *ToolConfig) faults(path string) (list []Fault) {
	for _, r := range t.Rows {
		switch r.Use {
		case ConfigRefused:
			list = append(list, Fault{Key: r.Key, Value: r.Value, Origin: path, Want: r.Text})
		case configUnknown:
			list = append(list, Fault{Key: r.Key, Origin: path, Problem: "unknown key", Want: r.Text})
		}
	}
	return list
}

// Err is nil, or an *Error with the keys that are refused or unknown.
func (t *ToolConfig) Err(path string) error { return asError(t.faults(path)) }

// summary is the line for the start of a run.
func (t *ToolConfig) summary() string {
	counts := map[ConfigUse]int{}
	for _, r := range t.Rows {
		counts[r.Use]++
	}
	return fmt.Sprintf("is read: keys used %d, without effect here %d; lockstep config shows them",
		counts[ConfigUsed], counts[ConfigNoEffect])
}

// toolConfigs are the settings that name such files, in the order in which they are applied, with their readers.
var toolConfigs = []struct {
	key  string
	read func(doc map[string]any) *ToolConfig
	of   func(a *TrainingArguments) string
}{
	{"deepspeed", deepSpeedConfig, func(a *TrainingArguments) string { return a.DeepSpeed }},
	{"fsdp_config", fsdpConfig, func(a *TrainingArguments) string { return a.FSDPConfig }},
}

// ReadToolConfig says what the keys of a file mean: DeepSpeed's configuration, FSDP's in HuggingFace's form, or
// accelerate's. It goes by the keys, whatever the file is called; JSON and YAML are read.
func ReadToolConfig(path string) (*ToolConfig, error) {
	doc, err := readToolFile(path, func(path string) ([]byte, error) {
		return vfs.ReadFile(vfs.OS, path, maxConfigFile)
	})
	if err != nil {
		return nil, err
	}
	return readTool(doc), nil
}

// readTool reads a document by what is in it.
func readTool(doc map[string]any) *ToolConfig {
	for _, key := range []string{"distributed_type", "compute_environment", "num_processes", "num_machines"} {
		if _, ok := doc[key]; ok {
			return accelerateConfig(doc)
		}
	}
	for _, key := range []string{"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "optimizer",
		"gradient_accumulation_steps", "scheduler", "bf16", "fp16"} {
		if _, ok := doc[key]; ok {
			return deepSpeedConfig(doc)
		}
	}
	return fsdpConfig(doc)
}

// readToolFile reads a document from a file, or from the text itself if it is a JSON object.
func readToolFile(path string, read func(path string) ([]byte, error)) (map[string]any, error) {
	var text []byte
	d := &document{}
	d.Parser = jsonParser{doc: d}
	if strings.HasPrefix(strings.TrimSpace(path), "{") {
		text, path = []byte(path), "the object"
	} else {
		var err error
		if d, err = newDocument(path); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if text, err = read(path); err != nil {
			return nil, fmt.Errorf("%s: %s", path, reason(err))
		}
	}
	doc, err := d.Unmarshal(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", path, reason(err))
	}
	if len(d.duplicates) > 0 {
		return nil, fmt.Errorf("%s: duplicate key %s: want it once", path, d.duplicates[0])
	}
	return doc, nil
}

// toolConfigs applies the files that settings name: they fill what no other source has set, and must agree with it
// otherwise.
func (m *merge) toolConfigs() (notices []Notice) {
	read := m.loader.ReadFile
	if read == nil {
		read = func(path string) ([]byte, error) { return vfs.ReadFile(vfs.OS, path, maxConfigFile) }
	}
	for _, c := range toolConfigs {
		path, _ := m.ko.Get(c.key).(string)
		if path == "" || m.loader.schema.byKey[c.key] == nil {
			continue
		}
		name := path
		if strings.HasPrefix(strings.TrimSpace(path), "{") {
			name = c.key
		}
		doc, err := readToolFile(path, read)
		if err != nil {
			m.checker.add(Fault{Key: c.key, Value: quote(path), Origin: m.origins[c.key],
				Want: "a readable JSON or YAML file: " + err.Error()})
			continue
		}
		t := c.read(doc)
		for _, f := range t.faults(name) {
			m.fault(f)
		}
		if c.key == "fsdp_config" && !m.sharded() {
			notices = append(notices, Notice{c.key, m.origins[c.key], "has no effect: " + fsdpOff})
			continue
		}
		values := settings{}
		for _, s := range t.sets {
			if s.when != "" && m.ko.Get(s.when) != true && !t.has(s.when, true) {
				continue
			}
			if !m.said(s.key) {
				values[s.key] = s.raw
				continue
			}
			if s.implied {
				continue
			}
			f := m.loader.schema.byKey[s.key]
			given := m.ko.Get(s.key)
			value, want := f.decode(s.raw)
			if want != "" || agrees(s.key, given, value) {
				switch s.key {
				case "fsdp":
					value = []string{mergeWords(given, value)}
					m.mustLoad(settings{s.key: value}, func(string) string { return m.origins[s.key] })
				case "lr_scheduler_type":
					values[s.key] = s.raw
				}
				continue
			}
			m.checker.add(Fault{Key: s.key, Value: quote(given), Origin: m.origins[s.key],
				Want: s.want(quote(value), name)})
		}
		m.mustLoad(values, func(key string) string {
			i := slices.IndexFunc(t.sets, func(s configSetting) bool { return s.key == key })
			return t.sets[i].origin(name)
		})
		for _, note := range t.notes {
			notices = append(notices, Notice{c.key, m.origins[c.key], note})
		}
		notices = append(notices, Notice{c.key, m.origins[c.key], t.summary()})
	}
	return notices
}

// fsdpOff is why FSDP's configuration sets nothing.
const fsdpOff = "fsdp is not on"

// sharded reports whether fsdp is on.
func (m *merge) sharded() bool {
	words, given := m.ko.Get("fsdp").([]string)
	if a := m.loader.training(m.loader.structs); a != nil && !given {
		words = a.FSDP
	}
	return fsdpOn(words)
}

// fsdpOn reports whether a value of fsdp is more than false.
func fsdpOn(words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool {
		return w != "" && !strings.EqualFold(w, "false") && !strings.EqualFold(w, "none")
	})
}

// agrees reports whether a given value and that of a file are the same. fsdp has a strategy among other words.
func agrees(key string, given, value any) bool {
	if key == "fsdp" {
		a, b := strategyWord(given), strategyWord(value)
		return a == "" || a == b
	}
	switch key {
	case "optim": // HuggingFace's two names of AdamW
		given, value = plainAdamW(given), plainAdamW(value)
	case "lr_scheduler_type": // HuggingFace's names of what DeepSpeed's schedules are like
		if like := likeDeepSpeed[fmt.Sprint(given)]; like != "" && like == value {
			return true
		}
	}
	return asJSON(given) == asJSON(value)
}

// likeDeepSpeed has DeepSpeed's schedule for the one of HuggingFace's that its documentation compares with it.
var likeDeepSpeed = map[string]string{
	string(SchedulerConstantWithWarmup): string(SchedulerWarmupLR),
	string(SchedulerLinear):             string(SchedulerWarmupDecayLR),
}

func plainAdamW(v any) any {
	if v == string(OptimAdamWFused) {
		return string(OptimAdamW)
	}
	return v
}

// strategyWord is the strategy that a value of fsdp names, "" if it leaves that open.
func strategyWord(v any) string {
	words, _ := v.([]string)
	for _, w := range strings.FieldsFunc(strings.Join(words, " "), func(r rune) bool { return r == ' ' || r == ',' }) {
		switch w = strings.ToLower(w); w {
		case "auto_wrap", "offload", "true":
		default:
			return w
		}
	}
	return ""
}

// mergeWords is a value of fsdp with the strategy of another.
func mergeWords(given, value any) string {
	words, _ := given.([]string)
	text := strings.ToLower(strings.Join(words, " "))
	if strategyWord(given) != "" {
		return text
	}
	return strings.TrimSpace(strings.ReplaceAll(text, "true", "") + " " + strategyWord(value))
}

// ReadConfigs applies the files that DeepSpeed and FSDPConfig name, for programs that do not use a Loader, which has
// done so. A field that has its default takes the file's value; one that has neither is a fault.
func (a *TrainingArguments) ReadConfigs() error {
	var faults []Fault
	for _, c := range toolConfigs {
		path := c.of(a)
		if path == "" {
			continue
		}
		doc, err := readToolFile(path, func(path string) ([]byte, error) {
			return vfs.ReadFile(vfs.OS, path, maxConfigFile)
		})
		if err != nil {
			return fmt.Errorf("args: %s: %w", c.key, err)
		}
		t := c.read(doc)
		faults = append(faults, t.faults(path)...)
		if c.key == "fsdp_config" && !fsdpOn(a.FSDP) {
			continue
		}
		faults = append(faults, t.apply(a, path)...)
	}
	return errors.Join(asError(faults))
}

// apply fills the fields that have their defaults.
func (t *ToolConfig) apply(a *TrainingArguments, path string) (faults []Fault) {
	one, plain := []any{a}, []any{Default(a.OutputDir)}
	s := newSchema(one...)
	for _, set := range t.sets {
		f := s.byKey[set.key]
		if on := s.byKey[set.when]; on != nil && on.text(on.of(one)) != "true" {
			continue
		}
		value, want := f.decode(set.raw)
		if want != "" {
			faults = append(faults, Fault{Key: set.from, Value: quote(set.raw), Origin: path, Want: want})
			continue
		}
		filled := []any{Default(a.OutputDir)}
		f.assign(filled, value)
		now := f.text(f.of(one))
		switch {
		case now == f.text(f.of(plain)):
			f.assign(one, value)
		case set.implied, now == f.text(f.of(filled)), set.key == "fsdp" && agrees("fsdp", a.FSDP, value):
		default:
			faults = append(faults, Fault{Key: set.key, Value: quote(f.of(one).Interface()),
				Want: set.want(f.text(f.of(filled)), path)})
		}
	}
	return faults
}

// isToolConfig reports whether a setting names such a file, for which an object may stand.
func isToolConfig(key string) bool { return key == "deepspeed" || key == "fsdp_config" }

// toolConfigText is the setting's text for what a source has: an object as JSON, and "" for none and for what a file
// that transformers wrote has without one.
func toolConfigText(raw any) any {
	if texts, ok := raw.([]string); ok {
		raw = texts[len(texts)-1]
	}
	switch v := raw.(type) {
	case nil:
		return ""
	case string:
		if word := strings.ToLower(v); word == "none" || word == "null" {
			return ""
		}
		if object, _, err := parseJSON([]byte(v)); err == nil {
			return toolConfigText(object)
		}
		return v
	case map[string]any:
		for key, value := range v {
			switch key {
			case "min_num_params", "xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt":
				if sameValue(value, 0) || value == false {
					continue
				}
			}
			return asJSON(v)
		}
		return ""
	}
	return raw
}
