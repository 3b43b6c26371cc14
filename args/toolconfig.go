// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/args/configs"
)

// configFaults are what keeps a run from starting.
func configFaults(c *configs.Config, path string) (list []Fault) {
	for _, r := range c.Rows {
		switch r.Use {
		case configs.Refused:
			list = append(list, Fault{Key: r.Key, Value: r.Value, Origin: path, Want: r.Text})
		case configs.Unknown:
			list = append(list, Fault{Key: r.Key, Origin: path, Problem: "unknown key", Want: r.Text})
		}
	}
	return list
}

// CheckToolConfig is nil, or an *Error with the keys of a file that are refused or unknown.
func CheckToolConfig(c *configs.Config, path string) error { return asError(configFaults(c, path)) }

// ToolSettings are what a file of accelerate's sets for the program, as texts of variables (LOCKSTEP_…): lockstep
// launch hands them on.
func ToolSettings(c *configs.Config) (map[string]string, error) {
	one, list := []any{Default("")}, map[string]string{}
	s := newSchema(one...)
	var faults []Fault
	for _, set := range c.Settings {
		if set.When != "" && !c.Has(set.When, true) {
			continue
		}
		f := s.byKey[set.Key]
		value, want := f.decode(set.Value)
		if want != "" {
			faults = append(faults, Fault{Key: set.From, Value: quote(set.Value), Origin: c.Tool + "'s file",
				Want: want})
			continue
		}
		f.assign(one, value)
		list[envName(set.Key)] = f.text(f.of(one))
	}
	return list, asError(faults)
}

// toolConfig is a setting that names such a file, and its reader.
type toolConfig struct {
	key  string
	read func(doc map[string]any) *configs.Config
}

// toolConfigs are the settings that name such files, in the order in which they are applied, with their readers.
var toolConfigs = []toolConfig{{"deepspeed", configs.DeepSpeed}, {"parallelism_config", configs.Parallelism},
	{"distributed_config", configs.Distributed}, {"fsdp_config", configs.FSDP}}

// ReadToolConfig says what the keys of a file mean: DeepSpeed's configuration, FSDP's in HuggingFace's form,
// accelerate's or its ParallelismConfig, or transformers' DistributedConfig. It goes by the keys, whatever the file is
// called; JSON and YAML are read.
func ReadToolConfig(path string) (*configs.Config, error) {
	doc, err := readToolFile(path, readConfigFile)
	if err != nil {
		return nil, err
	}
	return configs.Read(doc), nil
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
	for _, c := range toolConfigs {
		path, _ := m.ko.Get(c.key).(string)
		if path == "" || m.loader.schema.byKey[c.key] == nil {
			continue
		}
		name := path
		if strings.HasPrefix(strings.TrimSpace(path), "{") {
			name = c.key
		}
		doc, err := readToolFile(path, m.loader.readFile)
		if err != nil {
			m.checker.add(Fault{Key: c.key, Value: quote(path), Origin: m.origins[c.key],
				Want: "a readable JSON or YAML file: " + err.Error()})
			continue
		}
		t := c.read(doc)
		for _, f := range configFaults(t, name) {
			m.fault(f)
		}
		if c.key == "fsdp_config" && !m.sharded() {
			notices = append(notices, Notice{c.key, m.origins[c.key], "has no effect: " + fsdpOff})
			continue
		}
		m.settle(t, name)
		for _, note := range append(t.Notes, t.Summary()) {
			notices = append(notices, Notice{c.key, m.origins[c.key], note})
		}
	}
	return notices
}

// settle takes what a file of the name sets, unless another source has said something else.
func (m *merge) settle(t *configs.Config, name string) {
	values, origins := settings{}, map[string]string{}
	take := func(key string, value any, origin string) { values[key], origins[key] = value, origin }
	for _, s := range t.Settings {
		if s.When != "" && m.ko.Get(s.When) != true && !t.Has(s.When, true) {
			continue
		}
		if !m.said(s.Key) {
			take(s.Key, s.Value, s.Origin(name))
			continue
		}
		given := m.ko.Get(s.Key)
		value, want := m.loader.schema.byKey[s.Key].decode(s.Value)
		switch {
		case s.Implied:
		case want == "" && !agrees(s.Key, given, value):
			m.checker.add(Fault{Key: s.Key, Value: quote(given), Origin: m.origins[s.Key],
				Want: s.Want(quote(value), name)})
		case s.Key == "fsdp":
			take(s.Key, []string{mergeWords(given, value)}, m.origins[s.Key])
		case s.Key == "lr_scheduler_type":
			take(s.Key, s.Value, s.Origin(name))
		}
	}
	m.mustLoad(values, func(key string) string { return origins[key] })
}

// fsdpOff is why FSDP's configuration sets nothing.
const fsdpOff = "fsdp is not on"

// sharded reports whether fsdp is on.
func (m *merge) sharded() bool {
	words, given := m.ko.Get("fsdp").([]string)
	shards := m.ko.Int("dp_shard_size")
	if a := m.loader.training(m.loader.structs); a != nil {
		if !given {
			words = a.FSDP
		}
		shards = max(shards, a.DPShardSize)
	}
	return fsdpOn(words) || shards > 1
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
	case "optim":
		if sameOptimizer(given, value) {
			return true
		}
	case "lr_scheduler_type": // HuggingFace's names of what DeepSpeed's schedules are like
		if like := likeDeepSpeed[fmt.Sprint(given)]; like != "" && like == value {
			return true
		}
	}
	return jsonText(given) == jsonText(value)
}

// likeDeepSpeed has DeepSpeed's schedule for the one of HuggingFace's that its documentation compares with it.
var likeDeepSpeed = map[string]string{
	string(SchedulerConstantWithWarmup): string(SchedulerWarmupLR),
	string(SchedulerLinear):             string(SchedulerWarmupDecayLR),
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

// ReadConfigs applies the files that DeepSpeed, ParallelismConfig, DistributedConfig and FSDPConfig name, for programs
// that do not use a Loader, which has done so. A field that has its default takes the file's value; one that has
// neither is a fault. The arguments are changed only if there is none.
func (a *TrainingArguments) ReadConfigs() error {
	if a.DeepSpeed == "" && a.ParallelismConfig == "" && a.DistributedConfig == "" && a.FSDPConfig == "" {
		return nil
	}
	one, said := []any{a}, settings{}
	m := newMerge(newLoader(one), "")
	for _, d := range Default(a.OutputDir).Diff(a) {
		f := m.loader.schema.byKey[d.Key]
		if said[d.Key] = f.text(f.of(one)); f.kind == reflect.Slice {
			said[d.Key] = f.of(one).Interface()
		}
	}
	m.mustLoad(said, func(string) string { return "" })
	given := m.ko.Copy()
	m.toolConfigs()
	if err := m.checker.Err(); err != nil {
		return err
	}
	for key, value := range m.ko.Raw() {
		if jsonText(value) != jsonText(given.Get(key)) {
			m.loader.schema.byKey[key].assign(one, value)
		}
	}
	return nil
}

// isToolConfig reports whether a setting names such a file, for which an object may stand.
func isToolConfig(key string) bool {
	return slices.ContainsFunc(toolConfigs, func(c toolConfig) bool { return c.key == key })
}

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
		if !configs.None(v) {
			return jsonText(v)
		}
		return ""
	}
	return raw
}
