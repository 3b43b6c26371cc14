# SPDX-License-Identifier: Apache-2.0
"""Makes golden.json: what PEFT does with tiny models of each family.

Weights follow the rule of models/transformer/testdata/make_families.py, which the Go test repeats, and so do those of
adapters, so none are in the file.

choices[FAMILY]: the config, the modules that PEFT adapts for all-linear and without target_modules (null: it refuses)
cases[NAME]:     config and names of the model, adapter_config.json, names of the adapter's arrays with shapes, and
                 logits of the model with the adapter, and of one without it
"""
import json
import os
import pathlib
import tempfile
import warnings
import zlib

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy as np
import peft
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
V, T = 24, 6
BASE = dict(vocab_size=V, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=4, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
GPT2 = dict(vocab_size=V, n_embd=16, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=1, eos_token_id=2, pad_token_id=0)
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3_text", "olmo2", "phi3", "gpt2"]
CASES = {
    "llama patterns": ("llama", dict(attention_bias=True), "CAUSAL_LM", dict(
        r=4, lora_alpha=6, use_rslora=True, target_modules="all-linear", rank_pattern={"down_proj": 2, r"layers\.1.*k_proj": 3},
        alpha_pattern={"q_proj": 5, "o_proj": 1.5})),
    "llama regex": ("llama", dict(tie_word_embeddings=True), None, dict(
        r=2, lora_alpha=16, lora_dropout=0.1, target_modules=r".*\.(?!k_)[qkv]_proj", exclude_modules=["layers.0.self_attn.v_proj"])),
    "llama layers": ("llama", {}, "CAUSAL_LM", dict(
        r=3, target_modules=["q_proj", "up_proj"], layers_to_transform=[1], modules_to_save=["lm_head", "input_layernorm"])),
    "qwen2 biases": ("qwen2", {}, "CAUSAL_LM", dict(r=2, bias="all", target_modules=["k_proj"])),
    "qwen2 own biases": ("qwen2", {}, "CAUSAL_LM", dict(r=2, bias="lora_only", target_modules=["k_proj", "down_proj"])),
    "gpt2": ("gpt2", {}, "CAUSAL_LM", dict(r=4, lora_alpha=8, bias="all")),
    "gpt2 all": ("gpt2", {}, "CAUSAL_LM", dict(r=2, target_modules="all-linear", init_lora_weights="gaussian")),
    "phi3 fused": ("phi3", {}, "CAUSAL_LM", dict(r=2, lora_alpha=4, target_modules="all-linear")),
    **{f: (f, {}, "CAUSAL_LM", dict(r=2, lora_alpha=4, target_modules="all-linear"))
       for f in ("mistral", "qwen3", "smollm3", "gemma2", "gemma3_text", "olmo2")},
    "classifier": ("llama", dict(num_labels=3), "SEQ_CLS", dict(r=2, target_modules="all-linear")),
}


def rule(name, n):
    x = (np.arange(1, n + 1, dtype=np.uint64) * 0x9E3779B9 + zlib.crc32(name.encode())) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x = ((x ^ (x >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return x.astype(np.float64) / 2**31 - 1


def weight(name, shape):
    values = rule(name, int(np.prod(shape))) * 0.2
    if name.endswith(("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")):
        values += 1
    return torch.tensor(values.astype(np.float32)).reshape(shape)


def model_of(family, extra, task):
    config = transformers.AutoConfig.for_model(family, **{**(GPT2 if family == "gpt2" else BASE), **extra})
    kind = transformers.AutoModelForSequenceClassification if task == "SEQ_CLS" else transformers.AutoModelForCausalLM
    return kind.from_config(config, attn_implementation="eager").eval()


def saved(model, folder):
    model.save_pretrained(folder)
    document = json.loads((pathlib.Path(folder) / "config.json").read_text())
    document.pop("transformers_version", None)
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
        return document, {n: list(f.get_slice(n).get_shape()) for n in f.keys()}


def adapted(model):
    return sorted(n for n, m in model.base_model.model.named_modules() if isinstance(m, peft.tuners.lora.LoraLayer))


def choices(family, task="CAUSAL_LM"):
    out = {"task": task}
    with tempfile.TemporaryDirectory() as folder:
        out["config"], _ = saved(model_of(family, {}, task), folder)
    out["all"] = adapted(peft.get_peft_model(model_of(family, {}, task),
                                             peft.LoraConfig(target_modules="all-linear", task_type=task)))
    try:
        out["default"] = adapted(peft.get_peft_model(model_of(family, {}, task), peft.LoraConfig(task_type=task)))
    except ValueError:
        out["default"] = None
    return out


def case(family, extra, task, lora):
    with tempfile.TemporaryDirectory() as folder:
        config, names = saved(model_of(family, extra, task), folder)
        path = pathlib.Path(folder) / "model.safetensors"
        save_file({n: weight(n, s) for n, s in names.items()}, path, {"format": "pt"})
        auto = transformers.AutoModelForSequenceClassification if task == "SEQ_CLS" else transformers.AutoModelForCausalLM
        base = auto.from_pretrained(folder, attn_implementation="eager").eval()
        model = peft.get_peft_model(base, peft.LoraConfig(task_type=task, **lora)).eval()
        model.save_pretrained(folder + "/adapter")
        document = json.loads(pathlib.Path(folder, "adapter/adapter_config.json").read_text())
        document["base_model_name_or_path"] = None
        if isinstance(document["target_modules"], list):  # of a set, in any order
            document["target_modules"].sort()
        arrays = load_file(folder + "/adapter/adapter_model.safetensors")
        save_file({n: weight(n, t.shape) for n, t in arrays.items()}, folder + "/adapter/adapter_model.safetensors",
                  {"format": "pt"})
        base = auto.from_pretrained(folder, attn_implementation="eager").eval()
        ids = torch.tensor(np.floor((rule("ids", 2 * T) + 1) / 2 * (V - 3)).astype(np.int64) + 3).reshape(2, T)
        with torch.no_grad():
            plain = base(ids).logits
            model = peft.PeftModel.from_pretrained(base, folder + "/adapter").eval()
            logits = model(ids).logits
        short = lambda x: [float(f"{v:.9g}") for v in x.flatten().tolist()]
        last = lambda x: x if x.ndim == 2 else x[:, -1]
        return {"config": config, "names": names, "adapter_config": document,
                "arrays": {n: list(t.shape) for n, t in arrays.items()}, "logits": short(last(logits)),
                "plain": short(last(plain))}


golden = {"peft": peft.__version__, "transformers": transformers.__version__,
          "choices": {f: choices(f) for f in FAMILIES}, "cases": {n: case(*c) for n, c in CASES.items()}}
golden["choices"]["llama classifier"] = choices("llama", "SEQ_CLS")
golden["choices"]["gpt2 classifier"] = choices("gpt2", "SEQ_CLS")
pathlib.Path(__file__).with_name("golden.json").write_text(json.dumps(golden) + "\n")
