"""Makes maps.json: the signed and the unsigned map of bitsandbytes' create_dynamic_map, as float32."""

import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "parity"))
import golden  # noqa: E402
from bitsandbytes.functional import create_dynamic_map  # noqa: E402

OUT = golden.start(__file__, __doc__)
maps = {name: create_dynamic_map(signed=name == "signed").tolist() for name in ("signed", "unsigned")}
made_by = {**golden.versions(), "bitsandbytes": version("bitsandbytes")}
golden.save_json(OUT / "maps.json", {"made_by": made_by, "maps": maps})
