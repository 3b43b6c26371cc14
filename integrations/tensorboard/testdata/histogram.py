"""Writes histogram.json: histograms of torch.utils.tensorboard, in TensorFlow's buckets.

    python histogram.py > histogram.json
"""

import json
import random

import numpy
from torch.utils.tensorboard.summary import make_histogram

limits = []
v = 1e-12
while v < 1e20:
    limits.append(v)
    v *= 1.1
limits = [-v for v in reversed(limits)] + [0] + limits

draw = random.Random(3)
cases = [[0.0], [1.0, 1.0], [-1e-13, 0.0, 1e-13], [limits[3], limits[-1], limits[0], limits[-2]]]
cases += [[round(draw.gauss(0, 10**e), 12) for _ in range(12)] for e in (-6, -1, 3)]
out = []
for values in cases:
    h = make_histogram(numpy.array(values, dtype=numpy.float64), limits)
    # values that lie in the buckets alone; a long run of empty ones says nothing
    filled = [[i, h.bucket_limit[i], n] for i, n in enumerate(h.bucket) if n]
    out.append({"values": values, "min": h.min, "max": h.max, "num": h.num, "sum": h.sum, "sum_squares": h.sum_squares,
                "buckets": len(h.bucket), "limits": len(h.bucket_limit), "filled": filled})
print(json.dumps(out, indent=1))
