"""Writes the witnesses of extractor/preprocess that are small enough to commit.

    python3 extractor/preprocess/testdata/generate_resize.py extractor/preprocess/testdata

Needs Pillow 13 and numpy. It writes

    resize/source.png, resize/FILTER_WxH.png  Pillow's Image.resize
    decode/FILE, decode/FILE.png              Pillow's convert("RGB") of FILE
    pipelines.json, pipelines/*.png           non-square timm and OpenCLIP crops

The pipelines follow timm 1.0.31 (ResizeKeepRatio, center_crop_or_pad,
transforms_imagenet_eval), OpenCLIP 3.3 (image_transform) and torchvision 0.29
(center_crop), whose own code needs PyTorch; here it is a few lines of Python.
"""
import io
import json
import math
import os
import struct
import sys
import zlib

import numpy as np
from PIL import Image, ImageOps, PngImagePlugin

OUT = sys.argv[1]
for sub in ("resize", "decode", "pipelines"):
    os.makedirs(f"{OUT}/{sub}", exist_ok=True)
rng = np.random.default_rng(20261121)


def picture(w, h):
    """A smooth ground with an edge and some noise."""
    y, x = np.mgrid[:h, :w]
    p = np.stack([255 * x / max(w - 1, 1), 255 * y / max(h - 1, 1), 127 + 120 * np.sin(x * 0.9 + y * 0.4)], -1)
    p[(x - w / 2) ** 2 + (y - h / 2) ** 2 < (min(w, h) / 3) ** 2] = (250, 10, 200)
    p += rng.integers(-20, 21, p.shape) * (x > w / 2)[..., None]
    return Image.fromarray(np.clip(p, 0, 255).astype(np.uint8))


def save(im, path):
    im.save(f"{OUT}/{path}", optimize=True)


# --- resize: up, down, mixed, and 2:3, where outputs fall between inputs
source = picture(24, 18)
save(source, "resize/source.png")
for name in ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"):
    for size in ((36, 27), (11, 7), (33, 5), (7, 40), (24, 18), (1, 1)):
        save(source.resize(size, Image.Resampling[name.upper()]), "resize/%s_%dx%d.png" % (name, *size))


# --- decode
def expect(name, transpose=False):
    im = Image.open(f"{OUT}/decode/{name}")
    if transpose:
        im = ImageOps.exif_transpose(im)
    save(Image.fromarray(np.asarray(im.convert("RGB"))), f"decode/{name}.png")  # without its metadata


def write(name, data):
    with open(f"{OUT}/decode/{name}", "wb") as f:
        f.write(data)
    expect(name)


def png16(colour, values, transparent=b""):
    """A 16-bit PNG, which Pillow reads but hardly writes."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    h, w = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 16, colour, 0, 0, 0))
            + (chunk(b"tRNS", transparent) if transparent else b"")
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def deep(*shape):
    return rng.choice([0, 1, 100, 255, 256, 300, 511, 4000, 32768, 65279, 65535], shape)


write("grey16.png", png16(0, deep(5, 9)))
write("grey16-transparent.png", png16(0, deep(5, 9), struct.pack(">H", 300)))
write("rgb16.png", png16(2, deep(5, 9, 3)))
write("rgb16-transparent.png", png16(2, deep(5, 9, 3), struct.pack(">HHH", 0, 0, 0)))
write("grey16-alpha.png", png16(4, deep(5, 9, 2)))
write("rgb16-alpha.png", png16(6, deep(5, 9, 4)))

small = picture(13, 9)
alpha = Image.fromarray(rng.integers(0, 256, (9, 13), dtype=np.uint8))
alpha.putpixel((0, 0), 0)
rgba = small.copy()
rgba.putalpha(alpha)
palette = small.quantize(11)


def put(im, name, **options):
    im.save(f"{OUT}/decode/{name}", **options)
    expect(name)


put(rgba, "rgba.png")
put(small.convert("LA"), "grey-alpha.png")
put(small.convert("1"), "bilevel.png")
put(small.convert("L").quantize(4), "grey2.png", bits=2)
put(palette, "palette-transparent.png", transparency=bytes(range(0, 253, 23)))
put(small.convert("L"), "grey-transparent.png", transparency=7)
put(small, "rgb.bmp")
put(palette, "palette.bmp")
put(rgba, "rgba.bmp")
put(small.convert("1"), "bilevel.bmp")
put(rgba, "rgba.tif")
put(rgba, "premultiplied.tif", tiffinfo={338: 1})
put(small, "orientation.tif", tiffinfo={274: 6})
put(small, "lzw.tif", compression="tiff_lzw")
put(palette, "palette.tif")
put(Image.fromarray(deep(5, 9).astype(np.uint16)), "grey16.tif")
put(rgba, "lossless.webp", lossless=True, exact=True)
grey = small.convert("L").convert("RGB")  # its chroma is flat, so that how it is upsampled does not matter
grey.putalpha(alpha)
put(grey, "lossy-alpha.webp", quality=90)
put(picture(32, 24).convert("CMYK"), "cmyk.jpg", quality=95)

quarters = np.zeros((16, 24), np.uint8)
quarters[:8, :16], quarters[8:, 8:] = 90, 220
for turn in range(1, 9):
    exif = Image.Exif()
    exif[0x112] = turn
    Image.fromarray(quarters).save(f"{OUT}/decode/exif{turn}.jpg", quality=95, exif=exif)
    expect(f"exif{turn}.jpg", transpose=True)


def gif(canvas, frames, palette, local=False):
    """A GIF by hand; frames are (x, y, indices, transparent index or None)."""
    table = bytes(v for colour in palette for v in colour)
    data = b"GIF89a" + struct.pack("<HHBBB", *canvas, 0x00 if local else 0x81, 3, 0) + (b"" if local else table)
    data += b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"
    for x, y, indices, transparent in frames:
        data += struct.pack("<BBBBHBB", 0x21, 0xF9, 4, transparent is not None, 10, transparent or 0, 0)
        h, w = indices.shape
        data += struct.pack("<BHHHHB", 0x2C, x, y, w, h, 0x81 if local else 0) + (table if local else b"")
        codes = []  # a clear code before every second pixel keeps codes at three bits
        for i, index in enumerate(indices.ravel()):
            codes += [4] * (i % 2 == 0) + [int(index)]
        number = sum(code << 3 * i for i, code in enumerate(codes + [5]))
        packed = number.to_bytes(3 * (len(codes) + 1) // 8 + 1, "little")
        data += b"\x02" + b"".join(bytes([len(packed[i:i + 255])]) + packed[i:i + 255] for i in range(0, len(packed), 255)) + b"\0"
    return data + b";"


colours = [(200, 40, 40), (30, 180, 60), (20, 60, 220), (240, 230, 20)]
frame = rng.integers(0, 4, (4, 6))
write("offset.gif", gif((11, 8), [(3, 2, frame, None), (0, 0, frame, None)], colours))
write("offset-transparent.gif", gif((11, 8), [(3, 2, frame, 2), (1, 1, frame, 1)], colours))
write("local-palette.gif", gif((11, 8), [(3, 2, frame, 1)], colours, local=True))
write("beyond-canvas.gif", gif((5, 5), [(2, 3, frame, None)], colours))


# --- pipelines
def keep_ratio(im, target, longest, resample):
    h, w = im.height, im.width
    ratios = h / target[0], w / target[1]
    ratio = max(ratios) * longest + min(ratios) * (1.0 - longest)
    return resize(im, (round(h / ratio), round(w / ratio)), resample)


def resize(im, size, resample):
    return im.resize((size[1], size[0]), Image.Resampling[resample.upper()])


def crop_or_pad(im, size, fill=(0, 0, 0)):
    h, w = size
    more_h, more_w = max(h - im.height, 0), max(w - im.width, 0)
    im = ImageOps.expand(im, (more_w // 2, more_h // 2, (more_w + 1) // 2, (more_h + 1) // 2), fill)
    top, left = int(round((im.height - h) / 2.0)), int(round((im.width - w) / 2.0))
    return im.crop((left, top, left + w, top + h))


def timm(cfg):
    size = cfg["input_size"][1:]
    scale = [math.floor(x / cfg["crop_pct"]) for x in size]

    def apply(im):
        if cfg["crop_mode"] == "squash":
            return crop_or_pad(resize(im, scale, cfg["interpolation"]), size)
        if cfg["crop_mode"] == "border":
            return crop_or_pad(keep_ratio(im, scale, 1.0, cfg["interpolation"]), size, tuple(round(255 * v) for v in cfg["mean"]))
        return crop_or_pad(keep_ratio(im, scale, 0.0, cfg["interpolation"]), size)
    return apply


def open_clip(cfg):
    def apply(im):
        if cfg["resize_mode"] == "squash":
            return resize(im, cfg["size"], cfg["interpolation"])
        if cfg["resize_mode"] == "longest":
            return crop_or_pad(keep_ratio(im, cfg["size"], 1, cfg["interpolation"]), cfg["size"], (cfg["fill_color"],) * 3)
        return crop_or_pad(keep_ratio(im, cfg["size"], 0, "bicubic"), cfg["size"])
    return apply


mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
pipelines = []
for mode, pct, size, interpolation in (("center", 0.9, (20, 28), "bicubic"), ("center", 0.875, (21, 14), "hamming"),
                                       ("squash", 0.8, (17, 30), "box"), ("border", 0.95, (25, 16), "lanczos"),
                                       ("center", 1.2, (20, 29), "bilinear")):
    cfg = {"input_size": [3, *size], "interpolation": interpolation, "crop_pct": pct, "crop_mode": mode, "mean": mean, "std": std}
    pipelines.append((f"timm-{mode}-{interpolation}", {"architecture": "x", "pretrained_cfg": cfg}, timm(cfg)))
for mode, size, interpolation, fill in (("shortest", [19, 26], "bilinear", 0), ("longest", [22, 31], "bicubic", 114), ("squash", [12, 25], "bilinear", 0)):
    cfg = {"size": size, "mode": "RGB", "interpolation": interpolation, "resize_mode": mode, "fill_color": fill, "mean": mean, "std": std}
    pipelines.append((f"openclip-{mode}", {"preprocess_cfg": cfg}, open_clip(cfg)))
cases = []
for name, config, apply in pipelines:
    for shape in ("wide", "tall"):
        im = source if shape == "wide" else source.transpose(Image.Transpose.ROTATE_90)
        save(apply(im), f"pipelines/{name}-{shape}.png")
        cases.append({"config": config, "tall": shape == "tall", "expected": f"pipelines/{name}-{shape}.png"})
with open(f"{OUT}/pipelines.json", "w") as f:
    json.dump(cases, f, indent=1)
    f.write("\n")


# --- what lossy decoders do between samples, and bilevel TIFFs
for kind in ("group3", "group4"):
    for photometric in (0, 1):
        put(picture(40, 21).convert("1"), f"{kind}-{photometric}.tif", compression=kind, tiffinfo={262: photometric})

MCU = {"444": (8, 8), "422": (16, 8), "420": (16, 16), "440": (8, 16), "411": (32, 8)}


def flat(w, h, cell):
    """Cells of one colour: blocks without AC coefficients, which every inverse transform renders alike."""
    cells = rng.integers(0, 256, (-(-h // cell[1]), -(-w // cell[0]), 3), dtype=np.uint8)
    return Image.fromarray(cells.repeat(cell[1], 0).repeat(cell[0], 1)[:h, :w])


def jpeg(name, w, h, layout, image, **options):
    """A JPEG of a chroma layout; those that Pillow does not write are relabelled.

    The blocks of an MCU stay as they are and are laid out anew, so the picture is scrambled.
    """
    source, factors = {"440": ("422", 0x12), "411": ("420", 0x41)}.get(layout, (layout, None))
    (across, down), unit = MCU[layout], MCU[source]
    size = (w, h) if factors is None else (-(-w // across) * unit[0], -(-h // down) * unit[1])
    file = io.BytesIO()
    image(*size, unit).save(file, "JPEG", subsampling=":".join(source), **options)
    data = bytearray(file.getvalue())
    if factors is not None:
        at = data.index(b"\xff\xc0")
        data[at + 5:at + 9] = struct.pack(">HH", h, w)
        data[at + 11] = factors
    write(name, data)


def textured(w, h, _):
    return picture(w, h)


for layout in MCU:
    for w, h in ((1, 1), (2, 3), (4, 5), (5, 6), (17, 33)):  # two and three samples of chroma are read differently
        jpeg(f"jpeg-{layout}-{w}x{h}.jpg", w, h, layout, textured, quality=90)
    jpeg(f"flat-{layout}-67x50.jpg", 67, 50, layout, flat, quality=90)
jpeg("jpeg-progressive-17x33.jpg", 17, 33, "420", textured, quality=90, progressive=True)
jpeg("flat-progressive-67x50.jpg", 67, 50, "420", flat, quality=90, progressive=True)
put(picture(17, 33).convert("L"), "jpeg-grey-17x33.jpg", quality=90)
put(picture(17, 33), "jpeg-rgb-17x33.jpg", quality=90, keep_rgb=True)
for w, h in ((1, 1), (2, 3), (17, 33), (16, 18)):
    put(picture(w, h), f"lossy-{w}x{h}.webp", quality=80)


# --- variants that Go's decoders refuse or read otherwise
def tiff(name, bits, photometric, rows, order="<", version=42, **more):
    """A TIFF by hand of rows of bytes, in strips of two rows; more are its other tags by number."""
    h, strips = len(rows), [b"".join(rows[at:at + 2]) for at in range(0, len(rows), 2)]
    tags = {256: 13, 257: h, 258: bits, 259: 1, 262: photometric, 277: len(bits), 278: 2, **{int(k[1:]): v for k, v in more.items()}}
    compress = {1: bytes, 8: zlib.compress}[tags[259]]
    turn = bytes(int(f"{v:08b}"[::-1], 2) for v in range(256)) if tags.get(266) == 2 else bytes(range(256))
    data = bytearray()
    offsets, counts = [], []
    for strip in strips:
        strip = compress(strip).translate(turn)
        offsets.append(8 + len(data))
        counts.append(len(strip))
        data += strip + b"\0" * (len(strip) % 2)
    tags[273], tags[279] = offsets, counts
    directory, values = bytearray(), bytearray()
    at = 8 + len(data)
    beyond = at + 2 + 12 * len(tags) + 4
    for tag, value in sorted(tags.items()):
        value = [value] if isinstance(value, int) else value
        field = struct.pack(f"{order}{len(value)}L", *value)
        if len(field) > 4:
            values, field = values + field, struct.pack(order + "L", beyond + len(values))
        directory += struct.pack(order + "HHL", tag, 4, len(value)) + field
    head = {"<": b"II", ">": b"MM"}[order] + struct.pack(order + "HL", version, at)
    write(name, bytes(head + data + struct.pack(order + "H", len(tags)) + directory + bytes(4) + values))


def pack(values, bits):
    """Rows of samples of a few bits each."""
    return [int("".join(f"{v:0{bits}b}" for v in row).ljust(-(-len(row) * bits // 8) * 8, "0"), 2).to_bytes(-(-len(row) * bits // 8), "big") for row in values]


def samples(*shape, below=256):
    return rng.integers(0, below, shape)


for bits in (1, 2, 4):
    tiff(f"white-is-zero-{bits}.tif", [bits], 0, pack(samples(9, 13, below=1 << bits), bits))
    tiff(f"fill-order-{bits}.tif", [bits], 1, pack(samples(9, 13, below=1 << bits), bits), _266=2)
tiff("grey12.tif", [12], 1, pack(samples(9, 13, below=600), 12))
for order, named in (("<", "little"), (">", "big")):
    tiff(f"signed16-{named}.tif", [16], 1, [r.astype(order + "i2").tobytes() for r in samples(9, 13, below=700) - 200], order, _339=2)
    tiff(f"signed32-{named}.tif", [32], 1, [r.astype(order + "i4").tobytes() for r in samples(9, 13, below=700) - 200], order, _339=2)
    tiff(f"float-{named}.tif", [32], 1, [(r * 1.7 - 90).astype(order + "f4").tobytes() for r in samples(9, 13)], order, _339=3)
    tiff(f"rgb16-{named}.tif", [16] * 3, 2, [r.astype(order + "u2").tobytes() for r in deep(9, 13, 3)], order)
    difference = np.diff(deep(9, 13, 3).astype(np.int64), axis=1, prepend=0) % 65536
    tiff(f"predicted16-{named}.tif", [16] * 3, 2, [r.astype(order + "u2").tobytes() for r in difference], order, _259=8, _317=2)
    bytewise = (samples(9, 13) * 1.3 - 40).astype(">f4").view(np.uint8).reshape(9, 13, 4).transpose(0, 2, 1).reshape(9, 52)
    if order == "<":  # of the other order Pillow 13 swaps the bytes once more, where there is a compression
        tiff("predicted-float.tif", [32], 1, [np.diff(r.astype(np.int64), prepend=0).astype(np.uint8).tobytes() for r in bytewise], order, _259=8, _317=3, _339=3)
tiff("planes.tif", [8] * 3, 2, [r.astype(np.uint8).tobytes() for r in samples(24, 13)], _257=8, _259=8, _284=2)
tiff("planes16.tif", [16] * 3, 2, [r.astype("<u2").tobytes() for r in deep(24, 13)], _257=8, _259=8, _284=2)
tiff("extra-plane.tif", [8] * 2, 1, [r.astype(np.uint8).tobytes() for r in samples(16, 13)], _257=8, _259=8, _284=2, _338=0)
tiff("grey-alpha.tif", [8] * 2, 1, [r.astype(np.uint8).tobytes() for r in samples(9, 13, 2)], _338=2)
tiff("cmyk16.tif", [16] * 4, 5, [r.astype("<u2").tobytes() for r in deep(9, 13, 4)])
tiff("missing-strips.tif", [8], 0, [r.astype(np.uint8).tobytes() for r in samples(4, 13)], _257=9)
tiff("repeated.tif", [8], 0, [r.astype(np.uint8).tobytes() for r in samples(16, 13)], _257=8)
tiff("palette-alpha.tif", [8] * 2, 3, [r.astype(np.uint8).tobytes() for r in samples(9, 13, 2)], _338=2, _320=[int(v) for v in samples(768, below=65536)])
put(small.convert("CMYK"), "cmyk.tif", compression="packbits")
put(picture(40, 21).convert("1"), "runs.tif", compression="tiff_ccitt")
put(picture(40, 21).convert("1"), "group3-two-dimensions.tif", compression="group3", tiffinfo={292: 1})
put(small, "big.tif", big_tiff=True, compression="tiff_adobe_deflate")


def bmp(name, header, bits, compression, pixels, palette=b"", masks=b"", height=9, colours=0):
    """A BMP by hand, 13 pixels wide; a header of 12 bytes is OS/2's."""
    if header == 12:
        fields = struct.pack("<LHHHH", 12, 13, height, 1, bits)
    else:
        fields = struct.pack("<LllHHLLllLL", header, 13, height, 1, bits, compression, len(pixels), 0, 0, colours, 0)
    fields = (fields + masks).ljust(header, b"\0")
    at = 14 + len(fields) + len(palette)
    write(name, b"BM" + struct.pack("<LLL", at + len(pixels), 0, at) + fields + palette + pixels)


def aligned(rows):
    return b"".join(r + bytes(-len(r) % 4) for r in rows)


table = samples(256, 4).astype(np.uint8).tobytes()
bmp("core.bmp", 12, 4, 0, aligned(pack(samples(9, 13, below=16), 4)), b"".join(table[4 * i:4 * i + 3] for i in range(16)))
bmp("few-colours.bmp", 40, 8, 0, aligned([r.astype(np.uint8).tobytes() for r in samples(9, 13)]), table[:40], colours=10)
bmp("grey.bmp", 40, 8, 0, aligned([r.astype(np.uint8).tobytes() for r in samples(9, 13)]), b"".join(bytes([i, i, i, 0]) for i in range(256)))
wide = aligned([r.astype("<u2").tobytes() for r in samples(9, 13, below=65536)])
bmp("555.bmp", 40, 16, 0, wide)
bmp("565.bmp", 40, 16, 3, wide, masks=struct.pack("<LLL", 0xF800, 0x7E0, 0x1F))
bmp("565-v4.bmp", 108, 16, 3, wide, masks=struct.pack("<LLLL", 0xF800, 0x7E0, 0x1F, 0))
quads = samples(9, 13 * 4).astype(np.uint8).tobytes()
bmp("top-down.bmp", 40, 32, 0, quads, height=-9)
for place, masks in (("xbgr", (0xFF000000, 0xFF0000, 0xFF00, 0)), ("rgba", (0xFF, 0xFF00, 0xFF0000, 0xFF000000)), ("bgar", (0xFF000000, 0xFF00, 0xFF, 0xFF0000))):
    bmp(f"{place}.bmp", 56, 32, 3, quads, masks=struct.pack("<LLLL", *masks))
runs8 = b"".join(bytes([5, int(samples(1)[0]), 0, 5, *map(int, samples(5)), 0, 3, int(samples(1)[0]), 0, 0]) for _ in range(6)) + b"\0\2\4\1" + b"\x09\x07\0\0" + b"\x0d\x08\0\0" + b"\0\1"
bmp("runs8.bmp", 40, 8, 1, runs8, table)
runs4 = b"".join(bytes([6, int(samples(1)[0]), 0, 7, *map(int, samples(4)), 0, 0]) for _ in range(7)) + b"\0\2\3\1" + b"\x0a\x57\0\1"
bmp("runs4.bmp", 40, 4, 2, runs4, table[:64])

put(palette, "interlaced.gif", interlace=1)
put(picture(24, 18).quantize(200), "many.gif")


def png(name, header, *chunks):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    write(name, b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", *header)) + b"".join(chunk(*c) for c in chunks))


adam7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
for bits in (1, 2, 4, 8):
    plane = samples(9, 13, below=1 << bits)
    rows = b"".join(b"\0" + row for x, y, dx, dy in adam7 if plane[y::dy, x::dx].size for row in pack(plane[y::dy, x::dx], bits))
    png(f"interlaced-{bits}.png", (13, 9, bits, 0, 0, 0, 1), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
rows = b"".join(bytes([y % 5]) + samples(39).astype(np.uint8).tobytes() for y in range(9))
png("filters.png", (13, 9, 8, 2, 0, 0, 0), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
png("ends-early.png", (13, 12, 8, 2, 0, 0, 0), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
png("no-checksum.png", (13, 9, 8, 2, 0, 0, 0), (b"IDAT", zlib.compress(rows)[:-4]))
png("short-palette.png", (13, 9, 8, 3, 0, 0, 0), (b"PLTE", table[:30]), (b"IDAT", zlib.compress(b"".join(b"\0" + samples(13, below=20).astype(np.uint8).tobytes() for _ in range(9)))), (b"IEND", b""))
control = struct.pack(">IIIIIHHBB", 0, 6, 5, 4, 3, 1, 10, 0, 0)
part = zlib.compress(b"".join(b"\0" + samples(18).astype(np.uint8).tobytes() for _ in range(5)))
png("animated.png", (13, 9, 8, 2, 0, 0, 0), (b"acTL", struct.pack(">II", 1, 0)), (b"fcTL", control), (b"IDAT", part), (b"IEND", b""))

frames = [picture(20, 16), picture(20, 16)]
put(frames[0], "animated.webp", save_all=True, append_images=frames[1:], lossless=True)
put(frames[0].convert("RGBA"), "animated-lossy.webp", save_all=True, append_images=frames[1:], quality=80)

turned = Image.Exif()
turned[0x112] = 6
xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'
lying = Image.fromarray(np.stack([quarters] * 3, -1))
text = PngImagePlugin.PngInfo()
text.add_itxt("XML:com.adobe.xmp", xmp.decode())
for name, options in (("exif.png", {"exif": turned}), ("exif-xmp.png", {"pnginfo": text}), ("exif.webp", {"exif": turned, "lossless": True}),
                      ("exif-xmp.webp", {"xmp": xmp, "lossless": True}), ("exif-xmp.jpg", {"xmp": xmp, "quality": 95})):
    lying.save(f"{OUT}/decode/{name}", **options)
    expect(name, transpose=True)
put(picture(24, 18).convert("YCbCr"), "ycbcr.tif", compression="tiff_lzw")
blocks = samples(9, 12, 6).astype(np.uint8).tobytes()  # of 2x2 pixels: four of luma, Cb, Cr
tiff("ycbcr-subsampled.tif", [8] * 3, 6, [blocks[y * 36:y * 36 + 36] for y in range(18)], _256=24, _257=18, _259=8, _530=[2, 2])
