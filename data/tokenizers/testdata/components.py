"""Makes components.json: the ids of tokenizers whose files have components beside the usual ones.

Each case changes trained/tokenizer.json at the given places. Truncation and padding are switched off before a text is
encoded, as transformers does where a caller asks for neither.
"""

import json
import pathlib
import sys

import tokenizers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "parity"))
import golden  # noqa: E402

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SHORT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
TEXTS = ["", "It's what they'd've said;  we'll see!\n\n", "Grüße aus Köln 12345 ½", "\ttabs \t and<|endoftext|> nbsp\u00a0x",
         "日本語 emoji 😀", "func (t *Tensor) At(i, j int) float32 {\n\treturn t.data[i*t.cols+j]\n}\n", "returned returns " * 20,
         "a\U0001407f½²b! 1\U00010d40 \U0002ebf0一\u180e\x85 Ab\u2e5d"]  # some are of Unicode 15.1 and 16
# Without a hand scanner. What they match is removed, so that ids tell.
EXPRESSIONS = [r"\w+", r"[\w]+", r"[^\s\w]+", r"\d+|\D", r"[^\S\n]+", r"\p{Lu}\p{Ll}+|\P{Letter}", r"\p{^Han}+", r"[\P{P}]+"]


def split(pattern, behavior, invert):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert},
        {**LEVEL, "use_regex": False}]}


def cases(state):
    merges = state["model"]["merges"]
    truncation = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
               "pad_token": "<|endoftext|>"}
    empty = {"type": "Sequence", "normalizers": []}
    yield "none", {}
    yield "truncation and padding", {"truncation": truncation, "padding": padding}
    yield "padding of the longest", {"padding": {**padding, "strategy": "BatchLongest", "direction": "Left"}}
    yield "empty normalizer", {"normalizer": empty}
    yield "nested normalizer", {"normalizer": {"type": "Sequence", "normalizers": [empty, empty]}}
    yield "one pre-tokenizer", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{**LEVEL, "use_regex": True}]}}
    yield "split", {"pre_tokenizer": split(GPT2, "Isolated", False)}
    yield "split that removes nothing", {"pre_tokenizer": split(SHORT, "Removed", True)}
    for pattern in EXPRESSIONS:
        yield pattern, {"pre_tokenizer": split(pattern, "Removed", False)}
    yield "decoders", {"decoder": {"type": "Sequence", "decoders": [{**LEVEL, "add_prefix_space": True, "use_regex": True},
                                                                     {"type": "Fuse"}]}}
    yield "byte fallback", {"model.byte_fallback": True, "model.fuse_unk": True, "model.unk_token": "<|endoftext|>"}
    yield "merges ignored", {"model.ignore_merges": True}
    yield "merges ignored and missing", {"model.ignore_merges": True, "model.merges": merges[: len(merges) // 2]}
    yield "merges missing", {"model.merges": merges[: len(merges) // 2]}


def patched(state, patch):
    state = json.loads(json.dumps(state))
    for path, value in patch.items():
        at, keys = state, path.split(".")
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = value
    return state


here = pathlib.Path(__file__).resolve().parent
out = golden.start(__file__, __doc__)
state = json.loads((here / "trained" / "tokenizer.json").read_text(encoding="utf-8"))
entries = []
for name, patch in cases(state):
    t = tokenizers.Tokenizer.from_str(json.dumps(patched(state, patch)))
    t.no_truncation()
    t.no_padding()
    ids = [t.encode(text, add_special_tokens=False).ids for text in TEXTS]
    texts = [t.decode(i, skip_special_tokens=False) for i in ids]
    entries.append({"name": name, "patch": patch, "ids": ids, "texts": texts})
golden.save_json(out / "components.json", {"made_by": golden.versions(tokenizers), "texts": TEXTS, "cases": entries})
