"""GPT-2 with matrices that are DTensors over gloo: what PyTorch's torch.distributed.tensor.parallel has for bench/mesh.

transformers' GPT-2 has its queries, keys and values in one Conv1D, for which there is no style: here they are three linear layers.
"""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.head = width // heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.n1(x)
        q, k, v = (f(h).unflatten(-1, (-1, self.head)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(s["Vocabulary"], s["Width"]), nn.Embedding(s["Block"], s["Width"])
        self.h = nn.ModuleList([Block(s["Width"], s["Heads"]) for _ in range(s["Layers"])])
        self.ln_f, self.lm_head = nn.LayerNorm(s["Width"]), nn.Linear(s["Width"], s["Vocabulary"], bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.size(1)))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def divided(s):
    """A rank's part of the model: attention by heads, the inner features, and the vocabulary, which the tied embedding and the head share."""
    model = GPT2(s)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {"wte": RowwiseParallel(input_layouts=Replicate()), "lm_head": ColwiseParallel(use_local_output=False)})
    for block in model.h:
        parallelize_module(block, mesh, {k: ColwiseParallel() for k in ("q", "k", "v", "up")} | {k: RowwiseParallel() for k in ("o", "down")})
    model.lm_head.weight = model.wte.weight
    return model


def groups(model):
    """The parameters for a fused optimizer, which takes no DTensors beside others."""
    params = list(model.parameters())
    return [{"params": [p for p in params if isinstance(p, DTensor) == of]} for of in (True, False)]


def step(model, ids, micro_batches):
    """Adds the gradients of a micro-batch."""
    with loss_parallel():
        logits = model(ids)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        (loss / micro_batches).backward()
    return loss.full_tensor().item() if isinstance(loss, DTensor) else loss.item()
