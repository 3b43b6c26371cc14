"""Compares the Go tokenizer with HuggingFace's tokenizers on random texts.

Usage: python differ.py PROGRAM COUNT TOKENIZER.json ...

PROGRAM is the built package ./differ beside this file: it reads pairs of texts, and writes what it makes of them. For
each tokenizer, COUNT pairs of hostile texts are encoded with offsets, as a pair, truncated, and decoded again. The first
differences are printed, and the exit status is 1 if there are any.

A byte-level vocabulary without some of the bytes is compared by its ids alone: behind a byte that the library leaves out
its offsets are off, and its texts have other replacements for halves of characters.
"""

import json
import random
import subprocess
import sys

import hostile
import tokenizers

BATCH = 2000


def expected(tokenizer, first, second, room):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    one = tokenizer.encode(first)
    plain = tokenizer.encode(first, add_special_tokens=False)
    out = {"IDs": one.ids, "Offsets": bytes_of(one, first, first), "Words": words(one), "Types": one.type_ids,
           "Special": one.special_tokens_mask, "Text": tokenizer.decode(plain.ids, skip_special_tokens=False),
           "Shown": tokenizer.decode(one.ids), "Pair": None}
    if tokenizer.num_special_tokens_to_add(True) <= room:
        tokenizer.enable_truncation(room)
        pair = tokenizer.encode(first, second)
        out["Pair"] = [pair.ids, bytes_of(pair, first, second), pair.type_ids]
    return out


INEXACT = ["Offsets", "Text", "Shown", "Pair"]


def lossy(tokenizer):
    pieces = json.loads(tokenizer.to_str())["pre_tokenizer"] or {}
    if not any(p["type"] == "ByteLevel" for p in pieces.get("pretokenizers", [pieces]) if p):
        return False
    return any(tokenizer.token_to_id(c) is None for c in tokenizers.pre_tokenizers.ByteLevel.alphabet())


def words(encoding):
    return [-1 if w is None else w for w in encoding.word_ids]


def bytes_of(encoding, first, second):
    """The library counts characters, the Go package bytes."""
    place = []
    for text in (first, second):
        at = [0]
        for c in text:
            at.append(at[-1] + len(c.encode()))
        place.append(at)
    return [[place[s or 0][a], place[s or 0][b]] for s, (a, b) in zip(encoding.sequence_ids, encoding.offsets)]


def run(program, path, count, seed):
    tokenizer = tokenizers.Tokenizer.from_file(path)
    added = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    rng, wrong = random.Random(seed), 0
    inexact = INEXACT if lossy(tokenizer) else []
    with subprocess.Popen([program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1 << 20) as go:
        for done in range(0, count, BATCH):
            pairs = [(hostile.text(rng, added), hostile.text(rng, added), rng.randrange(2, 40))
                     for _ in range(min(BATCH, count - done))]
            for pair in pairs:
                go.stdin.write(json.dumps(pair) + "\n")
                go.stdin.flush()
                got, want = json.loads(go.stdout.readline()), expected(tokenizer, *pair)
                different = {k: [want[k], got.get(k)] for k in want if want[k] != got.get(k) and k not in inexact}
                if different:
                    wrong += 1
                    if wrong <= 3:
                        print(json.dumps(pair), json.dumps(different), flush=True)
        go.stdin.close()
    print(f"{path}: {wrong} of {count} differ", flush=True)
    return wrong


if __name__ == "__main__":
    program, count, paths = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    sys.exit(1 if sum(run(program, p, count, i) for i, p in enumerate(paths)) else 0)
