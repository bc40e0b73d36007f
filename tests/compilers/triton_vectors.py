"""More kernels in Triton: tensor maps made on the device, integers, random numbers, scans, atomics."""

import numpy as np
import triton
import triton.language as tl

import case
from triton_kernels import compiled


@triton.jit
def described(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A product through tensor maps that the kernel makes itself."""
    left = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    right = tl.make_tensor_descriptor(b, [n, k], [k, 1], [BN, BK])
    out = tl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN])
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        sums = tl.dot(left.load([row, start]), right.load([col, start]).T, sums)
    out.store([row, col], sums.to(tl.float16))


@triton.jit
def bytes_product(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), dtype=tl.int32)
    for start in range(0, k, BK):
        at = start + tl.arange(0, BK)
        x = tl.load(a + rows[:, None] * k + at[None, :], mask=(rows[:, None] < m) & (at[None, :] < k), other=0)
        y = tl.load(b + at[:, None] * n + cols[None, :], mask=(at[:, None] < k) & (cols[None, :] < n), other=0)
        sums += tl.dot(x, y, out_dtype=tl.int32)
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(c + rows[:, None] * n + cols[None, :], sums, mask=inside)


@triton.jit
def dropout(x, y, n, share, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n)
    kept = tl.rand(seed, at) > share
    tl.store(y + at, tl.where(kept, values / (1 - share), 0.0), mask=at < n)


@triton.jit
def follow(a, b, c, d):
    """x -> a x + b, then x -> c x + d."""
    return a * c, b * c + d


@triton.jit
def axes(x, by_column, by_row, decayed, counts, gathered, highest, R: tl.constexpr, C: tl.constexpr):
    """Of one small block, so that several threads hold each element of a result."""
    rows, cols = tl.arange(0, R), tl.arange(0, C)
    values = tl.load(x + rows[:, None] * C + cols[None, :])
    tl.store(by_column + cols, tl.sum(values, axis=0))
    tl.store(by_row + rows, tl.max(values, axis=1))
    halves = tl.full((R, C), 0.5, tl.float32)
    _, sums = tl.associative_scan((halves, values), 1, follow)
    tl.store(decayed + rows[:, None] * C + cols[None, :], sums)
    tl.store(counts + tl.arange(0, 16), tl.histogram(tl.reshape(values.to(tl.int32) & 15, (R * C,)), 16))
    places = (cols[None, :] * 3 + rows[:, None]) % C
    tl.store(gathered + rows[:, None] * C + cols[None, :], tl.gather(values, places, 1))
    tl.store(highest + rows[:, None] * 8 + tl.arange(0, 8)[None, :], tl.topk(values, 8))


@triton.jit
def updates(x, sums, halves, extremes, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n)
    whole = values.to(tl.int32)
    tl.atomic_add(sums + at % 7, values, mask=at < n)
    tl.atomic_add(halves + at % 8, values.to(tl.float16), mask=at < n)
    tl.atomic_max(extremes + at % 4, whole, mask=at < n)
    tl.atomic_min(extremes + 4 + at % 4, whole, mask=at < n)
    tl.atomic_xor(extremes + 8 + at % 4, whole, mask=at < n)
    tl.atomic_add(extremes + 12, 1)
    tl.atomic_cas(extremes + 13, 0, 5)


def philox(seed, offsets):
    """The first word of Philox 4x32 with 10 rounds (Salmon et al., 2011), for each counter."""
    c0, c1, c2, c3 = offsets.astype(np.uint64), *(np.zeros(len(offsets), dtype=np.uint64) for _ in range(3))
    low, (k0, k1) = np.uint64(0xFFFFFFFF), (seed & 0xFFFFFFFF, seed >> 32)
    for _ in range(10):
        x, y = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = (y >> np.uint64(32)) ^ c1 ^ np.uint64(k0), (x >> np.uint64(32)) ^ c3 ^ np.uint64(k1)
        c1, c3 = y & low, x & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0.astype(np.uint32)


def cases(folder):
    """Compiles everything; yields the cases."""
    random = np.random.default_rng(3)

    def zeros(shape, dtype):
        return np.zeros(shape, dtype=dtype)

    sizes = {"m": "i32", "n": "i32", "k": "i32"}
    tiles = {"BM": 64, "BN": 64, "BK": 64}
    m, n, k = 100, 80, 160
    launch = compiled(
        folder, "described", described, {"a": "*fp16", "b": "*fp16", "c": "*fp16", **sizes}, tiles, sixteens=["n", "k"]
    )
    a, b = (random.integers(-3, 4, shape).astype(np.float16) for shape in [(m, k), (n, k)])
    want = case.wanted(a.astype(np.float64) @ b.T.astype(np.float64), "f16")
    # Room for the maps of each block.
    room = case.given(zeros(4 * 1024, np.uint8))
    arguments = [case.given(a), case.given(b), want, *(case.i32(size) for size in (m, n, k)), room]
    yield case.Case("described", {**launch, "scratch": 1}, [2, 2, 1], arguments)

    m, n, k = 100, 70, 150
    a, b = (random.integers(-128, 128, shape).astype(np.int8) for shape in [(m, k), (k, n)])
    for arch in [80, 90]:
        name = f"bytes_sm_{arch}"
        launch = compiled(folder, name, bytes_product, {"a": "*i8", "b": "*i8", "c": "*i32", **sizes}, tiles, arch)
        want = case.wanted(a.astype(np.int32) @ b.astype(np.int32), "i32")
        arguments = [case.given(a), case.given(b), want, *(case.i32(size) for size in (m, n, k))]
        yield case.Case(name, launch, [2, 2, 1], arguments)

    n, share, seed = 3000, 0.3, 1234
    types = {"x": "*fp32", "y": "*fp32", "n": "i32", "share": "fp32", "seed": "i32"}
    launch = compiled(folder, "dropout", dropout, types, {"BLOCK": 1024})
    x = random.standard_normal(n, dtype=np.float32)
    word = philox(seed, np.arange(n)).view(np.int32).astype(np.int64)
    uniform = (np.where(word < 0, -word - 1, word) * 4.6566127342e-10).astype(np.float32)
    want = np.where(uniform > np.float32(share), x / np.float64(np.float32(1) - np.float32(share)), 0)
    arguments = [case.given(x), case.wanted(want, "f32", 1e-6), case.i32(n), case.f32(share), case.i32(seed)]
    yield case.Case("dropout", launch, [3, 1, 1], arguments)

    rows, columns = 16, 64
    x = random.permuted(np.arange(-512, 512, dtype=np.float32)).reshape(rows, columns)
    decayed = zeros((rows, columns), np.float64)
    for column in range(columns):
        decayed[:, column] = x[:, column] + (0.5 * decayed[:, column - 1] if column > 0 else 0)
    places = (np.arange(columns)[None, :] * 3 + np.arange(rows)[:, None]) % columns
    types = {"x": "*fp32", "by_column": "*fp32", "by_row": "*fp32", "decayed": "*fp32", "counts": "*i32"}
    types |= {"gathered": "*fp32", "highest": "*fp32"}
    for warps in [1, 8]:
        name = f"axes_{warps}"
        launch = compiled(folder, name, axes, types, {"R": rows, "C": columns}, num_warps=warps)
        arguments = [
            case.given(x),
            case.wanted(x.sum(axis=0), "f32"),
            case.wanted(x.max(axis=1), "f32"),
            case.wanted(decayed, "f32", 1e-3),
            case.wanted(np.bincount((x.astype(np.int32) & 15).ravel(), minlength=16), "i32"),
            case.wanted(np.take_along_axis(x, places, 1), "f32"),
            case.wanted(-np.sort(-x, axis=1)[:, :8], "f32"),
        ]
        yield case.Case(name, launch, [1, 1, 1], arguments)

    n = 700
    types = {"x": "*fp32", "sums": "*fp32", "halves": "*fp16", "extremes": "*i32", "n": "i32"}
    launch = compiled(folder, "updates", updates, types, {"BLOCK": 256})
    x = random.integers(-9, 10, n).astype(np.float32)
    start = zeros(14, np.int32)
    whole, quarter = x.astype(np.int32), [np.arange(n) % 4 == part for part in range(4)]
    parts = [[of(whole[part]) for part in quarter] for of in (np.max, np.min, np.bitwise_xor.reduce)]
    start[:8] = [-99] * 4 + [99] * 4
    arguments = [
        case.given(x),
        case.wanted(np.bincount(np.arange(n) % 7, weights=x), "f32", start=zeros(7, np.float32)),
        case.wanted(np.bincount(np.arange(n) % 8, weights=x), "f16", start=zeros(8, np.float16)),
        case.wanted(np.concatenate([*parts, [3, 5]]), "i32", start=start),
        case.i32(n),
    ]
    yield case.Case("updates", launch, [3, 1, 1], arguments)
