// SPDX-License-Identifier: Apache-2.0

// Package configs interprets the configuration files of other tools: DeepSpeed's ([DeepSpeed]), FSDP's in HuggingFace's
// form ([FSDP]) and accelerate's ([Accelerate]). [Read] chooses by the keys. It takes a parsed JSON or YAML document
// and returns a [Config]: the settings of args.TrainingArguments, by name, and a row for each key: applied, ignored (no
// effect here), or rejected. The package changes nothing: package args compares the settings with those of other
// sources, and puts them in place.
//
// To know another key, add its rule to the table of its tool.
package configs
