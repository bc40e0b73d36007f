"""Kernels in Triton, and the cases that run them."""

import re

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import case


@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        at = start + inner
        x = tl.load(a + rows[:, None] * k + at[None, :], mask=(rows[:, None] < m) & (at[None, :] < k), other=0.0)
        y = tl.load(b + at[:, None] * n + cols[None, :], mask=(at[:, None] < k) & (cols[None, :] < n), other=0.0)
        sums = tl.dot(x, y, sums)
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(c + rows[:, None] * n + cols[None, :], sums.to(c.dtype.element_ty), mask=inside)


@triton.jit
def matmul_split(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    at = tl.program_id(2) * BK + tl.arange(0, BK)
    x = tl.load(a + rows[:, None] * k + at[None, :], mask=(rows[:, None] < m) & (at[None, :] < k), other=0.0)
    y = tl.load(b + at[:, None] * n + cols[None, :], mask=(at[:, None] < k) & (cols[None, :] < n), other=0.0)
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    tl.atomic_add(c + rows[:, None] * n + cols[None, :], tl.dot(x, y), mask=inside)


@triton.jit
def matmul_maps(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Through tensor maps; B's rows are columns of the product."""
    row = tl.program_id(0) * BM
    col = tl.program_id(1) * BN
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        x = a.load([row, start])
        y = b.load([col, start])
        sums = tl.dot(x, y.T, sums)
    c.store([row, col], sums.to(c.dtype))


@triton.jit
def matmul_roles(a, b, c, m, n, k, first, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The same with a warp group that loads and others that multiply."""
    row = tl.program_id(0) * BM
    col = tl.program_id(1) * BN
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for start in tl.range(0, k, BK, warp_specialize=True):
        x = a.load([row, start])
        y = b.load([col, start])
        sums = tl.dot(x, y.T, sums)
    # Triton 3.6 halves the tile between two groups and moves `row` itself for the second: used here
    # as it is, it would count twice.
    rows, cols = row + first + tl.arange(0, BM), col + tl.arange(0, BN)
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(c + rows[:, None] * n + cols[None, :], sums.to(c.dtype.element_ty), mask=inside)


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * columns + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@triton.jit
def layer_norm(x, weight, bias, y, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(at < columns, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + epsilon)
    w = tl.load(weight + at, mask=at < columns)
    b = tl.load(bias + at, mask=at < columns)
    tl.store(y + row * columns + at, (centred * scale * w + b).to(y.dtype.element_ty), mask=at < columns)


@triton.jit
def attention(q, k, v, o, length, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """Causal, with running maxima and sums."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    depth = tl.arange(0, D)
    head = tl.program_id(1) * length * D
    query = tl.load(q + head + rows[:, None] * D + depth[None, :], mask=rows[:, None] < length, other=0.0)
    top = tl.full((BM,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BM,), dtype=tl.float32)
    sums = tl.zeros((BM, D), dtype=tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BM, BN):
        at = start + tl.arange(0, BN)
        keys = tl.load(k + head + at[None, :] * D + depth[:, None], mask=at[None, :] < length, other=0.0)
        values = tl.load(v + head + at[:, None] * D + depth[None, :], mask=at[:, None] < length, other=0.0)
        scores = tl.dot(query, keys) * scale
        scores = tl.where((at[None, :] <= rows[:, None]) & (at[None, :] < length), scores, -float("inf"))
        highest = tl.maximum(top, tl.max(scores, axis=1))
        powers = tl.exp2(scores - highest[:, None])
        shrink = tl.exp2(top - highest)
        total = total * shrink + tl.sum(powers, axis=1)
        sums = tl.dot(powers.to(values.dtype), values, sums * shrink[:, None])
        top = highest
    result = (sums / total[:, None]).to(o.dtype.element_ty)
    tl.store(o + head + rows[:, None] * D + depth[None, :], result, mask=rows[:, None] < length)


@triton.jit
def order(x, sorted_rows, running, best, columns, BLOCK: tl.constexpr):
    """Each row sorted, its running sums, and where its greatest value is."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at)
    tl.store(sorted_rows + row * columns + at, tl.sort(values))
    tl.store(running + row * columns + at, tl.cumsum(values, axis=0))
    tl.store(best + row, tl.argmax(values, axis=0))


# Triton 3.6 has wgmma read what `cp.async` wrote with no proxy fence between; later releases don't.
NO_FENCE = "with no fence.proxy.async between"


def compiled(folder, name, kernel, signature, constants, arch=90, sixteens=(), **options):
    """Compiles a kernel and writes its PTX; what a case needs to launch it.

    `sixteens`: integers that are multiples of 16, as pointers always are.
    """
    types = dict(signature)
    types.update({constant: "constexpr" for constant in constants})
    # Argument order is the kernel's own.
    types = {argument: types[argument] for argument in kernel.arg_names}
    positions = {(kernel.arg_names.index(constant),): value for constant, value in constants.items()}
    aligned = {
        (position,): [["tt.divisibility", 16]]
        for position, argument in enumerate(kernel.arg_names)
        if types[argument].startswith("*") or argument in sixteens
    }
    source = ASTSource(fn=kernel, signature=types, constexprs=positions, attrs=aligned)
    result = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    path = f"{name}.ptx"
    (folder / path).write_text(result.asm["ptx"])
    meta = result.metadata
    # The entry says how many threads it takes: warp specialisation adds some.
    threads = re.search(r"^\.reqntid (\d+)", result.asm["ptx"], re.MULTILINE)
    return {
        "ptx": path,
        "entry": meta.name,
        "block": [int(threads[1]), 1, 1],
        "shared": meta.shared,
        "scratch": 2,
        "maps": getattr(meta, "tensordesc_meta", None),
    }


def attention_case(folder, name, normal, sizes, tile, allowed, arch=90, **options):
    """Attention over `sizes` of heads, length and depth."""
    heads, length, depth = sizes
    launch = compiled(
        folder, name, attention,
        {"q": "*bf16", "k": "*bf16", "v": "*bf16", "o": "*bf16", "length": "i32", "scale": "fp32"},
        {"BM": tile[0], "BN": tile[1], "D": depth}, arch, **options,
    )
    q, k, v = (normal(sizes, "bf16") for _ in range(3))
    scores = case.wide(q, "bf16") @ case.wide(k, "bf16").transpose(0, 2, 1) / np.sqrt(depth)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(axis=2, keepdims=True))
    powers /= powers.sum(axis=2, keepdims=True)
    want = powers @ case.wide(v, "bf16")
    # The powers are rounded to bf16 before the second product.
    bound = 2.0**-8 * (powers @ np.abs(case.wide(v, "bf16"))) + 1e-5
    return case.Case(
        name, launch, [-(-length // tile[0]), heads, 1],
        [case.given(q), case.given(k), case.given(v), case.wanted(want, "bf16", bound),
         case.i32(length), case.f32(np.log2(np.e) / np.sqrt(depth))],
        allowed,
    )


def cases(folder):
    """Compiles everything; yields the cases."""
    random = np.random.default_rng(1)

    def zeros(shape, dtype=np.float32):
        return np.zeros(shape, dtype=dtype)

    def integers(shape, dtype):
        return case.narrow(random.integers(-4, 5, shape).astype(np.float32), dtype)

    def normal(shape, dtype):
        return case.narrow(random.standard_normal(shape, dtype=np.float32), dtype)

    def product(x, y, dtype):
        return case.wide(x, dtype) @ case.wide(y, dtype)

    for name, dtype, to, arch, tile, options in [
        ("matmul_f16", "f16", "f32", 90, (64, 64, 32), {"num_stages": 3}),
        ("matmul_bf16", "bf16", "bf16", 90, (128, 64, 64), {"num_stages": 3, "num_warps": 8}),
        ("matmul_f32", "f32", "f32", 90, (64, 64, 32), {"num_stages": 2}),
        ("matmul_mma", "f16", "f32", 80, (64, 32, 32), {"num_stages": 3, "sixteens": ["n", "k"]}),
        ("matmul_async", "bf16", "f32", 90, (64, 64, 64), {"num_stages": 4, "sixteens": ["n", "k"]}),
        ("matmul_e4m3", "e4m3", "f32", 90, (64, 64, 64), {"num_stages": 2}),
        ("matmul_narrow", "bf16", "f32", 90, (16, 32, 32), {"num_warps": 2}),
    ]:
        m, n, k = 200, 144, 208
        bm, bn, bk = tile
        scalar = case.TRITON[dtype]
        launch = compiled(
            folder, name, matmul,
            {"a": f"*{scalar}", "b": f"*{scalar}", "c": f"*{case.TRITON[to]}", "m": "i32", "n": "i32", "k": "i32"},
            {"BM": bm, "BN": bn, "BK": bk}, arch, **options,
        )
        for kind, values in [("integers", integers), ("normal", normal)]:
            a, b = values((m, k), dtype), values((k, n), dtype)
            want = product(a, b, dtype)
            # Rounding of the sums, or of f32 inputs to tf32.
            share = 0.0 if kind == "integers" else {"f32": 2.0**-9, "e4m3": 2.0**-12}.get(dtype, 1e-6)
            bound = share * (np.abs(case.wide(a, dtype)) @ np.abs(case.wide(b, dtype)))
            yield case.Case(
                f"{name}_{kind}", launch, [-(-m // bm), -(-n // bn), 1],
                [case.given(a), case.given(b), case.wanted(want, to, bound), case.i32(m), case.i32(n), case.i32(k)],
                [NO_FENCE] if name in ["matmul_f32", "matmul_async"] else [],
            )

    m, n, k, bk = 100, 72, 256, 64
    launch = compiled(
        folder, "matmul_split", matmul_split,
        {"a": "*bf16", "b": "*bf16", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"},
        {"BM": 64, "BN": 32, "BK": bk},
    )
    a, b = integers((m, k), "bf16"), integers((k, n), "bf16")
    yield case.Case(
        "matmul_split", launch, [2, 3, k // bk],
        [case.given(a), case.given(b), case.wanted(product(a, b, "bf16"), "f32", start=zeros((m, n))),
         case.i32(m), case.i32(n), case.i32(k)],
    )

    for name, dtype, to, tile, options in [
        ("maps_bf16", "bf16", "bf16", (128, 128, 64), {"num_stages": 3, "num_warps": 8}),
        ("maps_f16", "f16", "f32", (64, 64, 32), {"num_stages": 4}),
        ("maps_e4m3", "e4m3", "bf16", (128, 64, 128), {"num_stages": 2}),
        ("maps_roles", "bf16", "f32", (128, 64, 64), {"num_stages": 2}),
    ]:
        m, n, k = 328, 208, 336
        bm, bn, bk = tile
        roles = name == "maps_roles"
        signature = {"a": f"tensordesc<{case.TRITON[dtype]}[{bm},{bk}]>", "b": f"tensordesc<{case.TRITON[dtype]}[{bn},{bk}]>"}
        if roles:
            signature |= {"c": f"*{case.TRITON[to]}", "m": "i32", "n": "i32", "k": "i32", "first": "i32"}
        else:
            signature |= {"c": f"tensordesc<{case.TRITON[to]}[{bm},{bn}]>", "k": "i32"}
        constants = {"BM": bm, "BN": bn, "BK": bk}
        launch = compiled(folder, name, matmul_roles if roles else matmul_maps, signature, constants, **options)
        # Of each map the element type, the box, and the swizzle in bytes, where 16 is none.
        kinds = ["u8" if kind == "e4m3" else kind for kind in [dtype, dtype, to]]
        layouts = [(kind, meta["block_size"], 16 << meta["swizzle"]) for kind, meta in zip(kinds, launch["maps"])]
        if roles:
            # Each of two groups multiplies half the rows and has them loaded on their own; Triton's
            # metadata still says the whole tile.
            layouts[0] = (kinds[0], [bm // 2, bk], layouts[0][2])
        for kind, values in [("integers", integers), ("normal", normal)]:
            a, b = values((m, k), dtype), values((n, k), dtype)
            share = 0.0 if kind == "integers" else {"e4m3": 2.0**-12}.get(dtype, 1e-6)
            bound = share * (np.abs(case.wide(a, dtype)) @ np.abs(case.wide(b, dtype)).T)
            c = case.wanted(product(a, b.T, dtype), to, bound)
            arguments = case.mapped(case.given(a), *layouts[0]) + case.mapped(case.given(b), *layouts[1])
            if roles:
                arguments += [c, case.i32(m), case.i32(n), case.i32(k), case.i32(0)]
            else:
                arguments += [*case.mapped(c, *layouts[2]), case.i32(k)]
            # Triton 3.6 gives two mbarriers one place here, and initialises it twice without the
            # `mbarrier.inval` between that the ISA asks for.
            allowed = ["is initialised already"]
            yield case.Case(f"{name}_{kind}", launch, [-(-m // bm), -(-n // bn), 1], arguments, allowed if roles else [])

    rows, columns = 37, 1000
    launch = compiled(
        folder, "softmax", softmax, {"x": "*fp32", "y": "*fp32", "columns": "i32"}, {"BLOCK": 1024}
    )
    x = normal((rows, columns), "f32") * 4
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    want = powers / powers.sum(axis=1, keepdims=True)
    # ex2.approx and the division by approximation: a few units of f32. The exponent is rounded too.
    bound = want * (1e-6 + 2.0**-23 * (x.max(axis=1, keepdims=True) - x))
    yield case.Case(
        "softmax", launch, [rows, 1, 1], [case.given(x), case.wanted(want, "f32", bound), case.i32(columns)]
    )

    launch = compiled(
        folder, "layer_norm", layer_norm,
        {"x": "*bf16", "weight": "*fp32", "bias": "*fp32", "y": "*bf16", "columns": "i32", "epsilon": "fp32"},
        {"BLOCK": 1024}, num_warps=8,
    )
    x, weight, bias = normal((rows, columns), "bf16"), normal((columns,), "f32"), normal((columns,), "f32")
    values = case.wide(x, "bf16")
    centred = values - values.mean(axis=1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    yield case.Case(
        "layer_norm", launch, [rows, 1, 1],
        [case.given(x), case.given(weight), case.given(bias), case.wanted(want, "bf16", 2e-5),
         case.i32(columns), case.f32(1e-5)],
    )

    yield attention_case(folder, "attention", normal, (3, 150, 64), (64, 32), [NO_FENCE])

    rows, columns = 5, 512
    launch = compiled(
        folder, "order", order,
        {"x": "*i32", "sorted_rows": "*i32", "running": "*i32", "best": "*i32", "columns": "i32"},
        {"BLOCK": columns},
    )
    x = random.permuted(np.tile(np.arange(columns, dtype=np.int32) * 7 - 1000, (rows, 1)), axis=1)
    yield case.Case(
        "order", launch, [rows, 1, 1],
        [case.given(x), case.wanted(np.sort(x, axis=1), "i32"), case.wanted(np.cumsum(x, axis=1), "i32"),
         case.wanted(np.argmax(x, axis=1), "i32"), case.i32(columns)],
    )
