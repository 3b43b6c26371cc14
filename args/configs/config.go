// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/misspelt"
)

// Use says what becomes of a key of another tool's configuration file.
type Use string

// The uses.
const (
	Used     Use = "used"
	NoEffect Use = "no effect" // changes no result here
	Refused  Use = "refused"   // would change the result
	Default  Use = "default"   // not in the file, and the default there changes the result
	Unknown  Use = "unknown"   // to the tool too
)

// Row is a key of another tool's configuration file and what it means here.
type Row struct {
	Key   string // with its path, as zero_optimization.stage
	Value string // as JSON
	Use   Use
	Text  string // the settings that it sets, or why it sets none
}

// Config is a configuration file of DeepSpeed, of FSDP in HuggingFace's form, or of accelerate, key by key.
type Config struct {
	Tool string // "DeepSpeed", "FSDP" or "accelerate"
	Rows []Row
	// Launch holds what is the launcher's to know: flags of lockstep launch, without dashes.
	Launch   map[string]string
	Settings []Setting `json:"-"`
	Notes    []string  `json:"-"` // for the user, about the whole file

	unset map[string]string // by key or prefix, why it sets nothing in this file
	open  map[string]string // by prefix, why any key may stand there
}

// Setting is a setting of the arguments that a file makes.
type Setting struct {
	Key   string // of the arguments
	Value any    // as the file has it, or as the arguments name it
	From  string // the key of the file
	// Absent: the file does not have the key, whose default in that tool is the value.
	Absent bool
	// Implied: the tool does so whatever its file has, and another source may ask for something else.
	Implied bool
	// When is a switch that must be on for the setting to count, "" for none.
	When string
}

// Origin says where the value is from, for a file called name.
func (s Setting) Origin(name string) string {
	if s.Absent {
		return fmt.Sprintf("file %s (no %s)", name, s.From)
	}
	return fmt.Sprintf("file %s (%s)", name, s.From)
}

// Want is what another source should say.
func (s Setting) Want(value, name string) string {
	if s.Absent {
		return fmt.Sprintf("%s, which is the default of %s in %s; or %q there", value, s.From, name, autoValue)
	}
	return fmt.Sprintf("%s, which %s has as %s; or %q there", value, name, s.From, autoValue)
}

// A rule says what a value of a key means, and may set something.
type rule func(c *Config, key string, v any) (Use, string)

// alike are keys of a section that share a rule. The section ends in a dot; spaces divide the names.
type alike struct {
	rule           rule
	section, names string
}

// withAlike adds keys that share rules.
func withAlike(groups []alike, rules map[string]rule) map[string]rule {
	for _, g := range groups {
		for name := range strings.FieldsSeq(g.names) {
			rules[g.section+name] = g.rule
		}
	}
	return rules
}

// autoValue stands in a file for whatever the arguments say.
const autoValue = "auto"

// sets is the rule of a key that is a setting under another name; convert, which may be nil, gives the setting's value
// or says what was wanted.
func sets(setting string, convert func(v any) (any, string)) rule {
	return func(c *Config, key string, v any) (Use, string) {
		if v == autoValue || v == nil {
			return Used, setting + " as the arguments have it"
		}
		if convert != nil {
			value, want := convert(v)
			if want != "" {
				return Refused, want
			}
			v = value
		}
		return c.set(setting, v, key)
	}
}

// set notes a setting. Two keys may make it if they say the same.
func (c *Config) set(setting string, v any, from string) (Use, string) {
	for _, s := range c.Settings {
		if s.Key == setting && !sameValue(s.Value, v) {
			return Refused, fmt.Sprintf("%v, as %s has it: both are %s here", plain(s.Value), s.From, setting)
		}
	}
	c.Settings = append(c.Settings, Setting{Key: setting, Value: v, From: from})
	return Used, fmt.Sprintf("%s %v", setting, v)
}

// absent notes the setting that a key means which is not in the file.
func (c *Config) absent(setting string, v any, key string) {
	c.Settings = append(c.Settings, Setting{Key: setting, Value: v, From: key, Absent: true})
	c.add(key, nil, Default, fmt.Sprintf("%s %v", setting, v))
}

// implies notes a setting that the tool has whatever its file says, if the switch when is on: another source may have
// another value.
func (c *Config) implies(setting string, v any, from, when string) {
	c.Settings = append(c.Settings, Setting{Key: setting, Value: v, From: from, Implied: true, When: when})
}

// Has reports whether the file makes a setting with that value.
func (c *Config) Has(setting string, v any) bool {
	return slices.ContainsFunc(c.Settings, func(s Setting) bool { return s.Key == setting && s.Value == v })
}

// anyKeys says that a section may have any keys, since it is refused as a whole.
func (c *Config) anyKeys(prefix, why string) {
	if c.open == nil {
		c.open = map[string]string{}
	}
	c.open[prefix] = why
}

// plain is a value as a person would write it.
func plain(v any) any {
	if list, ok := v.([]string); ok {
		return strings.Join(list, " ")
	}
	return v
}

// without says that a key sets nothing in this file, or that no key does under a prefix, which ends in a dot.
func (c *Config) without(keys, why string) {
	if c.unset == nil {
		c.unset = map[string]string{}
	}
	c.unset[keys] = why
}

// why is the reason why a key sets nothing in this file, or "": its own, or that of the longest prefix that has one.
func (c *Config) why(key string) string {
	for {
		if reason, ok := c.unset[key]; ok || key == "" {
			return reason
		}
		key = key[:strings.LastIndexByte(strings.TrimSuffix(key, "."), '.')+1]
	}
}

// ignore is the rule of a key that changes no result here.
func ignore(why string) rule {
	return func(*Config, string, any) (Use, string) { return NoEffect, why }
}

// only is the rule of a key of which some values, and null and "auto", change nothing, while others would.
func only(why string, harmless ...any) rule {
	return func(_ *Config, _ string, v any) (Use, string) {
		if v == nil || v == autoValue {
			return NoEffect, why
		}
		for _, h := range harmless {
			if sameValue(v, h) {
				return NoEffect, why
			}
		}
		if len(harmless) == 0 {
			return Refused, "nothing: " + why
		}
		return Refused, fmt.Sprintf("%s: %s", jsonText(harmless[0]), why)
	}
}

// sameValue compares values of files, whatever type their numbers have.
func sameValue(a, b any) bool {
	x, okX := number(a)
	y, okY := number(b)
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

// number reads any number that JSON, YAML or a rule has.
func number(v any) (float64, bool) {
	if n, ok := v.(json.Number); ok {
		f, err := n.Float64()
		return f, err == nil
	}
	switch rv := reflect.ValueOf(v); {
	case rv.CanInt():
		return float64(rv.Int()), true
	case rv.CanUint():
		return float64(rv.Uint()), true
	case rv.CanFloat():
		return rv.Float(), true
	}
	return 0, false
}

func jsonText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// walk applies rules to the keys of a section, in order.
func (c *Config) walk(rules map[string]rule, prefix string, section map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(section)) {
		key, v := prefix+name, section[name]
		rule := rules[key]
		inner, isSection := v.(map[string]any)
		switch {
		case c.open[prefix] != "":
			c.add(key, v, NoEffect, c.open[prefix])
		case rule != nil && c.why(key) != "":
			c.add(key, v, NoEffect, c.why(key))
		case rule != nil && !(isSection && hasRules(rules, key+".")):
			use, text := rule(c, key, v)
			c.add(key, v, use, text)
		case isSection && hasRules(rules, key+"."):
			c.walk(rules, key+".", inner)
		case hasRules(rules, key+".") && v == nil:
			c.add(key, v, NoEffect, "it is empty")
		case hasRules(rules, key+"."):
			c.add(key, v, Refused, "a JSON object")
		default:
			c.add(key, v, Unknown, misspelt.Suggestion(name, prefix, names(rules, prefix), c.none()))
		}
	}
}

// none is said of a key that is like no other.
func (c *Config) none() string {
	if c.Tool == "DeepSpeed" {
		return "no DeepSpeed up to " + deepSpeedVersion + " has it"
	}
	return "it is none of " + c.Tool + "'s"
}

// names lists the names that a section may have.
func names(rules map[string]rule, prefix string) []string {
	list := map[string]bool{}
	for key := range rules {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			name, _, _ := strings.Cut(rest, ".")
			list[name] = true
		}
	}
	return slices.Sorted(maps.Keys(list))
}

func hasRules(rules map[string]rule, prefix string) bool {
	for key := range rules {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

func (c *Config) add(key string, v any, use Use, text string) {
	c.Rows = append(c.Rows, Row{key, jsonText(v), use, text})
}

// Summary is the line for the start of a run.
func (c *Config) Summary() string {
	counts := map[Use]int{}
	for _, r := range c.Rows {
		counts[r.Use]++
	}
	return fmt.Sprintf("is read: keys used %d, without effect here %d; lockstep config shows them",
		counts[Used], counts[NoEffect])
}

// Read says what the keys of a document mean: DeepSpeed's configuration, accelerate's or its ParallelismConfig,
// transformers' DistributedConfig, or FSDP's in HuggingFace's form, by the keys that it has.
func Read(doc map[string]any) *Config {
	for _, key := range []string{"distributed_type", "compute_environment", "num_processes", "num_machines"} {
		if _, ok := doc[key]; ok {
			return Accelerate(doc)
		}
	}
	for _, key := range []string{"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "optimizer",
		"gradient_accumulation_steps", "scheduler", "bf16", "fp16"} {
		if _, ok := doc[key]; ok {
			return DeepSpeed(doc)
		}
	}
	for _, key := range []string{"pp_size", "fsdp_size", "tp_plan", "ep_size"} {
		if _, ok := doc[key]; ok {
			return Distributed(doc)
		}
	}
	for key := range parallelismRules {
		if _, ok := doc[key]; ok {
			return Parallelism(doc)
		}
	}
	return FSDP(doc)
}

// None reports whether an object that stands for fsdp_config sets nothing: transformers writes one with such values
// where there is none.
func None(doc map[string]any) bool {
	for key, value := range doc {
		switch key {
		case "min_num_params", "xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt":
			if sameValue(value, 0) || value == false {
				continue
			}
		}
		return false
	}
	return true
}
