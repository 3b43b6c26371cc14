// SPDX-License-Identifier: Apache-2.0

// Package export writes saved language models as GGUF, the file that llama.cpp, ollama and what is built on them run,
// and the Modelfile with which ollama takes it. Use it to hand on a model that was trained or fine-tuned here; start
// with [Open]. The command "lockstep export" is this package.
//
// A file has the metadata that llama.cpp's convert_hf_to_gguf.py writes, the tokenizer and the chat template. Adapters
// are merged into the weights as these are written. What llama.cpp would compute otherwise is an error that names it,
// before anything is written: a setting that its architecture lacks, a way to cut text that has no known name.
//
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
package export
