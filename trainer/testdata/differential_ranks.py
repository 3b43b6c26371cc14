"""Makes differential_ranks.json.gz: what transformers' Trainer does on two ranks, in bfloat16 and with group_by_length.

100 runs with random arguments, in the form of differential.json.gz (see differential.py). A case has in addition
  ranks    2, if two processes run it; rank 0 tells what came of it. "grad_norm" and all of the state are of rank 0, too
  same     every sample is the first one: with train_sampling_strategy group_by_length, the order of samples is the
           random numbers' of PyTorch, and this makes it play no part. Sample i has the length i % 7 + 1
"""

import json
import os
import pathlib
import random
import shutil
import socket
import tempfile

import torch

import differential
import events


class Lengths(events.Samples):
    """Samples that are all the first, of different lengths."""

    def __getitem__(self, i):
        return {**self.rows[0], "length": i % 7 + 1}


def told(r):
    """A random case with one of the arguments of this file."""
    case = plain(r)
    args = case["args"]
    args.pop("dataloader_drop_last", None)
    if args.get("save_total_limit") == 1:
        del args["save_total_limit"]
    if "metric_for_best_model" not in args:  # what early stopping does without it is no subject here
        case.pop("early_stopping", None)
    case.pop("flags", None)
    case["loss"] = "sum"
    if r.random() < 0.5:
        args["bf16"] = True
    if r.random() < 0.4:
        case["same"] = True
        args["train_sampling_strategy"] = "group_by_length"
    return case


plain = differential.draw
differential.draw = told


def data_of(case):
    rows = differential.TRAIN[: case["train_size"]]
    return Lengths(rows) if case.get("same") else events.Samples(rows)


def new_trainer(case, args, flags, folder):
    trainer, recorder = made(case, args, flags, folder)
    trainer.train_dataset = data_of(case)
    if case.get("same"):
        lengths = [i % 7 + 1 for i in range(case["train_size"])]
        batch = trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps
        sampler = differential.transformers.trainer_pt_utils.LengthGroupedSampler
        trainer._get_train_sampler = lambda *_: sampler(batch, lengths=lengths)
        trainer._get_eval_sampler = torch.utils.data.SequentialSampler  # which it sorts by length as well
    return trainer, recorder


made = differential.new_trainer
differential.new_trainer = new_trainer


def on_rank(rank, port, seed, count, out):
    """What one of two ranks does: the same cases, in folders that rank 0 makes."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    r, list = random.Random(seed), []
    while len(list) < count:
        case = {"name": f"ranks-{len(list):02d}", **told(r), "ranks": 2}
        folder = pathlib.Path(out) / f"run-{r.random()}"
        done = differential.observed(case, str(folder))
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        if done and "error" not in done:
            list.append(done)
    if rank == 0:
        (pathlib.Path(out) / "cases.json").write_text(json.dumps(list))


def two_ranks(seed, count):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as out:
        torch.multiprocessing.spawn(on_rank, (port, seed, count, out), 2)
        return json.loads((pathlib.Path(out) / "cases.json").read_text())


if __name__ == "__main__":
    differential.main(__file__, __doc__, "differential_ranks.json.gz", lambda: differential.cases(21, 50) + two_ranks(22, 50))
