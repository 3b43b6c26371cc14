"""GPT-2 of transformers as stages of torch.distributed.pipelining, for goldens and benchmarks."""

import torch
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules as S

# The name of a schedule, PyTorch's class, stages per rank, and whether these are placed as a V.
SCHEDULES = {
    "gpipe": (S.ScheduleGPipe, 1, False),
    "1f1b": (S.Schedule1F1B, 1, False),
    "interleaved_1f1b": (S.ScheduleInterleaved1F1B, 2, False),
    "looped_bfs": (S.ScheduleLoopedBFS, 2, False),
    "zb_h1": (S.ScheduleInterleavedZeroBubble, 1, False),
    "zbv": (S.ScheduleZBVZeroBubble, 2, True),
    "dualpipev": (S.ScheduleDualPipeV, 2, True),
}


class Stage(torch.nn.Module):
    """Consecutive parts of a GPT2LMHeadModel: part 0 is the embeddings, then come the blocks, then the head."""

    def __init__(self, model, first, last):
        super().__init__()
        body, blocks = model.transformer, len(model.transformer.h)
        self.head = last == blocks + 2
        self.wte = body.wte if first == 0 else None
        self.wpe = body.wpe if first == 0 else None
        self.h = torch.nn.ModuleList(body.h[max(first - 1, 0) : min(last - 1, blocks)])
        self.ln_f = body.ln_f if self.head else None
        self.lm_head = model.lm_head if self.head else None

    def forward(self, x):
        if self.wte is not None:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x)) if self.head else x


def loss(logits, ids):
    """The mean cross-entropy of each next token."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def schedule(name, model, split, rank, ranks, micro_batches):
    """This rank's schedule over stages of so many parts each, and its stages."""
    cls, each, v = SCHEDULES[name]
    numbers = [rank + i * ranks if not v or i == 0 else 2 * ranks - 1 - rank for i in range(each)]
    stages = []
    for n in numbers:
        first = sum(split[:n])
        stages.append(pipelining.PipelineStage(Stage(model, first, first + split[n]), n, ranks * each, torch.device("cpu")))
    one = issubclass(cls, S.PipelineScheduleSingle)
    # With scale_grads, a table that two stages of one rank share would be scaled twice.
    share = lambda logits, ids: loss(logits, ids) / micro_batches  # noqa: E731
    return cls(stages[0] if one else stages, n_microbatches=micro_batches, loss_fn=share, scale_grads=False), stages


def step(of, stages, ids):
    """A step's forward and backward passes over ids [samples, tokens]; the losses of the micro-batches on the last stage's rank, else None."""
    losses = []
    args = (ids,) if any(s.is_first for s in stages) else ()
    last = any(s.is_last for s in stages)
    of.step(*args, **({"target": ids, "losses": losses} if last else {}))
    return [x.item() * len(losses) for x in losses] if last else None


def tie(model, stages):
    """Adds the gradients of the tied table on the ranks of the first stage and of the last, unless they are one rank."""
    import torch.distributed as dist

    if sum(s.is_first or s.is_last for s in stages) == 1:
        dist.all_reduce(model.transformer.wte.weight.grad)  # with two ranks, both have it
