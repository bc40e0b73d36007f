"""The baseline of `xtask bench gemm`: the products as PyTorch, cuBLAS and DeepGEMM have them.

    gemm.py DEVICE [--without deep-gemm,deep-gemm-wgrad]
    gemm.py DEVICE --compile      compiles DeepGEMM's kernels for the cases on standard input

One group is a plain product (torch.matmul, which is cuBLAS); more are torch._grouped_mm over packed
rows, and DeepGEMM over rows whose groups start at multiples of 128, its padding zeros. Each answers
in bf16, but for DeepGEMM's weight gradient, which adds to f32. The form "swiglu" is forward with
PyTorch's compiled SwiGLU behind it.

It takes one JSON object a line on standard input and answers with one on standard output:
  {"block": {...}}      the numbers that every tensor repeats; tensors of the yardsticks
  {"prepare": [...]}    compiles DeepGEMM's kernels for all cases, in processes of its own
  {"load": {...}}       tensors of one case, and a first run of each side
  {"run": {"side": s, "form": f, "warmup": n, "timed": n}}   milliseconds of each timed launch
  {"save": {"side": s, "form": f, "rows": [...], "file": "FILE"}}   these rows of one product, f32
"""

import gc
import importlib.metadata
import json
import subprocess
import sys

import torch
import torch.nn.functional as F

# Groups of padded rows start at multiples of this.
ALIGN = 128
# Edge of the dense product that arithmetic is measured by, and bytes of the copy that memory is.
DENSE, COPY = 8192, 1 << 30
# Processes that compile at a time, and how long they may take.
COMPILERS, PATIENCE = 6, 240


def first_line(error):
    return f"{type(error).__name__}: {str(error).strip() or 'no reason given'}".splitlines()[0]


def deep_gemm():
    """The package, or why it can't be had."""
    try:
        import deep_gemm as package

        package.set_mk_alignment_for_contiguous_layout(ALIGN)
        return package, None
    except Exception as error:  # It asserts, and loads libraries: anything may come.
        return None, first_line(error)


def version_of(*packages):
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


@torch.compile(dynamic=True)
def activate(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate.float()) * up.float()).to(gate_up.dtype)


def filled(block, start, shape, device):
    """The block again and again, from an element of it on; whatever memory holds without one."""
    out = torch.empty(shape, dtype=torch.bfloat16, device=device)
    flat, done = out.view(-1), 0
    while block is not None and done < flat.numel():
        at = (start + done) % block.numel()
        count = min(block.numel() - at, flat.numel() - done)
        flat[done : done + count].copy_(block[at : at + count])
        done += count
    return out


class Case:
    """One case's tensors, and the products that are asked for."""

    def __init__(self, load, block, device, package, without, only_deep=False):
        self.n, self.k, self.sizes, self.starts = load["n"], load["k"], load["sizes"], load["starts"]
        self.capacity, self.device, self.block = load["capacity"], device, block
        self.from_element, self.forms = load["from_element"], load["forms"]
        self.package, self.notes, self.sides = package, [], {}
        # What DeepGEMM writes to, by form.
        self.deep_out = {}
        rows, groups = sum(self.sizes), len(self.sizes)
        source = lambda name, *shape: filled(block, self.from_element[name], shape, device)
        counts = torch.tensor(self.sizes, dtype=torch.int64)
        self.ends = counts.cumsum(0).to(torch.int32).to(device)
        need = lambda *forms: any(form in self.forms for form in forms)
        w = source("w", groups, self.n, self.k) if need("forward", "dgrad", "swiglu") else None
        x = source("x", rows, self.k) if need("forward", "wgrad", "swiglu") else None
        dy = source("dy", rows, self.n) if need("dgrad", "wgrad") else None
        if not only_deep:
            self.add_torch(groups, x, dy, w, load["swiglu"])
        if package and groups > 1:
            self.add_deep(groups, x, dy, w, "deep-gemm-wgrad" not in without)

    def add(self, form, side, product):
        if form in self.forms:
            self.sides.setdefault(form, {})[side] = product

    def add_torch(self, groups, x, dy, w, swiglu):
        if groups == 1:
            self.add("forward", "cublas", lambda: x @ w[0].t())
            self.add("dgrad", "cublas", lambda: dy @ w[0])
            self.add("wgrad", "cublas", lambda: dy.t() @ x)
        else:
            grouped = lambda a, b: torch._grouped_mm(a, b, offs=self.ends)
            self.add("swiglu", "torch", lambda: activate(grouped(x, w.transpose(1, 2))))
            self.add("forward", "torch", lambda: grouped(x, w.transpose(1, 2)))
            self.add("dgrad", "torch", lambda: grouped(dy, w))
            self.add("wgrad", "torch", lambda: grouped(dy.t(), x))
        if swiglu and "forward" in self.forms:
            gate_up = x.new_empty(x.shape[0], self.n)
            gate_up.copy_(self.sides["forward"]["cublas" if groups == 1 else "torch"]())
            self.add("forward", "swiglu", lambda: activate(gate_up))

    def add_deep(self, groups, x, dy, w, wgrad):
        package, device = self.package, self.device
        starts, sizes = torch.tensor(self.starts), torch.tensor(self.sizes)
        # Where each group ends; the next starts at the multiple of 128 that follows.
        ends = (starts + sizes).to(torch.int32).to(device)
        empty = lambda cols: torch.empty(self.capacity, cols, dtype=torch.bfloat16, device=device)
        if x is not None:
            x = self.padded(x)
        if dy is not None:
            dy = self.padded(dy)

        def forward(d):
            package.m_grouped_bf16_gemm_nt_contiguous(x, w, d, ends, use_psum_layout=True)
            return d

        def dgrad(d):
            package.m_grouped_bf16_gemm_nn_contiguous(dy, w, d, ends, use_psum_layout=True)
            return d

        if "forward" in self.forms or "swiglu" in self.forms:
            y = empty(self.n)
            self.add("forward", "deep-gemm", lambda: forward(y))
            self.add("swiglu", "deep-gemm", lambda: activate(forward(y)))
            self.deep_out.update(forward=y, swiglu=y)
        if "dgrad" in self.forms:
            dx = empty(self.k)
            self.add("dgrad", "deep-gemm", lambda: dgrad(dx))
            self.deep_out.update(dgrad=dx)
        if "wgrad" in self.forms and wgrad:
            # Its padding counts as rows here, of zeros.
            depths = [(size + ALIGN - 1) // ALIGN * ALIGN for size in self.sizes]
            on_device = torch.tensor(depths, dtype=torch.int32, device=device)
            dw = torch.zeros(groups, self.n, self.k, dtype=torch.float32, device=device)

            def add():
                package.k_grouped_bf16_gemm_tn_contiguous(dy, x, dw, depths, on_device, c=dw)
                return dw

            self.add("wgrad", "deep-gemm", add)
            self.deep_out.update(wgrad=dw)

    def padded(self, packed):
        out = packed.new_zeros(self.capacity, packed.shape[1])
        first = 0
        for size, start in zip(self.sizes, self.starts):
            out[start : start + size] = packed[first : first + size]
            first += size
        return out

    def first_run(self):
        """Compiles, and warms the allocator. DeepGEMM's weight gradient is extra: it may fail."""
        for form, sides in self.sides.items():
            for side in list(sides):
                try:
                    for _ in range(2):
                        sides[side]()
                    torch.cuda.synchronize()
                except Exception as error:
                    if (side, form) != ("deep-gemm", "wgrad"):
                        raise
                    del sides[side]
                    self.notes.append(f"DeepGEMM's weight gradient failed: {first_line(error)}")

    def rows(self, side, form, rows):
        """These rows of a product; forward and dgrad count packed rows, wgrad group * n + m."""
        rows = torch.tensor(rows, device=self.device)
        deep = side == "deep-gemm"
        if deep:
            # What earlier runs left there would do for a product that is never written.
            fill = 0.0 if form == "wgrad" else float("nan")
            self.deep_out[form].fill_(fill)
        out = self.sides[form][side]()
        if deep and form != "wgrad":
            group = torch.searchsorted(self.ends.long(), rows, right=True)
            packed = self.ends.long() - torch.tensor(self.sizes, device=self.device)
            rows = rows - packed[group] + torch.tensor(self.starts, device=self.device)[group]
        return out.reshape(-1, out.shape[-1])[rows].float()


def yardsticks(block, device):
    """What a roofline is made of: cuBLAS on a large product, and a copy."""
    a, b = (filled(block, at, [DENSE, DENSE], device) for at in (0, block.numel() // 2))
    source = filled(block, 0, [COPY // 2], device)
    target = torch.empty_like(source)
    return {"matmul": {"cublas": lambda: a @ b.t()}, "copy": {"torch": lambda: target.copy_(source)}}


def forget():
    """Frees what the last case held: it and its products refer to each other."""
    gc.collect()
    torch.cuda.empty_cache()


def timed(product, warmup, count):
    """Launches that follow one another without a gap; events around each."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for _ in range(warmup):
        product()
    for start, end in events:
        start.record()
        product()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def prepare(cases, number):
    """DeepGEMM compiles with nvcc, some seconds a kernel, one at a time; its cache is on disk, so
    other processes can do that side by side. What fails here fails again where it's told of."""
    by_sizes = {}
    for case in cases:
        key = (len(case["sizes"]), case["n"], case["k"])
        by_sizes.setdefault(key, []).append(case)
    waiting, running = list(by_sizes.values()), []
    while waiting or running:
        while waiting and len(running) < COMPILERS:
            command = [sys.executable, __file__, str(number), "--compile"]
            quiet = subprocess.DEVNULL
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, text=True
            )
            # More than a pipe holds, maybe; but it's read at once.
            process.stdin.write(json.dumps(waiting.pop(0)))
            process.stdin.close()
            running.append(process)
        process = running.pop(0)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def compile_cases(device):
    package, _ = deep_gemm()
    if package is None:
        return
    for load in json.load(sys.stdin):
        # One form at a time: other processes need memory too.
        for form in load["forms"]:
            case = Case({**load, "forms": [form]}, None, device, package, (), only_deep=True)
            case.first_run()
            case = None
            forget()


def serve(number, device, without):
    answer = lambda **values: print(json.dumps(values), flush=True)
    package, reason = (None, "left out") if "deep-gemm" in without else deep_gemm()
    deep = version_of("sgl-deep-gemm", "deep-gemm", "deep_gemm") if package else None
    if package and deep is None:
        deep = str(getattr(package, "__version__", "of unknown version"))
    answer(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        deep_gemm=deep,
        no_deep_gemm=reason,
    )
    block = case = None
    sides = {}
    for line in sys.stdin:
        command = json.loads(line)
        if "block" in command:
            told = command["block"]
            flat = torch.from_file(told["file"], dtype=torch.bfloat16, size=told["elements"])
            block = flat.to(device)
            measures = yardsticks(block, device)
            for form in measures.values():
                for product in form.values():
                    product()
            torch.cuda.synchronize()
            answer(copy_bytes=2 * COPY, dense=DENSE)
        elif "prepare" in command:
            if package:
                prepare(command["prepare"], number)
            answer(prepared=True)
        elif "load" in command:
            # All that holds the last case's tensors.
            case, sides = None, {}
            forget()
            case = Case(command["load"], block, device, package, without)
            case.first_run()
            sides = {**case.sides, **measures}
            answer(sides={form: list(of) for form, of in case.sides.items()}, notes=case.notes)
        elif "run" in command:
            run = command["run"]
            # In no variable: it would keep its case's tensors when the next is loaded.
            times = timed(sides[run["form"]][run["side"]], run["warmup"], run["timed"])
            answer(times=times)
        elif "save" in command:
            save = command["save"]
            rows = case.rows(save["side"], save["form"], save["rows"])
            rows.cpu().numpy().tofile(save["file"])
            answer(saved=list(rows.shape))


def main():
    number = int(sys.argv[1])
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    with torch.no_grad():
        if "--compile" in sys.argv:
            compile_cases(device)
        else:
            without = sys.argv[sys.argv.index("--without") + 1] if "--without" in sys.argv else ""
            serve(number, device, without.split(","))


main()
