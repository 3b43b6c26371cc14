"""Compares our encoding of a text, line by line, with that of HuggingFace's tokenizers under our tokenizer.json.

    check_tokenizer.py TOKENIZER_JSON IDS_JSON LINES_TXT

IDS_JSON is a list with one entry for each line of LINES_TXT (lines end with \\n and are given without it): a list of
ids, or {"ids": [...], "splits": [...]} to compare the pre-tokens too; or it is a map with that list as "lines". Special tokens in the text count as such, as
the tokenizer's file says. Checked besides: that the ids decode to the line. Prints "N lines, M differ" and the first few
differences; exits 1 if any.
"""

import argparse
import json
import pathlib
import sys

import tokenizers

SHOWN = 10


def lines_of(path):
    text = path.read_bytes().decode("utf-8")
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def difference(tokenizer, line, ours):
    """What differs in a line, or None."""
    entry = ours if isinstance(ours, dict) else {"ids": ours}
    want = tokenizer.encode(line, add_special_tokens=False).ids
    if entry["ids"] != want:
        return f"ids {entry['ids']}, want {want}"
    if "splits" in entry:
        pieces = [line[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(line)]
        if entry["splits"] != pieces:
            return f"splits {entry['splits']}, want {pieces}"
    back = tokenizer.decode(entry["ids"], skip_special_tokens=False)
    if back != line:
        return f"decodes to {back!r}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["tokenizer", "ids", "lines"]:
        parser.add_argument(name, type=pathlib.Path)
    args = parser.parse_args()
    tokenizer = tokenizers.Tokenizer.from_file(str(args.tokenizer))
    lines, ids = lines_of(args.lines), json.loads(args.ids.read_text(encoding="utf-8"))
    if isinstance(ids, dict):
        ids = ids["lines"]
    if len(lines) != len(ids):
        print(f"{len(lines)} lines, but {len(ids)} entries in {args.ids}")
        return 1
    differ = 0
    for number, (line, ours) in enumerate(zip(lines, ids), 1):
        what = difference(tokenizer, line, ours)
        if what is not None:
            differ += 1
            if differ <= SHOWN:
                print(f"line {number} {line!r}: {what}")
    print(f"{len(lines)} lines, {differ} differ (tokenizers {tokenizers.__version__}, {tokenizer.get_vocab_size()} tokens)")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
