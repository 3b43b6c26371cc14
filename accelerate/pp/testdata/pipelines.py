"""Makes pipelines.json: losses of PyTorch's pipelines of two ranks, a small GPT-2 of transformers.

The model is that of models/gpt2/testdata/tiny, with a stage for its embeddings, each of its two blocks, and its head, or
two of them in each stage. Every schedule of torch.distributed.pipelining trains it from the same weights on the same
micro-batches by SGD, as two processes over gloo.

pipelines.json:
  learning_rate
  ids [steps][micro-batches][samples][tokens]     labels are the ids, shifted by the loss
  losses NAME [steps][micro-batches]              mean losses by schedule; "one" is one process
"""

import os
import pathlib
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
import transformers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "parity"))
import golden  # noqa: E402
import gpt2_stages  # noqa: E402

STEPS, MICRO_BATCHES, SAMPLES, TOKENS, LEARNING_RATE = 4, 8, 2, 12, 0.1


def made_ids():
    generator = torch.Generator().manual_seed(4)
    return torch.randint(211, (STEPS, MICRO_BATCHES, SAMPLES, TOKENS), generator=generator)


def model():
    transformers.logging.set_verbosity_error()
    return transformers.GPT2LMHeadModel.from_pretrained(ROOT / "models/gpt2/testdata/tiny").train()


def one(ids):
    m = model()
    optimizer, out = torch.optim.SGD(m.parameters(), lr=LEARNING_RATE), []
    for step in ids:
        losses = [gpt2_stages.loss(m(part).logits, part) for part in step]
        for loss in losses:
            (loss / MICRO_BATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()
        out.append([loss.item() for loss in losses])
    return out


def train(rank, name, meeting, file):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    m = model()
    split = [1] * 4 if gpt2_stages.SCHEDULES[name][1] == 2 else [2, 2]
    run, stages = gpt2_stages.schedule(name, m, split, rank, 2, MICRO_BATCHES)
    params = list(dict.fromkeys(p for stage in stages for p in stage.submod.parameters()))
    optimizer, out = torch.optim.SGD(params, lr=LEARNING_RATE), []
    for step in made_ids():
        losses = gpt2_stages.step(run, stages, step.flatten(0, 1))
        gpt2_stages.tie(m, stages)
        optimizer.step()
        optimizer.zero_grad()
        out.append(losses)
    if out[0]:
        torch.save(out, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    OUT = golden.start(__file__, __doc__)
    losses = {"one": one(made_ids())}
    for name in gpt2_stages.SCHEDULES:
        with tempfile.TemporaryDirectory() as folder:
            meeting, file = os.path.join(folder, "meeting"), os.path.join(folder, "losses")
            mp.spawn(train, (name, meeting, file), nprocs=2)
            losses[name] = torch.load(file)
    golden.save_json(OUT / "pipelines.json", {"made_by": golden.versions(transformers), "learning_rate": LEARNING_RATE,
                                              "ids": made_ids().tolist(), "losses": losses})
