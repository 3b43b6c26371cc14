"""Makes differential_language.json.gz: what transformers' Trainer does with two small language models.

400 runs and 100 resumes on one rank, and 100 runs on two ranks, with random arguments, in the form of
differential.json.gz (see differential.py). The models are a Llama and a GPT-2 of one layer (see "models"), whose
parameters follow from their names (see initial); the samples are prompts and answers of different lengths, padded on
the right, with the labels of the prompts −100. A run has in addition to differential.py's
  model        the name of the model
  ranks        2, if two processes run it; rank 0 tells what came of it
  ragged_eval  the evaluation samples have different numbers of labels; otherwise each has three
  metric       what compute_metrics returns: the mean over labels of the greatest logit, as "peak", and in float32 the
               accuracy; "inputs" and "losses" under include_for_metrics; batch by batch under batch_eval_metrics
and instead of a and b
  weights      figures of the parameters at the end, and of those in each checkpoint: see figures
Returned predictions and labels are one sum per sample.

Of the generators, Lockstep's are in the place of PyTorch's, in the order of samples and in NEFTune's noise (counted.py).
Usage: differential_language.py [--out FOLDER]. JOBS processes make the cases of one rank; CASES are the three numbers above.
"""

import gc
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import socket
import tempfile
import warnings

import numpy as np
import optimi
import torch
import transformers
from safetensors.torch import load_file
from transformers.integrations import neftune

import counted
import differential

VOCABULARY, SEED = 40, 42
CONFIGS = {
    "llama": {
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "tie_word_embeddings": False,
    },
    "gpt2": {
        "model_type": "gpt2", "vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None,
    },
}


def numbers(name, n):
    """n numbers in [−1, 1) that follow from a name."""
    return np.array(counted.uniform(counted.key(SEED, name, 0), 1.0, n), np.float64)


def initial(name, shape):
    """A parameter at the start."""
    values = 0.5 * numbers(name, int(np.prod(shape)))
    if len(shape) == 1 and name.endswith("weight"):
        values = 1 + 0.2 * values
    return values.astype(np.float32).reshape(shape)


def new_model(name):
    config = transformers.AutoConfig.for_model(**CONFIGS[name])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(torch.from_numpy(initial(key, p.shape)))
    return model


def figures(parameters):
    """The norm of all parameters, and their sums with three series of numbers in [−1, 1).

    The bias of GPT-2's keys changes no result, and its gradient is what rounding leaves: it is left out.
    """
    out = [0.0] * 4
    for name in sorted(parameters):
        p = parameters[name].astype(np.float64).reshape(-1)
        if name.endswith("c_attn.bias"):
            third = len(p) // 3
            p = np.concatenate([p[:third], p[2 * third :]])
        out[0] += (p**2).sum()
        for i in (1, 2, 3):
            out[i] += (p * numbers(f"{name}/{i}", len(p))).sum()
    out[0] = out[0] ** 0.5
    return out


def samples(n, seed, equal):
    """Samples of a prompt and an answer; equal answers have three tokens."""
    r = random.Random(seed)
    out = []
    for _ in range(n):
        prompt = [r.randrange(1, VOCABULARY) for _ in range(r.randint(1, 6))]
        answer = [r.randrange(1, VOCABULARY) for _ in range(3 if equal else r.randint(1, 6))]
        out.append({"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer})
    return out


SETS = {"train": samples(40, 17, False), "eval": samples(16, 18, True), "ragged": samples(16, 19, False)}
TESTED = 7  # samples to predict


def collate(rows):
    width = max(len(s["input_ids"]) for s in rows)

    def padded(key, value):
        return torch.tensor([s[key] + [value] * (width - len(s[key])) for s in rows])

    mask = torch.tensor([[1] * len(s["input_ids"]) + [0] * (width - len(s["input_ids"])) for s in rows])
    return {"input_ids": padded("input_ids", 0), "labels": padded("labels", -100), "attention_mask": mask}


class Order(torch.utils.data.Sampler):
    """The order of an epoch's samples: transformers', with Lockstep's permutation where it has PyTorch's."""

    def __init__(self, trainer, rows):
        self.trainer, self.lengths = trainer, [len(s["input_ids"]) for s in rows]

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        args, n, epoch = self.trainer.args, len(self), self.trainer.epoch
        if args.train_sampling_strategy == "random":
            return iter(counted.permutation(counted.key(args.seed, "samplers.Random", epoch), n))
        if args.train_sampling_strategy == "sequential":
            return iter(range(n))
        permutation = counted.permutation(counted.key(args.seed, "samplers.LengthGrouped", epoch), n)
        drawn, torch.randperm = torch.randperm, lambda *_, **__: torch.tensor(permutation)
        try:
            batch = args.train_batch_size * args.gradient_accumulation_steps
            return iter(transformers.trainer_pt_utils.get_length_grouped_indices(self.lengths, batch))
        finally:
            torch.randperm = drawn


class Trainer(transformers.Trainer):
    epoch = position = 0

    def _get_train_sampler(self, train_dataset=None):
        return Order(self, self.train_dataset)

    def _get_eval_sampler(self, eval_dataset):  # group_by_length sorts them, too
        return torch.utils.data.SequentialSampler(eval_dataset)

    def _run_epoch(self, **kwargs):
        self.epoch = kwargs["epoch"]
        done = kwargs["steps_trained_in_current_epoch"] if self.epoch == kwargs["epochs_trained"] else 0
        self.position = self.epoch * len(self.train_dataset) + done * self.args.train_batch_size
        super()._run_epoch(**kwargs)

    def training_step(self, model, inputs, *args, **kwargs):
        Noise.first = self.position
        self.position += len(inputs["input_ids"])
        return super().training_step(model, inputs, *args, **kwargs)


class Noise:
    """NEFTune's hook, with the numbers that Lockstep draws for the samples from position first on."""

    first = 0

    @staticmethod
    def hook(module, inputs, output):
        if not module.training:
            return output
        size, length, width = output.shape
        bound = float(module.neftune_noise_alpha / torch.sqrt(torch.tensor(length * width)))
        key = counted.key(SEED, "neftune", 0)
        rows = [counted.uniform(counted.derive(key, "sample", Noise.first + i), bound, length, width) for i in range(size)]
        return output + torch.stack(rows)


neftune.neftune_post_forward_hook = Noise.hook


class StableAdamW(optimi.StableAdamW):
    """optimi's, without the kernels that need a GPU."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, triton=False, **kwargs)


optimi.StableAdamW = StableAdamW


def arrays(x):
    """Batches of predictions, labels or inputs, as eval_do_concat_batches leaves them."""
    return [a.float().numpy() if torch.is_tensor(a) else np.asarray(a) for a in (x if isinstance(x, list) else [x])]


class Metric:
    """compute_metrics, of an evaluation or batch by batch."""

    def __init__(self, args):
        self.args, self.seen = args, []

    def __call__(self, p, compute_result=True):
        self.seen.append(p)
        if not compute_result:
            return {}
        seen, self.seen = self.seen, []
        right, peak, n, inputs, losses = 0, 0.0, 0, 0, []
        for p in seen:
            for logits, labels in zip(arrays(p.predictions), arrays(p.label_ids), strict=True):
                logits, labels = logits[:, :-1], labels[:, 1:]
                labels = labels.astype(np.int64)
                there = labels != -100
                n += int(there.sum())
                peak += float(logits.max(-1)[there].astype(np.float64).sum())
                right += int((logits.argmax(-1) == labels)[there].sum())
            if p.inputs is not None:
                x = p.inputs["input_ids"] if hasattr(p.inputs, "keys") else p.inputs
                inputs += sum(int(a[a > 0].sum()) for a in arrays(x))
            if p.losses is not None:
                losses += [float(v) for a in arrays(p.losses) for v in a.reshape(-1)]
        out = {"peak": peak / n}
        if not (self.args.get("bf16") or self.args.get("bf16_full_eval")):
            out["accuracy"] = right / n
        if "inputs" in self.args.get("include_for_metrics", []):
            out["inputs"] = float(inputs)
        if "loss" in self.args.get("include_for_metrics", []):
            out["losses"] = sum(losses) / len(losses)
        return out


def new_trainer(case, args, flags, folder):
    recorder = differential.Recorder(flags)
    callbacks = [recorder]
    if "early_stopping" in case:
        callbacks.append(transformers.EarlyStoppingCallback(**case["early_stopping"]))
    arguments = transformers.TrainingArguments(folder, use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, log_level="error", report_to=[], **args)
    rows = SETS["ragged" if case.get("ragged_eval") else "eval"][: case["eval_size"]]
    evals = rows
    if case.get("eval_sets") == 2:
        half = len(rows) // 2
        evals = {"first": rows[:half], "second": rows[half:]}
    trainer = Trainer(
        new_model(case["model"]),
        arguments,
        train_dataset=SETS["train"][: case["train_size"]],
        eval_dataset=evals,
        data_collator=collate,
        callbacks=callbacks,
        compute_metrics=Metric(args) if case.get("metric") else None,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer, recorder


def checkpoints(folder):
    out = {}
    for path in pathlib.Path(folder).glob("checkpoint-*"):
        state = json.loads((path / "trainer_state.json").read_text())
        out[path.name.split("-")[1]] = {
            "weights": figures({k: v.float().numpy() for k, v in load_file(path / "model.safetensors").items()}),
            "records": len(state["log_history"]),
            "state": state_of(state),
            "control": state["stateful_callbacks"]["TrainerControl"]["args"],
            **({"early_stopping": state["stateful_callbacks"]["EarlyStoppingCallback"]} if "EarlyStoppingCallback" in state["stateful_callbacks"] else {}),
        }
    return out


def state_of(state):
    seen = state["num_input_tokens_seen"]
    return {**differential.state_of(state), **({"num_input_tokens_seen": seen} if seen else {})}


def predicted(trainer):
    rows = SETS["eval"][:TESTED]
    out = trainer.predict(rows)
    sums = lambda x: None if x is None else [float(np.where(a == -100, 0, a).astype(np.float64).sum()) for batch in arrays(x) for a in batch]  # noqa: E731
    logits = None
    if out.predictions is not None:
        each = [a for batch in arrays(out.predictions) for a in batch]
        logits = [float(a[: len(s["input_ids"])].astype(np.float64).mean()) for a, s in zip(each, rows, strict=False)]
    return {"metrics": differential.timeless(out.metrics), "predictions": logits, "labels": sums(out.label_ids)}


def observe(case, folder):
    """Runs a case; its first run, if it is a resume, is in folder."""
    trainer, recorder = new_trainer(case, case["args"], case.get("flags", []), folder)
    returned = []
    for call in case["calls"]:
        if call == "train":
            resume = f"{folder}/checkpoint-{case['resume']['from']}" if "resume" in case else None
            out = trainer.train(resume_from_checkpoint=resume)
            returned.append({"global_step": out.global_step, "training_loss": out.training_loss})
        elif call == "evaluate":
            returned.append({"metrics": differential.timeless(trainer.evaluate())})
        else:
            returned.append(predicted(trainer))
    state = trainer.state
    return {
        "events": "".join(recorder.events),
        "steps": recorder.steps,
        "log_history": [differential.timeless(log) for log in state.log_history],
        "state": state_of(vars(state)),
        "checkpoints": checkpoints(folder),
        "returned": returned,
        "weights": figures({k: v.detach().float().numpy() for k, v in trainer.model.named_parameters()}),
    }


def short(value):
    """Drops digits that nobody compares."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    if isinstance(value, list):
        return [short(v) for v in value]
    return value


plain = {"draw": differential.draw, "schedule": differential.schedule}
differential.new_trainer, differential.observe, differential.short = new_trainer, observe, short

# The optimizers that run on a CPU, each with a factor of the learning rate and settings of its own.
OPTIMIZERS = {
    "adamw_torch": (1, []),
    "adamw_torch_fused": (1, []),
    "adafactor": (1, []),
    "adagrad": (3, ["lr_decay=0.01,eps=1e-8", "lr_decay=0.1"]),
    "rmsprop": (0.3, ["momentum=0.5", "alpha=0.9,eps=1e-6,centered=true"]),
    "sgd": (30, ["momentum=0.9", "momentum=0.8,nesterov=true", "momentum=0.5,dampening=0.2"]),
    "lion_32bit": (0.1, []),
    "paged_lion_32bit": (0.1, []),
    "lion_8bit": (0.1, []),
    "ademamix": (0.5, ["alpha=2.0,beta3=0.99", "t_alpha=10,t_beta3=10"]),
    "paged_ademamix_32bit": (0.5, []),
    "ademamix_8bit": (0.5, []),
    "adamw_bnb_8bit": (1, []),
    "adamw_8bit": (1, []),
    "paged_adamw_32bit": (1, []),
    "paged_adamw_8bit": (1, []),
    "rmsprop_bnb": (0.3, []),
    "rmsprop_bnb_8bit": (0.3, []),
    "adamw_torch_8bit": (1, []),
    "stable_adamw": (1, []),
    "schedule_free_adamw": (1, ["r=0.5", "weight_lr_power=1.0"]),
    "schedule_free_radam": (1, []),
    "schedule_free_sgd": (10, ["weight_lr_power=1.0"]),
}


def schedule(r, lr, steps):
    """A schedule, of which two follow a metric."""
    if r.random() < 0.85:
        return plain["schedule"](r, lr, steps)
    kind = r.choice(["reduce_lr_on_plateau", "greedy"])
    kwargs = {"patience": r.choice([0, 1]), "factor": r.choice([0.5, 0.9])}
    if kind == "greedy":
        kwargs |= {"min_lr": lr / 100, "max_lr": lr * 3}
    return {"lr_scheduler_type": kind, "lr_scheduler_kwargs": kwargs}


differential.schedule = schedule


def optimizer(r, args):
    """Draws an optimizer and what it reads."""
    for key in ["adam_beta1", "adam_beta2", "adam_epsilon"]:
        args.pop(key, None)
    name = r.choice(["adamw_torch", "adamw_torch_fused"] * 4 + list(OPTIMIZERS))
    factor, options = OPTIMIZERS[name]
    args["optim"] = name
    before, args["learning_rate"] = args["learning_rate"], r.choice([0.001, 0.003, 0.01]) * factor
    if options and r.random() < 0.6:
        args["optim_args"] = r.choice(options)
    if "adam" in name and r.random() < 0.4:
        args |= {"adam_beta1": r.choice([0.5, 0.95]), "adam_beta2": r.choice([0.9, 0.99]), "adam_epsilon": r.choice([1e-8, 1e-5])}
    if "schedule_free" in name:
        args |= {"lr_scheduler_type": "constant"}
        args.pop("lr_scheduler_kwargs", None)
        args["warmup_steps"] = r.choice([0, 0, 2])
    for key in ["lr_end", "min_lr", "max_lr"]:  # they are rates
        if key in args.get("lr_scheduler_kwargs", {}):
            args["lr_scheduler_kwargs"][key] *= args["learning_rate"] / before


def evaluation(r, case):
    """Draws what becomes of predictions and metrics."""
    args = case["args"]
    if r.random() < 0.3:
        args["eval_accumulation_steps"] = r.choice([1, 2])
    if r.random() < 0.25:
        args["eval_do_concat_batches"] = False
    if r.random() < 0.2:
        args["label_names"] = ["labels"]
    if case.get("metric"):
        if r.random() < 0.4 and "eval_sets" not in case:
            args["include_for_metrics"] = r.choice([["inputs"], ["loss"], ["inputs", "loss"]])
        if r.random() < 0.3:
            args["batch_eval_metrics"] = True
    if r.random() < 0.06 and "metric_for_best_model" not in args and "prediction_loss_only" not in args:
        case["ragged_eval"] = True


def numerics(r, case):
    """Draws what changes the numbers, or must not."""
    args = case["args"]
    for chance, options in [
        (0.2, {"label_smoothing_factor": r.choice([0.1, 0.3])}),
        (0.15, {"neftune_noise_alpha": r.choice([1.0, 5.0])}),
        (0.15, {"gradient_checkpointing": True}),
        (0.15, {"include_num_input_tokens_seen": r.choice(["all", "non_padding"])}),
        (0.1, {"torch_empty_cache_steps": r.choice([1, 2])}),
        (0.1, {"average_tokens_across_devices": True}),
        (0.1, {"auto_find_batch_size": True}),
        (0.1, {"logging_nan_inf_filter": False}),
        (0.1, {"dataloader_num_workers": 0, "full_determinism": False}),
    ]:
        if r.random() < chance:
            args |= options
    kind = r.random()
    if kind < 0.17:
        args["bf16"] = True
    elif kind < 0.2:
        args["bf16_full_eval"] = True
        case["calls"] = r.choice([["train", "evaluate"], ["evaluate"], ["predict"]])
    if kind < 0.2:  # which evaluation is best is a matter of rounding there
        for key in ["metric_for_best_model", "load_best_model_at_end", "greater_is_better"]:
            args.pop(key, None)
        case.pop("early_stopping", None)
        if args["save_strategy"] == "best":
            args["save_strategy"] = "no"
        if args["lr_scheduler_type"] in ("reduce_lr_on_plateau", "greedy"):
            args["lr_scheduler_type"] = "linear"
            args.pop("lr_scheduler_kwargs")


def sizes(r, case):
    """Draws short runs."""
    args = case["args"]
    args["per_device_train_batch_size"] = batch = r.choice([1, 2, 3, 4, 4, 8])
    case["train_size"] = size = r.choice([n for n in [40, 33, 24, 17, 12, 8, 5] if n <= 10 * batch])
    case["eval_size"] = r.choice([16, 11, 6, 3])
    gas = args.get("gradient_accumulation_steps", 1)
    per_epoch = max(1, -(-size // batch) // gas)
    if "num_train_epochs" in args:
        most = max(1, 10 // per_epoch)
        args["num_train_epochs"] = r.choice([n for n in [0.3, 0.5, 1, 1, 1.3, 2, 2, 2.5, 3, 4] if n <= most])
    if "max_steps" in args:
        args["max_steps"] = r.choice([1, 2, 5, 7, 9])
    args["train_sampling_strategy"] = r.choice(["random", "sequential", "sequential", "group_by_length"])
    if args.get("dataloader_drop_last") and r.random() < 0.85:
        args["per_device_eval_batch_size"] = r.choice([1, 2])
        case["eval_size"] = r.choice([16, 6])


def draw(r):
    """A random case. Its arguments may contradict each other."""
    case = plain["draw"](r)
    del case["loss"]
    args = case["args"]
    case["model"] = r.choice(sorted(CONFIGS))
    sizes(r, case)
    for key in ["metric_for_best_model"]:
        if key in args:
            args[key] = args[key].replace("mae", "peak")
    optimizer(r, args)
    evaluation(r, case)
    numerics(r, case)
    if args["lr_scheduler_type"] in ("reduce_lr_on_plateau", "greedy"):
        if args["eval_strategy"] == "no":
            args["eval_strategy"] = "epoch"
        if args["optim"] == "adamw_torch_8bit":  # torchao refuses them
            args["lr_scheduler_type"] = "linear"
            del args["lr_scheduler_kwargs"]
    return case


differential.draw = draw


def draw_for_ranks(r):
    """A random case for two ranks, without what the cases of one rank have shown to differ."""
    case = draw(r)
    args = case["args"]
    for key in ["dataloader_drop_last", "neftune_noise_alpha"]:
        args.pop(key, None)
    if args.get("save_total_limit") == 1:
        del args["save_total_limit"]
    for key in ["early_stopping", "flags", "ragged_eval"]:
        case.pop(key, None)
    case["eval_size"] = 16
    args["per_device_eval_batch_size"] = r.choice([2, 4, 8])
    if r.random() < 0.2:
        case["eval_size"] = 11
    return case


def seeded(r, seed):
    """The case that belongs to a seed, None if transformers has no result."""
    kind, i = seed
    if kind == "resume":
        made = differential.resumes(f"language-{kind}-{i}", 1)[0]
        return {**made, "name": f"resume-{i:02d}"}
    return differential.run({"name": f"run-{i:03d}", **draw(r)})


def begin():
    """Begins a process. The collector need not look at what the imports made: each Trainer runs it."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    gc.freeze()


def one(seed):
    return seeded(random.Random(f"language-{seed[0]}-{seed[1]}"), seed)


def on_one_rank(runs, resumes):
    """Runs and resumes; of those that transformers refuses only some are kept."""
    out, refused, tried = [], 0, 0
    with multiprocessing.get_context("fork").Pool(int(os.environ.get("JOBS", 2)), begin) as pool:
        while len(out) < runs:
            seeds = [("run", tried + i) for i in range(runs - len(out))]
            tried += len(seeds)
            for case in pool.map(one, seeds, 1):
                refused += case is not None and "error" in case
                if case and ("error" not in case or refused <= runs // 20):
                    out.append({**case, "name": f"run-{len(out):03d}"})
        return out + pool.map(one, [("resume", i) for i in range(resumes)], 1)


def on_rank(rank, port, count, out):
    """What one of two ranks does: the same cases, in folders that rank 0 makes."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    begin()
    list, i = [], 0
    while len(list) < count:
        r = random.Random(f"language-ranks-{i}")
        i += 1
        case = {"name": f"ranks-{len(list):02d}", **draw_for_ranks(r), "ranks": 2}
        folder = pathlib.Path(out) / f"run-{i}"
        done = differential.observed(case, str(folder))
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        if done and "error" not in done:
            list.append(done)
    if rank == 0:
        (pathlib.Path(out) / "cases.json").write_text(json.dumps(list))


def on_two_ranks(count):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as out:
        torch.multiprocessing.spawn(on_rank, (port, count, out), 2)
        return json.loads((pathlib.Path(out) / "cases.json").read_text())


def document():
    counts = [int(n) for n in os.environ.get("CASES", "400,100,100").split(",")]
    return {
        "models": CONFIGS,
        "sets": SETS,
        "cases": on_one_rank(*counts[:2]) + (on_two_ranks(counts[2]) if counts[2] else []),
    }


if __name__ == "__main__":
    differential.write(__file__, __doc__, "differential_language.json.gz", document)
