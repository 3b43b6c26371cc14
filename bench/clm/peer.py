"""HuggingFace Trainer's side of bench/clm: the run of examples/clm, by transformers.

Usage: peer.py THREADS STEPS OUTPUT_DIR TEXT_DIR [IDS]. TEXT_DIR holds the folders train and eval with a document per file. The script reads the text, trains a
byte-level BPE, encodes and trains a GPT-2, with the settings of the example. With IDS, a file, it leaves the text alone and loads token ids from there; a
file that does not exist is written, and nothing is trained.
"""

import os
import sys

import numpy
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

THREADS, STEPS, OUT, TEXT = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
IDS = sys.argv[5] if len(sys.argv) > 5 else None
BLOCK, VOCAB = 128, 2048
torch.set_num_threads(THREADS)


def documents(split):
    folder = os.path.join(TEXT, split)
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8", newline="") as f:
            yield f.read()


def encode_text():
    from tokenizers import ByteLevelBPETokenizer

    train, held_out = list(documents("train")), list(documents("eval"))
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(train, vocab_size=VOCAB, min_frequency=0, show_progress=False, special_tokens=["<|endoftext|>"])
    end = tokenizer.token_to_id("<|endoftext|>")

    def blocks(texts):
        ids = [i for e in tokenizer.encode_batch(texts) for i in e.ids + [end]]
        n = len(ids) // BLOCK * BLOCK
        return numpy.array(ids[:n], dtype=numpy.uint16).reshape(-1, BLOCK)

    return blocks(train), blocks(held_out)


class Blocks(torch.utils.data.Dataset):
    def __init__(self, ids):
        self.ids = torch.from_numpy(ids.astype(numpy.int64))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i]


def collate(samples):
    ids = torch.stack(samples)
    return {"input_ids": ids, "labels": ids}


class FirstStep(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            print("step 1 ", flush=True)


def main():
    if IDS and os.path.exists(IDS):
        arrays = numpy.load(IDS)
        train, held_out = arrays["train"], arrays["eval"]
    else:
        train, held_out = encode_text()
        if IDS:
            numpy.savez(IDS, train=train, eval=held_out)
            return
    torch.manual_seed(42)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=BLOCK, n_embd=128, n_layer=4, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0
    )
    args = TrainingArguments(
        output_dir=OUT, max_steps=STEPS, per_device_train_batch_size=8, per_device_eval_batch_size=8, learning_rate=3e-3, weight_decay=0.1, adam_beta2=0.98,
        lr_scheduler_type="cosine", warmup_steps=50, logging_steps=50, eval_strategy="steps", eval_steps=STEPS, save_steps=STEPS, save_total_limit=2, seed=42,
        use_cpu=True, report_to=[], disable_tqdm=True, dataloader_pin_memory=False, optim="adamw_torch_fused",
    )  # fmt: skip
    trainer = Trainer(
        model=GPT2LMHeadModel(config), args=args, train_dataset=Blocks(train), eval_dataset=Blocks(held_out), data_collator=collate, callbacks=[FirstStep()]
    )
    trainer.train()
    trainer.save_model()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
