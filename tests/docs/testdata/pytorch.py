# SPDX-License-Identifier: Apache-2.0

# Writes pytorch.json: the names of PyTorch 2.15 that docs/pytorch.md answers. Those of tensors are the functions and
# methods that at least ten of the modeling files of transformers 5.24 call. Run it in this folder.

import collections
import glob
import inspect
import json
import os
import re

import torch
import transformers

LEAST = 10


def classes(module, base):
    return sorted(n for n, c in vars(module).items() if inspect.isclass(c) and issubclass(c, base) and not n.startswith("_"))


def called():
    """Names of torch, torch.Tensor and torch.nn.functional, without the underscore of methods in place."""
    methods = {n for n in dir(torch.Tensor) if not n.startswith("_")}
    files = collections.defaultdict(set)
    for path in glob.glob(os.path.dirname(transformers.__file__) + "/models/*/modeling_*.py"):
        text = open(path).read()
        names = [n for n in re.findall(r"\btorch\.(\w+)\(", text) if inspect.isroutine(getattr(torch, n, None))]
        names += [n for n in re.findall(r"(?:nn\.functional|\bF)\.(\w+)\(", text) if hasattr(torch.nn.functional, n)]
        names += [n for n in re.findall(r"(?<!torch)(?<!nn)(?<!functional)(?<!F)\.(\w+)\(", text) if n in methods]
        for n in names:
            files[n.rstrip("_")].add(path)
    return sorted(n for n, paths in files.items() if len(paths) >= LEAST and n not in ("index", "values"))  # of lists, dicts


names = {
    "tensors": called(),
    "nn": classes(torch.nn, torch.nn.Module),
    "optim": classes(torch.optim, torch.optim.Optimizer),
    "schedules": classes(torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler),
    "data": [n for n in torch.utils.data.__all__ if n[0].isupper() and "DataPipe" not in n and n != "DataChunk"] + [
        "default_collate", "get_worker_info", "random_split"],
}
with open("pytorch.json", "w") as f:
    json.dump({"torch_version": torch.__version__.split("+")[0], "transformers_version": transformers.__version__, **names}, f,
              indent=1)
    f.write("\n")
