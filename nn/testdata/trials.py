"""Makes trials.safetensors and trials.json: three small models that PyTorch trains, by plain SGD and in float32.

A variational autoencoder, a U-Net that takes noise away, and a mixture of experts. For a model named M the tensors are
M/init/NAME and M/final/NAME, the weights before and after, and M/data/NAME, what it is trained on: the first dim counts
the steps. The manifest has the learning rate and the loss of each step before its update.
"""

import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
STEPS = 12
tensors, manifest = {}, {}


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.1), nn.Linear(16, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 12))

    def forward(self, x, noise):
        mean, log_var = self.encoder(x).chunk(2, -1)
        logits = self.decoder(mean + torch.exp(log_var / 2) * noise)
        divergence = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum()
        return (F.binary_cross_entropy_with_logits(logits, x, reduction="sum") + divergence) / len(x)


class UNet(nn.Module):
    """One level: reflected borders down, the nearest pixel up, and a connection across."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(2, 16), nn.ELU())
        self.up = nn.Sequential(nn.Conv2d(24, 8, 3, padding=1), nn.GroupNorm(8, 8), nn.ELU(0.5), nn.Conv2d(8, 1, 1))

    def forward(self, noisy, clean):
        across = self.down(F.pad(noisy, (1, 1, 1, 1), mode="reflect"))
        deep = self.middle(F.max_pool2d(across, 2))
        out = self.up(torch.cat([F.interpolate(deep, scale_factor=2), across], 1))
        return F.huber_loss(out, clean, delta=0.5)


class Experts(nn.Module):
    """Two of four experts see a token, as long as they have room; a second loss keeps them equally busy."""

    def __init__(self, width=6, experts=4, classes=3, room=14):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 10), nn.GELU(), nn.Linear(10, width)) for _ in range(experts))
        self.head = nn.Linear(width, classes)
        self.room = room

    def forward(self, x, labels, class_weights):
        chances = F.softmax(self.gate(x), -1)
        best, which = chances.topk(2, -1)
        chosen = F.one_hot(which, len(self.experts)).to(x.dtype)  # [N, 2, experts]
        busy = chosen.sum(1)
        place = torch.cumsum(busy, 0)
        share = ((best / best.sum(-1, keepdim=True))[..., None] * chosen).sum(1) * (place <= self.room)
        y = x + sum(share[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        balance = len(self.experts) * (busy.mean(0) * chances.mean(0)).sum()
        spread = torch.logsumexp(self.gate(x), -1).std()
        loss = F.cross_entropy(self.head(y), labels, class_weights, label_smoothing=0.1)
        return loss + 0.05 * balance + 0.01 * spread


def train(name, model, lr, data):
    tensors.update({f"{name}/init/{k}": v.clone() for k, v in model.state_dict().items()})
    tensors.update({f"{name}/data/{k}": v for k, v in data.items()})
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=lr), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(**{k: v[step] for k, v in data.items()})
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    tensors.update({f"{name}/final/{k}": v for k, v in model.state_dict().items()})
    manifest[name] = {"learning_rate": lr, "losses": losses}


patterns = (torch.rand(3, 12) < 0.5).float()
train("vae", VAE(), 0.05, {"x": patterns[torch.randint(3, (STEPS, 16))], "noise": torch.randn(STEPS, 16, 4)})

clean = torch.zeros(STEPS, 4, 1, 8, 8)
for n, image in enumerate(clean.view(-1, 8, 8)):
    top, left = n % 5, n * 3 % 5
    image[top : top + 3, left : left + 3] = 1
train("unet", UNet(), 0.2, {"noisy": clean + 0.3 * torch.randn(clean.shape), "clean": clean})

x = torch.randn(STEPS, 32, 6)
labels = (x[..., 0] > 0).long() + (x[..., 1] * x[..., 2] > 0).long()
train("experts", Experts(), 0.5, {"x": x, "labels": labels, "class_weights": torch.tensor([1.5, 0.5, 1.0]).expand(STEPS, 3)})

golden.save_tensors(OUT / "trials.safetensors", tensors, golden.versions())
golden.save_json(OUT / "trials.json", {"made_by": golden.versions(), "trials": manifest})
