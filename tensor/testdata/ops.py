"""Makes ops.safetensors and ops.json: PyTorch's results for the composite ops.

For a case named C the tensors are C/in/NAME, C/out/NAME, C/weight/NAME (the cotangent of each differentiable
output: the gradients are those of the sum over outputs of sum(out * weight)) and C/grad/NAME (one for each
differentiable input, which the manifest lists). Attributes that are no tensors are in the manifest.
"""

import math
import pathlib
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)

tensors = {}
manifest = []
generator = torch.Generator().manual_seed(20240229)


def randn(*shape, scale=1.0, shift=0.0):
    return torch.randn(shape, generator=generator, dtype=torch.float64) * scale + shift


def randint(high, *shape):
    return torch.randint(high, shape, generator=generator)


def case(name, op, fn, inputs, grads, attrs=None, float64=False, exact=False):
    """Runs fn(**inputs) -> {name: output} in float32 (from float64 draws, rounded), and in float64 too if asked.

    With exact the float32 results are computed in float64 and rounded: for inputs at which PyTorch's own float32
    kernel loses digits.
    """
    inputs = {k: v.float() if v.is_floating_point() else v for k, v in inputs.items()}
    weights = {}
    for dtype in [torch.float32] + ([torch.float64] if float64 else []):
        full = name + ("/float64" if dtype == torch.float64 else "/float32")
        compute = torch.float64 if exact else dtype
        given = {k: v.to(compute, copy=True) if v.is_floating_point() else v for k, v in inputs.items()}
        for k in grads:
            given[k].requires_grad_()
        outs = fn(**given)
        total = torch.zeros((), dtype=compute)
        results = {}
        for k, out in outs.items():
            results[f"out/{k}"] = out
            if grads and out.requires_grad:
                if k not in weights:
                    weights[k] = randn(*out.shape).float()
                # An infinite output (a log-sum-exp over no key) has no gradient: its cotangent is 0.
                w = weights[k].to(compute).masked_fill(~torch.isfinite(out.detach()), 0)
                results[f"weight/{k}"] = w
                total = total + (torch.where(w != 0, out, 0) * w).sum()
        for k, v in given.items():
            results[f"in/{k}"] = v
        if grads:
            for k, g in zip(grads, torch.autograd.grad(total, [given[k] for k in grads])):
                results[f"grad/{k}"] = g
        for k, v in results.items():
            tensors[f"{full}/{k}"] = v.to(dtype) if v.is_floating_point() else v
        manifest.append(
            {"name": full, "op": op, "dtype": str(dtype).removeprefix("torch."), "in": list(given), "out": list(outs), "grad": list(grads), "attrs": attrs or {}}
        )


def unary(name, op, fn, shape, float64=False, attrs=None, scale=2.0):
    case(name, op, lambda x: {"y": fn(x)}, {"x": randn(*shape, scale=scale)}, ["x"], attrs, float64)


# Softmax and log-softmax, along the last and along an inner dim, and with values far apart.
unary("softmax_last", "softmax", lambda x: F.softmax(x, -1), (3, 5, 17), True, {"dim": -1})
unary("softmax_dim1", "softmax", lambda x: F.softmax(x, 1), (3, 7, 5), attrs={"dim": 1})
unary("softmax_wide", "softmax", lambda x: F.softmax(x, -1), (2, 131), attrs={"dim": -1}, scale=30)
unary("log_softmax_last", "log_softmax", lambda x: F.log_softmax(x, -1), (3, 5, 17), True, {"dim": -1})
unary("log_softmax_dim0", "log_softmax", lambda x: F.log_softmax(x, 0), (9, 4), attrs={"dim": 0})
unary("log_softmax_wide", "log_softmax", lambda x: F.log_softmax(x, -1), (2, 131), attrs={"dim": -1}, scale=30)

# Activations.
unary("gelu", "gelu", F.gelu, (5, 33), True)
unary("gelu_tanh", "gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), (5, 33), True)
unary("silu", "silu", F.silu, (5, 33), True)
edges = torch.tensor([0.0, -0.0, 1e-20, -1e-20, 1e-4, -1e-4, 3, -3, 6, -6, 10, -10, 40, -40, 88, -88, 200, -200], dtype=torch.float64)
for op, fn in [("gelu", F.gelu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")), ("silu", F.silu)]:
    case(op + "_edges", op, lambda x, fn=fn: {"y": fn(x)}, {"x": edges}, ["x"])

# Cross entropy with ignored rows: the loss of each row, their sum and their mean over the rows that count.
IGNORE = -100


def cross_entropy(logits, targets):
    rows = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="none")
    return {"rows": rows}


targets = randint(19, 11)
targets[[2, 3, 8]] = IGNORE
logits = randn(11, 19, scale=3)
case("cross_entropy_rows", "cross_entropy", cross_entropy, {"logits": logits, "targets": targets}, ["logits"], {"ignore_index": IGNORE, "reduction": "none"}, True)
for reduction in ["sum", "mean"]:
    case(
        "cross_entropy_" + reduction,
        "cross_entropy",
        lambda logits, targets: {"loss": F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction=reduction)},
        {"logits": logits, "targets": targets},
        ["logits"],
        {"ignore_index": IGNORE, "reduction": reduction},
        True,
    )
case(
    "cross_entropy_ignored_all",
    "cross_entropy",
    lambda logits, targets: {"loss": F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")},
    {"logits": randn(3, 5), "targets": torch.full((3,), IGNORE)},
    ["logits"],
    {"ignore_index": IGNORE, "reduction": "sum"},
)
case(
    "cross_entropy_wide",
    "cross_entropy",
    lambda logits, targets: {"loss": F.cross_entropy(logits, targets, ignore_index=-1, reduction="sum")},
    {"logits": randn(4, 211, scale=40), "targets": torch.tensor([0, -1, 210, 77])},
    ["logits"],
    {"ignore_index": -1, "reduction": "sum"},
)

# Normalisation. A shift of 20 shows whether the variance is computed stably.
for name, shape, shift, eps in [("", (3, 5, 24), 0, 1e-5), ("_shifted", (4, 131), 20, 1e-5), ("_one", (3, 1), 0, 1e-12)]:
    c = shape[-1]
    affine = {"x": randn(*shape, shift=shift), "weight": randn(c, scale=0.5, shift=1), "bias": randn(c)}
    case(
        "layer_norm" + name,
        "layer_norm",
        lambda x, weight, bias: {"y": F.layer_norm(x, (c,), weight, bias, eps)},
        affine,
        ["x", "weight", "bias"],
        {"eps": eps},
        True,
        exact=name != "",
    )
    case(
        "rms_norm" + name,
        "rms_norm",
        lambda x, weight: {"y": F.rms_norm(x, (c,), weight, eps)},
        {k: affine[k] for k in ["x", "weight"]},
        ["x", "weight"],
        {"eps": eps},
        True,
    )
case("layer_norm_plain", "layer_norm", lambda x: {"y": F.layer_norm(x, (24,), None, None, 1e-5)}, {"x": randn(3, 24)}, ["x"], {"eps": 1e-5})
case("layer_norm_no_bias", "layer_norm", lambda x, weight: {"y": F.layer_norm(x, (24,), weight, None, 1e-5)}, {"x": randn(3, 24), "weight": randn(24)}, ["x", "weight"], {"eps": 1e-5})
case("rms_norm_plain", "rms_norm", lambda x: {"y": F.rms_norm(x, (24,), None, 1e-6)}, {"x": randn(3, 24)}, ["x"], {"eps": 1e-6})

# Indexing with repeated indices.
ids = torch.tensor([[3, 3, 0], [7, 3, 6], [0, 7, 3]])
case("embedding", "embedding", lambda table, ids: {"y": F.embedding(ids, table)}, {"table": randn(9, 5), "ids": ids}, ["table"], float64=True)
for dim in [0, 1, 2]:
    shape = [4, 3, 5]
    index_shape = [3, 2, 4]
    index_shape[dim] = 6
    index = randint(shape[dim], *index_shape)
    case(f"gather_dim{dim}", "gather", lambda x, index: {"y": torch.gather(x, dim, index)}, {"x": randn(*shape), "index": index}, ["x"], {"dim": dim})
    case(
        f"scatter_add_dim{dim}",
        "scatter_add",
        lambda x, index, src: {"y": torch.scatter_add(x, dim, index, src)},
        {"x": randn(*shape), "index": index, "src": randn(*index_shape)},
        ["x", "src"],
        {"dim": dim},
        dim == 1,
    )


# Attention: PyTorch's op, and the same by hand, which also gives the log-sum-exp and takes offsets.
def attention_by_hand(q, k, v, mask=None, causal=False, scale=None, query_offset=0, key_offset=0, window=0):
    """Query i sees key j if key_offset+j <= query_offset+i (causal), their positions are less than window apart and the
    mask is true. A query that sees nothing has output 0 and log-sum-exp -inf."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    seen = torch.ones(scores.shape, dtype=torch.bool)
    i = torch.arange(q.shape[2])[:, None] + query_offset
    j = torch.arange(k.shape[2])[None, :] + key_offset
    if causal:
        seen = seen & (j <= i)
    if window:
        seen = seen & ((i - j).abs() < window)
    if mask is not None:
        seen = seen & mask
    some = seen.any(-1)
    # Rows that see nothing are computed unmasked and replaced, so that no NaN enters the gradient.
    scores = scores.masked_fill(~(seen | ~some[..., None]), -math.inf)
    lse = torch.logsumexp(scores, -1)
    out = torch.exp(scores - lse[..., None]) @ v
    return {"out": torch.where(some[..., None], out, 0), "lse": torch.where(some, lse, -math.inf)}


def attention_case(name, b, h, hkv, tq, tk, d, dv, mask=None, float64=False, lse=True, **attrs):
    causal, scale = attrs.get("causal", False), attrs.get("scale")
    offsets = attrs.get("query_offset", 0) or attrs.get("key_offset", 0)
    window = attrs.get("window", 0)
    # PyTorch aligns causal masks at the top left; with offsets, or rows that see nothing, only the hand computation applies.
    aligned = not offsets and (mask is None or (not causal and bool(mask.any(-1).all())))

    def fn(q, k, v, mask=None):
        hand = attention_by_hand(q, k, v, mask, causal, scale, attrs.get("query_offset", 0), attrs.get("key_offset", 0), window)
        if aligned:
            bias = mask
            if window:  # PyTorch knows a window as a mask
                apart = torch.arange(tq)[:, None] - torch.arange(tk)
                bias = (apart.abs() < window) & ((apart >= 0) | (not causal))
            real = F.scaled_dot_product_attention(q, k, v, bias, is_causal=causal and not window, scale=scale, enable_gqa=h != hkv)
            torch.testing.assert_close(hand["out"], real, rtol=1e-4, atol=1e-5)
            hand["out"] = real
        return hand if lse else {"out": hand["out"]}

    given = {"q": randn(b, h, tq, d, scale=1.5), "k": randn(b, hkv, tk, d, scale=1.5), "v": randn(b, hkv, tk, dv)}
    if mask is not None:
        given["mask"] = mask
    values = {"causal": causal, "scale": scale if scale is not None else 1 / math.sqrt(d), "query_offset": 0, "key_offset": 0, **attrs}
    case("attention_" + name, "attention", fn, given, ["q", "k", "v"], {**values, "from_torch": aligned}, float64)


attention_case("full", 2, 3, 3, 7, 9, 8, 8, float64=True)
attention_case("causal", 2, 3, 3, 9, 9, 8, 8, float64=True, causal=True)
attention_case("causal_out_only", 1, 2, 2, 13, 13, 6, 6, lse=False, causal=True)
attention_case("causal_long", 1, 1, 1, 67, 67, 16, 16, causal=True)
attention_case("causal_wide", 1, 2, 2, 5, 9, 8, 8, causal=True)
attention_case("value_dim", 1, 2, 2, 5, 6, 4, 7)
attention_case("scale", 1, 2, 2, 5, 6, 4, 4, scale=0.3)
attention_case("single", 1, 1, 1, 1, 1, 1, 1)
attention_case("grouped", 2, 6, 2, 5, 7, 4, 4, float64=True)
attention_case("grouped_causal", 1, 4, 1, 6, 6, 4, 4, causal=True)
mask = torch.rand((2, 3, 6, 8), generator=generator) < 0.6
mask[..., 0] = True
attention_case("mask", 2, 3, 3, 6, 8, 4, 4, mask=mask, float64=True)
padding = torch.ones((2, 1, 1, 8), dtype=torch.bool)
padding[0, ..., 5:] = False
attention_case("mask_padding", 2, 3, 3, 6, 8, 4, 4, mask=padding)
attention_case("mask_padding_causal", 2, 2, 2, 8, 8, 4, 4, mask=padding, causal=True)
empty = mask.clone()
empty[0, 1, 2] = False
empty[1, :, 5] = False
attention_case("mask_empty_rows", 2, 3, 3, 6, 8, 4, 4, mask=empty, float64=True)
attention_case("offset_cached", 1, 2, 2, 3, 8, 4, 4, causal=True, query_offset=5)
attention_case("offset_one_query", 1, 2, 1, 1, 8, 4, 4, causal=True, query_offset=7)
attention_case("offset_key", 1, 2, 2, 6, 6, 4, 4, causal=True, key_offset=3)
attention_case("offset_both", 1, 2, 2, 5, 6, 4, 4, float64=True, causal=True, query_offset=4, key_offset=6)
attention_case("offset_none_seen", 1, 2, 2, 3, 4, 4, 4, causal=True, key_offset=9)

# Products.
for name, a, b in [
    ("plain", (5, 7), (7, 3)),
    ("batched", (2, 3, 5, 7), (2, 3, 7, 4)),
    ("broadcast", (2, 1, 5, 7), (3, 7, 4)),
    ("broadcast_left", (5, 7), (3, 7, 4)),
    ("broadcast_right", (2, 3, 5, 7), (7, 4)),
    ("vector_like", (1, 33), (33, 1)),
    ("blocked", (37, 65), (65, 41)),
]:
    case("matmul_" + name, "matmul", lambda x, y: {"z": x @ y}, {"x": randn(*a), "y": randn(*b)}, ["x", "y"], float64=name == "broadcast")
linear = {"x": randn(2, 5, 7), "weight": randn(4, 7), "bias": randn(4)}
case("linear", "linear", lambda x, weight, bias: {"y": F.linear(x, weight, bias)}, linear, ["x", "weight", "bias"], float64=True)
case("linear_no_bias", "linear", lambda x, weight: {"y": F.linear(x, weight)}, {k: linear[k] for k in ["x", "weight"]}, ["x", "weight"])
# GPT-2's Conv1D: a linear layer whose weight is stored as [in, out].
case(
    "conv1d",
    "conv1d",
    lambda x, weight, bias: {"y": torch.addmm(bias, x.view(-1, x.shape[-1]), weight).view(*x.shape[:-1], -1)},
    {"x": randn(2, 5, 7), "weight": randn(7, 6), "bias": randn(6)},
    ["x", "weight", "bias"],
    float64=True,
)

# Concat and slice.
for dim in [0, 1, -1]:
    shapes = [[2, 3, 4] for _ in range(3)]
    for n, shape in enumerate(shapes):
        shape[dim] = n + 1
    case(
        f"concat_dim{dim}".replace("-1", "_last"),
        "concat",
        lambda x0, x1, x2: {"y": torch.cat([x0, x1, x2], dim)},
        {f"x{n}": randn(*shape) for n, shape in enumerate(shapes)},
        ["x0", "x1", "x2"],
        {"dim": dim},
    )
    case(f"slice_dim{dim}".replace("-1", "_last"), "slice", lambda x: {"y": x.narrow(dim, 1, 3)}, {"x": randn(5, 6, 7)}, ["x"], {"dim": dim, "start": 1, "end": 4})

# Reductions and the elementwise pairs that broadcast.
unary("mean_dims", "mean", lambda x: x.mean((0, 2)), (3, 4, 5), attrs={"dims": [0, 2], "keep": False})
unary("sum_keep", "sum", lambda x: x.sum((1,), keepdim=True), (3, 4, 5), attrs={"dims": [1], "keep": True})
for op, fn in [("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div)]:
    case(f"{op}_broadcast", op, lambda x, y: {"z": fn(x, y)}, {"x": randn(3, 1, 5), "y": randn(4, 1, scale=0.5, shift=2)}, ["x", "y"])
case(
    "masked_fill",
    "masked_fill",
    lambda x, mask: {"y": x.masked_fill(mask, -2.5)},
    {"x": randn(3, 4, 5), "mask": torch.rand((4, 1), generator=generator) < 0.5},
    ["x"],
    {"value": -2.5},
)
case(
    "where",
    "where",
    lambda cond, x, y: {"z": torch.where(cond, x, y)},
    {"cond": torch.rand((3, 1, 5), generator=generator) < 0.5, "x": randn(4, 1), "y": randn(3, 4, 5)},
    ["x", "y"],
)

# Convolutions and pooling.
for name, x, weight, bias, attrs in [
    ("padded", (2, 3, 7, 6), (4, 3, 3, 3), True, {"padding": (1, 1)}),
    ("strided", (2, 3, 9, 8), (5, 3, 3, 2), False, {"stride": (2, 3), "padding": (1, 0)}),
    ("dilated", (1, 2, 9, 10), (3, 2, 3, 3), True, {"dilation": (2, 3), "padding": (2, 1)}),
    ("grouped", (2, 6, 5, 5), (4, 3, 3, 3), True, {"groups": 2, "padding": (1, 1)}),
    ("depthwise", (2, 4, 6, 6), (8, 1, 3, 3), False, {"groups": 4, "stride": (2, 2), "padding": (1, 1)}),
    ("pointwise", (3, 5, 4, 4), (7, 5, 1, 1), True, {}),
    ("stem", (1, 3, 33, 32), (8, 3, 7, 7), False, {"stride": (2, 2), "padding": (3, 3)}),
]:
    given = {"x": randn(*x), "weight": randn(*weight, scale=0.3)}
    if bias:
        given["bias"] = randn(weight[0])
    case(
        "conv2d_" + name,
        "conv2d",
        lambda x, weight, bias=None: {"y": F.conv2d(x, weight, bias, **attrs)},
        given,
        list(given),
        {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, **attrs},
        float64=True,
    )
for name, x, attrs in [
    ("halved", (2, 3, 6, 8), {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}),
    ("padded", (2, 2, 7, 9), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}),
    ("overlapping", (1, 2, 6, 7), {"kernel": (3, 2), "stride": (1, 2), "padding": (1, 0)}),
]:
    k, s, p = attrs["kernel"], attrs["stride"], attrs["padding"]
    unary("max_pool2d_" + name, "max_pool2d", lambda x: F.max_pool2d(x, k, s, p), x, True, attrs)
    unary("avg_pool2d_" + name, "avg_pool2d", lambda x: F.avg_pool2d(x, k, s, p), x, True, attrs)
unary("global_avg_pool2d", "global_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 5, 7), True)

# Attention in a sliding window.
attention_case("window_causal", 2, 4, 2, 11, 11, 4, 4, float64=True, causal=True, window=4)
attention_case("window_both_sides", 1, 2, 2, 9, 11, 4, 6, window=3)
attention_case("window_long", 1, 2, 1, 131, 131, 16, 16, causal=True, window=33)
attention_case("window_cached", 1, 2, 2, 3, 12, 4, 4, causal=True, query_offset=9, window=5)


# LLaMA's gate, and its rotary embedding, by transformers' formula: the halves of a head are turned, with tables of twice the width.
case("swiglu", "swiglu", lambda gate, up: {"y": F.silu(gate) * up}, {"gate": randn(5, 33, scale=3), "up": randn(5, 33)}, ["gate", "up"], float64=True)


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def rope_case(name, b, h, t, d, rotated, theta=10000.0):
    angles = torch.arange(t, dtype=torch.float64)[:, None] * theta ** -(torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)

    def fn(x, cos, sin):
        cos, sin = (torch.cat((table, table), -1) for table in (cos, sin))
        turned, rest = x[..., :rotated], x[..., rotated:]
        return {"y": torch.cat((turned * cos + rotate_half(turned) * sin, rest), -1)}

    case("rope_" + name, "rope", fn, {"x": randn(b, h, t, d), "cos": angles.cos(), "sin": angles.sin()}, ["x"], float64=True)


rope_case("whole", 2, 3, 7, 8, 8)
rope_case("partial", 1, 2, 5, 12, 6, theta=500000.0)

# More activations; clamp at its bounds, and beyond them on either side alone.
for slope in [0.01, 0.3]:
    unary(f"leaky_relu_{slope}", "leaky_relu", lambda x: F.leaky_relu(x, slope), (5, 33), slope == 0.3, {"slope": slope})
unary("elu", "elu", lambda x: F.elu(x, 1.3), (5, 33), True, {"alpha": 1.3})
unary("softplus", "softplus", F.softplus, (5, 33), True, {"beta": 1, "threshold": 20}, scale=8)
unary("softplus_sharp", "softplus", lambda x: F.softplus(x, 2.5, 5), (5, 33), True, {"beta": 2.5, "threshold": 5})
for op, fn, attrs in [
    ("leaky_relu", lambda x: F.leaky_relu(x, 0.3), {"slope": 0.3}),
    ("elu", lambda x: F.elu(x, 1.3), {"alpha": 1.3}),
    ("softplus", F.softplus, {"beta": 1, "threshold": 20}),
]:
    case(op + "_edges", op, lambda x, fn=fn: {"y": fn(x)}, {"x": edges}, ["x"], attrs, float64=True)
bounds = torch.tensor([-3, -1, -0.5, 0, 0.5, 0.75, 0.76, 9], dtype=torch.float64)
for name, lo, hi in [("both", -0.5, 0.75), ("low", -0.5, None), ("high", None, 0.75), ("crossed", 0.75, -0.5)]:
    attrs = {k: v for k, v in {"lo": lo, "hi": hi}.items() if v is not None}
    case("clamp_" + name, "clamp", lambda x: {"y": torch.clamp(x, lo, hi)}, {"x": bounds}, ["x"], attrs)

# Binary cross entropy: plain, with weights of the positive part, and with logits far from 0.
logits, chances = randn(5, 7, scale=3), torch.rand((5, 7), generator=generator, dtype=torch.float64)


def bce(logits, targets, pos_weight=None):
    return {"y": F.binary_cross_entropy_with_logits(logits, targets, pos_weight=pos_weight, reduction="none")}


case("bce_with_logits", "bce_with_logits", bce, {"logits": logits, "targets": chances}, ["logits", "targets"], float64=True)
weighted = {"logits": logits, "targets": chances.round(), "pos_weight": randn(7).exp()}
case("bce_with_logits_pos_weight", "bce_with_logits", bce, weighted, ["logits", "targets"], float64=True)
# PyTorch subtracts numbers near each other in float32.
case("bce_with_logits_edges", "bce_with_logits", bce, {"logits": edges, "targets": (edges > 0).double()}, ["logits"], float64=True, exact=True)

# The largest and smallest elements, sums along a dim, and where the least is.
for dim, k, smallest in [(-1, 3, False), (0, 2, True), (1, 5, False)]:
    values = lambda x: dict(zip(["values", "indices"], torch.topk(x, k, dim, largest=not smallest)))
    name = f"topk_dim{dim}".replace("-1", "_last")
    case(name, "topk", values, {"x": randn(4, 5, 9)}, ["x"], {"dim": dim, "k": k, "smallest": smallest}, float64=dim == 0)
for dim in [0, 1, 2]:
    unary(f"cumsum_dim{dim}", "cumsum", lambda x: torch.cumsum(x, dim), (4, 3, 5), dim == 1, {"dim": dim})
    case(f"argmin_dim{dim}", "argmin", lambda x: {"y": torch.argmin(x, dim)}, {"x": randn(4, 3, 5)}, [], {"dim": dim})
case("one_hot", "one_hot", lambda ids: {"y": F.one_hot(ids, 6)}, {"ids": randint(6, 3, 4)}, [], {"classes": 6})

# Padding.
for mode, shape, pads in [
    ("constant", (2, 3, 4), [1, 2, 0, 3]),
    ("constant", (2, 3, 4), [-1, 2, 1, -2, 0, 1]),
    ("reflect", (1, 2, 4, 5), [4, 1, 0, 3]),
    ("replicate", (1, 2, 3, 4), [2, 0, 1, 5]),
    ("circular", (1, 2, 3, 4), [4, 1, 0, 3]),
]:
    value = -1.5 if mode == "constant" else 0
    fn = lambda x: F.pad(x, pads, mode, value) if mode == "constant" else F.pad(x, pads, mode)
    unary(f"pad_{mode}" + ("_cropped" if min(pads) < 0 else ""), "pad", fn, shape, attrs={"pads": pads, "mode": mode, "value": value})

# Log-sum-exp and the spread of elements.
unary("logsumexp_last", "logsumexp", lambda x: torch.logsumexp(x, -1), (3, 5, 17), True, {"dims": [-1], "keep": False}, scale=30)
unary("logsumexp_keep", "logsumexp", lambda x: torch.logsumexp(x, (0, 2), keepdim=True), (3, 5, 7), attrs={"dims": [0, 2], "keep": True})
for op, fn in [("var", torch.var), ("std", torch.std)]:
    for name, dims, correction, keep in [("all", [0, 1, 2], 1, False), ("biased", [1], 0, True), ("dims", [0, 2], 1, False)]:
        attrs = {"dims": dims, "correction": correction, "keep": keep}
        spread = lambda x: {"y": fn(x, dims, correction=correction, keepdim=keep)}
        case(f"{op}_{name}", op, spread, {"x": randn(3, 5, 7, shift=20)}, ["x"], attrs, float64=True, exact=True)

# Group normalisation.
for name, shape, groups in [("images", (2, 6, 5, 4), 3), ("one_group", (3, 4, 7), 1), ("instance", (2, 4, 9), 4), ("vectors", (5, 8), 2)]:
    affine = {"x": randn(*shape, shift=2), "weight": randn(shape[1], scale=0.5, shift=1), "bias": randn(shape[1])}
    norm = lambda x, weight=None, bias=None: {"y": F.group_norm(x, groups, weight, bias, 1e-5)}
    case("group_norm_" + name, "group_norm", norm, affine, ["x", "weight", "bias"], {"groups": groups, "eps": 1e-5}, True)
case("group_norm_plain", "group_norm", lambda x: {"y": F.group_norm(x, 2)}, {"x": randn(2, 6, 5)}, ["x"], {"groups": 2, "eps": 1e-5})

for name, t in tensors.items():
    assert not t.isnan().any(), name
golden.save_tensors(OUT / "ops.safetensors", tensors, golden.versions())
golden.save_json(OUT / "ops.json", {"made_by": golden.versions(), "cases": manifest})
