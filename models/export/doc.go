// SPDX-License-Identifier: Apache-2.0

// Package export writes saved language models as GGUF, the format of llama.cpp, ollama and compatible programs, and
// ollama's Modelfile. Use it to run a model that was trained or fine-tuned here in those programs; start with [Open].
// The command "lockstep export" is this package.
//
// A file has the metadata that llama.cpp's convert_hf_to_gguf.py writes, the tokenizer and the chat template. Adapters
// are merged into the weights while they are written. A model that llama.cpp would compute differently is an error
// before anything is written: a setting that its architecture lacks, or an unknown pre-tokenizer.
//
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
package export
