// SPDX-License-Identifier: Apache-2.0

// Package configs says what the configuration files of other tools mean: DeepSpeed's ([DeepSpeed]), FSDP's in
// HuggingFace's form ([FSDP]) and accelerate's ([Accelerate]). [Read] chooses by the keys. A document goes in as its
// JSON or YAML was read, and a [Config] comes out: the settings of args.TrainingArguments that the file makes, by their
// names, and a row for each key, which is used, has no effect here, or is refused. The package changes nothing: package
// args compares the settings with those of other sources, and puts them in place.
//
// To know another key, add its rule to the table of its tool.
package configs
