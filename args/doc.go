// Package args holds TrainingArguments, the settings of a training run, under
// HuggingFace's names and defaults, and fills them from flags, environment and
// files.
//
// TrainingArguments is plain data: what is printed, compared, saved and resumed
// is a field of it, and nothing in it is alive. Default returns HuggingFace's
// defaults; a field that is zero afterwards really is zero. Only settings whose
// feature exists have a field, so none is silently ignored.
//
// The other names of HuggingFace's are known to a Loader all the same, so that a
// command line written for its Trainer is understood: HuggingFace lists them.
// One that changes no result is accepted with a notice in Resolved, an older name
// gives its value to the setting that replaced it, and the others are faults that
// say what is not built. Loader.Know adds names of a program's own.
//
// Bind registers the fields of any list of structs as flags, so that a program
// adds its own settings, or its own defaults, by the same mechanism:
//
//	a := args.Default("out/clm")
//	a.LearningRate = 1e-3                    // this program's own default
//	d := &DataArguments{BlockSize: 128}      // this program's own settings
//	fs := pflag.NewFlagSet("clm", pflag.ContinueOnError)
//	loader := args.Bind(fs, a, d)
//	resolved, err := loader.Parse(os.Args[1:])
//
// A flag beats the environment (LOCKSTEP_LEARNING_RATE), which beats files
// (--config FILE, JSON or YAML; a later file beats an earlier one), which beat
// the value that the struct had. All faults come back together in one *Error,
// each naming the key, the value, where it came from and what was wanted;
// Resolved tells the origin of every value.
//
// A settings struct has one exported field per setting, of type bool, int,
// int64, uint64, float64, a string type, a slice of one, map[string]any, or a
// pointer to one of the scalars (nil is "not set"), with these tags:
//
//	json:"key"        the name in files, flags and (upper case) environment
//	usage:"text"      one line for --help
//	choices:"a,b"     the only values allowed
//	split:","         one text holds several values of a list, separated so
//	path:"true"       a leading ~ stands for the home folder
//	resume:"fixed"    changing it makes it another run (see Difference)
//
// The package is not a general configuration library: settings are flat, there
// are no sub-commands, and it neither prints nor exits. What needs the model,
// the data or the number of ranks to be judged is checked by the trainer.
package args
