"""Kernels in CUDA C++, compiled by nvcc, and the cases that run them."""

import math
import pathlib
import shutil
import subprocess
import sys

import numpy as np

import case

HERE = pathlib.Path(__file__).resolve().parent
NAMES = ["sum", "histogram", "lines", "chosen", "functions"]
# Files, what they are compiled for, and how, by the name of the result. Unoptimised too: then calls,
# local arrays and unmerged branches stay.
FILES = [
    ("kernels", "sm_90", {"cuda": [], "cuda_debug": ["-G"]}),
    ("warps", "sm_90", {"warps": ["-lineinfo"], "warps_debug": ["-G"]}),
    ("hopper", "sm_90a", {"hopper": [], "hopper_plain": ["-Xcicc", "-O0"]}),
]


def missing():
    """Why they can't be compiled here; None if they can."""
    return None if shutil.which("g++") else "nvcc needs g++, which is not there"


def compiled(folder, source):
    """Compiles a file of FILES; yields the results' names."""
    packages = pathlib.Path(sys.prefix) / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    nvcc = packages / "nvidia/cu13/bin/nvcc"
    for file, arch, results in FILES:
        if file != source:
            continue
        for name, options in results.items():
            # The library makes shared variables with constructors that do nothing.
            options = [f"-arch={arch}", "-std=c++17", "-diag-suppress=20054", *options]
            output = folder / f"{name}.ptx"
            subprocess.run([nvcc, "-ptx", *options, "-o", output, HERE / f"{file}.cu"], check=True)
            yield name


def cases(folder):
    random = np.random.default_rng(2)
    x = random.integers(-50, 51, 5000).astype(np.float32)
    stride, blocks, threads = 3 * 256, 3, 256
    padded = np.pad(x, (0, -len(x) % stride)).reshape(-1, blocks, threads)
    sums = [case.given(x), case.wanted(padded.sum(axis=(0, 2)), "f32"), case.i32(len(x))]

    byte = random.integers(0, 256, 3000).astype(np.uint8)
    start = np.arange(64, dtype=np.int32)
    counts = np.bincount(byte % 64, minlength=64) + start
    histogram = [case.given(byte), case.wanted(counts, "i32", start=start), case.i32(len(byte))]

    rows = 100
    y = random.standard_normal((rows, 16), dtype=np.float32)
    found = np.zeros((rows, 3))
    for row in range(rows):
        n = 2 + row % 15
        if row % 3 == 0:
            found[row] = [*np.polyfit(np.arange(n), y[row, :n].astype(np.float64), 1), n]
        elif row % 3 == 1:
            found[row, 0] = y[row, 1:n].astype(np.float64).mean()
    lines = [case.given(y), case.wanted(found, "f64", 1e-12), case.i32(rows)]

    n = 400
    values = random.integers(0, 30000, n).astype(np.int32)
    chosen = [case.given(values), case.wanted(picked(values), "i32"), case.i32(n)]

    x = random.uniform(-20, 20, n).astype(np.float32)
    wide = x.astype(np.float64)
    table = [np.sin(wide), np.exp(wide), np.abs(wide) ** 1.7, np.array([math.erf(v) for v in wide])]
    want = np.stack(table, axis=-1)
    # CUDA's own bound for each is at most 4 units in the last place.
    functions = [case.given(x), case.wanted(want, "f32", 4 * 2.0**-23 * np.abs(want) + 1e-7), case.i32(n)]

    yield from launches(folder, "warps", list(warps(random)))
    yield from launches(folder, "hopper", list(hopper(random)))
    for file in compiled(folder, "kernels"):
        for name, grid, block, shared, arguments in [
            ("sum", 3, 256, 0, sums),
            ("histogram", 4, 96, 256, histogram),
            ("lines", 2, 64, 0, lines),
            ("chosen", 4, 128, 0, chosen),
            ("functions", 7, 64, 0, functions),
        ]:
            launch = {"ptx": f"{file}.ptx", "entry": name, "block": [block, 1, 1], "shared": shared}
            yield case.Case(f"{file}_{name}", launch, [grid, 1, 1], arguments)


def launches(folder, source, cases):
    """Each case with each way of compiling its file."""
    for file in compiled(folder, source):
        for name, grid, block, arguments in cases:
            launch = {"ptx": f"{file}.ptx", "entry": name, "block": [block, 1, 1], "shared": 0}
            yield case.Case(f"{file}_{name}", launch, [grid, 1, 1], arguments)


def warps(random):
    x = random.integers(0, 100, 256).astype(np.int32)
    warp, eight = x.reshape(-1, 32), x.reshape(-1, 8)
    want = [
        x.reshape(-1, 16).sum(axis=1).repeat(16),
        x.reshape(-1, 4).min(axis=1).repeat(4),
        np.cumsum(warp, axis=1).ravel(),
        eight.max(axis=1).repeat(8),
    ]
    yield "tiles", 2, 128, [case.given(x), case.wanted(np.stack(want, axis=-1), "i32")]

    key = random.integers(0, 5, 256).astype(np.int32)
    y = np.zeros(256)
    for start in range(0, 256, 32):
        threes = sum(int(x[i]) % 3 == 0 for i in range(start, start + 32))
        for i in range(start, start + 32):
            mates = [j for j in range(start, start + 32) if key[j] == key[i]]
            y[i] = 1000 * sum(int(x[j]) for j in mates) + 10 * len(mates) + any(x[j] > 90 for j in mates)
            y[i] += 100000000 * (threes % 2) if x[i] % 3 == 0 else 0
    sums = np.bincount(key, weights=x, minlength=5)
    zeros = np.zeros(5, dtype=np.int32)
    yield "groups", 2, 128, [case.given(key), case.given(x), case.wanted(y, "i32"), case.wanted(sums, "i32", start=zeros)]

    n = 5
    x = random.integers(-9, 10, (n, 256)).astype(np.float32)
    yield "barriers", 1, 128, [case.given(x), case.wanted(x.sum(axis=0)[:127:-1], "f32"), case.i32(n)]
    n = 7
    x = random.integers(-9, 10, (n, 128)).astype(np.int32)
    want = (x * np.arange(1, n + 1)[:, None]).sum(axis=0)[::-1]
    yield "stages", 1, 128, [case.given(x), case.wanted(want, "i32"), case.i32(n)]

    i = 31 - np.arange(32)
    k = i + (i & 3)
    room = case.given(np.zeros(32 * 32, dtype=np.uint8))
    yield "records", 1, 32, [room, case.wanted(k + 2 * k + 3 + k // 2 + 7, "i32")]


def hopper(random):
    n = 5
    x = random.integers(-9, 10, (n, 256)).astype(np.float32)
    start = np.zeros((2, 256), dtype=np.float32)
    start[1] = 3
    want = np.stack([x.sum(axis=0), x.sum(axis=0) + 3])
    yield "bulk", 1, 256, [case.given(x), case.wanted(want, "f32", start=start), case.i32(n)]
    x = random.integers(-9, 10, (2, 128)).astype(np.int32)
    want = np.stack([x[block // 4] * (block % 4 + 1) for block in range(8)])
    yield "multicast", 8, 128, [case.given(x), case.wanted(want, "i32")]
    x = random.integers(-9, 10, (4, 64)).astype(np.int32)
    yield "across", 4, 64, [case.given(x), case.wanted(x[[1, 0, 3, 2], ::-1] + 1000, "i32")]
    m, n, k = 128, 64, 48
    a, b = (random.integers(-3, 4, shape).astype(np.float16) for shape in [(m, k), (k, n)])
    want = a.astype(np.float64) @ b.astype(np.float64) + 1
    sizes = [case.i32(size) for size in (m, n, k)]
    yield "fragments", 2, 128, [case.given(a), case.given(b), case.wanted(want, "f16"), *sizes]
    x, y = (random.integers(0, 2**62, (32, 2)) for _ in range(2))
    want = np.where(np.arange(32)[:, None] % 2 == 0, np.stack([y[:, 0], y[:, 1] ^ x[:, 1]], axis=-1), x + [1, 2])
    halves = case.wanted(want.view(np.int32), "i32", start=y)
    yield "wide", 1, 32, [case.given(x), halves]


def picked(values):
    """What `chosen` computes, in 32-bit integers that wrap."""
    weights = [3, -1, 4, 1]
    out = []
    for i, x in enumerate(int(value) for value in values):
        value = [2 * x, x * x, -x][i % 3]
        kind = x % 7
        if kind == 0:
            value += x.bit_count()
        elif kind == 1:
            value ^= int(f"{x:032b}"[::-1], 2)
        elif kind == 2:
            value = (32 - x.bit_length()) * weights[i % 4]
        elif kind == 3:
            value = abs(value) // 3 * (1 if value >= 0 else -1)
        elif kind == 4:
            value = (x & -x).bit_length() + 2 * i
        elif kind == 5:
            value = int(x**0.5)
        else:
            value = x * x % 1000003
        out.append((value + 2**31) % 2**32 - 2**31)
    return np.array(out)
