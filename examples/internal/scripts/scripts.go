// SPDX-License-Identifier: Apache-2.0

// Package scripts lists the flags of HuggingFace's example scripts that their counterparts here lack: run_clm.py for
// clm, run_glue.py for classify, run_image_classification.py for vision. A command line that was written for the script
// then says what is missing, or runs. Programs give a table to args.Loader.Know.
package scripts

import (
	"slices"

	"github.com/lockstep-ml/lockstep/args"
)

// Reasons that several flags share.
const (
	noHub    = "images of the Hub"
	onlyHub  = "only dataset_name reads it, which is not built"
	ownFiles = "want model_name_or_path, whose folder has one"
)

// common lists the flags that all three scripts have. A model can only be of the given type.
func common(modelType string) []args.Known {
	return []args.Known{
		same(planned("model_type", args.TypeString, "", "new models of other types: want model_name_or_path"),
			modelType),
		planned("config_name", args.TypeString, "",
			"a configuration separate from its model: want model_name_or_path, or the flags of a new model"),
		same(noEffect("use_auth_token", args.TypeBool, "", "a token that is there is always used"), "false"),
		noEffect("trust_remote_code", args.TypeBool, "false", "models and data contain no code"),
		planned("ignore_mismatched_sizes", args.TypeBool, "false", "a new head on a saved model"),
	}
}

// text lists the flags that the scripts for text have.
func text(modelType string) []args.Known {
	return append(common(modelType),
		planned("tokenizer_name", args.TypeString, "", "a tokenizer separate from its model: "+ownFiles),
		noEffect("use_fast_tokenizer", args.TypeBool, "true", "the only kind of tokenizer is fast"),
		noEffect("overwrite_cache", args.TypeBool, "false", "nothing is cached on disk"),
		noEffect("preprocessing_num_workers", args.TypeInt, "", "text is prepared on all cores"),
	)
}

// RunCLM lists the flags of run_clm.py.
func RunCLM() []args.Known {
	known := slices.DeleteFunc(text("gpt2"), func(k args.Known) bool { return k.Name == "config_name" }) // clm's own
	return append(known,
		planned("config_overrides", args.TypeString, "",
			"other settings of a new model: want config_name, or n_layer, n_embd, n_head and dropout"),
		args.Known{Name: "torch_dtype", Type: args.TypeString, Status: args.StatusRenamed, Target: "dtype"},
		noEffect("low_cpu_mem_usage", args.TypeBool, "false", "it changes how weights are loaded, not which"),
		planned("streaming", args.TypeBool, "false", "data larger than memory here: want examples/finetune, which "+
			"has dataset_streaming"),
		refused("keep_linebreaks", args.TypeBool, "true", "true: a text keeps its line breaks"),
	)
}

// Lengths lists the names that other tools have for the tokens of a text or sample, which is target here.
func Lengths(target string) (rows []args.Known) {
	for _, name := range []string{"max_seq_length", "max_length", "model_max_length", "cutoff_len"} {
		if name != target {
			rows = append(rows, args.Known{Name: name, Type: args.TypeInt, Status: args.StatusRenamed, Target: target})
		}
	}
	return rows
}

// RunGLUE lists the flags of run_glue.py, and max_length of run_glue_no_trainer.py.
func RunGLUE() []args.Known {
	return append(text("gpt2"),
		planned("max_train_samples", args.TypeInt, "", "a limit on training samples: want max_steps, or less data"),
		planned("max_eval_samples", args.TypeInt, "", "a limit on evaluation samples: want less data"),
		planned("task_name", args.TypeString, "", "the tasks of GLUE: want dataset_name, or train_file and "+
			"validation_file"),
		planned("max_predict_samples", args.TypeInt, "", "a limit on prediction samples: want less data"),
		args.Known{Name: "max_length", Type: args.TypeInt, Status: args.StatusRenamed, Target: "max_seq_length"},
		noEffect("pad_to_max_length", args.TypeBool, "true",
			"padding changes no result; batches are padded to the longest text"),
	)
}

// RunImageClassification lists the flags of run_image_classification.py.
func RunImageClassification() []args.Known {
	return append(common("resnet"),
		planned("dataset_name", args.TypeString, "", noHub+": want data_dir, or train_dir and validation_dir"),
		noEffect("dataset_config_name", args.TypeString, "", onlyHub),
		planned("max_train_samples", args.TypeInt, "",
			"a limit on training images only: want max_images, which limits both"),
		planned("max_eval_samples", args.TypeInt, "",
			"a limit on evaluation images only: want max_images, which limits both"),
		noEffect("image_column_name", args.TypeString, "image", onlyHub),
		noEffect("label_column_name", args.TypeString, "label", onlyHub),
		planned("image_processor_name", args.TypeString, "", "a normalisation separate from its model: "+ownFiles),
		planned("feature_extractor_name", args.TypeString, "", "a normalisation separate from its model: "+ownFiles),
	)
}

func planned(name string, t args.Type, value, reason string) args.Known {
	return args.Known{Name: name, Type: t, Default: value, Status: args.StatusPlanned, Reason: reason}
}

func noEffect(name string, t args.Type, value, reason string) args.Known {
	return args.Known{Name: name, Type: t, Default: value, Status: args.StatusNoEffect, Reason: reason}
}

func refused(name string, t args.Type, value, want string) args.Known {
	return args.Known{Name: name, Type: t, Default: value, Status: args.StatusRefused, Reason: want}
}

// same adds values that change nothing.
func same(k args.Known, texts ...string) args.Known {
	k.Same = texts
	return k
}
