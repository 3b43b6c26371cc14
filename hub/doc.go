// SPDX-License-Identifier: Apache-2.0

// Package hub downloads models and data sets from HuggingFace's Hub, or from a server that speaks its API, into the
// cache of Python's huggingface_hub, which both share, and uploads folders. Use it to give a loader the folder of a
// model by its name, and to send what a run saved:
//
//	client, err := hub.FromEnvironment()
//	dir, err := client.Model(ctx, "HuggingFaceTB/SmolLM2-135M-Instruct", "main")
//	saved, err := models.OpenPretrained[...](tensor.CPU(), dir, ...)
//
//	commit, err := client.Upload(ctx, hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "org/tuned"}, Path: "out/tuned"})
//
// A local folder or file of the given name takes precedence. Only the files of a model are downloaded: weights in
// safetensors (or one GGUF file), configuration, tokenizer, chat template. Pickles and Python files never are.
//
// Every file is checked against the Hub's hash. A download that the network, a full disk or an interrupt cut off
// continues where it ended, also in the next run; several processes download a file once. Without the network, or with
// HF_HUB_OFFLINE=1, the cache is used. An upload is one commit, and an interrupted one continues where it ended.
//
// The token is sent only to the endpoint, not to the servers it redirects to, and appears in no error.
package hub
