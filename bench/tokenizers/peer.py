"""The side of HuggingFace's tokenizers: see main.go.

Usage: peer.py TOKENIZER.json FILE ...
"""

import sys
import time

from tokenizers import Tokenizer

start = time.perf_counter()
tokenizer = Tokenizer.from_file(sys.argv[1])
loading = time.perf_counter() - start
tokenizer.no_truncation()
tokenizer.no_padding()
texts = []
for path in sys.argv[2:]:
    with open(path, encoding="utf-8", newline="") as f:
        texts.append(f.read())
size = sum(len(t.encode()) for t in texts)
best = 0.0
for _ in range(5):
    start = time.perf_counter()
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    best = max(best, size / 1e6 / (time.perf_counter() - start))
ids = [e.ids for e in encoded]
checksum = sum(t * (i % 97 + 1) for row in ids for i, t in enumerate(row))
print(f"{best:.2f} MB/s, {sum(map(len, ids))} tokens, checksum {checksum}, loaded in {loading * 1000:.0f} ms")
