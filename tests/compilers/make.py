"""Compiles the kernels of this folder with Triton and nvcc, and computes what they give, in NumPy.

    python3 tests/compilers/make.py FOLDER

FOLDER gets a virtual environment with the packages below, the PTX, the data, and `cases.json`,
which lists them. No GPU is needed. Exit status 3: Python or the packages can't be had here.
"""

import hashlib
import os
import pathlib
import subprocess
import sys

PACKAGES = ["numpy==2.2.6", "triton==3.6.0"]
# Without what they depend on: that is for linking, which nothing does here.
NVCC = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
]
HERE = pathlib.Path(__file__).resolve().parent
UNAVAILABLE = 3


def unavailable(reason):
    print(reason, file=sys.stderr)
    sys.exit(UNAVAILABLE)


def state():
    """Changes when anything that the result depends on does."""
    text = hashlib.sha256(repr((PACKAGES, NVCC, sys.version)).encode())
    for path in sorted([*HERE.glob("*.py"), *HERE.glob("*.cu")]):
        text.update(path.read_bytes())
    return text.hexdigest()


def environment(folder):
    """The Python of a virtual environment with the packages."""
    python = folder / "venv/bin/python"
    mark = folder / "venv/packages"
    wanted = "\n".join([sys.version, *PACKAGES, *NVCC])
    if mark.exists() and mark.read_text() == wanted:
        return python
    run = subprocess.run([sys.executable, "-m", "venv", "--clear", folder / "venv"], capture_output=True, text=True)
    if run.returncode != 0:
        unavailable(f"no virtual environment can be made: {(run.stdout + run.stderr).strip()}")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    for packages in [PACKAGES, ["--no-deps", *NVCC]]:
        run = subprocess.run([*install, *packages], capture_output=True, text=True)
        if run.returncode != 0:
            reason = (run.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            unavailable(f"{', '.join(PACKAGES + NVCC)} can't be installed: {reason}")
    mark.write_text(wanted)
    return python


def main():
    if sys.version_info < (3, 10):
        unavailable(f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old: 3.10 or later")
    if len(sys.argv) != 2:
        sys.exit("usage: make.py FOLDER")
    folder = pathlib.Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "state"
    if os.environ.get("MOK_COMPILERS_INSIDE") is None:
        if mark.exists() and mark.read_text() == state():
            return
        mark.unlink(missing_ok=True)
        inside = {**os.environ, "MOK_COMPILERS_INSIDE": "1", "TRITON_CACHE_DIR": str(folder / "cache")}
        run = subprocess.run([environment(folder), "-B", __file__, folder], env=inside)
        if run.returncode == 0:
            mark.write_text(state())
        sys.exit(run.returncode)

    import case
    import cuda_kernels
    import triton_blackwell
    import triton_kernels
    import triton_vectors

    cases = [
        *triton_kernels.cases(folder),
        *triton_blackwell.cases(folder),
        *triton_vectors.cases(folder),
    ]
    ignored = {}
    reason = cuda_kernels.missing()
    if reason is None:
        cases += cuda_kernels.cases(folder)
    else:
        ignored = {f"cuda_{name}": reason for name in cuda_kernels.NAMES}
    case.write(folder, cases, ignored)


main()
