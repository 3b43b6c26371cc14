// SPDX-License-Identifier: Apache-2.0

// Package models defines the interface of a trainable model, and loads saved models. Use it to load a model from a
// folder that Lockstep or transformers wrote, with [LoadPretrained], and to make your architecture trainable, by
// implementing [Model]. [SaveWeights] and [LoadWeights] save and load the weights of any module.
//
// Each architecture is a package, such as models/gpt2, that registers itself with [Register] under the model_type of
// its config.json. Import the package for this side effect, so that LoadPretrained finds the architecture.
//
// The package does not train (see package trainer) and does not generate text (see package models/generation).
//
// # For package trainer
//
// [ConfigJSON], [ReadWeights], [WeightFiles], [NonEmbeddingParameters], [SidecarNames], [WeightsBase] and [WeightsFile]
// serve the trainer, which saves and loads models with them. A program calls LoadPretrained, LoadWeights, SaveWeights
// and trainer.Trainer.SaveModel instead.
package models

import (
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Model is what the trainer trains: a module with a Forward from batch to loss.
type Model interface {
	// Forward computes the loss of b if it has labels, and the predictions. It must
	// not keep the batch's tensors.
	Forward(c *nn.Ctx, b *data.Batch) Output
}

// Output is the result of a forward pass.
type Output struct {
	// Loss is the SUM of the batch's loss terms, a single element; b.Count says how many
	// there are. Who computes a mean over several batches divides once, by the sum of
	// the counts. Nil if the batch has no labels.
	Loss *tensor.Tensor
	// Logits are the predictions, before any softmax. Dim 0 counts samples. Nil if the model left them out because the
	// context says that the loss is all that counts (nn.Ctx.LossOnly).
	Logits *tensor.Tensor
	// Figures are sums, over the loss's terms, of other numbers that a run logs, each of one element: see
	// trainer.WithFigures.
	Figures map[string]*tensor.Tensor
	// LogProbs are the log-probabilities [B,T] of a language model's labels: of the token at t+1 at t, and 0 where the
	// label is tensor.IgnoreIndex. Nil unless the context asks for them (nn.Ctx.WithLogProbs); then there are neither
	// loss nor logits.
	LogProbs *tensor.Tensor
	// Hidden is what the next stage of a pipeline continues with; nil unless the context has a stage that is not the
	// model's last (nn.Ctx.WithStage). Then there are neither logits nor loss.
	Hidden []*tensor.Tensor
}

// NewOutput is the Output of a Unit that returns logits and, if the batch has labels, the loss.
func NewOutput(results []*tensor.Tensor) Output {
	out := Output{Logits: results[0]}
	if len(results) > 1 {
		out.Loss = results[1]
	}
	return out
}

// LogitsAndLoss are the results of a Unit for NewOutput: logits [..., V] and, if labels [...] are not nil, the sum of
// their cross-entropies.
func LogitsAndLoss(c *nn.Ctx, logits, labels *tensor.Tensor) []*tensor.Tensor {
	if labels == nil {
		return []*tensor.Tensor{logits}
	}
	return []*tensor.Tensor{logits, nn.CrossEntropySum(c, logits, labels)}
}

// Configured is implemented by models that can be saved with a config.json and
// loaded back by LoadPretrained.
type Configured interface {
	Model
	// ModelType is the key of the registry, as "gpt2".
	ModelType() string
	// Config marshals to the fields of config.json.
	Config() any
}

// Recomputable is implemented by models that support gradient checkpointing.
type Recomputable interface {
	// RecomputeUnits lists the modules to run again during backward, as a rule the blocks.
	RecomputeUnits() []nn.Module
}

// Embedded is implemented by models of tokens.
type Embedded interface {
	// InputEmbeddings is the table of the tokens' embeddings, to which neftune_noise_alpha adds noise.
	InputEmbeddings() *nn.Embedding
}

// Pipelined is implemented by models that pipeline parallelism can cut into stages.
type Pipelined interface {
	Model
	// Parts lists what can be on different ranks, in the order in which Forward runs it: the first part (embeddings),
	// the blocks, and the last part (the head and the loss). All parameters are in a part; those of tied modules are in
	// several. Forward runs each part by nn.RunPart. In a context with a stage (nn.Ctx.WithStage) it takes its input
	// from nn.Ctx.Received, and returns Output.Hidden if the stage is not the last. What all stages read, such as masks
	// and positions, it takes from the batch.
	Parts() []nn.Part
}

// TensorParallel is implemented by models that come with a plan for tensor parallelism.
type TensorParallel interface {
	Model
	// TPPlan is how the layers are divided among ranks: styles by the paths of modules, in which * stands for one
	// element, as transformers' base_model_tp_plan. Package accelerate/tp lists the styles. Each matrix has a rule.
	TPPlan() map[string]string
}

// BlockParts are the parts of a model of blocks.
func BlockParts[B nn.Module](first nn.Part, blocks []B, last nn.Part) []nn.Part {
	parts := []nn.Part{first}
	for _, b := range blocks {
		parts = append(parts, nn.Part{b})
	}
	return append(parts, last)
}

// NonEmbeddingParameters is the number of a model's parameters without those of its embeddings (those of a tied head
// are an embedding's): HuggingFace's num_parameters(exclude_embeddings=True), 6 times which, for each token or pixel,
// is its total_flos. It is for package trainer's account of operations.
func NonEmbeddingParameters(m nn.Module) int {
	tree := nn.Walk(m)
	embeddings := map[*tensor.Tensor]bool{}
	tree.Modules(func(_ string, sub nn.Module) {
		if e, ok := sub.(*nn.Embedding); ok {
			embeddings[e.Weight.Tensor] = true
		}
	})
	n := 0
	for _, p := range tree.Parameters() {
		if !embeddings[p.Tensor] {
			n += p.Numel()
		}
	}
	return n
}

// Example is implemented by models that can make a batch such as they read, labels included. Its values mean nothing.
type Example interface {
	// ExampleBatch makes a batch of size samples. length is the number of tokens of a sequence or the pixels of an
	// image's side, where the model has a choice; 0 is its largest or usual one.
	ExampleBatch(c *tensor.Ctx, size, length int) *data.Batch
}
