// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/adapters"
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/examples/internal/sampling"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all" // the architectures that it can load
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// ChatArguments are the program's settings beside those of sampling.
type ChatArguments struct {
	ModelNameOrPath string `json:"model_name_or_path" path:"true" usage:"folder of a saved chat model with its tokenizer, a GGUF file, or a model of the Hub, as org/name"`
	Adapter         string `json:"adapter" path:"true" usage:"folder of a LoRA adapter of the model, Lockstep's or PEFT's"`
	// ChatTemplate takes the place of the model's.
	ChatTemplate string `json:"chat_template" path:"true" usage:"file of a chat template, in place of the model's"`
	// ChatTemplateKwargs are variables of the template, as {"enable_thinking": false}.
	ChatTemplateKwargs string `json:"chat_template_kwargs" usage:"JSON object with variables of the chat template"`
	System             string `json:"system" usage:"system prompt, the first message of the conversation"`
	// Serve ends the program's talk in the terminal: it answers over HTTP.
	Serve        string `json:"serve" usage:"answer OpenAI's /v1/chat/completions at this address, such as :8080, instead of the terminal"`
	ServeRemote  bool   `json:"serve_remote" usage:"allow an address that other machines can reach"`
	APIKey       string `json:"api_key" usage:"key that requests must send; none: no key"`
	MaxBatchSize int    `json:"max_batch_size" usage:"requests that share a batch"`
	MaxWaiting   int    `json:"max_waiting" usage:"requests that may wait for a place in the batch; further ones are refused"`
	// PrefixCache is of conversations, which each turn continues.
	PrefixCache int `json:"prefix_cache_mib" usage:"MiB of keys and values kept of earlier texts, to reuse for prompts with the same beginning"`

	DType language.DType `json:"dtype" choices:"auto,bfloat16,float16,float32,q8_0" usage:"dtype of the weights in memory; auto: that of the saved weights; q8_0: 8-bit numbers"`
}

func defaults() *ChatArguments {
	return &ChatArguments{ModelNameOrPath: "out/finetune", DType: language.Auto, MaxBatchSize: 8, MaxWaiting: 64,
		PrefixCache: 256}
}

// Check reports all faults at once.
func (a *ChatArguments) Check(c *args.Checker) {
	c.Require(a.ModelNameOrPath != "", "model_name_or_path", a.ModelNameOrPath,
		"the folder of a saved model, as examples/finetune writes to its output_dir")
	_, err := a.variables()
	c.Require(err == nil, "chat_template_kwargs", a.ChatTemplateKwargs, "a JSON object")
	c.Require(a.MaxBatchSize >= 1, "max_batch_size", a.MaxBatchSize, "at least 1")
	c.Require(a.MaxWaiting >= 0, "max_waiting", a.MaxWaiting, "at least 0")
	c.Require(a.PrefixCache >= 0 && a.PrefixCache <= 1<<20, "prefix_cache_mib", a.PrefixCache, "0 to 1048576")
	c.Require(a.Serve == "" || a.System == "", "system", a.System, "none with serve: requests have their own messages")
}

// engine is what continues the texts. 0 means the usual number there, and less for none.
func (a *ChatArguments) engine() generation.EngineConfig {
	cfg := generation.EngineConfig{Rows: a.MaxBatchSize, Waiting: a.MaxWaiting, PrefixCache: a.PrefixCache << 20}
	if cfg.Waiting == 0 {
		cfg.Waiting = -1
	}
	if cfg.PrefixCache == 0 {
		cfg.PrefixCache = -1
	}
	return cfg
}

// variables are those of chat_template_kwargs.
func (a *ChatArguments) variables() (v map[string]json.RawMessage, err error) {
	if a.ChatTemplateKwargs != "" {
		err = json.Unmarshal([]byte(a.ChatTemplateKwargs), &v)
	}
	return v, err
}

// find settles which folders have the model and its adapter.
func find(ctx context.Context, p *program.Process, a *ChatArguments, h *downloads.HubArguments) error {
	if _, err := os.Stat(a.ModelNameOrPath); errors.Is(err, os.ErrNotExist) && *a == *defaults() {
		return fmt.Errorf("there is no model in %s: run examples/finetune first, or name a model by "+
			"--model_name_or_path", a.ModelNameOrPath)
	}
	return adapters.Find(ctx, p, h, &a.ModelNameOrPath, &a.Adapter, defaults().ModelNameOrPath)
}

// open loads the model onto a device, its tokenizer, its chat template, and its settings of generation.
func open(a *ChatArguments, how *sampling.SamplingArguments, on *tensor.Device) (*conversation, error) {
	base, err := language.OpenOn(on, a.ModelNameOrPath, a.DType.Loading(), models.Mapped())
	if err != nil {
		return nil, err
	}
	if err := adapters.Add(base.Model, a.ModelNameOrPath, a.Adapter); err != nil {
		return nil, err
	}
	c := &conversation{base: base, system: a.System}
	c.stops = how.Stop
	if c.template, err = a.template(); err != nil {
		return nil, err
	}
	if c.variables, err = a.variables(); err != nil {
		return nil, err
	}
	ends := base.Model.EndTokens()
	turn, err := c.template.TurnEnds(base.Tokenizer)
	if err != nil {
		return nil, err
	}
	for _, id := range turn {
		ends = append(ends, int(id))
	}
	c.options, err = how.Options(a.ModelNameOrPath, base.Tokenizer, ends...)
	return c, err
}

// template is the model's, or the one that is given in its place.
func (a *ChatArguments) template() (*chat.Template, error) {
	if a.ChatTemplate == "" {
		t, err := chat.LoadTemplate(adapters.Beside(a.ModelNameOrPath, a.Adapter, chat.TemplateFile))
		if errors.Is(err, chat.ErrNoTemplate) {
			err = fmt.Errorf("%w; or give a file with one by --chat_template", err)
		}
		return t, err
	}
	t, err := chat.ReadTemplate(a.ChatTemplate)
	if err != nil {
		return nil, fmt.Errorf("chat_template: %w", err)
	}
	t.Special, err = chat.SpecialTokens(adapters.Beside(a.ModelNameOrPath, a.Adapter, "tokenizer_config.json"))
	return t, err
}
