"""Cases: what a kernel is launched with, and what NumPy says comes out.

Number formats are stated here once more, in NumPy, so that they check the emulator's.
"""

import json

import numpy as np

TRITON = {"f16": "fp16", "bf16": "bf16", "f32": "fp32", "e4m3": "fp8e4nv", "i32": "i32"}
PLAIN = {"f16": np.float16, "f32": np.float32, "i32": np.int32, "u8": np.uint8, "f64": np.float64}
# Half a unit in the last place, as a share of the value.
ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-23, "f64": 2.0**-52, "i32": 0.0}


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def _e4m3_values():
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, codes & 7
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    return values[:127]  # 127 is NaN


def narrow(values, dtype):
    """To the format, rounded to nearest, ties to even."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if dtype == "bf16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    if dtype == "e4m3":
        table = _e4m3_values()
        size = np.minimum(np.abs(values.astype(np.float64)), table[-1])
        above = np.clip(np.searchsorted(table, size), 1, 126)
        below = above - 1
        low, high = size - table[below], table[above] - size
        nearest = np.where((low < high) | ((low == high) & (below % 2 == 0)), below, above)
        return (nearest | np.signbit(values) << 7).astype(np.uint8)
    if dtype == "e2m1":
        size = np.abs(values.astype(np.float64))
        nearest = np.abs(size[..., None] - E2M1).argmin(axis=-1).astype(np.uint8)
        return nearest | np.signbit(values).astype(np.uint8) << 3
    return values.astype(PLAIN[dtype])


def packed(values):
    """Two codes of 4 bits in a byte, the first in its low half."""
    return values[..., 0::2] | values[..., 1::2] << 4


def wide(values, dtype):
    """Back to f64, exactly."""
    if dtype == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "e4m3":
        return _e4m3_values()[values & 127] * np.where(values & 128, -1.0, 1.0)
    if dtype == "e2m1":
        return E2M1[values & 7] * np.where(values & 8, -1.0, 1.0)
    return values.astype(np.float64)


class Given:
    """A buffer that the kernel reads."""

    def __init__(self, values):
        self.values = np.ascontiguousarray(values)


class Wanted:
    """A buffer that it writes: each element within `bound` of NumPy's plus one rounding."""

    def __init__(self, values, dtype, bound, start):
        self.values = np.ascontiguousarray(values, dtype=np.float64)
        self.dtype = dtype
        self.bound = bound + ROUNDING[dtype] * np.abs(self.values)
        self.start = start


def given(values):
    return Given(values)


def wanted(values, dtype, bound=0.0, start=None):
    """`start`: what the buffer holds before the launch."""
    return Wanted(values, dtype, bound, start)


def i32(value):
    return {"kind": "i32", "value": value}


def f32(value):
    return {"kind": "f32", "bits": int(np.float32(value).view(np.uint32))}


def mapped(buffer, dtype, box, swizzle):
    """A tensor map over a buffer, and the sizes and strides that Triton adds."""
    shape = buffer.values.shape
    strides = [int(np.prod(shape[at + 1 :])) for at in range(len(shape))]
    return [
        ("map", buffer, {"dtype": dtype, "dims": list(shape[::-1]), "box": box[::-1], "swizzle": swizzle}),
        *[i32(size) for size in shape],
        *[{"kind": "i64", "value": stride} for stride in strides],
    ]


class Case:
    """One launch."""

    def __init__(self, name, launch, grid, arguments, allowed=()):
        self.name, self.launch, self.grid, self.arguments = name, launch, grid, arguments
        # What findings say that are the compiler's own faults.
        self.allowed = allowed

    def written(self, folder):
        """Writes its data; its line of the list."""
        buffers, arguments = [], []

        def buffer(value):
            path = f"{self.name}.{len(buffers)}"
            if isinstance(value, Given):
                value.values.tofile(folder / f"{path}.in")
                buffers.append({"bytes": value.values.nbytes, "given": f"{path}.in"})
            else:
                size = {"bf16": 2, "i32": 4}.get(value.dtype) or np.dtype(PLAIN[value.dtype]).itemsize
                entry = {"bytes": value.values.size * size, "dtype": value.dtype, "want": f"{path}.want"}
                np.stack([value.values, np.broadcast_to(value.bound, value.values.shape)], axis=-1).tofile(
                    folder / entry["want"]
                )
                if value.start is not None:
                    np.ascontiguousarray(value.start).tofile(folder / f"{path}.in")
                    entry["given"] = f"{path}.in"
                buffers.append(entry)
            return len(buffers) - 1

        for argument in self.arguments:
            if isinstance(argument, (Given, Wanted)):
                arguments.append({"kind": "buffer", "buffer": buffer(argument)})
            elif isinstance(argument, tuple):
                _, value, fields = argument
                arguments.append({"kind": "map", "buffer": buffer(value), **fields})
            else:
                arguments.append(argument)
        arguments += [{"kind": "null"}] * self.launch.get("scratch", 0)
        return {
            "name": self.name,
            "ptx": self.launch["ptx"],
            "entry": self.launch["entry"],
            "grid": self.grid,
            "block": self.launch["block"],
            "shared": self.launch["shared"],
            "buffers": buffers,
            "arguments": arguments,
            "allowed": list(self.allowed),
        }


def write(folder, cases, ignored):
    """Writes all cases and their list; `ignored` are names with the reason."""
    (folder / "data").mkdir(exist_ok=True)
    entries = [case.written(folder / "data") for case in cases]
    text = json.dumps({"cases": entries, "ignored": ignored}, indent=1)
    (folder / "cases.json").write_text(text)
