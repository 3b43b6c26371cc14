// SPDX-License-Identifier: Apache-2.0

// Package hub downloads models and data sets from HuggingFace's Hub, or from a server that speaks its API, into the
// cache that Python's huggingface_hub has: each finds there what the other has downloaded. Use it to give a loader the
// folder of a model that is known by its name:
//
//	client, err := hub.FromEnvironment()
//	dir, err := client.Model(ctx, "HuggingFaceTB/SmolLM2-135M-Instruct", "main")
//	saved, err := models.OpenPretrained[...](tensor.CPU(), dir, ...)
//
// A folder or file of the given name wins. Of a repository only what a model consists of is downloaded: weights in
// safetensors (or one GGUF file), configuration, tokenizer, chat template. Pickles and Python files are never.
//
// Every file is compared with the hash that the Hub names. A download that was cut off, by the network, a full disk or
// an interrupt, goes on where it ended, also in the next run; several processes download a file once. Without the
// network, or with HF_HUB_OFFLINE=1, what the cache has is taken.
//
// The token goes to the endpoint alone, not to the servers it redirects to, and appears in no error.
package hub
