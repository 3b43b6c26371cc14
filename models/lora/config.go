// SPDX-License-Identifier: Apache-2.0

package lora

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/hubname"
	"github.com/lockstep-ml/lockstep/internal/jsonfile"
)

// Config is what an adapter is like, by the names and defaults of PEFT's LoraConfig.
type Config struct {
	R       int     // rank of the matrices; 0 means 8
	Alpha   float64 // lora_alpha: B·A is scaled by it over R; 0 means 8
	Dropout float64 // lora_dropout: of the inputs of A, while training
	RSLoRA  bool    // use_rslora: the scale is over √R (Kalajdzievski 2023, arXiv:2312.03732)

	// TargetModules says which linear layers are adapted; empty: those that PEFT takes for the model's family.
	TargetModules Targets
	// ExcludeModules are not adapted, even if TargetModules names them.
	ExcludeModules Targets
	// LayersToTransform are the numbers of the blocks whose layers are adapted, if TargetModules is a list; none: all.
	LayersToTransform []int
	// LayersPattern are names of the list of blocks, such as layers; none: any.
	LayersPattern []string
	// RankPattern and AlphaPattern have other ranks and alphas for layers of which a regular expression matches the end
	// of the path.
	RankPattern  map[string]int
	AlphaPattern map[string]float64

	ModulesToSave []string // modules that are trained, and saved, whole: the head of a classifier, for example
	Bias          Bias     // which biases of the model are trained, and saved
	Init          Init     // init_lora_weights
	FanInFanOut   bool     // fan_in_fan_out: weights are [in, out], as GPT-2's; set by itself

	TaskType  string // CAUSAL_LM, SEQ_CLS …; SEQ_CLS trains the classifier too. "": none is said
	BaseModel string // base_model_name_or_path: the folder that the model was loaded from; "": none
	// Revision is of a BaseModel that is a name on HuggingFace's Hub. A folder in the Hub's cache is written as its
	// name and commit.
	Revision string

	Name string // of the adapter in the model; "" stands for default. No file has it
	Seed uint64 // of the initial matrices

	carried map[string]json.RawMessage // of a file, by key: what means nothing here
}

// Targets chooses modules: those of a list whose paths are, or end in, one of the names, or those of which a regular
// expression matches the whole path.
type Targets struct {
	Names   []string
	Pattern string
}

// AllLinear are all linear layers but the head of a language model, or with the task SEQ_CLS of a classifier.
var AllLinear = Targets{Pattern: allLinear}

const allLinear = "all-linear"

// ParseTargets are the targets that words of a flag name: "all-linear", one regular expression, or several names. One
// word of letters, digits, _ and dots alone is a name, and one word may be several names with commas between them.
func ParseTargets(words ...string) Targets {
	if len(words) == 1 && strings.Contains(words[0], ",") { // which no path of a module has
		if list := strings.Split(words[0], ","); !slices.ContainsFunc(list, isPattern) {
			words = list
		}
	}
	if len(words) == 1 && (strings.EqualFold(words[0], allLinear) || isPattern(words[0])) {
		return Targets{Pattern: words[0]}
	}
	return Targets{Names: words}
}

// isPattern reports whether a word cannot be the name of a module.
func isPattern(s string) bool {
	return strings.Contains(s, "..") ||
		strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") != ""
}

// String is the targets as a flag has them.
func (t Targets) String() string {
	if t.Pattern != "" {
		return t.Pattern
	}
	return strings.Join(t.Names, ", ")
}

func (t Targets) empty() bool { return t.Pattern == "" && len(t.Names) == 0 }

// all reports whether t is AllLinear.
func (t Targets) all() bool { return strings.EqualFold(t.Pattern, allLinear) }

// MarshalJSON is PEFT's: a list, a string, or null.
func (t Targets) MarshalJSON() ([]byte, error) {
	switch {
	case t.Pattern != "":
		return json.Marshal(t.Pattern)
	case len(t.Names) == 0:
		return []byte("null"), nil
	}
	return json.Marshal(t.Names)
}

// UnmarshalJSON reads a list of names or a pattern.
func (t *Targets) UnmarshalJSON(text []byte) error {
	if json.Unmarshal(text, &t.Pattern) == nil || json.Unmarshal(text, &t.Names) == nil {
		return nil
	}
	return fmt.Errorf("is %.60s: want a text or a list of texts", text)
}

// Bias is which biases are trained.
type Bias string

// The values of Bias.
const (
	BiasNone     Bias = "none" // also ""
	BiasAll      Bias = "all"
	BiasLoRAOnly Bias = "lora_only" // those of adapted layers
)

// Init is how matrices begin.
type Init string

// The values of Init.
const (
	InitDefault  Init = ""         // A as torch.nn.Linear's weight, U(±1/√in), and B 0: the model is unchanged at first
	InitGaussian Init = "gaussian" // A from N(0, 1/R²), and B 0
	InitRandom   Init = "random"   // both as torch.nn.Linear's, PEFT's false: for tests
)

// MarshalJSON is PEFT's: true, false or a text.
func (i Init) MarshalJSON() ([]byte, error) {
	switch i {
	case InitDefault:
		return []byte("true"), nil
	case InitRandom:
		return []byte("false"), nil
	}
	return json.Marshal(string(i))
}

// UnmarshalJSON reads it.
func (i *Init) UnmarshalJSON(text []byte) error {
	var yes bool
	if json.Unmarshal(text, &yes) == nil {
		if *i = InitDefault; !yes {
			*i = InitRandom
		}
		return nil
	}
	return json.Unmarshal(text, (*string)(i))
}

// tasks are PEFT's, which refuses others.
var tasks = []string{"CAUSAL_LM", "SEQ_CLS", "SEQ_2_SEQ_LM", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION"}

// withDefaults sets PEFT's defaults where a setting is zero.
func (c Config) withDefaults() Config {
	c.R, c.Alpha = cmp.Or(c.R, 8), cmp.Or(c.Alpha, 8)
	c.Bias, c.Name = cmp.Or(c.Bias, BiasNone), cmp.Or(c.Name, "default")
	return c
}

// check has all that is wrong with a configuration.
func (c Config) check() error {
	var bad []error
	want := func(ok bool, key string, value any, want string) {
		if !ok {
			bad = append(bad, fmt.Errorf("%s is %v: want %s", key, value, want))
		}
	}
	want(c.R > 0, "r", c.R, "at least 1")
	want(finite(c.Alpha), "lora_alpha", c.Alpha, "a number")
	want(c.Dropout >= 0 && c.Dropout < 1, "lora_dropout", c.Dropout, "a probability in [0, 1)")
	want(c.TaskType == "" || slices.Contains(tasks, c.TaskType), "task_type", c.TaskType, "none, or one of "+
		strings.Join(tasks, ", "))
	for key, r := range c.RankPattern {
		want(r > 0, "rank_pattern."+key, r, "at least 1")
	}
	for key, a := range c.AlphaPattern {
		want(finite(a), "alpha_pattern."+key, a, "a number")
	}
	want(slices.Contains([]Bias{BiasNone, BiasAll, BiasLoRAOnly}, c.Bias), "bias", c.Bias, "none, all or lora_only")
	want(len(c.LayersToTransform) == 0 || len(c.TargetModules.Names) > 0, "layers_to_transform", c.LayersToTransform,
		"none, or a list of target_modules")
	want(len(c.LayersPattern) == 0 || len(c.LayersToTransform) > 0, "layers_pattern", c.LayersPattern,
		"none, or layers_to_transform too")
	want(c.Name != "" && !strings.ContainsAny(c.Name, "./"), "the adapter's name", c.Name, "one without dots")
	return errors.Join(bad...)
}

// besides are initialisations of PEFT's that leave the model's weights as they are.
var besides = []Init{InitDefault, InitGaussian, InitRandom, "eva", "mica", "orthogonal"}

// loadable refuses adapters that began with a part of the model's weights, which PEFT takes out of them again when it
// loads the adapter: pissa, olora, corda, loftq, lora_ga.
func (i Init) loadable() error {
	if slices.Contains(besides, Init(strings.ToLower(string(i)))) {
		return nil
	}
	return fmt.Errorf("init_lora_weights is %.60q, which changes the weights of the model too and is not built: want "+
		"plain LoRA, as PEFT's save_pretrained(FOLDER, path_initial_model_for_weight_conversion=INITIAL) makes of it",
		string(i))
}

// fresh refuses initialisations that are not built.
func (i Init) fresh() error {
	if slices.Contains([]Init{InitDefault, InitGaussian, InitRandom}, i) {
		return nil
	}
	return fmt.Errorf("init_lora_weights %q is not built: want true, false or \"gaussian\"", string(i))
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// document is adapter_config.json, in the order of PEFT's keys.
type document struct {
	AlphaPattern   map[string]float64 `json:"alpha_pattern" null:"ok"`
	BaseModel      *string            `json:"base_model_name_or_path"`
	Bias           Bias               `json:"bias"`
	ExcludeModules Targets            `json:"exclude_modules" null:"ok"`
	FanInFanOut    bool               `json:"fan_in_fan_out"`
	InferenceMode  bool               `json:"inference_mode"`
	Init           Init               `json:"init_lora_weights"`
	LayersPattern  oneOrMore[string]  `json:"layers_pattern" null:"ok"`
	Layers         oneOrMore[int]     `json:"layers_to_transform" null:"ok"`
	Alpha          float64            `json:"lora_alpha"`
	Dropout        float64            `json:"lora_dropout"`
	ModulesToSave  []string           `json:"modules_to_save" null:"ok"`
	PEFTType       string             `json:"peft_type"`
	PEFTVersion    string             `json:"peft_version,omitempty"`
	Revision       *string            `json:"revision"`
	R              int                `json:"r"`
	RankPattern    map[string]int     `json:"rank_pattern" null:"ok"`
	TargetModules  Targets            `json:"target_modules" null:"ok"`
	TaskType       *string            `json:"task_type"`
	RSLoRA         bool               `json:"use_rslora"`
}

// oneOrMore is a list that may be written as its one value.
type oneOrMore[T any] []T

// UnmarshalJSON reads either.
func (l *oneOrMore[T]) UnmarshalJSON(text []byte) error {
	var one T
	if json.Unmarshal(text, &one) == nil {
		*l = []T{one}
		return nil
	}
	return json.Unmarshal(text, (*[]T)(l))
}

// peftVersion is that of the PEFT whose files these are.
const peftVersion = "0.21.2"

// unbuilt are the keys of what is not built, with the values that leave it off.
var unbuilt = map[string]string{
	"alora_invocation_tokens": "null", "arrow_config": "null", "corda_config": "null", "ensure_weight_tying": "false",
	"eva_config": "null", "kasa_config": "null", "layer_replication": "null", "loftq_config": "{}",
	"lora_bias": "false", "lora_ga_config": "null", "megatron_config": "null", "monteclora_config": "null",
	"target_parameters": "null", "trainable_token_indices": "null", "use_bdlora": "null", "use_dora": "false",
	"use_qalora": "false", "velora_config": "null",
}

// idle are keys that PEFT writes and that mean nothing here, with its values.
var idle = map[string]string{"auto_mapping": "null", "megatron_core": `"megatron.core"`, "qalora_group_size": "16"}

// begun are keys of how matrices were initialised. Init says whether it matters once they are saved.
var begun = []string{"loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config"}

// MarshalJSON is the text of adapter_config.json with all of PEFT's keys.
func (c Config) MarshalJSON() ([]byte, error) {
	c = c.withDefaults()
	d := document{AlphaPattern: orEmpty(c.AlphaPattern), Bias: c.Bias, ExcludeModules: c.ExcludeModules,
		FanInFanOut: c.FanInFanOut, InferenceMode: true, Init: c.Init, LayersPattern: c.LayersPattern,
		Layers: c.LayersToTransform, Alpha: c.Alpha, Dropout: c.Dropout, ModulesToSave: c.ModulesToSave,
		PEFTType: "LORA", PEFTVersion: peftVersion, R: c.R, RankPattern: orEmpty(c.RankPattern),
		TargetModules: c.TargetModules, RSLoRA: c.RSLoRA}
	if c.TaskType != "" {
		d.TaskType = &c.TaskType
	}
	if name, at, ok := hubname.Of(c.BaseModel); ok {
		c.BaseModel, c.Revision = name, at
	}
	if c.BaseModel != "" {
		d.BaseModel = &c.BaseModel
	}
	if c.Revision != "" {
		d.Revision = &c.Revision
	}
	text, err := json.Marshal(d)
	all := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	for _, more := range []map[string]string{unbuilt, idle} {
		for key, value := range more {
			all[key] = json.RawMessage(value)
		}
	}
	maps.Copy(all, c.carried)
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(all, "", "  ") // sorted, as PEFT's
}

func orEmpty[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}

// ParseConfig reads an adapter_config.json of PEFT's. What would compute something that is not built (DoRA, LoftQ, EVA
// …), and a key that PEFT 0.21 does not have, unless it is off, are errors that name it.
func ParseConfig(text []byte) (c Config, err error) {
	d := document{Bias: BiasNone, Alpha: 8, R: 8, PEFTType: "LORA"}
	all := map[string]json.RawMessage{}
	if err := jsonfile.Unmarshal(text, &all); err != nil {
		return c, err
	}
	for key, value := range all { // PEFT writes null for all that is not given
		if string(value) == "null" {
			delete(all, key)
			continue
		}
		var short bytes.Buffer
		if err := json.Compact(&short, value); err != nil {
			return c, err
		}
		all[key] = short.Bytes()
	}
	kept, err := json.Marshal(all)
	if err == nil {
		err = jsonfile.Unmarshal(kept, &d)
	}
	if err != nil {
		return c, err
	}
	if !strings.EqualFold(d.PEFTType, "LORA") {
		return c, fmt.Errorf("peft_type is %q, which is not built: want LORA", d.PEFTType)
	}
	if err := refuseUnbuilt(all); err != nil {
		return c, err
	}
	if err := d.Init.loadable(); err != nil {
		return c, err
	}
	if d.Alpha == 0 { // which a Config has no word for
		return c, errors.New("lora_alpha is 0, with which an adapter changes nothing: want another number")
	}
	c = Config{R: d.R, Alpha: d.Alpha, Dropout: d.Dropout, RSLoRA: d.RSLoRA, TargetModules: d.TargetModules,
		ExcludeModules: d.ExcludeModules, LayersToTransform: d.Layers, LayersPattern: d.LayersPattern,
		RankPattern: d.RankPattern, AlphaPattern: d.AlphaPattern, ModulesToSave: d.ModulesToSave, Bias: d.Bias,
		Init: d.Init, FanInFanOut: d.FanInFanOut}
	if d.TaskType != nil {
		c.TaskType = *d.TaskType
	}
	if d.BaseModel != nil {
		c.BaseModel = *d.BaseModel
	}
	if d.Revision != nil {
		c.Revision = *d.Revision
	}
	c.Name, c.carried = "default", map[string]json.RawMessage{}
	for key := range idle {
		if value, ok := all[key]; ok {
			c.carried[key] = value
		}
	}
	return c, c.check()
}

// refuseUnbuilt names the keys of all that change what is computed.
func refuseUnbuilt(all map[string]json.RawMessage) error {
	known, err := json.Marshal(document{PEFTVersion: peftVersion})
	own := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(known, &own)
	}
	if err != nil {
		return err
	}
	off := []string{"null", "false", `""`, "[]", "{}", "0"}
	var bad []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		_, read := own[key]
		_, means := idle[key]
		value := string(all[key])
		if !read && !means && !slices.Contains(begun, key) && value != unbuilt[key] && !slices.Contains(off, value) {
			bad = append(bad, fmt.Sprintf("%s is %.60s, which is not built", key, value))
		}
	}
	if len(bad) > 0 {
		return errors.New(strings.Join(bad, "; ") + ": want plain LoRA")
	}
	return nil
}
