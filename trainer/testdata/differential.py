"""Makes differential.json.gz: what transformers' Trainer does with random arguments, to compare a trainer with.

400 runs and 100 resumes, drawn with a fixed seed. The model is y = a·x + b with the squared error, trained on samples in
their order. A case has
  name          run-000 … or resume-00 …
  args          the TrainingArguments given (all others have their default; output_dir is left out)
  train_size, eval_size   how many of the samples are used
  eval_sets     2: the evaluation samples are halved into the sets "first" and "second"
  loss          "mean": the model returns the mean of a batch, so that transformers averages micro-batches; "sum": the
                model takes num_items_in_batch, so that transformers divides by the samples of the step
  metric        compute_metrics returns the mean absolute error as "mae"
  flags         what a user's callback asks for: [event, global step, flag of TrainerControl]
  early_stopping  the arguments of an EarlyStoppingCallback
  calls         the methods called on the Trainer, in order
  resume        what was run first: from (the checkpoint's step), args and flags of the first run; args are those of the
                second run
and what came of it:
  error         the class of the exception, and nothing else
  events        one letter each (see "events" of the document), and steps, [state.global_step, how many events] in turn
  log_history   one map per record; times and speeds are 0
  state         of the Trainer at the end
  checkpoints   step -> a, b and trainer_state.json without its log, of the folders that remain
  returned      global_step, training_loss of train(), and the metrics, predictions and labels of the other calls
  a, b          the parameters at the end
"""

import gzip
import json
import pathlib
import random
import shutil
import tempfile

import accelerate
import torch
import transformers
from safetensors.torch import load_file

import events
import golden  # events has made it importable

LETTERS = {name: chr(ord("a") + i) for i, name in enumerate(events.EVENTS.split())}
TRAIN, EVAL = events.samples(64, 17), events.samples(24, 18)
FLAGS = ["should_log", "should_evaluate", "should_save", "should_epoch_stop", "should_training_stop"]
STATE = "global_step epoch max_steps num_train_epochs logging_steps eval_steps save_steps train_batch_size best_metric best_global_step best_model_checkpoint".split()


class MeanLine(events.Line):
    """Returns the mean of a batch."""


class SumLine(events.Line):
    """Returns the sum over the samples, divided by those of the whole step."""

    def forward(self, input_x, labels=None, **kwargs):
        y = self.a * input_x + self.b
        if labels is None:
            return (y,)
        n = kwargs.get("num_items_in_batch")
        return ((y - labels) ** 2).sum() / (len(labels) if n is None else n), y


class Recorder(transformers.TrainerCallback):
    def __init__(self, flags):
        self.events, self.steps, self.flags = [], [], flags

    def note(self, event, state, control):
        self.events.append(LETTERS[event])
        if not self.steps or self.steps[-1][0] != state.global_step:
            self.steps.append([state.global_step, 0])
        self.steps[-1][1] += 1
        for at, step, flag in self.flags:
            if at == event and step == state.global_step:
                setattr(control, flag, True)


for name in LETTERS:
    setattr(Recorder, "on_" + name, events.handler(name))


def short(value):
    """Drops digits that nobody compares."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    if isinstance(value, list):
        return [short(v) for v in value]
    return value


def timeless(log):
    return {k: 0 if k.endswith(events.TIMED) else v for k, v in log.items()}


def state_of(state):
    """The part of a TrainerState that is compared."""
    out = {k: state[k] for k in STATE}
    best = state["best_model_checkpoint"]
    out["best_model_checkpoint"] = best and pathlib.Path(best).name
    return out


def new_trainer(case, args, flags, folder):
    recorder = Recorder(flags)
    callbacks = [recorder]
    if "early_stopping" in case:
        callbacks.append(transformers.EarlyStoppingCallback(**case["early_stopping"]))
    arguments = transformers.TrainingArguments(folder, use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, log_level="error", **args)
    rows = EVAL[: case["eval_size"]]
    evals = events.Samples(rows)
    if case.get("eval_sets") == 2:
        half = len(rows) // 2
        evals = {"first": events.Samples(rows[:half]), "second": events.Samples(rows[half:])}
    trainer = transformers.Trainer(
        {"mean": MeanLine, "sum": SumLine}[case["loss"]](),
        arguments,
        train_dataset=events.Samples(TRAIN[: case["train_size"]]),
        eval_dataset=evals,
        callbacks=callbacks,
        compute_metrics=(lambda p: {"mae": float(abs(p.predictions - p.label_ids).mean())}) if case.get("metric") else None,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer, recorder


def checkpoints(folder):
    out = {}
    for path in pathlib.Path(folder).glob("checkpoint-*"):
        state = json.loads((path / "trainer_state.json").read_text())
        weights = load_file(path / "model.safetensors")
        out[path.name.split("-")[1]] = {
            "a": weights["a"].item(),
            "b": weights["b"].item(),
            "records": len(state["log_history"]),
            "state": state_of(state),
            "control": state["stateful_callbacks"]["TrainerControl"]["args"],
            **({"early_stopping": state["stateful_callbacks"]["EarlyStoppingCallback"]} if "EarlyStoppingCallback" in state["stateful_callbacks"] else {}),
        }
    return out


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
            returned.append({"metrics": timeless(trainer.evaluate())})
        else:
            out = trainer.predict(events.Samples(EVAL[:11]))
            listed = lambda x: None if x is None else x.tolist()  # noqa: E731
            returned.append({"metrics": timeless(out.metrics), "predictions": listed(out.predictions), "labels": listed(out.label_ids)})
    state = trainer.state
    return {
        "events": "".join(recorder.events),
        "steps": recorder.steps,
        "log_history": [timeless(log) for log in state.log_history],
        "state": state_of(vars(state)),
        "checkpoints": checkpoints(folder),
        "returned": returned,
        "a": trainer.model.a.item(),
        "b": trainer.model.b.item(),
    }


def run(case, folder=None):
    """A case with what came of it."""
    folder = folder or tempfile.mkdtemp()
    try:
        return observed(case, folder)
    finally:
        shutil.rmtree(folder)


def observed(case, folder):
    try:
        return short({**case, **observe(case, folder)})
    except (ValueError, KeyError, AssertionError, TypeError) as e:
        return {**case, "error": type(e).__name__, "message": str(e)[:200].replace(folder, "")}
    except ZeroDivisionError:  # a polynomial schedule whose warm-up is as long as the run
        return None


def schedule(r, lr, steps):
    """A schedule with arguments of its own, and a warm-up."""
    kind = r.choice("linear linear cosine cosine cosine_with_restarts polynomial constant constant_with_warmup inverse_sqrt cosine_with_min_lr cosine_warmup_with_min_lr warmup_stable_decay".split())
    kwargs = {
        "cosine": {"num_cycles": r.choice([0.5, 1, 1.5])},
        "cosine_with_restarts": {"num_cycles": r.choice([1, 2, 3])},
        "polynomial": {"power": r.choice([0.5, 1, 2]), "lr_end": lr / 100},
        "inverse_sqrt": {"timescale": r.choice([2, 10])},
        "cosine_with_min_lr": r.choice([{"min_lr": lr / 10}, {"min_lr_rate": 0.2}]),
        "cosine_warmup_with_min_lr": r.choice([{"min_lr_rate": 0.1}, {"min_lr_rate": 0.1, "warmup_lr_rate": 0.3}]),
        "warmup_stable_decay": r.choice([{"num_decay_steps": 3}, {"num_decay_steps": 2, "min_lr_ratio": 0.1, "decay_type": "linear"}]),
    }
    out = {"lr_scheduler_type": kind}
    if kind in kwargs and (kind in ("cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay") or r.random() < 0.7):
        out["lr_scheduler_kwargs"] = kwargs[kind]
    if r.random() < 0.6:
        out["warmup_steps"] = r.choice([1, 2, 3, 5, 0.1, 0.3])
    return out


def strategies(r):
    """When to log, evaluate and save."""
    out = {}
    for prefix in ["logging", "eval", "save"]:
        kind = r.choice(["no", "steps", "steps", "epoch"])
        out[prefix + "_strategy"] = kind
        if kind == "steps" and (prefix != "eval" or r.random() < 0.8):
            out[prefix + "_steps"] = r.choice([1, 2, 3, 4, 5, 7, 0.1, 0.25, 0.3, 0.5])
    if r.random() < 0.3:
        out["logging_first_step"] = True
    if r.random() < 0.2:
        out["eval_on_start"] = True
    if r.random() < 0.25:
        out["eval_delay"] = r.choice([1, 2, 3, 5, 0.5, 1.5])
    return out


def draw(r):
    """A random case. Its arguments may contradict each other."""
    batch, gas = r.choice([1, 3, 4, 8, 8, 16]), r.choice([1, 1, 1, 2, 3, 4])
    size = r.choice([64, 60, 48, 40, 33, 24, 17, 8, 5])
    per_epoch = max(1, -(-size // batch) // gas)
    lr = r.choice([0.01, 0.1, 0.1, 0.3, 1.0, 1.5])
    args = {"per_device_train_batch_size": batch, "per_device_eval_batch_size": r.choice([1, 5, 8, 8, 32]), "train_sampling_strategy": "sequential"}
    if gas > 1 or r.random() < 0.2:
        args["gradient_accumulation_steps"] = gas
    if r.random() < 0.35:
        args["max_steps"] = r.choice([1, 2, 5, 7, 11, 16])
    if r.random() < 0.9 or "max_steps" not in args:
        most = max(1, 24 // per_epoch)
        args["num_train_epochs"] = r.choice([n for n in [0.3, 0.5, 1, 1, 1.3, 2, 2, 2.5, 3, 4, 6] if n <= most])
    if r.random() < 0.25:
        args["dataloader_drop_last"] = True
    args |= strategies(r)

    args["learning_rate"] = lr
    args["optim"] = r.choice(["adamw_torch", "adamw_torch", "adamw_torch_fused", "sgd"])
    if args["optim"] == "sgd":
        args["learning_rate"] = lr = min(lr, 0.1)
    elif r.random() < 0.3:
        args |= {"adam_beta1": r.choice([0.0, 0.5, 0.95]), "adam_beta2": r.choice([0.9, 0.99]), "adam_epsilon": r.choice([1e-8, 1e-3])}
    if r.random() < 0.3:
        args["weight_decay"] = r.choice([0.01, 0.1])
    if r.random() < 0.4:
        args["max_grad_norm"] = r.choice([0.0, 0.05, 0.5, 5.0])
    args |= schedule(r, lr, per_epoch)

    case = {"args": args, "train_size": size, "eval_size": r.choice([24, 20, 11, 3]), "loss": "sum", "calls": ["train"]}
    if r.random() < 0.35:
        case["metric"] = True
    if r.random() < 0.2:
        case["eval_sets"] = 2
    if r.random() < 0.15:
        args["prediction_loss_only"] = True
    if r.random() < 0.5:
        prefixes = ["eval_first_", "first_", "second_"] if "eval_sets" in case else ["", "", "eval_"]
        names = ["loss", "mae"] if "metric" in case else ["loss"]
        if r.random() < 0.7:
            args["metric_for_best_model"] = r.choice(prefixes) + r.choice(names)
        if r.random() < 0.3:
            args["greater_is_better"] = r.choice([True, False])
        if r.random() < 0.7:
            args["load_best_model_at_end"] = True
            if r.random() < 0.9:  # make them agree
                args["save_strategy"] = args["eval_strategy"] if args["eval_strategy"] != "no" else "no"
                args.pop("save_steps", None)
                if args["eval_strategy"] == "steps":
                    args["save_steps"] = args.get("eval_steps", args.get("logging_steps", 500))
                elif args["eval_strategy"] == "no":
                    del args["load_best_model_at_end"]
        if r.random() < 0.25 and args["eval_strategy"] != "no":
            args["save_strategy"] = "best"
            args.pop("save_steps", None)
        if r.random() < 0.5 and args["eval_strategy"] != "no":
            case["early_stopping"] = {"early_stopping_patience": r.choice([1, 1, 2, 3])}
            if r.random() < 0.4:
                case["early_stopping"]["early_stopping_threshold"] = r.choice([0.01, 0.5, 5.0])
    if args["save_strategy"] != "no":
        if r.random() < 0.4:
            args["save_total_limit"] = r.choice([1, 1, 2, 3])
        if r.random() < 0.15:
            args["save_only_model"] = True
    if r.random() < 0.3:
        places = ["step_end", "step_end", "step_end", "epoch_end", "substep_end", "step_begin", "optimizer_step", "evaluate", "log", "save"]
        case["flags"] = [[r.choice(places), r.choice([1, 2, 3, 5, 8]), r.choice(FLAGS)] for _ in range(r.choice([1, 1, 2]))]
    if r.random() < 0.15:
        case["calls"] = r.choice([["train", "evaluate"], ["train", "predict"], ["evaluate", "train"], ["predict"], ["evaluate"], ["train", "train"]])
    if args.get("dataloader_drop_last") and r.random() < 0.85:
        # transformers drops evaluation samples, too: mostly there are none to drop.
        args["per_device_eval_batch_size"] = r.choice([1, 2])
        case["eval_size"] = r.choice([20, 24])
    # Where no step has several micro-batches of different size, both kinds of loss are the same.
    used = size - size % batch if args.get("dataloader_drop_last") else size
    if r.random() < 0.5 and (gas == 1 or used % batch == 0 or r.random() < 0.15):
        case["loss"] = "mean"
    return case


def changes(r, case):
    """Arguments of a resume that differ from those of the run before."""
    out = {}
    for key, values in [
        ("logging_steps", [1, 3, 0.2]),
        ("save_steps", [1, 2, 3]),
        ("eval_steps", [1, 2, 3]),
        ("max_steps", [4, 9, 14]),
        ("num_train_epochs", [1, 2, 3, 4]),
        ("save_total_limit", [1, 2]),
        ("eval_delay", [3, 6]),
        ("eval_on_start", [True]),
        ("logging_first_step", [True]),
        ("learning_rate", [0.05]),
        ("weight_decay", [0.05]),
        ("warmup_steps", [2]),
        ("max_grad_norm", [0.2]),
        ("per_device_train_batch_size", [2]),
        ("gradient_accumulation_steps", [2]),
        ("per_device_eval_batch_size", [4]),
    ]:
        if r.random() < 0.12 and case["args"].get(key) not in values:
            out[key] = r.choice(values)
    return out


def cases(seed, count):
    """Runs; of those that transformers refuses only some are kept."""
    r, out, refused = random.Random(seed), [], 0
    while len(out) < count:
        case = run({"name": f"run-{len(out):03d}", **draw(r)})
        if case is None:
            continue
        if "error" in case:
            refused += 1
            if refused > count // 20:
                continue
        out.append(case)
    return out


def resumes(seed, count):
    """Runs that go on from one of the checkpoints of a run before."""
    r, out = random.Random(seed), []
    while len(out) < count:
        case = {"name": f"resume-{len(out):02d}", **draw(r)}
        case["calls"] = ["train"]
        if case["args"]["save_strategy"] == "no" or case["args"].get("save_only_model"):
            continue
        changed = changes(r, case) if r.random() < 0.5 else {}
        first = {"args": case["args"]}
        if "flags" in case:
            first["flags"] = case.pop("flags")
        if r.random() < 0.2:
            case["flags"] = [["step_end", r.choice([3, 6]), r.choice(FLAGS)]]
        folder = tempfile.mkdtemp()
        try:
            new_trainer(case, first["args"], first.get("flags", []), folder)[0].train()
            there = sorted(int(p.name.split("-")[1]) for p in pathlib.Path(folder).glob("checkpoint-*"))
        except (ValueError, KeyError, AssertionError, ZeroDivisionError):
            there = []
        if not there:
            shutil.rmtree(folder)
            continue
        first["from"] = r.choice(there)
        case["args"] = {**case["args"], **changed}
        case["resume"] = first
        done = run(case, folder)
        if done and "error" not in done:
            out.append(done)
    return out


def main(script, description, name, made):
    write(script, description, name, lambda: {
        "model": events.START,
        "train": {"x": [s["input_x"] for s in TRAIN], "y": [s["labels"] for s in TRAIN]},
        "eval": {"x": [s["input_x"] for s in EVAL], "y": [s["labels"] for s in EVAL]},
        "cases": made(),
    })


def write(script, description, name, made):
    """Writes a document of cases."""
    folder = golden.start(script, description)
    document = {
        "made_by": golden.versions(transformers, accelerate),
        "events": {letter: name for name, letter in LETTERS.items()},
        **made(),
    }
    text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    path = folder / name
    with path.open("wb") as f, gzip.GzipFile("", "wb", fileobj=f, mtime=0) as z:
        z.write(text)
    errors = sum("error" in c for c in document["cases"])
    print(f"{path}: {len(document['cases'])} cases, {errors} refused, {len(text)} bytes, {path.stat().st_size} compressed")


if __name__ == "__main__":
    main(__file__, __doc__, "differential.json.gz", lambda: cases(11, 400) + resumes(12, 100))
