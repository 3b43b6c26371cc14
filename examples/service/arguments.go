// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/lockstep-ml/lockstep/args"

// ServiceArguments are the program's settings beside those of training, which are of each round.
type ServiceArguments struct {
	ModelNameOrPath   string `json:"model_name_or_path" path:"true" usage:"folder of a saved chat model and its tokenizer, or a model of the Hub, as org/name"`
	Serve             string `json:"serve" usage:"address of the service"`
	ServeRemote       bool   `json:"serve_remote" usage:"allow an address that other machines can reach"`
	AssistantOnlyLoss bool   `json:"assistant_only_loss" usage:"learn only the text inside the template's {% generation %}"`
	// MaxLength bounds what a step takes in memory, whatever is sent.
	MaxLength   int `json:"max_length" usage:"largest number of tokens of an example; 0: the model's limit"`
	TrainAfter  int `json:"train_after" usage:"number of new examples after which training starts automatically; 0: never"`
	MaxExamples int `json:"max_examples" usage:"largest number of examples to keep; further ones are refused"`
}

func defaults() (*args.TrainingArguments, *ServiceArguments) {
	a := args.Default("out/service")
	a.SaveStrategy, a.OverwriteOutputDir, a.DisableTQDM = args.StrategyNo, true, new(true)
	return a, &ServiceArguments{ModelNameOrPath: "out/finetune", Serve: ":8080", MaxLength: 1024, TrainAfter: 8,
		MaxExamples: 10_000}
}

// Check reports all faults at once.
func (s *ServiceArguments) Check(c *args.Checker) {
	c.Require(s.ModelNameOrPath != "", "model_name_or_path", s.ModelNameOrPath,
		"the folder of a saved model, as examples/finetune writes to its output_dir")
	c.Require(s.Serve != "", "serve", s.Serve, "an address such as :8080")
	c.Require(s.MaxLength == 0 || s.MaxLength > 1, "max_length", s.MaxLength, "at least 2, or 0")
	c.Require(s.TrainAfter >= 0, "train_after", s.TrainAfter, "at least 0")
	c.Require(s.MaxExamples >= 1, "max_examples", s.MaxExamples, "at least 1")
}
