"""Makes events.json: what transformers' Trainer does for a grid of settings, to compare a trainer with.

The model is y = a·x + b with the mean of (a·x + b − y)² as loss, trained on 64 samples in their order (batch 8),
evaluated on 20 (batch 8: three prediction steps). A run has
  args         the TrainingArguments given (all others have their default; output_dir is left out)
  train_size   how many of the samples are used for training, if not all
  callback     what a user's callback asks for: {flag of TrainerControl: [global steps at whose step_end it is set]}
  early_stopping  the arguments of an EarlyStoppingCallback
  resume       the global step of the checkpoint from which the recorded run goes on; an uninterrupted run of the same
               arguments made it before
  calls        the methods called on the Trainer, in order
  events       the callback events in order, and steps, state.global_step at each
  log_history  one map per record: keys (all of them), and the values that do not depend on time
  global_step, epoch, max_steps, num_train_epochs, best_*  the state at the end
  checkpoints  the checkpoint folders that remain
  returned     global_step and training_loss, as train() returns them
  a, b         the parameters at the end
A logged loss is the mean over optimizer steps, and within one over micro-batches, of the batches' means: where the
last batch is smaller (train_size 60) a loss that weights every sample alike differs.

Makes arithmetic.json too: the numbers that the Trainer derives from the length of the data.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import accelerate
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

transformers.logging.set_verbosity_error()

START = {"a": 0.5, "b": -0.25}
EVENTS = "init_end train_begin train_end epoch_begin epoch_end step_begin pre_optimizer_step optimizer_step substep_end step_end evaluate predict save log prediction_step push_begin"
TIMED = ("_runtime", "_per_second")


def samples(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator)
    y = 2 * x + 3 + 0.1 * torch.randn(n, generator=generator)
    # Rounded, so that the JSON is short; float32 reads the same numbers back.
    return [{"input_x": round(u, 4), "labels": round(v, 4)} for u, v in zip(x.tolist(), y.tolist())]


TRAIN, EVAL = samples(64, 7), samples(20, 8)


class Samples(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(START["a"]))
        self.b = torch.nn.Parameter(torch.tensor(START["b"]))

    def forward(self, input_x, labels=None):
        y = self.a * input_x + self.b
        return (((y - labels) ** 2).mean(), y) if labels is not None else (y,)


class Recorder(transformers.TrainerCallback):
    """Notes every event; sets the flags that a run's "callback" asks for."""

    def __init__(self, wanted):
        self.events, self.steps, self.wanted = [], [], wanted

    def note(self, event, state, control):
        self.events.append(event)
        self.steps.append(state.global_step)
        if event == "step_end":
            for flag, steps in self.wanted.items():
                if state.global_step in steps:
                    setattr(control, flag, True)


def handler(event):
    return lambda self, args, state, control, **kwargs: self.note(event, state, control)


for event in EVENTS.split():
    setattr(Recorder, "on_" + event, handler(event))


def new_trainer(args, train, recorder, early_stopping=None):
    callbacks = [recorder]
    if early_stopping is not None:
        callbacks.append(transformers.EarlyStoppingCallback(**early_stopping))
    arguments = transformers.TrainingArguments(use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, log_level="error", **args)
    evals = {"first": Samples(EVAL[:12]), "second": Samples(EVAL[12:])} if "first_loss" in args.get("metric_for_best_model", "") else Samples(EVAL)
    trainer = transformers.Trainer(Line(), arguments, train_dataset=Samples(train), eval_dataset=evals, callbacks=callbacks)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def record(log):
    return {"keys": sorted(log), **{k: v for k, v in log.items() if not k.endswith(TIMED)}}


def run(name, args, calls=("train",), train_size=None, callback=None, early_stopping=None, resume=None):
    base = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "learning_rate": 0.1, "optim": "adamw_torch", "train_sampling_strategy": "sequential"}
    quiet = {"logging_strategy": "no", "eval_strategy": "no", "save_strategy": "no", "num_train_epochs": 2}
    args = {**base, **quiet, **args}
    folder = tempfile.mkdtemp()
    rows = TRAIN[:train_size]
    try:
        if resume is not None:
            new_trainer({**args, "output_dir": folder}, rows, Recorder({}), early_stopping).train()
        recorder = Recorder(callback or {})
        trainer = new_trainer({**args, "output_dir": folder}, rows, recorder, early_stopping)
        returned = None
        for call in calls:
            if call == "train":
                out = trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{resume}" if resume is not None else None)
                returned = {"global_step": out.global_step, "training_loss": out.training_loss}
            elif call == "evaluate":
                trainer.evaluate()
            else:
                trainer.predict(Samples(EVAL[:11]))
        state = trainer.state
        assert "push_begin" not in recorder.events
        out = {"name": name, "args": args}
        for key, value in [("train_size", train_size), ("callback", callback), ("early_stopping", early_stopping), ("resume", resume)]:
            if value is not None:
                out[key] = value
        out |= {
            "calls": list(calls),
            "events": recorder.events,
            "steps": recorder.steps,
            "log_history": [record(log) for log in state.log_history],
            "global_step": state.global_step,
            "epoch": state.epoch,
            "max_steps": state.max_steps,
            "num_train_epochs": state.num_train_epochs,
            "best_metric": state.best_metric,
            "best_global_step": state.best_global_step,
            "best_model_checkpoint": state.best_model_checkpoint and pathlib.Path(state.best_model_checkpoint).name,
            "checkpoints": sorted((p.name for p in pathlib.Path(folder).glob("checkpoint-*")), key=lambda n: int(n.split("-")[1])),
            "returned": returned,
            "a": trainer.model.a.item(),
            "b": trainer.model.b.item(),
        }
        return out
    finally:
        shutil.rmtree(folder)


def strategy(kind, prefix, steps):
    return {prefix + "_strategy": kind, **({prefix + "_steps": steps} if kind == "steps" else {})}


def grid():
    """Accumulation × strategies, two epochs (with three batches to a step an epoch of eight ends with a step of two)."""
    for gas in [1, 2, 3]:
        for log in ["no", "steps", "epoch"]:
            for evaluate in ["no", "steps", "epoch"]:
                for save in ["no", "steps", "epoch"]:
                    args = {"gradient_accumulation_steps": gas, **strategy(log, "logging", 2), **strategy(evaluate, "eval", 3), **strategy(save, "save", 3)}
                    yield run(f"gas{gas}_log-{log}_eval-{evaluate}_save-{save}", args)


def special():
    log, evaluate, save = strategy("steps", "logging", 5), strategy("steps", "eval", 3), strategy("steps", "save", 3)
    epochs = {**strategy("epoch", "logging", 0), **strategy("epoch", "eval", 0), **strategy("epoch", "save", 0)}

    yield run("defaults", {"logging_strategy": "steps", "save_strategy": "steps", "num_train_epochs": 3})
    yield run("logging_first_step", {**log, "logging_first_step": True})
    yield run("logging_first_step_only", {"logging_first_step": True})
    yield run("logging_first_step_epoch", {**epochs, "logging_first_step": True})
    yield run("logging_every_step", strategy("steps", "logging", 1))
    yield run("logging_ratio", {"logging_strategy": "steps", "logging_steps": 0.3, "eval_strategy": "steps", "eval_steps": 0.2, "save_strategy": "steps", "save_steps": 0.4})
    yield run("eval_steps_from_logging_steps", {**log, "eval_strategy": "steps"})
    for gas in [1, 3]:
        yield run(f"eval_on_start_gas{gas}", {**evaluate, "eval_on_start": True, "gradient_accumulation_steps": gas})
    yield run("eval_on_start_epoch", {**epochs, "eval_on_start": True, "num_train_epochs": 1})
    yield run("eval_on_start_alone", {"eval_on_start": True, "num_train_epochs": 1})
    yield run("eval_delay_steps", {**evaluate, "eval_delay": 5})
    yield run("eval_delay_past_end", {**evaluate, "eval_delay": 100})
    yield run("eval_delay_epochs", {**epochs, "eval_delay": 2, "num_train_epochs": 3})
    yield run("eval_delay_fraction", {**epochs, "eval_delay": 1.5, "num_train_epochs": 2.5})

    for gas in [1, 2, 3]:
        for steps in [1, 4, 11]:
            yield run(f"max_steps{steps}_gas{gas}", {**log, **evaluate, **save, "max_steps": steps, "gradient_accumulation_steps": gas})
        for n in [0.5, 1.3, 2.01]:
            yield run(f"epochs{n}_gas{gas}", {**epochs, "num_train_epochs": n, "gradient_accumulation_steps": gas})
    yield run("max_steps_epoch_strategies", {**epochs, "max_steps": 11})
    yield run("max_steps_on_boundary", {**evaluate, **save, "max_steps": 6})
    yield run("accumulate_more_than_epoch", {**log, **evaluate, "gradient_accumulation_steps": 20})
    for size in [60, 5]:
        yield run(f"ragged{size}", {**log, **evaluate, "num_train_epochs": 1}, train_size=size)
    yield run("ragged_drop_last", {**log, **evaluate, "dataloader_drop_last": True, "gradient_accumulation_steps": 2}, train_size=60)

    best = {"load_best_model_at_end": True}
    yield run("load_best_steps", {**log, **evaluate, **save, **best})
    yield run("load_best_epoch", {**epochs, **best, "num_train_epochs": 3})
    yield run("load_best_multiple", {**log, **evaluate, "save_strategy": "steps", "save_steps": 6, **best})
    # A rate so large that the loss grows again: the best checkpoint is not the last.
    wild = {"learning_rate": 1.5, "lr_scheduler_type": "constant", "num_train_epochs": 3}
    for limit in [1, 2, 3]:
        yield run(f"load_best_limit{limit}", {**log, **evaluate, **save, **best, **wild, "save_total_limit": limit})
    yield run("load_best_greater", {**evaluate, **save, **best, **wild, "metric_for_best_model": "eval_loss", "greater_is_better": True})
    yield run("load_best_named", {**evaluate, **save, **best, "metric_for_best_model": "eval_first_loss", "greater_is_better": False})
    yield run("save_total_limit", {**save, "save_total_limit": 2})
    yield run("save_best", {**evaluate, "save_strategy": "best", "metric_for_best_model": "loss", **wild})
    yield run("save_best_load", {**epochs, "save_strategy": "best", "metric_for_best_model": "loss", **best, **wild})
    yield run("save_only_model", {**save, "save_only_model": True})
    yield run("early_stopping", {**evaluate, **save, **best, **wild}, early_stopping={"early_stopping_patience": 1})
    yield run("early_stopping_threshold", {**epochs, **best, "num_train_epochs": 6}, early_stopping={"early_stopping_patience": 1, "early_stopping_threshold": 100.0})

    for flag in ["should_log", "should_evaluate", "should_save", "should_epoch_stop", "should_training_stop"]:
        for gas in [1, 3]:
            yield run(f"callback_{flag}_gas{gas}", {"gradient_accumulation_steps": gas}, callback={flag: [2]})
    yield run("callback_stop_and_save", {**log, **evaluate, **save}, callback={"should_training_stop": [4], "should_save": [4], "should_evaluate": [4], "should_log": [4]})
    yield run("callback_stop_epoch_strategies", {**epochs}, callback={"should_training_stop": [4]})

    yield run("evaluate_alone", {}, calls=["evaluate"])
    yield run("predict_alone", {}, calls=["predict"])
    yield run("train_evaluate_predict", {**log, **save, "num_train_epochs": 1}, calls=["train", "evaluate", "predict"])
    yield run("train_twice", {**log, "num_train_epochs": 1}, calls=["train", "train"])

    for gas, at in [(1, 3), (1, 8), (1, 12), (1, 16), (2, 2), (2, 4), (3, 1), (3, 3), (3, 5)]:
        yield run(f"resume{at}_gas{gas}", {**strategy("steps", "logging", 2), **evaluate, **strategy("steps", "save", 1), "gradient_accumulation_steps": gas}, resume=at)
    yield run("resume_epoch", {**epochs}, resume=8)

    yield run("no_clipping", {**strategy("steps", "logging", 2), "max_grad_norm": 0.0, "num_train_epochs": 1})
    yield run("clipping", {**strategy("steps", "logging", 2), "max_grad_norm": 0.1, "num_train_epochs": 1})
    yield run("warmup_cosine", {**strategy("steps", "logging", 1), "warmup_steps": 3, "lr_scheduler_type": "cosine", "weight_decay": 0.1})
    yield run("warmup_fraction", {**strategy("steps", "logging", 1), "warmup_steps": 0.2, "max_steps": 7})


def arithmetic(trainer):
    """The step arithmetic of the Trainer for lengths, batch sizes, accumulation, epochs and max_steps; null: refused."""
    columns = ["train_size", "batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps_arg", "drop_last", "max_steps", "epochs", "steps_per_epoch", "batches_per_epoch"]
    rows = []
    folder = tempfile.mkdtemp()
    for size in [1, 7, 8, 9, 63, 64, 65]:
        for batch in [1, 8]:
            for gas in [1, 3, 8]:
                for epochs, max_steps in [(1, -1), (0.5, -1), (2.3, -1), (3, -1), (3, 5), (3, 100)]:
                    for drop in [False, True]:
                        args = transformers.TrainingArguments(
                            folder,
                            per_device_train_batch_size=batch,
                            gradient_accumulation_steps=gas,
                            num_train_epochs=epochs,
                            max_steps=max_steps,
                            dataloader_drop_last=drop,
                            use_cpu=True,
                            disable_tqdm=True,
                            log_level="error",
                        )
                        given = [size, batch, gas, epochs, max_steps, drop]
                        loader = torch.utils.data.DataLoader(range(size), batch_size=batch, drop_last=drop)
                        trainer.args = args
                        trainer._train_batch_size = batch
                        try:
                            n, per_epoch, _, _, _, batches, steps = trainer.set_initial_training_values(args, loader)
                        except ValueError:
                            rows.append([*given, None, None, None, None])
                            continue
                        if n == sys.maxsize:
                            continue  # no batch at all and max_steps given: the Trainer trains nothing and warns
                        rows.append([*given, steps, n, per_epoch, batches])
    shutil.rmtree(folder)
    return {"columns": columns, "rows": rows}


def main():
    out = golden.start(__file__, __doc__)
    trainer = new_trainer({"output_dir": tempfile.gettempdir()}, TRAIN, Recorder({}))
    runs = list(grid()) + list(special())
    assert len({r["name"] for r in runs}) == len(runs)
    fired = {e for r in runs for e in r["events"]}
    assert fired == set(EVENTS.split()) - {"push_begin"}, fired
    table = arithmetic(trainer)
    document = {
        "made_by": golden.versions(transformers, accelerate),
        "model": START,
        "train": {"x": [s["input_x"] for s in TRAIN], "y": [s["labels"] for s in TRAIN]},
        "eval": {"x": [s["input_x"] for s in EVAL], "y": [s["labels"] for s in EVAL]},
        "runs": runs,
    }
    golden.save_json(out / "events.json", document)
    golden.save_json(out / "arithmetic.json", {"made_by": golden.versions(transformers, accelerate), **table})
    print(json.dumps({"runs": len(runs), "arithmetic": len(table["rows"])}))


if __name__ == "__main__":
    main()
