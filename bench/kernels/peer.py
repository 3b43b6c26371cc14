"""The PyTorch side of bench/kernels: reads a row's name per line, answers with the median seconds of one run. An empty line frees what rows hold, a number of
threads behind the word threads is taken from then on, and peak_memory answers with the peak of resident memory.

Usage: peer.py THREADS SECONDS_PER_TURN MODE, started by the benchmark with the settings of OpenMP, MKL and malloc in its environment. Modes: eager, as
people call it; installed, without any settings; out, with malloc's, and outputs allocated beforehand where PyTorch has such a form. A training step's name may
end with _compile, for torch.compile.
"""

import functools
import gc
import os
import sys
import time

import images
import torch
import torch.nn.functional as F
from filled import filled

THREADS, TURN, MODE = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
torch.set_num_threads(THREADS)
ELEMENTS = 16 << 20
OUT = MODE == "out"
KEEPS = "mmap_max=0" in os.environ.get("GLIBC_TUNABLES", "")  # malloc keeps what is freed
aten = torch.ops.aten


def pointwise(shape, f, backward, extra=lambda: ()):
    x, more = filled(*shape), extra()
    if not backward:

        def run():
            with torch.no_grad():
                f(x, *more)

        return run
    x.requires_grad_()
    with torch.no_grad():
        seed = torch.ones_like(f(x, *more))

    def run():
        f(x, *more).backward(seed)
        x.grad = None
        for p in more:
            p.grad = None

    return run


def layer_norm_parameters():
    return torch.ones(1024, requires_grad=True), torch.ones(1024, requires_grad=True)


def targets():
    return (torch.arange(8192) * 7919 % 2048,)


POINTWISE = {
    "layer_norm": ((16384, 1024), lambda x, w, b: F.layer_norm(x, (1024,), w, b), layer_norm_parameters),
    "rms_norm": ((16384, 1024), lambda x, w: F.rms_norm(x, (1024,), w, 1e-5), lambda: layer_norm_parameters()[:1]),
    "softmax": ((16384, 1024), lambda x: F.softmax(x, -1), tuple),
    "gelu": ((ELEMENTS,), lambda x: F.gelu(x), tuple),
    "gelu_tanh": ((ELEMENTS,), lambda x: F.gelu(x, approximate="tanh"), tuple),
    "cross_entropy": ((8192, 2048), lambda x, t: F.cross_entropy(x, t, reduction="none"), targets),
}


def softmax_out(x, dy):
    y, g = torch.empty_like(x), torch.empty_like(x)

    def forward():
        torch.softmax(x, -1, out=y)

    return forward, lambda: aten._softmax_backward_data.out(dy, y, -1, torch.float32, grad_input=g)


def gelu_out(approximate):
    def make(x, dy):
        y, g = torch.empty_like(x), torch.empty_like(x)

        def forward():
            aten.gelu.out(x, approximate=approximate, out=y)

        return forward, lambda: aten.gelu_backward.grad_input(dy, x, approximate=approximate, grad_input=g)

    return make


def cross_entropy_out(x, dy):
    (t,) = targets()
    logs, g, gx = (torch.empty_like(x) for _ in range(3))
    y, weight = torch.empty(len(t)), torch.empty(())

    def forward():
        aten._log_softmax.out(x, -1, False, out=logs)
        aten.nll_loss_forward.output(logs, t, None, 0, -100, output=y, total_weight=weight)

    def backward():
        aten.nll_loss_backward.grad_input(dy, logs, t, None, 0, -100, weight, grad_input=g)
        aten._log_softmax_backward_data.out(g, logs, -1, torch.float32, out=gx)

    return forward, backward


# Layer norm's out= form computes elsewhere and copies: with memory that is used again the plain form is the faster.
OUT_FORMS = {"softmax": softmax_out, "gelu": gelu_out("none"), "gelu_tanh": gelu_out("tanh"), "cross_entropy": cross_entropy_out}


def preallocated(name, backward):
    shape, f, extra = POINTWISE[name]
    x = filled(*shape)
    with torch.no_grad():
        dy = torch.ones_like(f(x, *extra()))
    first, second = OUT_FORMS[name](x, dy)

    def run():
        first()
        if backward:
            second()

    return run


def adamw():
    p = filled(ELEMENTS).requires_grad_()
    p.grad = filled(ELEMENTS)
    return torch.optim.AdamW([p], lr=1e-3, weight_decay=0.01, fused=OUT or None).step  # the fused form allocates nothing


def attention(t, kind):
    heads = 2 if kind == "grouped" else 8
    q, k, v = (filled(4, h, t, 64).requires_grad_() for h in (8, heads, heads))
    seed = filled(4, 8, t, 64)
    options = {"is_causal": kind in ("causal", "grouped", "dropout"), "enable_gqa": heads != 8, "dropout_p": 0.1 if kind == "dropout" else 0}
    if kind == "window":
        apart = torch.arange(t)[:, None] - torch.arange(t)
        options["attn_mask"] = (apart >= 0) & (apart < 256)
    if kind == "padded":
        options["attn_mask"] = (torch.arange(t) < t - torch.arange(4)[:, None] * t // 8)[:, None, None]

    def run():
        F.scaled_dot_product_attention(q, k, v, **options).backward(seed)
        q.grad = k.grad = v.grad = None

    return run


def product(m, n, k, trans_a, trans_b, dtype=torch.float32):
    x = filled(k, m).to(dtype).T if trans_a else filled(m, k).to(dtype)
    y = filled(n, k).to(dtype).T if trans_b else filled(k, n).to(dtype)

    z = torch.empty(m, n, dtype=dtype) if OUT else None

    def run():
        with torch.no_grad():
            torch.mm(x, y, out=z)

    return run


def projection(inner, outer, tokens, gradient=""):
    if gradient == "dx":
        return product(tokens, inner, outer, False, True)
    if gradient == "dw":
        return product(inner, outer, tokens, True, False)
    x, w, b = filled(tokens, inner), filled(inner, outer), filled(outer)
    y = torch.empty(tokens, outer) if OUT else None

    def run():
        with torch.no_grad():
            torch.addmm(b, x, w, out=y)

    return run


def head(inner, outer, tokens, gradient=""):
    if gradient == "dx":
        return product(tokens, inner, outer, False, False)
    if gradient == "dw":
        return product(outer, inner, tokens, True, False)
    return product(tokens, outer, inner, False, True)


def convolution(outer, depth, places, gradient=""):
    if gradient == "dx":
        return product(depth, places, outer, True, False)
    if gradient == "dw":
        return product(outer, depth, places, False, True)
    return product(outer, places, depth, False, False)


DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
PRODUCTS = {"matmul": projection, "head": head, "conv": convolution}


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(w, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT(torch.nn.Module):
    def __init__(self, layers, width, heads, vocab, block):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(vocab, width), torch.nn.Embedding(block, width)
        self.blocks = torch.nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln_f = torch.nn.LayerNorm(width)
        torch.nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        return self.ln_f(self.blocks(x)) @ self.wte.weight.T


@functools.cache
def gpt(*config):
    m = GPT(*config)
    return m, torch.optim.AdamW(m.parameters(), lr=1e-4, weight_decay=0.01, fused=True)


def step(layers, width, heads, vocab, positions, batch, block, compiled, half):
    m, opt = gpt(layers, width, heads, vocab, positions)
    ids = (torch.arange(batch * block) * 7919 % vocab).reshape(batch, block)

    def loss_of(ids):
        return F.cross_entropy(m(ids)[:, :-1].reshape(-1, vocab), ids[:, 1:].reshape(-1))

    if compiled:
        torch.compiler.reset()  # or what differs from the row before counts as a size that varies, which makes slower code
        loss_of = torch.compile(loss_of)

    def run():
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = loss_of(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()

    return run


# GiB that rows need, by the beginnings of their names, with some for what lies in pieces: where the system's pages are new, a GiB takes seconds.
RESERVE = {"gpt2_124m": 3.5, "rms_norm": 1.25, "attention_1024_dropout": 1.5, "head_768x50257_4096": 1.25, "": 0.75}
reserved = 0


def reserve(row):
    """Has malloc take the memory of a row from the system at once, and keep it: else the heap grows now and then for a dozen calls, and new pages take longer than
    what is timed."""
    global reserved
    gib = next(gib for name, gib in RESERVE.items() if row.startswith(name))
    if gib > reserved:
        torch.empty(int(gib * (1 << 28))).zero_()
        reserved = gib


STEPS = {"step": (4, 256, 8, 2048, 128, 8, 128), "gpt2_124m": (12, 768, 12, 50257, 1024, 2, 512)}


def open_row(name):
    for prefix, make in images.ROWS.items():
        if name.startswith(prefix):
            return make(*map(int, name.removeprefix(prefix).split("_")[1:]))
    for base, (shape, f, extra) in POINTWISE.items():
        if name in (base + "_fwd", base + "_fwdbwd"):
            if OUT and base in OUT_FORMS:
                return preallocated(base, name.endswith("bwd"))
            return pointwise(shape, f, name.endswith("bwd"), extra)
    kind, *rest = name.split("_")
    if kind == "attention":
        return attention(int(rest[0]), rest[1])
    if kind in PRODUCTS:
        return PRODUCTS[kind](*map(int, rest[0].split("x")), int(rest[1]), *rest[2:])
    if kind == "square":
        return product(*3 * [int(rest[0])], False, False, DTYPES[rest[1] if len(rest) > 1 else "f32"])
    if kind == "bf16":
        inner, outer = map(int, rest[0].split("x"))
        return product(int(rest[1]), outer, inner, False, False, torch.bfloat16)
    base = name.removesuffix("_compile")
    single = base.removesuffix("_bf16")
    if single in STEPS:
        return step(*STEPS[single], compiled=base != name, half=single != base)
    return {"adamw": adamw}[name]()


def timed(run):
    times, start = [], time.perf_counter()
    while not times or time.perf_counter() - start < TURN:
        t = time.perf_counter()
        run()
        times.append(time.perf_counter() - t)
    times.sort()
    return (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2


def peak_memory():
    """The peak of resident memory in bytes."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM:"))


def main():
    print(f"PyTorch {torch.__version__}", flush=True)
    runs, answer = {}, 0
    for line in sys.stdin:
        name, *threads = line.split() or [""]
        if not name:
            runs.clear()
            gpt.cache_clear()
            gc.collect()
        elif name == "threads":
            torch.set_num_threads(int(threads[0]))
        elif name == "peak_memory":
            answer = peak_memory()
        else:
            if KEEPS:
                reserve(name)
            runs[name] = runs.get(name) or open_row(name)
            answer = timed(runs[name])
        print(answer, flush=True)


if __name__ == "__main__":
    main()
