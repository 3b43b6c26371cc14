# SPDX-License-Identifier: Apache-2.0
"""Writes types.gguf, a tensor of random blocks of each type that is read and one that is not, types.bin, what the
Python package gguf dequantizes them to, in the same order, and quantized.bin: numbers in float32, and then the bytes of
the types that are written, in which the package has them.

    pip install gguf==0.19.0 && python golden.py
"""
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

here = pathlib.Path(__file__).parent
rng = np.random.default_rng(7)
# where the float16 of a block are, in bytes
halves = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q6_K: [208]}
w = gguf.GGUFWriter(here / "types.gguf", "llama")
w.add_uint8("test.uint8", 200)
w.add_int8("test.int8", -100)
w.add_uint16("test.uint16", 60000)
w.add_int16("test.int16", -30000)
w.add_uint32("test.uint32", 4_000_000_000)
w.add_int32("test.int32", -2_000_000_000)
w.add_uint64("test.uint64", 10**18)
w.add_int64("test.int64", -(10**18))
w.add_float32("test.float32", 1e-5)
w.add_float64("test.float64", 1 / 3)
w.add_bool("test.bool", True)
w.add_string("test.string", "naïve ▁\n")
w.add_array("test.strings", ["", "a", "Ġb"])
w.add_array("test.ints", [3, -1, 2])
w.add_array("test.floats", [0.5, -1000.0])
w.add_array("test.bools", [True, False])
out = b""
for t in (T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q8_0, T.Q4_K, T.Q6_K):
    block, size = gguf.GGML_QUANT_SIZES[t]
    shape = (3, 512) if block > 1 else (2, 3, 5)
    if block > 1:
        data = rng.integers(0, 256, (3, 512 // block, size), dtype=np.uint8)
        for at in halves[t]:
            scale = rng.normal(0, 0.1, data.shape[:2]).astype(np.float16)
            data[..., at : at + 2] = scale[..., None].view(np.uint8)
        data = data.reshape(3, -1)
    elif t == T.BF16:
        data = gguf.quantize(rng.normal(size=shape).astype(np.float32), t)
    else:
        data = rng.normal(size=shape).astype(np.float32 if t == T.F32 else np.float16)
    w.add_tensor(t.name, data, raw_dtype=t)
    out += gguf.dequantize(data, t).astype("<f4").tobytes()
w.add_tensor("Q5_K", rng.integers(0, 256, (1, 176), dtype=np.uint8), raw_dtype=T.Q5_K)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
(here / "types.bin").write_bytes(out)
x = rng.normal(0, 1, (64, 32)).astype(np.float32)
x[0] = 0
x[1] = np.arange(-16, 16) / 127 * 127 / 31.75  # halves between two numbers of 8 bits
x[2] *= 1e-6  # subnormal in float16
x[3] *= 1e4
x[4, ::2] = 1 + np.arange(16) * 2.0**-9  # halves between two bfloat16
(here / "quantized.bin").write_bytes(
    x.tobytes() + b"".join(gguf.quantize(x, t).tobytes() for t in (T.F16, T.BF16, T.Q8_0)))
