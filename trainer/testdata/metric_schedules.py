"""Makes metric_schedules.json.gz: what transformers' Trainer does under schedules that follow a metric.

60 runs and 20 resumes with random arguments, in the form of differential.json.gz (see differential.py), all with
lr_scheduler_type reduce_lr_on_plateau or greedy.
"""

import differential


def schedule(r, lr, steps):
    """A schedule that follows a metric, with arguments of its own."""
    kind = r.choice(["reduce_lr_on_plateau", "greedy"])
    options = {
        "mode": ["min", "max"], "factor": [0.5, 0.9], "patience": [0, 0, 1, 2], "threshold": [0.0, 0.1, 1.0],
        "threshold_mode": ["rel", "abs"], "cooldown": [0, 1, 2], "min_lr": [0.0, lr / 4, [lr / 2, lr / 8]],
    }
    if kind == "greedy":
        options |= {"warmup": [0, 1], "max_lr": [lr * 1.5, 10.0], "smooth": [False, True], "window_size": [1, 2, 4], "reset_start": [0, 1, 2]}
    kwargs = {k: r.choice(v) for k, v in options.items() if k == "patience" or r.random() < 0.5}
    out = {"lr_scheduler_type": kind, "lr_scheduler_kwargs": kwargs}
    if r.random() < 0.2:
        out["warmup_steps"] = r.choice([1, 3])
    return out


strategies = differential.strategies


def often(r):
    """Strategies that evaluate often, with few exceptions."""
    out = strategies(r)
    if r.random() < 0.95:
        out |= {"eval_strategy": "steps", "eval_steps": r.choice([1, 1, 2, 3])}
    return out


draw = differential.draw


def told(r):
    """A random case without what makes transformers drop samples or checkpoints."""
    case = draw(r)
    case["args"].pop("dataloader_drop_last", None)
    if case["args"].get("save_total_limit") == 1:
        del case["args"]["save_total_limit"]
    return case


differential.draw, differential.schedule, differential.strategies = told, schedule, often
differential.main(__file__, __doc__, "metric_schedules.json.gz", lambda: differential.cases(3, 60) + differential.resumes(4, 20))
