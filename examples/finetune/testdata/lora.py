# SPDX-License-Identifier: Apache-2.0
"""Writes a fresh adapter of the tiny chat model, and 50 steps that TRL's SFTTrainer trains it.

    python3 examples/finetune/testdata/lora.py
"""
import json
import os
import pathlib
import shutil

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import datasets
import peft
import torch
import transformers
import trl

HERE = pathlib.Path(__file__).parent
MODEL, ADAPTER = HERE / "model", HERE / "adapter"

torch.manual_seed(0)
base = transformers.LlamaForCausalLM.from_pretrained(MODEL)
config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
peft.get_peft_model(base, config).save_pretrained(ADAPTER)
(ADAPTER / "README.md").unlink(missing_ok=True)
path = ADAPTER / "adapter_config.json"
document = json.loads(path.read_text())
document["base_model_name_or_path"], document["target_modules"] = None, sorted(document["target_modules"])
path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")

base = transformers.LlamaForCausalLM.from_pretrained(MODEL)
model = peft.PeftModel.from_pretrained(base, ADAPTER, is_trainable=True)
rows = [json.loads(line) for line in (HERE / "chats.jsonl").read_text().splitlines()]
args = trl.SFTConfig(output_dir="/tmp/lora-golden", report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
                     per_device_train_batch_size=4, learning_rate=2e-2, max_steps=50, logging_steps=1, save_strategy="no",
                     train_sampling_strategy="sequential", disable_tqdm=True, max_length=64, assistant_only_loss=True)
t = trl.SFTTrainer(model, args=args, processing_class=transformers.AutoTokenizer.from_pretrained(MODEL),
                   train_dataset=datasets.Dataset.from_list(rows))
t.train()
steps = [{k: h[k] for k in ("loss", "grad_norm", "learning_rate")} for h in t.state.log_history if "loss" in h]
(HERE / "lora.json").write_text(json.dumps({"trl": trl.__version__, "peft": peft.__version__, "steps": steps}) + "\n")
shutil.rmtree("/tmp/lora-golden", ignore_errors=True)
