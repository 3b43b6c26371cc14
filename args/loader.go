// SPDX-License-Identifier: Apache-2.0

package args

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/internal/misspelt"
	"github.com/lockstep-ml/lockstep/internal/terminal"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// EnvPrefix starts the name of every environment variable that is a setting.
const EnvPrefix = "LOCKSTEP_"

// ErrHelp is returned by Loader.Parse, unwrapped and alone, when --help or -h is
// given. The program then shows Loader.Usage.
var ErrHelp = pflag.ErrHelp

// builtin is what every program can be given besides its own settings.
type builtin struct {
	Config []string `json:"config" path:"true" usage:"JSON or YAML file of settings; a later file overrides an earlier one"`
}

const configKey = "config"

// engineEnv lists the variables that the engine reads by itself and that are no
// settings of a run: LOCKSTEP_KERNELS forces a variant of the CPU kernels, CUDA_GRAPHS
// turns CUDA graphs off, MPI_LIBRARY and the others after it name files of libraries,
// those from REQUIRE_* on are read by the project's tests, the rest say which job a
// process is a rank of.
var engineEnv = []string{
	EnvPrefix + "KERNELS", EnvPrefix + "JOB_TOKEN", EnvPrefix + "JOB_TOKEN_FILE", EnvPrefix + "STORE",
	EnvPrefix + "HOST_ID", EnvPrefix + "LISTEN", EnvPrefix + "SILENCE", EnvPrefix + "COLUMNS",
	EnvPrefix + "TLS", EnvPrefix + "TLS_*",
	EnvPrefix + "LAUNCH_*", EnvPrefix + "FLIGHT_DIR", EnvPrefix + "CUDA_GRAPHS",
	EnvPrefix + "MPI_LIBRARY", EnvPrefix + "CUBLASLT", EnvPrefix + "NCCL_LIBRARY", EnvPrefix + "NVML_LIBRARY",
	EnvPrefix + "CUDNN",
	EnvPrefix + "REQUIRE_*", EnvPrefix + "SKIPPED", EnvPrefix + "TEST_DEVICE", EnvPrefix + "NVCC",
	EnvPrefix + "MUTANTS", EnvPrefix + "ALL_MUTANTS", EnvPrefix + "OFFLOAD_STATE", EnvPrefix + "CHECKPOINT_KILLS",
	EnvPrefix + "PIPELINES_WHOLE",
}

// Loader fills a list of structs from flags, environment and files.
type Loader struct {
	// AllowArgs lets words that are no flags pass; they are the FlagSet's Args.
	// Otherwise they are faults.
	AllowArgs bool
	// Predicts says that the program makes predictions where do_predict is set. Otherwise do_predict is a fault.
	Predicts bool
	// Environ is the environment; nil means os.Environ.
	Environ func() []string
	// ReadFile reads a config file; nil means reading regular files of at most a MiB.
	ReadFile func(path string) ([]byte, error)

	flags    *pflag.FlagSet
	structs  []any
	schema   *schema
	cells    map[string]*cell
	known    map[string]*known
	program  *Program
	reserved []string
	choose   func(given func(key string) bool) (origin string)
}

// Bind registers the settings of structs (pointers, with their defaults in them) as flags of fs, and --config. Those of
// embedded structs count. fs may have other flags; they are parsed too. A struct that is no settings struct, and a key
// or flag defined twice, is the programmer's mistake and panics.
func Bind(fs *pflag.FlagSet, structs ...any) *Loader {
	all := slices.Concat(structs, []any{&builtin{}})
	l := newLoader(all)
	l.flags, l.cells, l.reserved = fs, map[string]*cell{}, slices.Clone(engineEnv)
	for _, f := range l.schema.fields {
		l.cells[f.key] = register(fs, f, f.masked(f.of(all)))
	}
	return l
}

// newLoader is a loader without flags, which knows HuggingFace's names if TrainingArguments is among the structs.
func newLoader(structs []any) *Loader {
	l := &Loader{structs: structs, schema: newSchema(structs...), known: map[string]*known{}}
	if l.training(structs) != nil {
		l.Know(Libraries()...)
		l.Know(HuggingFace()...)
	}
	return l
}

// ReserveEnv names variables that start with EnvPrefix and are no settings, so
// that Parse does not refuse them; LOCKSTEP_X_* stands for all that start so.
// Settings are read all the same.
func (l *Loader) ReserveEnv(names ...string) { l.reserved = append(l.reserved, names...) }

// Defaults sets a function that chooses the structs' defaults by what was given, for programs that have several sets
// of them. Parse calls it when flags, variables and files have been read and before their values are put in place;
// given reports whether one of them set a key. The result is the Origin of the defaults that the function changed.
func (l *Loader) Defaults(choose func(given func(key string) bool) (origin string)) {
	l.choose = choose
}

// TrainingArguments are the training arguments among the structs that were bound, nil if there are none.
func (l *Loader) TrainingArguments() *TrainingArguments { return l.training(l.structs) }

// training is the TrainingArguments among structs, or nil.
func (l *Loader) training(structs []any) *TrainingArguments {
	for _, s := range structs {
		if a, ok := s.(*TrainingArguments); ok {
			return a
		}
	}
	return nil
}

// Parse reads argv (without the program's name), the environment and the config
// files into the structs, and checks the result: the choices of every field, and
// each struct that is Checked. The structs are changed only if there is no fault;
// otherwise the error is an *Error with all faults, or ErrHelp. A FlagSet is
// parsed once.
func (l *Loader) Parse(argv []string) (*Resolved, error) {
	line := l.scan(argv)
	if line.help {
		return nil, ErrHelp
	}
	m := newMerge(l, "--help lists the keys")
	m.line = line
	m.checker.origin = func(key string) string { return m.origins[key] }
	line.parse(l.flags)
	m.checker.faults = line.faults
	m.accelerateEnvironment()
	m.files()
	m.environment()
	m.flags()
	m.configs = m.toolConfigs()
	return m.finish()
}

// merge is one Parse under way: koanf holds the canonical values by key, and
// every source is loaded over the ones it beats.
type merge struct {
	loader  *Loader
	line    *commandLine
	ko      *koanf.Koanf
	origins map[string]string
	weak    map[string]bool // a config file has HuggingFace's default, as one that has every argument does
	given   map[string]*given
	checker Checker
	configs []Notice // about files of other tools
	unknown string   // the hint for an unknown key that is like no other
}

func newMerge(l *Loader, unknown string) *merge {
	return &merge{loader: l, ko: koanf.New("."), origins: map[string]string{}, weak: map[string]bool{},
		given: map[string]*given{}, unknown: unknown}
}

func (m *merge) fault(f Fault) { m.checker.faults = append(m.checker.faults, f) }

// load merges one source. Whole values replace whole values: lists and objects
// of two sources are never mixed.
func (m *merge) load(p koanf.Provider, parser koanf.Parser, origin func(key string) string) error {
	return m.ko.Load(p, parser, koanf.WithMergeFunc(func(src, dest map[string]any) error {
		var known []string
		for _, key := range sortedKeys(src) {
			if m.loader.known[key] != nil {
				known = append(known, key)
				continue
			}
			m.set(dest, key, src[key], origin(key))
		}
		for _, key := range known {
			m.setKnown(dest, src, key, src[key], origin(key))
		}
		return nil
	}))
}

func (m *merge) set(dest map[string]any, key string, raw any, origin string) {
	f := m.loader.schema.byKey[key]
	fromFile := strings.HasPrefix(origin, "file ")
	if f == nil || fromFile && key == configKey {
		m.fault(Fault{Key: key, Origin: strings.TrimPrefix(origin, "file "), Problem: "unknown key",
			Want: didYouMean(key, "", m.loader.keys(), m.unknown)})
		return
	}
	if raw == nil && noneIsDefault(f.key) {
		return
	}
	if isToolConfig(key) {
		if raw = toolConfigText(raw); raw == "" {
			return
		}
	}
	if path, ok := f.namesFile(raw); ok {
		doc, err := readToolFile(path, m.loader.readFile)
		if err != nil {
			m.checker.add(Fault{Key: key, Value: quote(path), Origin: origin,
				Want: "a readable JSON or YAML file: " + err.Error()})
			return
		}
		raw = doc
	}
	canonical, want := f.decode(raw)
	if want != "" {
		if list, ok := raw.([]string); ok && f.kind != reflect.Slice {
			raw = list[len(list)-1:] // the text that counts
		}
		fault := Fault{Key: key, Value: quote(raw), Origin: origin, Want: want}
		if f.secret() {
			fault.Value = f.mask()
		}
		m.checker.add(fault)
		return
	}
	dest[key], m.origins[key], m.weak[key] = canonical, origin, fromFile && isDefault(key, canonical)
}

// said reports whether a source has set a key. A config file that has HuggingFace's default there says nothing: files
// that transformers writes have every argument.
func (m *merge) said(key string) bool { return m.ko.Exists(key) && !m.weak[key] }

// keys lists what a file or variable may set.
func (l *Loader) keys() []string {
	var keys []string
	for _, f := range l.schema.fields {
		if f.key != configKey {
			keys = append(keys, f.key)
		}
	}
	return append(keys, l.commonNames()...)
}

// commonNames are the known names that a misspelt one may mean.
func (l *Loader) commonNames() []string {
	return slices.DeleteFunc(sortedKeys(l.known), func(name string) bool { return l.known[name].rare })
}

// files loads the files that --config names, or else LOCKSTEP_CONFIG.
func (m *merge) files() {
	f := m.loader.schema.byKey[configKey]
	var raw any
	if c := m.loader.cells[configKey]; c.texts != nil {
		raw = c.texts
	} else if text, ok := m.loader.lookupEnv(EnvPrefix + strings.ToUpper(configKey)); ok {
		raw = text
	}
	paths, _ := f.decode(raw)
	if paths == nil {
		return
	}
	for _, path := range paths.([]string) {
		m.file(path)
	}
}

// maxConfigFile is the largest config file, in bytes.
const maxConfigFile = 1 << 20

// readConfigFile reads a regular file of at most so many.
func readConfigFile(path string) ([]byte, error) { return vfs.ReadFile(vfs.OS, path, maxConfigFile) }

// readFile is ReadFile, or what stands for it.
func (l *Loader) readFile(path string) ([]byte, error) {
	if l.ReadFile != nil {
		return l.ReadFile(path)
	}
	return readConfigFile(path)
}

func (m *merge) file(path string) {
	d, err := newDocument(path)
	var data []byte
	if err == nil {
		data, err = m.loader.readFile(path)
	}
	if err == nil {
		origin := "file " + path
		err = m.load(rawbytes.Provider(data), d, func(string) string { return origin })
	}
	if err != nil {
		m.fault(Fault{Problem: "cannot read config file", Key: path, Want: reason(err)})
		return
	}
	for _, key := range d.duplicates {
		m.fault(Fault{Problem: "duplicate key", Key: key, Origin: path, Want: "want it once"})
	}
}

// reason is the error without the path, which the fault has named.
func reason(err error) string {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}

// accelerateEnv has the variables of accelerate launch that are settings, by key.
var accelerateEnv = map[string]string{"fsdp_state_dict_type": "FSDP_STATE_DICT_TYPE",
	"dp_replicate_size": MeshEnvPrefix + "DP_REPLICATE_SIZE", "dp_shard_size": MeshEnvPrefix + "DP_SHARD_SIZE",
	"tp_size": MeshEnvPrefix + "TP_SIZE", "cp_size": MeshEnvPrefix + "CP_SIZE", "sp_size": MeshEnvPrefix + "SP_SIZE"}

// MeshEnvPrefix starts the names of the variables of accelerate's ParallelismConfig.
const MeshEnvPrefix = "PARALLELISM_CONFIG_"

// meshUnread are those that change nothing here, and exchangeVariable that of cp_strategy.
const (
	meshUnread = "CP_BACKEND CP_COMM_STRATEGY SP_BACKEND SP_SEQ_LENGTH SP_SEQ_LENGTH_IS_VARIABLE " +
		"SP_ATTN_IMPLEMENTATION"
	exchangeVariable = MeshEnvPrefix + "CP_COMM_STRATEGY"
)

// accelerateEnvironment loads them; as in HuggingFace, every other source beats them.
func (m *merge) accelerateEnvironment() {
	values := settings{}
	known := slices.Concat(slices.Collect(maps.Values(accelerateEnv)), strings.Fields(meshUnread))
	for _, e := range m.loader.environ() {
		name, _, _ := strings.Cut(e, "=")
		if rest, ok := strings.CutPrefix(name, MeshEnvPrefix); ok && !slices.Contains(known, name) &&
			!slices.Contains(known, rest) && m.loader.TrainingArguments() != nil {
			m.fault(Fault{Problem: "unknown variable", Key: name, Want: m.meshHint(rest)})
		}
	}
	for key, name := range accelerateEnv {
		if text, ok := m.loader.lookupEnv(name); ok && text != "" && m.loader.schema.byKey[key] != nil {
			values[key] = text
		}
	}
	if m.loader.TrainingArguments() != nil {
		switch text, _ := m.loader.lookupEnv(exchangeVariable); text {
		case "", "allgather": // which accelerate sets whether it is read or not
		case "alltoall":
			values["cp_strategy"] = string(CPRing)
		default:
			m.fault(Fault{Key: exchangeVariable, Value: quote(text), Want: "allgather or alltoall"})
		}
	}
	m.mustLoad(values, func(key string) string { return "env " + cmp.Or(accelerateEnv[key], exchangeVariable) })
}

// meshHint says what to take for a variable that accelerate does not read.
func (m *merge) meshHint(rest string) string {
	if key := strings.ToLower(rest); m.loader.schema.byKey[key] != nil {
		return "want " + envName(key) + ": accelerate's ParallelismConfig has no " + key
	}
	return "want those of accelerate's ParallelismConfig"
}

// settings is a koanf.Provider of values by key.
type settings map[string]any

func (s settings) Read() (map[string]any, error) { return s, nil }
func (s settings) ReadBytes() ([]byte, error)    { return nil, errors.ErrUnsupported }

func (m *merge) environment() {
	l := m.loader
	provider := env.Provider("", env.Opt{Prefix: EnvPrefix, EnvironFunc: l.environ,
		TransformFunc: func(name, value string) (string, any) {
			key := strings.ToLower(strings.TrimPrefix(name, EnvPrefix))
			if l.schema.byKey[key] == nil && (l.known[key] == nil || l.isReserved(name)) || envName(key) != name {
				if !l.isReserved(name) {
					m.fault(Fault{Problem: "unknown variable", Key: name, Want: l.envHint(key)})
				}
				return "", nil
			}
			return key, value
		}})
	m.mustLoad(provider, func(key string) string { return "env " + envName(key) })
}

func (m *merge) flags() {
	provider := posflag.ProviderWithFlag(m.loader.flags, ".", nil, func(f *pflag.Flag) (string, any) {
		v, ours := f.Value.(*flagValue)
		if !ours || v.cell.last != f.Name {
			return "", nil
		}
		return v.cell.field.key, slices.Clone(v.cell.texts)
	})
	m.mustLoad(flagProvider{provider, m.line.known}, func(key string) string {
		if k := m.line.known[key]; k != nil {
			return "flag " + k.shown
		}
		return "flag --" + m.loader.cells[key].last
	})
}

// flagProvider adds the known names of the command line to the flags.
type flagProvider struct {
	koanf.Provider
	known map[string]*knownFlag
}

func (p flagProvider) Read() (map[string]any, error) {
	values, err := p.Provider.Read()
	for name, k := range p.known {
		values[name] = k.texts
	}
	return values, err
}

// mustLoad loads a source that has nothing to fail with.
func (m *merge) mustLoad(p koanf.Provider, origin func(key string) string) {
	if err := m.load(p, nil, origin); err != nil {
		m.fault(Fault{Problem: err.Error()})
	}
}

// finish checks copies of the structs with the merged values in them, and puts
// them in place if nothing is wrong.
func (m *merge) finish() (*Resolved, error) {
	l := m.loader
	chosen := m.choose()
	copies := make([]any, len(l.structs))
	for i, s := range l.structs {
		c := reflect.New(reflect.TypeOf(s).Elem())
		c.Elem().Set(reflect.ValueOf(s).Elem())
		copies[i] = c.Interface()
	}
	m.assign(copies)
	if a := l.training(copies); a != nil {
		m.follow(a)
		m.checker.Require(!a.DoPredict || l.Predicts, "do_predict", a.DoPredict,
			"false: this program makes no predictions")
	}
	notices := append(append(m.judge(), m.replaceEngine(copies)...), m.configs...)
	m.checker.check(l.schema, copies)
	if a := l.training(copies); a != nil && l.program != nil {
		a.checkProgram(&m.checker, *l.program)
	}
	if err := m.checker.Err(); err != nil {
		return nil, err
	}
	for i, s := range l.structs {
		reflect.ValueOf(s).Elem().Set(reflect.ValueOf(copies[i]).Elem())
	}
	return &Resolved{schema: l.schema, structs: l.structs, origins: m.origins, chosen: chosen, Notices: notices}, nil
}

// follow sets do_eval where an eval_strategy implies it, as HuggingFace does, and then do_train, unless do_predict asks
// for something else.
func (m *merge) follow(a *TrainingArguments) {
	// transformers writes do_eval true into every file with an eval_strategy.
	origin := m.origins["do_eval"]
	written := strings.HasPrefix(origin, "file ") &&
		a.EvalStrategy != StrategyNo && m.origins["eval_strategy"] == origin
	if a.DoEval && !written || !a.EvaluationWanted() || a.DoPredict && m.origins["eval_strategy"] == "" {
		return
	}
	a.followEvalStrategy()
	a.DoTrain = a.DoTrain || !a.DoPredict
}

// assign puts the merged values in place.
func (m *merge) assign(structs []any) {
	for key, v := range m.ko.Raw() {
		m.loader.schema.byKey[key].assign(structs, v)
	}
}

// choose lets the program choose its defaults and returns the origins of those that it changed.
func (m *merge) choose() map[string]string {
	l := m.loader
	if l.choose == nil {
		return nil
	}
	before := map[string]string{}
	for _, f := range l.schema.fields {
		before[f.key] = f.masked(f.of(l.structs))
	}
	origin := l.choose(m.checker.Given)
	chosen := map[string]string{}
	for _, f := range l.schema.fields {
		if f.masked(f.of(l.structs)) != before[f.key] {
			chosen[f.key] = origin
		}
	}
	return chosen
}

func envName(key string) string { return EnvPrefix + strings.ToUpper(key) }

func (l *Loader) envHint(key string) string {
	near := meant[key]
	if l.schema.byKey[near] == nil {
		near = misspelt.Nearest(key, append(sortedKeys(l.schema.byKey), l.commonNames()...))
	}
	if near != "" {
		return "did you mean " + envName(near) + "?"
	}
	return "--help lists the settings; a variable is " + EnvPrefix + " followed by the name in capitals"
}

// environ is the environment in the order of names, so that faults are too.
func (l *Loader) environ() []string {
	if l.Environ == nil {
		return slices.Sorted(slices.Values(os.Environ()))
	}
	return slices.Sorted(slices.Values(l.Environ()))
}

func (l *Loader) lookupEnv(name string) (string, bool) {
	for _, e := range l.environ() {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

func (l *Loader) isReserved(name string) bool {
	return slices.ContainsFunc(l.reserved, func(r string) bool {
		if prefix, ok := strings.CutSuffix(r, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return name == r
	})
}

// Usage is the text of --help: the settings struct by struct, then the program's
// other flags.
func (l *Loader) Usage() string { return l.UsageWrapped(usageColumns) }

// UsageWrapped is Usage with flags that fit into columns, broken between words; 0 is as many as Usage has.
func (l *Loader) UsageWrapped(columns int) string {
	columns = cmp.Or(columns, usageColumns)
	groups := make([]*pflag.FlagSet, len(l.structs)+1)
	for i := range groups {
		groups[i] = pflag.NewFlagSet("", pflag.ContinueOnError)
		groups[i].SortFlags = false
	}
	for _, f := range l.schema.fields {
		groups[f.owner].AddFlag(l.flags.Lookup(f.key))
	}
	l.flags.VisitAll(func(f *pflag.Flag) {
		if _, ours := f.Value.(*flagValue); !ours {
			groups[len(groups)-1].AddFlag(f)
		}
	})
	var b strings.Builder
	for i, g := range groups {
		if !g.HasFlags() {
			continue
		}
		title := "Other flags"
		if i < len(l.structs)-1 {
			title = l.title(i)
		}
		fmt.Fprintf(&b, "%s:\n%s\n", title, g.FlagUsagesWrapped(columns))
	}
	line := func(text string) { b.WriteString(terminal.Lines(text, columns) + "\n") }
	line("A flag overrides its variable (" + EnvPrefix + "LEARNING_RATE), which overrides --config files. Switches " +
		"that are on have a --no_ form.")
	if l.training(l.structs) != nil {
		line("Other arguments of HuggingFace's Trainer are recognised too; docs/arguments.md lists what happens " +
			"to each.")
	}
	return b.String()
}

// title is the heading of a struct's flags, with its package if another struct has the same heading.
func (l *Loader) title(i int) string {
	t := reflect.TypeOf(l.structs[i]).Elem()
	for j := range len(l.structs) - 1 {
		if other := reflect.TypeOf(l.structs[j]).Elem(); j != i && heading(other.Name()) == heading(t.Name()) {
			return heading(t.Name()) + " (" + strings.TrimSuffix(t.String(), "."+t.Name()) + ")"
		}
	}
	return heading(t.Name())
}

// heading is a struct's name in words, without Arguments or Settings: Hub data for HubDataArguments.
func heading(name string) string {
	name = strings.TrimSuffix(strings.TrimSuffix(name, "Arguments"), "Settings")
	words := strings.Fields(wordStart.ReplaceAllString(name, "$1$3 $2$4"))
	for i, w := range words {
		if i > 0 && w != strings.ToUpper(w) {
			words[i] = strings.ToLower(w)
		}
	}
	text := cmp.Or(strings.Join(words, " "), "Arguments")
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}

// wordStart is where a word of a Go name begins: before a capital behind a small letter, and before the last capital
// of several.
var wordStart = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)

const usageColumns = 110
