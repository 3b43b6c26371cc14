"""Writes the tables of PyTorch's pipeline schedules beside itself, or to the folder given with --out.

NAME-pP-mM-vV.csv has the passes of a schedule on P ranks with M micro-batches and V stages per rank, as
torch.distributed.pipelining writes them; NAME-pP-mM-vV.lowered.csv has its messages and sharding too. Empty cells,
line ends and overlapping passes are PyTorch's. No process group is needed. Made with torch 2.12.1.

--check FOLDER instead reads tables of Lockstep with PyTorch, demands that its validation takes them, and writes none.
"""

import argparse
import csv
import pathlib
import warnings

warnings.filterwarnings("ignore")
from torch.distributed.pipelining import schedules as S  # noqa: E402

KINDS = {
    "gpipe": (S.ScheduleGPipe, 1, False),
    "1f1b": (S.Schedule1F1B, 1, False),
    "interleaved_1f1b": (S.ScheduleInterleaved1F1B, 2, False),
    "looped_bfs": (S.ScheduleLoopedBFS, 2, False),
    "interleaved_zb": (S.ScheduleInterleavedZeroBubble, 2, False),
    "zb_h1": (S.ScheduleInterleavedZeroBubble, 1, False),
    "zbv": (S.ScheduleZBVZeroBubble, 2, True),
    "dualpipev": (S.ScheduleDualPipeV, 2, True),
}
SIZES = [(2, 4), (3, 6), (4, 8), (8, 16)]
LOWERED = [(2, 4), (3, 6), (4, 8)]


class Stage:
    """What a schedule asks of a stage while it is planned."""

    def __init__(self, index, stages, ranks):
        self.stage_index, self.num_stages = index, stages
        self.group_rank, self.group_size = 0, ranks
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.has_backward, self.device = True, "cpu"
        self.stage_index_to_group_rank = {}

    def __getattr__(self, name):
        return lambda *a, **k: None


def make(kind, p, m):
    cls, v, vshape = KINDS[kind]
    held = [0, 2 * p - 1] if vshape else [j * p for j in range(v)]
    stages = [Stage(i, p * v, p) for i in held]
    one = issubclass(cls, S.PipelineScheduleSingle)
    return cls(stages[0] if one else stages, n_microbatches=m, loss_fn=lambda *a: None)


def write(out):
    for kind, (_, v, _) in KINDS.items():
        for p, m in SIZES:
            schedule = make(kind, p, m)
            name = out / f"{kind}-p{p}-m{m}-v{v}"
            if isinstance(schedule, S.PipelineScheduleSingle):
                with open(f"{name}.csv", "w", newline="") as file:
                    writer = csv.writer(file)
                    for row in schedule._get_pipeline_order().values():
                        writer.writerow(row)
                continue
            schedule._dump_csv(f"{name}.csv", format="compute_only")
            if (p, m) in LOWERED:
                schedule._dump_csv(f"{name}.lowered.csv", format="compute_comms")


def check(folder):
    for path in sorted(folder.glob("*.csv")):
        with open(path, newline="") as file:
            rows = [[S._Action.from_str(s) for s in row] for row in csv.reader(file)]
        actions = {r: row for r, row in enumerate(rows)}
        passes = [a for row in rows for a in row if a is not None and a.microbatch_index is not None]
        stages = 1 + max(a.stage_index for a in passes)
        m = 1 + max(a.microbatch_index for a in passes)
        to = S._validate_schedule(actions, len(rows), stages, m)
        if "lowered" in path.name:
            simulated = {r: [a for a in row if a.microbatch_index is not None] for r, row in actions.items()}
            S._simulate_comms_compute(simulated, lambda s: to[s], stages)
        print(path.name, "ok")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
parser.add_argument("--check", type=pathlib.Path)
args = parser.parse_args()
if args.check:
    check(args.check)
else:
    write(args.out)
