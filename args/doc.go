// SPDX-License-Identifier: Apache-2.0

// Package args holds the settings of a training run: [TrainingArguments], with HuggingFace's names and
// defaults. Use it to set up a run in code, starting from [Default], and to let the users of a program change
// its settings by flags, environment variables and files, with [Bind]:
//
//	a := args.Default("out/clm")
//	a.LearningRate = 1e-3                    // this program's own default
//	d := &DataArguments{BlockSize: 128}      // this program's own settings
//	fs := pflag.NewFlagSet("clm", pflag.ContinueOnError)
//	loader := args.Bind(fs, a, d)
//	resolved, err := loader.Parse(os.Args[1:])
//
// A field that is zero after Default really is zero. Only settings whose feature exists have a field, so none
// is silently ignored. TrainingArguments is plain data, which can be printed, compared and saved; callbacks,
// metrics and others are options of package trainer.
//
// A flag beats the environment (LOCKSTEP_LEARNING_RATE), which beats files (--config FILE, JSON or YAML; a later file
// beats an earlier one), which beat the value that the struct had. One [*Error] reports all faults, each with the key,
// the value, its source and the expected values. [Resolved] has the source of every value.
//
// A [Loader] also recognizes HuggingFace's other names, so a command line written for its Trainer works: [HuggingFace]
// lists them. A name that changes no result is accepted with a [Notice], an older name sets the field that replaced it,
// and every other name is an error that names the missing feature. [Loader.Know] adds a program's own names.
//
// The package is not a general configuration library: settings are flat, there are no sub-commands, and it
// neither prints nor exits. Checks that need the model, the data or the number of ranks are the trainer's.
//
// # For packages that train
//
// [FromJSON], [Program], [TrainingArguments.Diff], [TrainingArguments.ValidateFor] and the methods that compute what
// settings come to, such as [TrainingArguments.AccumulationSteps], serve packages trainer and accelerate.
//
// # Settings of a program's own
//
// A settings struct has one exported field per setting, of type bool, int, int64, uint64, float64, a string
// type, a slice of one, map[string]any, or a pointer to one of the scalars (nil is "not set"), with these tags:
//
//	json:"key"        the name in files, flags and (upper case) environment
//	usage:"text"      one line for --help
//	choices:"a,b"     the only values allowed
//	split:","         one text holds several values of a list, separated so
//	toggle:"true"     a list that may be true, false or a flag without a value
//	path:"true"       a leading ~ stands for the home folder
//	resume:"fixed"    changing it makes it another run (see Difference)
//
// Its name, without Arguments or Settings, is the heading of its flags in --help.
package args
