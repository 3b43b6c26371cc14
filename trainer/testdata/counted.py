"""Random numbers of Lockstep in Python: the order of samples and the noise on embeddings that a seed gives.

transformers draws both from PyTorch's generators. A script that puts these in their place compares all that does not
depend on the generator.
"""

import functools

import numpy as np
import torch

MASK = (1 << 64) - 1
KEY, DERIVE = 0x6A09E667F3BCC908, 0xBB67AE8584CAA73B


def absorb(h, word):
    z = ((h ^ word) + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def hashed(domain, a, name, b):
    h, text = absorb(domain, a), name.encode()
    for i in range(0, len(text), 8):
        h = absorb(h, int.from_bytes(text[i : i + 8], "little"))
    return absorb(absorb(h, len(text)), b)


def key(seed, path, ordinal):
    return hashed(KEY, seed, path, ordinal)


def derive(parent, name, ordinal):
    return hashed(DERIVE, parent, name, ordinal)


def blocks(k, n):
    """The first n blocks of Philox4x32-10 under a key: [n, 4] words."""
    c = [np.arange(n, dtype=np.uint64)] + [np.zeros(n, np.uint64) for _ in range(3)]
    k0, k1, low, word = k & 0xFFFFFFFF, k >> 32, np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [p1 >> word ^ c[1] ^ np.uint64(k0), p1 & low, p0 >> word ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, 1)


def uniform(k, bound, *shape):
    """Draws from U(−bound, bound), float32."""
    n = int(np.prod(shape))
    words = blocks(k, -(-n // 4)).reshape(-1)[:n]
    unit = (words >> np.uint64(8)).astype(np.float64) * 2.0**-24
    return torch.from_numpy((unit * 2 * bound - bound).astype(np.float32).reshape(shape))


@functools.cache
def permutation(k, n):
    """The permutation of 0 … n−1 under a key, for n up to 65536."""
    words = [int(w) for w in blocks(derive(k, "permutation", n), 2 * n + 8).reshape(-1)]
    draws = (words[i] | words[i + 1] << 32 for i in range(0, len(words), 2))
    out = list(range(n))
    for i in range(n - 1, 0, -1):
        bound = i + 1
        x = next(draws) * bound
        while x & MASK < (1 << 64) % bound:
            x = next(draws) * bound
        j = x >> 64
        out[i], out[j] = out[j], out[i]
    return out
