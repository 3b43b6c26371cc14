"""What the scripts that make goldens share: a common command line, versions, files."""

import argparse
import json
import pathlib
import platform

import torch


def versions(*extra):
    """Names and versions of what made a golden, for its metadata."""
    out = {"python": platform.python_version(), "torch": torch.__version__}
    for module in extra:
        out[module.__name__] = module.__version__
    return out


def start(script, description):
    """Parses --out (default: the folder of script), fixes the seed and the number of threads, returns the folder."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(script).resolve().parent)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    return out


def save_tensors(path, tensors, made_by):
    """Writes a safetensors file whose metadata names the versions.

    They are one string, since the library writes several metadata keys in random order.
    """
    from safetensors.torch import save_file

    plain = {name: t.detach().clone().contiguous() for name, t in tensors.items()}
    save_file(plain, path, metadata={"made_by": json.dumps(made_by)})
    path.chmod(0o644)
    print(f"{path}: {len(plain)} tensors, {path.stat().st_size} bytes")


def save_json(path, document):
    """Writes JSON with one line per entry of the top two levels, so that a change is readable as a diff."""

    def compact(value):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    def top(value):
        if isinstance(value, list) and value:
            return "[\n" + ",\n".join("    " + compact(v) for v in value) + "\n  ]"
        if isinstance(value, dict) and value:
            return "{\n" + ",\n".join(f"    {compact(k)}: {compact(v)}" for k, v in value.items()) + "\n  }"
        return compact(value)

    lines = [f"  {compact(key)}: {top(value)}" for key, value in document.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes")
