# SPDX-License-Identifier: Apache-2.0
"""Compares data/chat with transformers' render_jinja_template, on the chat templates of TRL or of other folders and on
eleven conversations. Run from the root of the repository, with transformers and trl installed:

    python3 data/chat/testdata/differ.py [FOLDER_OF_TEMPLATES ...]
"""
import datetime
import json
import pathlib
import subprocess
import sys

import transformers.utils.chat_template_utils as utils

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Its name"}}, "required": ["city"]}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "abcdefghi", "function": {
    "name": "weather", "arguments": {"city": "Köln"}}}]}


def say(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


CHATS = {
    "system": (say(("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!")), {}),
    "none": (say(("user", "Hi"), ("assistant", "Hello!")), {}),
    "tools": (say(("user", "Weather in Köln?")) + [CALL] + [{"role": "tool", "name": "weather", "content": "12 °C",
              "tool_call_id": "abcdefghi"}] + say(("assistant", "12 degrees.")), {"tools": TOOLS}),
    "turns": (say(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")), {"prompt": True}),
    "empty": (say(("user", ""), ("assistant", "")), {}),
    "unicode": (say(("system", "日本語"), ("user", "é 'x' \"y\" <b> & \\ \n\n z "), ("assistant", "  👩‍👩‍👧\t"))
                , {}),
    "prompt": (say(("system", "Be brief."), ("user", "Hi")), {"prompt": True}),
    "thinking": (say(("user", "2+2?")) + [{"role": "assistant", "content": "<think>\nsum\n</think>\n\n4",
                 "reasoning_content": "sum"}] + say(("user", "3+3?")), {"prompt": True,
                 "variables": {"enable_thinking": False}}),
    "image": ([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}],
              {"prompt": True}),
    "user": (say(("user", "alone")), {}),
    "assistant": (say(("assistant", "first"), ("user", "x"), ("assistant", "y")), {}),
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 4, 5, 6, 7)


def ours(tasks):
    text = "\n".join(json.dumps(t) for t in tasks)
    out = subprocess.run(["go", "run", "./data/chat/testdata/differ"], input=text.encode(), capture_output=True,
                         check=True)
    return [json.loads(line) for line in out.stdout.decode().splitlines()]


def theirs(task):
    try:
        rendered, spans = utils.render_jinja_template([task["messages"]], tools=task["tools"],
            chat_template=task["template"], return_assistant_tokens_mask="generation %}" in task["template"]
            or "generation -%}" in task["template"], add_generation_prompt=task["add_generation_prompt"],
            **task["special"], **task["variables"])
        text = rendered[0]
        spans = [{"Start": len(text[:a].encode()), "End": len(text[:b].encode())} for a, b in (spans or [[]])[0]]
        return {"text": text, "spans": spans or None, "error": ""}
    except Exception as e:
        return {"text": "", "spans": None, "error": f"{type(e).__name__}: {e}"}


def main():
    folders = sys.argv[1:]
    if not folders:
        import trl
        folders = [pathlib.Path(trl.__file__).parent / "chat_templates"]
    files = sorted(f for folder in folders for f in pathlib.Path(folder).glob("*.jinja"))
    utils.datetime = Clock
    tasks, names = [], []
    for f in files:
        for name, (messages, extra) in CHATS.items():
            tasks.append({"template": f.read_text(), "messages": messages, "tools": extra.get("tools"),
                          "add_generation_prompt": extra.get("prompt", False), "special": SPECIAL,
                          "variables": extra.get("variables", {})})
            names.append(f"{f.stem} {name}")
    counts = {"equal": 0, "both refuse": 0, "different": 0, "we refuse": 0, "only they refuse": 0}
    for name, mine, task in zip(names, ours(tasks), tasks):
        want = theirs(task)
        if want["error"] and mine["error"]:
            counts["both refuse"] += 1
        elif mine == want:
            counts["equal"] += 1
        else:
            kind = "we refuse" if mine["error"] else "only they refuse" if want["error"] else "different"
            counts[kind] += 1
            print(f"{kind}: {name}\n  ours   {mine}\n  theirs {want}"[:3000])
    print(len(files), "templates", counts)
    sys.exit(counts["different"] + counts["we refuse"] > 0)


main()
