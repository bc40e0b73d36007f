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


def missing():
    """Why they can't be compiled here; None if they can."""
    return None if shutil.which("g++") else "nvcc needs g++, which is not there"


def compiled(folder):
    """Unoptimised too: then calls, local arrays and unmerged branches stay."""
    packages = pathlib.Path(sys.prefix) / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    nvcc = packages / "nvidia/cu13/bin/nvcc"
    for name, options in [("cuda", []), ("cuda_debug", ["-G"])]:
        subprocess.run(
            [nvcc, "-ptx", "-arch=sm_90", *options, "-o", folder / f"{name}.ptx", HERE / "kernels.cu"], check=True
        )
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

    for file in compiled(folder):
        for name, grid, block, shared, arguments in [
            ("sum", 3, 256, 0, sums),
            ("histogram", 4, 96, 256, histogram),
            ("lines", 2, 64, 0, lines),
            ("chosen", 4, 128, 0, chosen),
            ("functions", 7, 64, 0, functions),
        ]:
            launch = {"ptx": f"{file}.ptx", "entry": name, "block": [block, 1, 1], "shared": shared}
            yield case.Case(f"{file}_{name}", launch, [grid, 1, 1], arguments)


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
