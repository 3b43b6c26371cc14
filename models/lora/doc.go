// SPDX-License-Identifier: Apache-2.0

// Package lora adapts models with LoRA (Hu et al. 2021, arXiv:2106.09685), in the files of HuggingFace's PEFT: it
// freezes the model's parameters and trains pairs of small matrices beside the linear layers that a [Config] names. Use
// it to fine-tune a model whose gradients and optimizer state would not fit into memory, or to have many versions of
// one model, each of a few megabytes.
//
// [New] gives a model an adapter with fresh matrices; trainer.WithAdapter makes a run save only the adapter. [Load]
// reads an adapter that Lockstep or PEFT saved, and [Adapter.Save] writes one. A model may have several adapters:
// [Adapter.Activate] selects one, [Adapter.Merge] adds one to the model's weights, and contexts of nn.Ctx.WithAdapters
// compute without any.
//
//	m, err := models.LoadPretrained(tensor.CPU(), dir)
//	a, err := lora.New(m, lora.Config{R: 16, Alpha: 32, TargetModules: lora.AllLinear, TaskType: "CAUSAL_LM",
//		BaseModel: dir})
//	result, err := trainer.New(m, args, trainer.WithAdapter(a), trainer.WithTrainData(rows)).Train()
package lora
