"""Makes templates.json: what HuggingFace's tokenizers puts around a text under several post-processors.

Each case has a post_processor, put into trained/tokenizer.json, and the ids of the text under it.
"""

import json
import pathlib
import sys

import tokenizers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "parity"))
import golden  # noqa: E402

TEXT = "func main() {}"
END = "<|endoftext|>"

here = pathlib.Path(__file__).resolve().parent
out = golden.start(__file__, __doc__)
tree = json.loads((here / "trained" / "tokenizer.json").read_text())
end = tokenizers.Tokenizer.from_str(json.dumps(tree)).token_to_id(END)

level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def template(*single):
    pieces = [{"Sequence": {"id": "A", "type_id": 0}} if p == "A" else {"SpecialToken": {"id": p, "type_id": 0}} for p in single]
    special = {END: {"id": END, "ids": [end], "tokens": [END]}} if END in single else {}
    return {"type": "TemplateProcessing", "single": pieces,
            "pair": pieces + [{"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": special}


cases = {
    "none": None,
    "byte level": level,
    "a template that adds nothing": template("A"),
    "a token before": template(END, "A"),
    "a token after": template("A", END),
    "tokens around": template(END, END, "A", END),
    "a sequence": {"type": "Sequence", "processors": [level, template(END, "A")]},
}
entries = []
for name, processor in cases.items():
    tree["post_processor"] = processor
    ids = tokenizers.Tokenizer.from_str(json.dumps(tree)).encode(TEXT).ids
    entries.append({"name": name, "post_processor": processor, "ids": ids})
golden.save_json(out / "templates.json", {"made_by": golden.versions(tokenizers), "text": TEXT, "cases": entries})
