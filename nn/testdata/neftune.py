"""Makes neftune.json: the noise that transformers' NEFTune hook adds to embeddings of zeros.

A case has shape [B, T, C] and alpha; most and std are the greatest absolute value and the standard deviation of the
noise over 200 calls.
"""

import pathlib
import sys

import torch
import transformers
from transformers.integrations.neftune import neftune_post_forward_hook

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
cases = []
for shape, alpha in [((2, 7, 16), 5.0), ((1, 64, 8), 10.0), ((5, 1, 12), 0.5)]:
    module = torch.nn.Module()
    module.neftune_noise_alpha = alpha
    noise = torch.stack([neftune_post_forward_hook(module, None, torch.zeros(shape)) for _ in range(200)])
    module.eval()
    assert not neftune_post_forward_hook(module, None, torch.zeros(shape)).any()
    cases.append({"shape": shape, "alpha": alpha, "most": noise.abs().max().item(), "std": noise.std().item()})
golden.save_json(OUT / "neftune.json", {"made_by": golden.versions(transformers), "cases": cases})
