"""Makes folder/: images of two classes as files of several kinds, and golden.json: their pixels as Pillow reads and resizes them.

For each file: its size, the planes of convert("RGB") in hexadecimal digits, and the same after resize(BILINEAR) to three
sizes. Files are PNG in all color types and JPEG. Made with Pillow 13.0.0.
"""

import json
import pathlib
import random
import sys

import PIL
from PIL import Image

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent / "folder")
SIZES = [(9, 11), (32, 24), (13, 14)]
rng = random.Random(1)


def picture(mode, width, height):
    image = Image.new(mode, (width, height))
    bands = len(image.getbands())
    pixels = []
    for y in range(height):
        for x in range(width):
            values = tuple((17 * x + 31 * y * (b + 1) + rng.randrange(60)) % 256 for b in range(bands))
            pixels.append(values if bands > 1 else values[0])
    image.putdata(pixels)
    return image


def planes(image):
    data = image.convert("RGB").tobytes()
    return bytes(data[c + 3 * i] for c in range(3) for i in range(len(data) // 3)).hex()


files = {
    "cat/color.png": picture("RGB", 13, 10), "cat/grey.PNG": picture("L", 8, 17), "cat/photo.jpg": None,
    "dog/more/alpha.png": picture("RGBA", 12, 9), "dog/palette.png": picture("RGB", 16, 16).quantize(16),
    "dog/bits.png": picture("L", 9, 9).convert("1"),
}
smooth = Image.new("RGB", (24, 18))
smooth.putdata([(8 * x, 10 * y, 120) for y in range(18) for x in range(24)])
files["cat/photo.jpg"] = smooth
golden = {"made_by": {"pillow": PIL.__version__}, "sizes": SIZES, "files": {}}
for name, image in files.items():
    path = out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **({"quality": 95} if name.endswith("jpg") else {}))
    read = Image.open(path)
    golden["files"][name] = {
        "width": read.width, "height": read.height, "pixels": planes(read),
        "resized": [planes(read.convert("RGB").resize(size, Image.Resampling.BILINEAR)) for size in SIZES]}
(out.parent / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
