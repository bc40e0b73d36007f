"""The baseline of `xtask bench layer`: the layer as PyTorch has it, one process a rank.

NCCL all-to-all for tokens and results, torch._grouped_mm over the local experts, compiled
activation and weighted sum, a shared expert. What it times is what the other side times: the
bookkeeping of the routing, from the chosen experts on, and the layer.

It takes one JSON object a line on standard input and answers with one on standard output:
  {"load": {...}}                      tensors of one shape, from files, and a first pass
  {"run": {"warmup": n, "timed": n}}   milliseconds of each timed pass on this rank
  {"save": "FILE"}                     the last output, bf16 [tokens][hidden]
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F


@torch.compile(dynamic=True)
def activate(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate.float()) * up.float()).to(gate_up.dtype)


@torch.compile(dynamic=True)
def weigh(rows, weights, shared):
    return (shared.float() + (rows.float() * weights[:, :, None]).sum(1)).to(rows.dtype)


def read(path, dtype, shape, device):
    flat = torch.from_file(path, dtype=dtype, size=torch.Size(shape).numel())
    return flat.view(shape).to(device)


def tiled(block, shape, device):
    """Random weights: one block, again and again."""
    out = torch.empty(shape, dtype=torch.bfloat16, device=device)
    flat = out.view(-1)
    for start in range(0, flat.numel(), block.numel()):
        part = flat[start : start + block.numel()]
        part.copy_(block[: part.numel()])
    return out


class Layer:
    def __init__(self, load, rank, ranks, device):
        experts, hidden, inner = load["experts"], load["hidden"], load["intermediate"]
        self.experts, self.ranks, self.top_k = experts, ranks, load["top_k"]
        if experts % ranks:
            raise ValueError(f"{experts} experts are not the same number on {ranks} ranks")
        self.local = experts // ranks
        tokens = load["tokens"][rank]
        block = read(load["block"], torch.bfloat16, [load["block_elements"]], device)
        scale = lambda name: block * load[name]
        up, down = scale("up_scale"), scale("down_scale")
        self.gate_up = tiled(up, [self.local, 2 * inner, hidden], device)
        self.down = tiled(down, [self.local, hidden, inner], device)
        shared = load["shared"]
        self.shared_gate_up = tiled(up, [2 * shared, hidden], device)
        self.shared_down = tiled(down, [hidden, shared], device)
        folder = lambda name: os.path.join(load["folder"], f"{name}{rank}.bin")
        self.x = read(folder("x"), torch.bfloat16, [tokens, hidden], device)
        self.chosen = read(folder("topk"), torch.int32, [tokens, self.top_k], device).long()
        self.weights = read(folder("weights"), torch.float32, [tokens, self.top_k], device)

    def experts_of(self, rows, offsets):
        both = torch._grouped_mm(rows, self.gate_up.transpose(1, 2), offs=offsets)
        return torch._grouped_mm(activate(both), self.down.transpose(1, 2), offs=offsets)

    def forward(self):
        routes = self.chosen.flatten()
        by_expert = torch.argsort(routes, stable=True)
        sent = torch.bincount(routes, minlength=self.experts)
        rows = self.x[by_expert // self.top_k]
        if self.ranks == 1:
            offsets = torch.cumsum(sent, 0).to(torch.int32)
            results = self.experts_of(rows, offsets)
        else:
            results = self.exchanged(rows, sent)
        ordered = torch.empty_like(results)
        ordered[by_expert] = results
        ordered = ordered.view(*self.chosen.shape, -1)
        shared = activate(self.x @ self.shared_gate_up.t()) @ self.shared_down.t()
        return weigh(ordered, self.weights, shared)

    def exchanged(self, rows, sent):
        came = torch.empty_like(sent)
        dist.all_to_all_single(came, sent)
        per_rank = torch.stack([sent, came]).view(2, self.ranks, self.local)
        going, coming = per_rank.sum(2).tolist()
        arrived = rows.new_empty(sum(coming), rows.shape[1])
        dist.all_to_all_single(arrived, rows, coming, going)
        # They came by (rank, expert), and the products want (expert, rank).
        expert = torch.arange(self.local, device=rows.device).repeat(self.ranks)
        expert = torch.repeat_interleave(expert, came, output_size=sum(coming))
        grouped = torch.argsort(expert, stable=True)
        offsets = torch.cumsum(per_rank[1].sum(0), 0).to(torch.int32)
        results = self.experts_of(arrived[grouped], offsets)
        back = torch.empty_like(results)
        back[grouped] = results
        returned = torch.empty_like(rows)
        dist.all_to_all_single(returned, back, going, coming)
        return returned


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    answer = lambda **values: print(json.dumps(values), flush=True)
    answer(torch=torch.__version__, nccl=".".join(map(str, torch.cuda.nccl.version())))
    layer = out = None
    with torch.no_grad():
        for line in sys.stdin:
            command = json.loads(line)
            if "load" in command:
                layer = out = None
                torch.cuda.empty_cache()
                layer = Layer(command["load"], rank, ranks, device)
                for _ in range(3):
                    out = layer.forward()
                torch.cuda.synchronize()
                answer(loaded=True)
            elif "run" in command:
                times = []
                for number in range(command["run"]["warmup"] + command["run"]["timed"]):
                    dist.barrier()
                    torch.cuda.synchronize()
                    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    start.record()
                    out = layer.forward()
                    end.record()
                    torch.cuda.synchronize()
                    if number >= command["run"]["warmup"]:
                        times.append(start.elapsed_time(end))
                answer(times=times)
            elif "save" in command:
                out.view(torch.int16).cpu().numpy().tofile(command["save"])
                answer(saved=True)
    dist.destroy_process_group()


main()
