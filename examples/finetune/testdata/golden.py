# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny chat model, rows in all forms, and what TRL's SFTTrainer makes of them: tokens, labels, and 50 steps.

    python3 examples/finetune/testdata/golden.py
"""
import json
import os
import pathlib

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import datasets
import torch
import transformers
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
MODEL = HERE / "model"
TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}"
            "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}"
            "{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
NAMES = ["Ada", "Bo", "Cleo", "Dan", "Eva", "Finn", "Gil", "Hana"]


def chats():
    rows = []
    for i in range(40):
        name, n = NAMES[i % 8], i // 8
        messages = [{"role": "user", "content": f"Who is {name} {n}?"},
                    {"role": "assistant", "content": f"{name} is number {n}."}]
        if i % 3 == 0:
            messages = [{"role": "system", "content": "Be brief."}] + messages
        if i % 4 == 0:
            messages += [{"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes é."}]
        rows.append({"messages": messages})
    return rows


def tokenizer():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    texts = [m["content"] for row in chats() for m in row["messages"]]
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = TEMPLATE
    return fast


def config(**more):
    return trl.SFTConfig(output_dir="/tmp/finetune-golden", report_to=[], use_cpu=True, bf16=False,
                         gradient_checkpointing=False, learning_rate=2e-3, max_steps=50,
                         logging_steps=1, save_strategy="no", train_sampling_strategy="sequential", disable_tqdm=True,
                         **{"max_length": 64, "per_device_train_batch_size": 4, **more})


def steps(fast, **more):
    model = transformers.LlamaForCausalLM.from_pretrained(MODEL)
    t = trl.SFTTrainer(model, args=config(assistant_only_loss=True, **more), processing_class=fast,
                       train_dataset=datasets.Dataset.from_list(chats()))
    t.train()
    logs = [h for h in t.state.log_history if "loss" in h]
    return [{k: h[k] for k in ("loss", "grad_norm", "learning_rate")} for h in logs]


def alone(fast):
    """The loss of the first packed batch, computed text by text."""
    model = transformers.LlamaForCausalLM.from_pretrained(MODEL)
    t = trl.SFTTrainer(model, args=config(assistant_only_loss=True, packing=True, max_length=96), processing_class=fast,
                       train_dataset=datasets.Dataset.from_list(chats()))
    loss = count = 0
    for row in t.train_dataset.select(range(2)):
        at = 0
        for n in row["seq_lengths"]:
            ids, labels = (torch.tensor(row[k][at:at + n]) for k in ("input_ids", "labels"))
            logits = model(ids[None]).logits[0, :-1]
            loss += torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum").item()
            count += (labels[1:] != -100).sum().item()
            at += n
    return loss / count


def main():
    torch.manual_seed(0)
    fast = tokenizer()
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=len(fast), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.3,
        bos_token_id=None, eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id))
    model.save_pretrained(MODEL)
    fast.save_pretrained(MODEL)
    (HERE / "chats.jsonl").write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in chats()))
    datasets.Dataset.from_list(chats()).to_parquet(HERE / "chats.parquet", batch_size=7)

    forms = {
        "messages": (chats()[:5], {"assistant_only_loss": True}),
        "all messages": (chats()[:5], {}),
        "text": ([{"text": "Ada is number 1."}, {"text": "Bo<|im_end|>"}], {}),
        "completion": ([{"prompt": "Ada is", "completion": " number 1."}, {"prompt": "Bo", "completion": " is x"}], {}),
        "all of completion": ([{"prompt": "Ada is", "completion": " number 1."}], {"completion_only_loss": False}),
        "chat completion": ([{"prompt": r["messages"][:-1], "completion": r["messages"][-1:]} for r in chats()[:4]], {}),
    }
    golden = {"trl": trl.__version__, "transformers": transformers.__version__, "forms": {}}
    for name, (rows, more) in forms.items():
        t = trl.SFTTrainer(model, args=config(**more), train_dataset=datasets.Dataset.from_list(rows),
                           processing_class=fast)
        data = t.train_dataset
        golden["forms"][name] = {"rows": rows, "options": more, "ids": data["input_ids"][:],
                                 "labels": data["labels"][:] if "labels" in data.column_names else data["input_ids"][:]}
    golden["steps"] = steps(fast)
    # transformers keeps texts of a row apart by their positions, if there are no attention_mask and no cache.
    golden["packed_steps"] = steps(fast, packing=True, max_length=96, per_device_train_batch_size=2)
    torch.testing.assert_close(golden["packed_steps"][0]["loss"], alone(fast), rtol=1e-5, atol=0)
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")


main()
