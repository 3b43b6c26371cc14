"""What bench/gpu is compared with, by PyTorch and transformers: products, attention, gpt2, decoder, decode and resnet, as `gpu` has them.

Usage: peer.py COMMAND --who torch_eager|torch_compile|hf_trainer [FLAGS]. Language models begin with the weights and take the tokens that `gpu gpt2 --save` wrote to the
folder --load. Prints lines RESULT, as `gpu` does; with --curve it writes the loss of each step.
"""

import argparse
import os
import statistics
import tempfile
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("command", choices=["products", "attention", "gpt2", "decoder", "decode", "resnet"])
parser.add_argument("--who", default="torch_eager", choices=["torch_eager", "torch_compile", "hf_trainer"])
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--block", type=int, default=1024)
parser.add_argument("--n_embd", type=int, default=768)
parser.add_argument("--n_head", type=int, default=12)
parser.add_argument("--image", type=int, default=224)
parser.add_argument("--size", type=int, default=8192)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--learning_rate", type=float, default=3e-4)
parser.add_argument("--load", default="")
parser.add_argument("--curve", default="")
parser.add_argument("--row", default="")
args = parser.parse_args()
row = args.row or args.command
kind = args.device.split(":")[0]


def sync():
    if kind == "cuda":
        torch.cuda.synchronize()


def result(name, value, unit):
    print(f"RESULT {name} {args.who} {value:.6g} {unit}", flush=True)


def timed(f, queued=5):
    """The median time of one f; several run before the host waits."""
    times = []
    for i in range(args.steps):
        sync()
        start = time.perf_counter()
        for _ in range(queued):
            f()
        sync()
        if i >= args.steps // 3:
            times.append((time.perf_counter() - start) / queued)
    return statistics.median(times)


def products():
    n = args.size
    x, y = (torch.randn(n, n, device=args.device, dtype=torch.bfloat16) for _ in range(2))
    with torch.no_grad():
        result(row, 2 * n**3 / timed(lambda: x @ y) / 1e12, "TFLOP/s")


def attention():
    head = args.n_embd // args.n_head
    shape = (args.batch, args.n_head, args.block, head)
    q, k, v = (torch.randn(shape, device=args.device, dtype=torch.bfloat16) for _ in range(3))
    flops = 4 * args.batch * args.n_head * head * args.block * (args.block + 1) / 2
    run = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=args.dropout, is_causal=True)
    with torch.no_grad():
        result(row + "_forward", flops / timed(run) / 1e12, "TFLOP/s")
    for x in (q, k, v):
        x.requires_grad_(True)
    ones = torch.ones(shape, device=args.device, dtype=torch.bfloat16)
    result(row + "_with_backward", 3.5 * flops / timed(lambda: torch.autograd.grad(run(), (q, k, v), ones)) / 1e12, "TFLOP/s")


def train(model, batches, per_step, unit):
    """The usual loop: autocast, AdamW in one kernel, gradients clipped to a norm of 1. The loss of each step is read, as ours is."""
    model.to(args.device).train()
    run = torch.compile(model) if args.who == "torch_compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.0, fused=kind == "cuda")
    times, losses = [], []
    for batch in batches:
        start = time.perf_counter()
        batch = {name: x.to(args.device, non_blocking=True) for name, x in batch.items()}
        with torch.autocast(kind, dtype=torch.bfloat16):
            loss = run(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    finish(times, losses, per_step, unit)


def finish(times, losses, per_step, unit):
    result(row, per_step / statistics.median(times[len(times) // 3 :]), unit)
    if kind == "cuda":
        result(row + "_memory", torch.cuda.max_memory_allocated() / 2**30, "GiB")
    print(f"{row}: first step {times[0]:.2f} s" + (f", first loss {losses[0]:.4f}, last {losses[-1]:.4f}" if losses else ""), flush=True)
    if args.curve and losses:
        with open(args.curve, "w") as f:
            f.writelines(f"{i + 1} {loss:.6f}\n" for i, loss in enumerate(losses))


def gpt2():
    decoder(attn_pdrop=args.dropout, resid_pdrop=args.dropout, embd_pdrop=args.dropout)


def decoder(**settings):
    import numpy
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(args.load, use_cache=False, **settings)
    model = AutoModelForCausalLM.from_pretrained(args.load, config=config, attn_implementation="sdpa", dtype=torch.float32)
    ids = numpy.fromfile(os.path.join(args.load, "tokens.u16"), dtype=numpy.uint16).astype(numpy.int64)
    ids = torch.from_numpy(ids[: args.steps * args.batch * args.block].reshape(-1, args.block))
    per_step = args.batch * args.block
    if args.who != "hf_trainer":
        batches = ({"input_ids": ids[i : i + args.batch], "labels": ids[i : i + args.batch]} for i in range(0, len(ids), args.batch))
        return train(model, batches, per_step, "tokens/s")

    from torch.utils.data import SequentialSampler
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return len(ids)

        def __getitem__(self, i):
            return {"input_ids": ids[i], "labels": ids[i]}

    class InOrder(Trainer):
        def _get_train_sampler(self, *_):
            return SequentialSampler(self.train_dataset)

    class Watch(TrainerCallback):
        def __init__(self):
            self.last, self.times, self.losses = time.perf_counter(), [], []

        def on_step_end(self, *_, **__):
            sync()
            now = time.perf_counter()
            self.times.append(now - self.last)
            self.last = now

        def on_log(self, arguments, state, control, logs=None, **_):
            if "loss" in (logs or {}):
                self.losses.append(float(logs["loss"]))

    watch = Watch()
    with tempfile.TemporaryDirectory() as work:
        arguments = TrainingArguments(
            work, per_device_train_batch_size=args.batch, max_steps=args.steps, bf16=True, learning_rate=args.learning_rate, lr_scheduler_type="constant",
            logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=kind == "cpu")
        trainer = InOrder(model=model, args=arguments, train_dataset=Samples(), callbacks=[watch])
        watch.last = time.perf_counter()
        trainer.train()
    finish(watch.times, watch.losses, per_step, "tokens/s")


def decode():
    """One token after another behind a prompt, as transformers generates. The weights are random."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.load), dtype=torch.bfloat16).to(args.device).eval()
    prompt = torch.tensor([[1000 + i % 1000 * 7 for i in range(args.block)]], device=args.device)

    def seconds(tokens):
        sync()
        start = time.perf_counter()
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        sync()
        return time.perf_counter() - start

    seconds(4)
    first = statistics.median(seconds(1) for _ in range(args.steps))
    result(row + "_prefill", args.block / first, "tokens/s")
    result(row, 127 / (statistics.median(seconds(128) for _ in range(args.steps)) - first), "tokens/s")


def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", num_labels=1000)
    kept = torch.randn(max(args.batch, 64), 3, args.image, args.image)
    batch = {"pixel_values": kept[: args.batch], "labels": torch.arange(args.batch) * 7 % 1000}
    train(ResNetForImageClassification(config), (batch for _ in range(args.steps)), args.batch, "images/s")


torch.manual_seed(42)
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False  # True by default
{"products": products, "attention": attention, "gpt2": gpt2, "decoder": decoder, "decode": decode, "resnet": resnet}[args.command]()
