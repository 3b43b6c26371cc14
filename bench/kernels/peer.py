"""The PyTorch side of bench/kernels: reads a row's name per line, answers with the median seconds of one run.

Usage: peer.py THREADS SECONDS_PER_TURN, started by the benchmark with the thread settings of OpenMP and MKL in its environment.
"""

import ctypes
import sys
import time

import torch
import torch.nn.functional as F

THREADS, TURN = int(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(THREADS)
ELEMENTS = 16 << 20


def filled(*shape):
    n = torch.Size(shape).numel()
    return ((torch.arange(n) * 7919 % 2001 - 1000) / 500).float().reshape(shape)


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
    "softmax": ((16384, 1024), lambda x: F.softmax(x, -1), tuple),
    "gelu": ((ELEMENTS,), lambda x: F.gelu(x), tuple),
    "gelu_tanh": ((ELEMENTS,), lambda x: F.gelu(x, approximate="tanh"), tuple),
    "cross_entropy": ((8192, 2048), lambda x, t: F.cross_entropy(x, t, reduction="none"), targets),
}


def unallocating(name):
    """A row without allocation: the out= forms, which PyTorch's functions have beneath torch.nn.functional. Layer norm has none; malloc is told to keep what
    is freed instead, so that its memory is not new either."""
    base, backward = name.rsplit("_", 1)[0], name.endswith("bwd")
    shape, _, extra = POINTWISE[base]
    x, more, aten = filled(*shape), [t.detach() for t in extra()], torch.ops.aten
    y, dx = torch.empty_like(x), torch.empty_like(x)
    if base == "layer_norm":
        keep_freed_memory()
        dy = torch.ones_like(x)

        def run():
            _, mean, rstd = aten.native_layer_norm(x, (1024,), *more, 1e-5)
            if backward:
                aten.native_layer_norm_backward(dy, x, (1024,), mean, rstd, *more, [True, True, True])

    elif base == "cross_entropy":
        loss, total, dy = torch.empty(shape[0]), torch.empty(()), torch.ones(shape[0])
        dlog = torch.empty_like(x)

        def run():
            aten._log_softmax.out(x, 1, False, out=y)
            aten.nll_loss_forward.output(y, more[0], None, 0, -100, output=loss, total_weight=total)
            if backward:
                aten.nll_loss_backward.grad_input(dy, y, more[0], None, 0, -100, total, grad_input=dlog)
                aten._log_softmax_backward_data.out(dlog, y, 1, x.dtype, out=dx)

    elif base == "softmax":
        dy = torch.ones_like(x)

        def run():
            aten._softmax.out(x, -1, False, out=y)
            if backward:
                aten._softmax_backward_data.out(dy, y, -1, x.dtype, grad_input=dx)

    else:
        dy, form = torch.ones_like(x), "tanh" if base == "gelu_tanh" else "none"

        def run():
            aten.gelu.out(x, approximate=form, out=y)
            if backward:
                aten.gelu_backward.grad_input(dy, x, approximate=form, grad_input=dx)

    return run


def keep_freed_memory():
    libc = ctypes.CDLL(None)
    libc.mallopt(-4, 0)  # M_MMAP_MAX: all from the heap
    libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: which keeps it


def adamw():
    p = filled(ELEMENTS).requires_grad_()
    p.grad = filled(ELEMENTS)
    return torch.optim.AdamW([p], lr=1e-3, weight_decay=0.01, fused=True).step


def attention(t, causal):
    q, k, v = (filled(4, 8, t, 64).requires_grad_() for _ in range(3))
    seed = filled(4, 8, t, 64)

    def run():
        F.scaled_dot_product_attention(q, k, v, is_causal=causal).backward(seed)
        q.grad = k.grad = v.grad = None

    return run


def product(m, n, k, trans_a, trans_b):
    x = filled(k, m).T if trans_a else filled(m, k)
    y = filled(n, k).T if trans_b else filled(k, n)

    def run():
        with torch.no_grad():
            torch.mm(x, y)

    return run


def projection(inner, outer, tokens, gradient=""):
    if gradient == "dx":
        return product(tokens, inner, outer, False, True)
    if gradient == "dw":
        return product(inner, outer, tokens, True, False)
    x, w, b = filled(tokens, inner), filled(inner, outer), filled(outer)

    def run():
        with torch.no_grad():
            torch.addmm(b, x, w)

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


def step():
    m = GPT(4, 256, 8, 2048, 128)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    ids = (torch.arange(8 * 128) * 7919 % 2048).reshape(8, 128)

    def run():
        opt.zero_grad(set_to_none=True)
        logits = m(ids)[:, :-1].reshape(-1, 2048)
        F.cross_entropy(logits, ids[:, 1:].reshape(-1)).backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()

    return run


def open_row(name):
    if name.endswith("_out"):
        return unallocating(name.removesuffix("_out"))
    for base, (shape, f, extra) in POINTWISE.items():
        if name in (base + "_fwd", base + "_fwdbwd"):
            return pointwise(shape, f, name.endswith("bwd"), extra)
    kind, *rest = name.split("_")
    if kind == "attention":
        return attention(int(rest[0]), rest[1] == "causal")
    if kind in PRODUCTS:
        return PRODUCTS[kind](*map(int, rest[0].split("x")), int(rest[1]), *rest[2:])
    if kind == "square":
        return product(*3 * [int(rest[0])], False, False)
    return {"adamw": adamw, "step": step}[name]()


def timed(run):
    times, start = [], time.perf_counter()
    while not times or time.perf_counter() - start < TURN:
        t = time.perf_counter()
        run()
        times.append(time.perf_counter() - t)
    times.sort()
    return (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2


def main():
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}", flush=True)
    current, run = None, None
    for line in sys.stdin:
        if line.strip() != current:
            current, run = line.strip(), None
            run = open_row(current)
        print(timed(run), flush=True)


if __name__ == "__main__":
    main()
