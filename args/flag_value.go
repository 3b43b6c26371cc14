// SPDX-License-Identifier: Apache-2.0

package args

import (
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// cell collects the texts given for one setting on the command line. They are
// decoded later, with those of the other sources, so that all faults come
// together.
type cell struct {
	field *field
	texts []string
	last  string // the flag that was given last: --x or --no_x
}

// flagValue is the pflag.Value of --x, or of --no_x.
type flagValue struct {
	cell     *cell
	name     string
	negate   bool
	fallback string
}

// Set records a text. It never fails: see cell.
func (v *flagValue) Set(text string) error {
	if v.negate {
		if b, ok := boolWord(text); ok {
			text = map[bool]string{true: "false", false: "true"}[b]
		}
	}
	v.cell.texts = append(v.cell.texts, text)
	v.cell.last = v.name
	return nil
}

// String is the default, for --help.
func (v *flagValue) String() string { return v.fallback }

// Type names the kind of value, for --help.
func (v *flagValue) Type() string {
	if v.cell == nil {
		return "string"
	}
	return v.cell.field.typeName()
}

// register adds --key, and --no_key for switches that are on.
func register(fs *pflag.FlagSet, f *field, fallback string) *cell {
	c := &cell{field: f}
	usage := f.usage
	if f.choices != nil && !names(usage, f.choices) {
		usage += ": " + strings.Join(f.choices, ", ")
	}
	shown := fallback
	if shown == "none" && (f.optional || f.kind == reflect.Map) {
		shown = ""
	}
	flag := fs.VarPF(&flagValue{cell: c, name: f.key, fallback: shown}, f.key, "", usage)
	if f.kind != reflect.Bool {
		return c
	}
	flag.NoOptDefVal = "true"
	if fallback == "true" {
		off := fs.VarPF(&flagValue{cell: c, name: "no_" + f.key, negate: true}, "no_"+f.key, "",
			"switches "+f.key+" off")
		off.NoOptDefVal, off.Hidden = "true", true
	}
	return c
}

// names reports whether a text has all the choices.
func names(usage string, choices []string) bool {
	words := strings.FieldsFunc(usage, func(r rune) bool { return strings.ContainsRune(" ,;:|()", r) })
	return !slices.ContainsFunc(choices, func(c string) bool { return !slices.Contains(words, c) })
}

// commandLine is argv taken apart, in the form that pflag reads as meant here.
type commandLine struct {
	loader *Loader
	flags  [][]string // each flag with its value
	words  []string   // what is no flag
	known  map[string]*knownFlag
	faults []Fault
	help   bool
}

// parse hands the flags to pflag one by one, since it stops at the first fault.
func (c *commandLine) parse(fs *pflag.FlagSet) {
	for _, flag := range append(c.flags, append([]string{"--"}, c.words...)) {
		if err := fs.Parse(flag); err != nil { // only a flag of the program's own can fail
			c.faults = append(c.faults, Fault{Problem: err.Error()})
		}
	}
}

func (c *commandLine) flag(words ...string) { c.flags = append(c.flags, words) }

// scan prepares argv for pflag, which stops at the first flag it does not know
// and reads "--flag false" as a switch and a stray word. Unknown flags, missing
// values and stray words become faults; a switch may be followed by true or
// false, and a list by several words, as in HfArgumentParser.
func (l *Loader) scan(argv []string) *commandLine {
	c := &commandLine{loader: l, known: map[string]*knownFlag{}}
	if len(argv) == 1 && !l.AllowArgs && isConfigFile(argv[0]) { // run_clm.py arguments.json
		argv = []string{"--" + configKey, argv[0]}
	}
	for len(argv) > 0 && !c.help {
		arg := argv[0]
		argv = argv[1:]
		switch {
		case arg == "--":
			for _, word := range argv {
				c.word(word)
			}
			argv = nil
		case strings.HasPrefix(arg, "--"):
			argv = c.long(arg, argv)
		case len(arg) > 1 && arg[0] == '-':
			argv = c.short(arg, argv)
		default:
			c.word(arg)
		}
	}
	return c
}

func (c *commandLine) word(w string) {
	if !c.loader.AllowArgs {
		c.faults = append(c.faults, Fault{Problem: "unexpected argument", Key: quote(w), Want: "want flags only"})
		return
	}
	c.words = append(c.words, w)
}

// long handles --name and --name=value, and returns the words that follow. As in HuggingFace's parser, the name may
// have hyphens for underscores.
func (c *commandLine) long(arg string, rest []string) []string {
	name, value, hasValue := strings.Cut(arg[2:], "=")
	flag := c.loader.flags.Lookup(name)
	if underscores := strings.ReplaceAll(name, "-", "_"); flag == nil && underscores != name {
		if flag = c.loader.flags.Lookup(underscores); flag != nil {
			arg = "--" + underscores + strings.TrimPrefix(arg[2:], name)
		}
	}
	if flag == nil {
		if name == "help" {
			c.help = true
			return rest
		}
		if k, text := c.loader.knownFlag(name); k != nil {
			if hasValue {
				text = &value
			}
			return k.flag(c, "--"+name, text, rest)
		}
		return c.unknown(arg, "--"+name, name, hasValue, rest)
	}
	v, ours := flag.Value.(*flagValue)
	switch {
	case hasValue:
		c.flag(arg)
		return rest
	case ours && v.cell.field.kind == reflect.Bool:
		return c.switchFlag(arg, rest)
	case !ours && flag.NoOptDefVal != "":
		c.flag(arg)
		return rest
	case ours && v.cell.field.toggle && (len(rest) == 0 || strings.HasPrefix(rest[0], "-")):
		c.flag(arg + "=true")
		return rest
	case len(rest) == 0 || strings.HasPrefix(rest[0], "--"):
		c.faults = append(c.faults, Fault{Problem: "missing value of flag", Key: arg,
			Want: "want " + flag.Value.Type()})
		return rest
	case ours && v.cell.field.kind == reflect.Slice:
		return c.list(arg, rest)
	}
	c.flag(arg + "=" + rest[0])
	return rest[1:]
}

// knownFlag is the known name that --name stands for, and the value of --no_name for a switch that is on.
func (l *Loader) knownFlag(name string) (k *known, value *string) {
	name = strings.ReplaceAll(name, "-", "_")
	if k = l.known[name]; k != nil {
		return k, nil
	}
	off, _ := strings.CutPrefix(name, "no_")
	if k = l.known[off]; k != nil && off != name && k.Type == TypeBool && k.Default == "true" {
		return k, new("false")
	}
	return nil, nil
}

func (c *commandLine) switchFlag(arg string, rest []string) []string {
	if len(rest) > 0 {
		if _, ok := boolWord(rest[0]); ok {
			c.flag(arg + "=" + rest[0])
			return rest[1:]
		}
	}
	c.flag(arg)
	return rest
}

func (c *commandLine) list(arg string, rest []string) []string {
	for i, word := range rest {
		if i > 0 && strings.HasPrefix(word, "-") {
			return rest[i:]
		}
		c.flag(arg + "=" + word)
	}
	return nil
}

// short handles -x, -xvalue and -xyz, which only the program's own flags can be.
func (c *commandLine) short(arg string, rest []string) []string {
	for i := 1; i < len(arg); i++ {
		flag := c.loader.flags.ShorthandLookup(arg[i : i+1])
		if flag == nil {
			if arg == "-h" {
				c.help = true
				return rest
			}
			name, _, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			return c.unknown(arg, "-"+name, name, hasValue, rest)
		}
		if flag.NoOptDefVal != "" && i+1 < len(arg) && arg[i+1] != '=' {
			continue
		}
		if flag.NoOptDefVal == "" && i+1 == len(arg) && len(rest) > 0 {
			c.flag(arg, rest[0])
			return rest[1:]
		}
		break
	}
	c.flag(arg)
	return rest
}

// unknown records the fault and leaves out the value that seems to follow.
func (c *commandLine) unknown(arg, shown, name string, hasValue bool, rest []string) []string {
	var names []string
	c.loader.flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	names = append(names, c.loader.commonNames()...)
	c.faults = append(c.faults, Fault{Problem: "unknown flag", Key: shown,
		Want: didYouMean(strings.ReplaceAll(name, "-", "_"), "--", names, "--help lists the flags")})
	if hasValue || len(rest) == 0 || strings.HasPrefix(rest[0], "-") {
		return rest
	}
	return rest[1:]
}
