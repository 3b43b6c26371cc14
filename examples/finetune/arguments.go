// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
)

// FineTuningArguments are the program's settings beside those of training, by the names of TRL.
type FineTuningArguments struct {
	// ModelNameOrPath is empty for the tiny model of the demonstration.
	ModelNameOrPath string `json:"model_name_or_path" path:"true" usage:"folder of a saved model and its tokenizer, a GGUF file, or a model of the Hub, as org/name"`
	// DType is the dtype of the parameters, by run_clm.py's names.
	DType language.DType `json:"dtype" choices:"auto,bfloat16,float16,float32,q8_0" usage:"dtype of the parameters: float32, bfloat16, float16, or auto for that of the saved weights (see half_update); q8_0 with use_peft: frozen weights are 8-bit numbers"`
	// ChatTemplate takes the place of the model's.
	ChatTemplate string `json:"chat_template" path:"true" usage:"file of a chat template"`

	AssistantOnlyLoss  bool `json:"assistant_only_loss" usage:"learn only the text inside the template's {% generation %}"`
	CompletionOnlyLoss bool `json:"completion_only_loss" usage:"learn completions without their prompts"`
	// MaxLength is at most what the model reads.
	MaxLength int `json:"max_length" usage:"number of tokens at which rows are cut; 0: the model's limit"`
	// Packing puts several rows behind one another, which do not see each other.
	Packing         bool                 `json:"packing" usage:"put short rows together, up to max_length tokens"`
	PackingStrategy chat.PackingStrategy `json:"packing_strategy" usage:"bfd (cuts long rows), bfd_split or wrapped"`
	// EOSToken is the tokenizer's if it is empty.
	EOSToken string `json:"eos_token" usage:"token that ends an answer"`
	// AdditionalSpecialTokens are added if the tokenizer lacks them.
	AdditionalSpecialTokens []string `json:"additional_special_tokens" usage:"special token to add to tokenizer and model, such as one of chat_template; repeatable"`
	// ResizeToMultipleOf is as in TRL's clone_chat_template, where pad_to_multiple_of is the length of rows.
	ResizeToMultipleOf int `json:"resize_to_multiple_of" usage:"embeddings that grow for added tokens have a multiple of this number of rows; 0: any number"`
	// Answers are of the first rows, after training.
	Answers int `json:"answers" usage:"number of rows whose prompts the model answers after training"`
	// MaxNewTokens is of these answers.
	MaxNewTokens int `json:"max_new_tokens" usage:"largest number of tokens of an answer after training; 0: no answers"`
}

// defaults are those of TRL's SFTConfig, except that numbers are float32.
func defaults() (*args.TrainingArguments, *FineTuningArguments) {
	a := args.Default("out/finetune")
	a.LearningRate, a.LoggingSteps = 2e-5, 10
	return a, &FineTuningArguments{CompletionOnlyLoss: true, MaxLength: 1024, Answers: 3, MaxNewTokens: 64,
		DType: "float32", PackingStrategy: chat.BestFit, ResizeToMultipleOf: 64}
}

// Check reports all faults at once.
func (f *FineTuningArguments) Check(c *args.Checker) {
	c.Require(f.DType != language.Q8 || c.Given("use_peft"), "dtype", f.DType,
		"use_peft with it, or one of auto, bfloat16, float16, float32: 8-bit weights cannot be trained")
	c.Require(f.MaxLength == 0 || f.MaxLength > 1, "max_length", f.MaxLength, "at least 2, or 0")
	c.Require(slices.Contains(chat.PackingStrategies(), f.PackingStrategy), "packing_strategy", f.PackingStrategy,
		fmt.Sprint("one of ", chat.PackingStrategies()))
	c.Require(f.Answers >= 0, "answers", f.Answers, "at least 0")
	c.Require(f.MaxNewTokens >= 0, "max_new_tokens", f.MaxNewTokens, "at least 0")
	c.Require(!slices.Contains(f.AdditionalSpecialTokens, ""), "additional_special_tokens", f.AdditionalSpecialTokens,
		"non-empty tokens")
	c.Require(f.ResizeToMultipleOf >= 0, "resize_to_multiple_of", f.ResizeToMultipleOf, "at least 0")
	rows := c.Given("train_file") || c.Given("dataset_name")
	c.Require(rows || f.ModelNameOrPath == "", "train_file", []string(nil),
		"the rows that "+f.ModelNameOrPath+" learns, or no model_name_or_path for the demonstration")
	c.Require(!rows || f.ModelNameOrPath != "", "model_name_or_path", "",
		"the model that learns the rows, or no rows for the demonstration")
}
