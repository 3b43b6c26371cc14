# SPDX-License-Identifier: Apache-2.0
"""Writes rows of preferences, an adapter, what TRL's DPOTrainer and RewardTrainer make of rows in all forms, and 20
steps of each loss, on the tiny chat model of examples/finetune.

    python3 examples/dpo/testdata/golden.py
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
MODEL, ADAPTER = HERE.parents[1] / "finetune/testdata/model", HERE / "adapter"
REWARD, PAIRS = HERE.parents[1] / "reward/testdata", HERE.parents[1] / "internal/pairs/pairs.jsonl"
NAMES = ["Ada", "Bo", "Cleo", "Dan", "Eva", "Finn", "Gil", "Hana"]
TOKENIZER = transformers.AutoTokenizer.from_pretrained(MODEL)
OUT = "/tmp/dpo-golden"


def say(role, text):
    return {"role": role, "content": text}


def pairs():
    rows = []
    for i in range(40):
        name, n = NAMES[i % 8], i // 8
        prompt = [say("user", f"Who is {name} {n}?")]
        if i % 3 == 0:
            prompt = [say("system", "Be brief.")] + prompt
        wrong = f"{NAMES[(i + 3) % 8]} is number {n + 1}." + " Sure." * (i % 4)
        row = {"prompt": prompt, "chosen": [say("assistant", f"{name} is number {n}.")],
               "rejected": [say("assistant", wrong)], "margin": 0.5 if i % 5 == 0 else 0.0}
        rows.append(row)
    return rows


def common(more):
    return {"output_dir": OUT, "report_to": [], "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
            "learning_rate": 2e-3, "max_steps": 20, "logging_steps": 1, "save_strategy": "no",
            "train_sampling_strategy": "sequential", "disable_tqdm": True, "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2, "max_length": 64, "seed": 1, **more}


def dpo(rows, model=None, **more):
    if model is None:
        model = transformers.LlamaForCausalLM.from_pretrained(MODEL)
    return trl.DPOTrainer(model, args=trl.DPOConfig(**common(more)), processing_class=TOKENIZER,
                          train_dataset=datasets.Dataset.from_list(rows))


def reward(rows, **more):
    model = transformers.LlamaForSequenceClassification.from_pretrained(REWARD / "model")
    return trl.RewardTrainer(model, args=trl.RewardConfig(**common(more)), processing_class=TOKENIZER,
                             train_dataset=datasets.Dataset.from_list(rows))


def steps(trainer):
    trainer.train()
    keys = ("loss", "grad_norm", "learning_rate", "mean_reward", "accuracy", "margin")
    return [{k: v for k, v in h.items() if k in keys or k.startswith(("rewards/", "logps/"))}
            for h in trainer.state.log_history if "loss" in h]


def adapter():
    """An adapter that computes something from the beginning."""
    torch.manual_seed(3)
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM",
                             init_lora_weights=False)
    peft.get_peft_model(transformers.LlamaForCausalLM.from_pretrained(MODEL), config).save_pretrained(ADAPTER)
    (ADAPTER / "README.md").unlink(missing_ok=True)
    path = ADAPTER / "adapter_config.json"
    document = json.loads(path.read_text())
    document["base_model_name_or_path"], document["target_modules"] = None, sorted(document["target_modules"])
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def adapted():
    base = transformers.LlamaForCausalLM.from_pretrained(MODEL)
    return peft.PeftModel.from_pretrained(base, ADAPTER, is_trainable=True)


def scorer():
    """A model that scores texts."""
    torch.manual_seed(4)
    model = transformers.LlamaForSequenceClassification.from_pretrained(MODEL, num_labels=1)
    model.config.pad_token_id = TOKENIZER.pad_token_id
    model.save_pretrained(REWARD / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MODEL / name, REWARD / "model" / name)


FORMS = {
    "conversations": [{k: r[k] for k in ("prompt", "chosen", "rejected")} for r in pairs()[:4]],
    "implicit conversations": [{k: r["prompt"] + r[k] for k in ("chosen", "rejected")} for r in pairs()[:4]],
    "texts": [{"prompt": "Ada is", "chosen": " number 1.", "rejected": " number 2."},
              {"prompt": "Bo", "chosen": "is x<|im_end|>", "rejected": " or y"}],
    "implicit texts": [{"chosen": "Ada is number 1.", "rejected": "Ada is a number."},
                       {"chosen": "Bo is é 1", "rejected": "Bo is è 2"},
                       {"chosen": "Cleo is", "rejected": "Cleo is number 2."}],
}


def main():
    adapter()
    scorer()
    rows = pairs()
    PAIRS.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))
    answers = [{k: r[k] for k in ("prompt", "chosen", "rejected")} for r in rows]
    golden = {"trl": trl.__version__, "transformers": transformers.__version__, "peft": peft.__version__, "forms": {},
              "steps": {}}
    for name, list in FORMS.items():
        data, scored = dpo(list).train_dataset, reward(list).train_dataset
        golden["forms"][name] = {"rows": list, **{k: data[k][:] for k in ("prompt_ids", "chosen_ids", "rejected_ids")},
                                 "scored": [[c, r] for c, r in zip(scored["chosen_ids"], scored["rejected_ids"])]}
    for name, more in {
        "sigmoid": {"beta": 0.1},
        "hinge": {"beta": 0.3, "loss_type": ["hinge"]},
        "ipo": {"beta": 0.2, "loss_type": ["ipo"]},
        "robust": {"beta": 0.2, "loss_type": ["robust"], "label_smoothing": 0.1},
        # aot of one pair is the sigmoid with label smoothing, which TRL 1.16 no longer has by its old name
        "smoothing": {"beta": 0.2, "loss_type": ["aot"], "label_smoothing": 0.2, "per_device_train_batch_size": 1,
                      "gradient_accumulation_steps": 4},
        "cut": {"beta": 0.5, "max_length": 26},
        "precomputed": {"beta": 0.5, "precompute_ref_log_probs": True},
    }.items():
        golden["steps"][name] = steps(dpo(answers, **more))
    golden["steps"]["adapter"] = steps(dpo(answers, adapted(), learning_rate=2e-2))
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")
    scores = {"trl": trl.__version__, "transformers": transformers.__version__, "steps": {
        "margin": steps(reward(rows)),
        "centre": steps(reward(answers, center_rewards_coefficient=0.05)),
    }}
    (REWARD / "golden.json").write_text(json.dumps(scores, ensure_ascii=False) + "\n")
    shutil.rmtree(OUT, ignore_errors=True)


main()
