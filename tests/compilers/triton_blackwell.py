"""The same kernels for Blackwell, whose products are tcgen05's, and block-scaled ones."""

import numpy as np
import triton
import triton.language as tl

import case
from triton_kernels import NO_FENCE, attention_case, compiled, matmul, matmul_maps, matmul_roles


@triton.jit
def matmul_scaled(a, sa, b, sb, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PA: tl.constexpr, PB: tl.constexpr, A: tl.constexpr, B: tl.constexpr, VEC: tl.constexpr):
    """With one scale for `VEC` elements; of A `PA` elements share a byte, of B `PB`."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        at_a = start // PA + tl.arange(0, BK // PA)
        at_b = start // PB + tl.arange(0, BK // PB)
        blocks = start // VEC + tl.arange(0, BK // VEC)
        x = tl.load(a + rows[:, None] * (k // PA) + at_a[None, :])
        y = tl.load(b + cols[None, :] * (k // PB) + at_b[:, None])
        xs = tl.load(sa + rows[:, None] * (k // VEC) + blocks[None, :])
        ys = tl.load(sb + cols[:, None] * (k // VEC) + blocks[None, :])
        sums = tl.dot_scaled(x, xs, A, y, ys, B, sums)
    tl.store(c + rows[:, None] * n + cols[None, :], sums)


@triton.jit
def matmul_blocks(a, sa, b, sb, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """With scales in blocks of 512 bytes, which are copied to tensor memory as they are."""
    row, col = tl.program_id(0), tl.program_id(1)
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for start in tl.range(0, k, BK, num_stages=2):
        x = a.load([row * BM, start])
        y = b.load([col * BN, start])
        xs = sa.load([0, row * (BM // 128), start // 128, 0, 0]).reshape(BM // 128, BK // 128, 32, 4, 4)
        ys = sb.load([0, col * (BN // 128), start // 128, 0, 0]).reshape(BN // 128, BK // 128, 32, 4, 4)
        xs = xs.trans(0, 3, 2, 1, 4).reshape(BM, BK // 32)
        ys = ys.trans(0, 3, 2, 1, 4).reshape(BN, BK // 32)
        sums = tl.dot_scaled(x, xs, "e4m3", y.T, ys, "e4m3", sums)
    rows = row * BM + tl.arange(0, BM)
    cols = col * BN + tl.arange(0, BN)
    tl.store(c + rows[:, None] * n + cols[None, :], sums)


@triton.jit
def gather_rows(a, c, rows, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Rows that a list names, through maps, to the rows that lie three further."""
    which = tl.load(rows + tl.program_id(0) * ROWS + tl.arange(0, ROWS))
    col = tl.program_id(1) * COLS
    c.scatter(a.gather(which, col), which + 3, col)


# Triton 3.6 writes no `tcgen05.fence` at all, where the ISA asks for them (9.7.16.6.3); it gives
# `tcgen05.commit` a shared address where the ISA wants a generic one; and a proxy fence is missing
# as on Hopper, also between the address that `tcgen05.alloc` writes and what TMA writes there later.
FAULTS = ["but no tcgen05.fence", "without a state space it must be generic", NO_FENCE]


def cases(folder):
    """Compiles everything; yields the cases."""
    random = np.random.default_rng(2)

    def integers(shape, dtype):
        return case.narrow(random.integers(-4, 5, shape).astype(np.float32), dtype)

    def normal(shape, dtype):
        return case.narrow(random.standard_normal(shape, dtype=np.float32), dtype)

    kinds = [("integers", integers), ("normal", normal)]
    for name, dtype, to, tile, options in [
        ("blackwell_bf16", "bf16", "bf16", (128, 64, 64), {"num_stages": 3}),
        ("blackwell_f16", "f16", "f32", (64, 32, 64), {"num_stages": 2}),
        ("blackwell_f32", "f32", "f32", (128, 32, 32), {"num_stages": 2, "num_warps": 8}),
    ]:
        m, n, k = 200, 144, 208
        bm, bn, bk = tile
        scalar = case.TRITON[dtype]
        launch = compiled(
            folder, name, matmul,
            {"a": f"*{scalar}", "b": f"*{scalar}", "c": f"*{case.TRITON[to]}", "m": "i32", "n": "i32", "k": "i32"},
            {"BM": bm, "BN": bn, "BK": bk}, 100, **options,
        )
        for kind, values in kinds:
            a, b = values((m, k), dtype), values((k, n), dtype)
            want = case.wide(a, dtype) @ case.wide(b, dtype)
            share = 0.0 if kind == "integers" else {"f32": 2.0**-9}.get(dtype, 1e-6)
            bound = share * (np.abs(case.wide(a, dtype)) @ np.abs(case.wide(b, dtype)))
            yield case.Case(
                f"{name}_{kind}", launch, [-(-m // bm), -(-n // bn), 1],
                [case.given(a), case.given(b), case.wanted(want, to, bound), case.i32(m), case.i32(n), case.i32(k)],
                FAULTS,
            )

    # Pairs of blocks: each has half of A and half of B.
    for name, dtype, tile in [
        ("blackwell_pairs", "bf16", (256, 64, 64)),
        ("blackwell_pairs_128", "bf16", (128, 64, 64)),
        ("blackwell_pairs_e4m3", "e4m3", (256, 128, 64)),
    ]:
        m, n, k = 300, 144, 208
        bm, bn, bk = tile
        scalar = case.TRITON[dtype]
        launch = compiled(
            folder, name, matmul,
            {"a": f"*{scalar}", "b": f"*{scalar}", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"},
            {"BM": bm, "BN": bn, "BK": bk}, 100, num_stages=2, num_ctas=2,
        )
        a, b = integers((m, k), dtype), integers((k, n), dtype)
        want = case.wide(a, dtype) @ case.wide(b, dtype)
        yield case.Case(
            name, launch, [2 * -(-m // bm), -(-n // bn), 1],
            [case.given(a), case.given(b), case.wanted(want, "f32"), case.i32(m), case.i32(n), case.i32(k)],
            FAULTS,
        )

    m, n, k = 264, 144, 272
    bm, bn, bk = 128, 64, 128
    launch = compiled(
        folder, "blackwell_maps_e4m3", matmul_maps,
        {"a": f"tensordesc<fp8e4nv[{bm},{bk}]>", "b": f"tensordesc<fp8e4nv[{bn},{bk}]>", "c": f"tensordesc<bf16[{bm},{bn}]>", "k": "i32"},
        {"BM": bm, "BN": bn, "BK": bk}, 100, num_stages=3,
    )
    layouts = [(kind, meta["block_size"], 16 << meta["swizzle"]) for kind, meta in zip(["u8", "u8", "bf16"], launch["maps"])]
    for kind, values in kinds:
        a, b = values((m, k), "e4m3"), values((n, k), "e4m3")
        want = case.wide(a, "e4m3") @ case.wide(b, "e4m3").T
        share = 0.0 if kind == "integers" else 1e-6
        bound = share * (np.abs(case.wide(a, "e4m3")) @ np.abs(case.wide(b, "e4m3")).T)
        arguments = [
            *case.mapped(case.given(a), *layouts[0]),
            *case.mapped(case.given(b), *layouts[1]),
            *case.mapped(case.wanted(want, "bf16", bound), *layouts[2]),
            case.i32(k),
        ]
        yield case.Case(f"blackwell_maps_e4m3_{kind}", launch, [-(-m // bm), -(-n // bn), 1], arguments, FAULTS)

    # Warps that load and a warp that multiplies.
    m, n, k = 328, 144, 336
    bm, bn, bk = 128, 64, 64
    launch = compiled(
        folder, "blackwell_roles", matmul_roles,
        {"a": f"tensordesc<bf16[{bm},{bk}]>", "b": f"tensordesc<bf16[{bn},{bk}]>", "c": "*fp32",
         "m": "i32", "n": "i32", "k": "i32", "first": "i32"},
        {"BM": bm, "BN": bn, "BK": bk}, 100, num_stages=3,
    )
    layouts = [("bf16", meta["block_size"], 16 << meta["swizzle"]) for meta in launch["maps"]]
    a, b = integers((m, k), "bf16"), integers((n, k), "bf16")
    c = case.wanted(case.wide(a, "bf16") @ case.wide(b, "bf16").T, "f32")
    yield case.Case(
        "blackwell_roles", launch, [-(-m // bm), -(-n // bn), 1],
        [*case.mapped(case.given(a), *layouts[0]), *case.mapped(case.given(b), *layouts[1]), c,
         case.i32(m), case.i32(n), case.i32(k), case.i32(0)],
        # Its roles are single warps, and each sets its registers on its own; and it invalidates the
        # mbarriers of the ring before the last product is known to be complete, which arrives there.
        [*FAULTS, "all warps of a warpgroup execute the same setmaxnreg", "a commit arrives at an mbarrier"],
    )

    for name, dtypes, vector, (m, n, k), tile in [
        ("blackwell_mxfp8", ("e4m3", "e4m3"), 32, (256, 192, 256), (128, 64, 128)),
        ("blackwell_mxfp8_wide", ("e4m3", "e4m3"), 32, (128, 256, 128), (128, 256, 128)),
        ("blackwell_mxfp8_fp4", ("e4m3", "e2m1"), 32, (256, 192, 256), (128, 64, 128)),
        ("blackwell_mxfp4", ("e2m1", "e2m1"), 32, (256, 192, 256), (128, 64, 128)),
        ("blackwell_nvfp4", ("e2m1", "e2m1"), 16, (256, 192, 256), (128, 64, 128)),
    ]:
        bm, bn, bk = tile
        packs = [2 if dtype == "e2m1" else 1 for dtype in dtypes]
        pointers = ["*u8" if pack == 2 else "*fp8e4nv" for pack in packs]
        scales = "*u8" if vector == 32 else "*fp8e4nv"
        launch = compiled(
            folder, name, matmul_scaled,
            {"a": pointers[0], "sa": scales, "b": pointers[1], "sb": scales, "c": "*fp32", "n": "i32", "k": "i32"},
            {"BM": bm, "BN": bn, "BK": bk, "PA": packs[0], "PB": packs[1], "A": dtypes[0], "B": dtypes[1], "VEC": vector},
            100, num_stages=2,
        )
        codes = [normal((rows, k), dtype) for rows, dtype in zip((m, n), dtypes)]
        if vector == 32:
            # Powers of two around 1.
            sa, sb = (random.integers(120, 135, (rows, k // vector)).astype(np.uint8) for rows in (m, n))
            values = [2.0 ** (scale.astype(np.float64) - 127) for scale in (sa, sb)]
        else:
            sa, sb = (case.narrow(random.uniform(0.1, 8, (rows, k // vector)), "e4m3") for rows in (m, n))
            values = [case.wide(scale, "e4m3") for scale in (sa, sb)]
        wide = [
            case.wide(code, dtype) * np.repeat(scale, vector, axis=1)
            for code, dtype, scale in zip(codes, dtypes, values)
        ]
        bound = 1e-6 * (np.abs(wide[0]) @ np.abs(wide[1]).T)
        stored = [case.packed(code) if pack == 2 else code for code, pack in zip(codes, packs)]
        yield case.Case(
            name, launch, [m // bm, n // bn, 1],
            [case.given(stored[0]), case.given(sa), case.given(stored[1]), case.given(sb),
             case.wanted(wide[0] @ wide[1].T, "f32", bound), case.i32(n), case.i32(k)],
            FAULTS,
        )

    m, n, k, tile = 256, 256, 384, 128
    block = "tensordesc<u8[1,1,1,2,256]>"
    launch = compiled(
        folder, "blackwell_blocks", matmul_blocks,
        {"a": f"tensordesc<fp8e4nv[{tile},{tile}]>", "sa": block, "b": f"tensordesc<fp8e4nv[{tile},{tile}]>", "sb": block,
         "c": "*fp32", "n": "i32", "k": "i32"},
        {"BM": tile, "BN": tile, "BK": tile}, 100,
    )
    layouts = [("u8", meta["block_size"], 16 << meta["swizzle"]) for meta in launch["maps"]]
    arguments, wide = [], []
    for number, rows in enumerate([m, n]):
        codes = normal((rows, k), "e4m3")
        scales = random.integers(120, 135, (rows, k // 32)).astype(np.uint8)
        wide.append(case.wide(codes, "e4m3") * np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, axis=1))
        # Of 128 rows by 4 scales, 32 rows of four lie together.
        blocks = scales.reshape(rows // 128, 4, 32, k // 128, 4).transpose(0, 3, 2, 1, 4)
        blocks = blocks.reshape(1, rows // 128, k // 128, 2, 256)
        arguments += case.mapped(case.given(codes), *layouts[2 * number])
        arguments += case.mapped(case.given(blocks), *layouts[2 * number + 1])
    bound = 1e-6 * (np.abs(wide[0]) @ np.abs(wide[1]).T)
    yield case.Case(
        "blackwell_blocks", launch, [m // tile, n // tile, 1],
        [*arguments, case.wanted(wide[0] @ wide[1].T, "f32", bound), case.i32(n), case.i32(k)],
        FAULTS,
    )

    rows, columns, moved = 100, 160, 64
    launch = compiled(
        folder, "blackwell_gather", gather_rows,
        {"a": "tensordesc<bf16[1,64]>", "c": "tensordesc<bf16[1,64]>", "rows": "*i32"},
        {"ROWS": 32, "COLS": 64}, 100,
    )
    layouts = [("bf16", meta["block_size"], 16 << meta["swizzle"]) for meta in launch["maps"]]
    a = normal((rows, columns), "bf16")
    # Rows outside the tensor are zeros when they are gathered, and nowhere when they are scattered.
    which = random.permutation(rows + 8)[:moved].astype(np.int32)
    start, want = np.full((rows, columns), 0x4040, np.uint16), np.full((rows, columns), 3.0)
    for row in which[which + 3 < rows]:
        want[row + 3] = case.wide(a[row], "bf16")
    yield case.Case(
        "blackwell_gather", launch, [moved // 32, -(-columns // 64), 1],
        [*case.mapped(case.given(a), *layouts[0]),
         *case.mapped(case.wanted(want, "bf16", start=start), *layouts[1]), case.given(which)],
        [NO_FENCE],
    )

    # The powers are stored to tensor memory, where the second product reads them.
    yield attention_case(folder, "blackwell_attention", normal, (2, 200, 64), (128, 64), FAULTS, 100, num_stages=2)
