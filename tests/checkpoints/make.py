"""Makes one MoE layer of each family as Hugging Face's checkpoints have it, and records what the
family's own block in Hugging Face transformers computes.

    python3 tests/checkpoints/make.py FOLDER

FOLDER gets a virtual environment with the packages below (5 GB, no GPU needed); the results replace
the folders beside this script. Each holds the layer as the model itself saves it in bf16, its
config.json, `tokens.safetensors` (x) and `expected.safetensors`: out, topk_experts and
router_weights of the block in float32, with the bf16 weights as they are. Only whoever changes this
script has to run it: tests read what is committed.
"""

import json
import os
import pathlib
import subprocess
import sys

PACKAGES = ["numpy==2.2.6", "torch==2.11.0", "transformers==5.24.0", "safetensors==0.8.0"]
HERE = pathlib.Path(__file__).resolve().parent
TOKENS = 21

# What all three have: small, and no more than the layer needs.
COMMON = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}


def families():
    """Name: (config, layer, name of the block's tensors, shards)."""
    from transformers import DeepseekV3Config, MixtralConfig, Qwen3MoeConfig

    qwen = Qwen3MoeConfig(
        **COMMON, intermediate_size=64, moe_intermediate_size=64, num_hidden_layers=3, num_experts=8,
        num_experts_per_tok=3, norm_topk_prob=True, head_dim=64, mlp_only_layers=[0],
    )
    mixtral = MixtralConfig(
        **COMMON, intermediate_size=64, num_hidden_layers=1, num_local_experts=5, num_experts_per_tok=2,
    )
    deepseek = DeepseekV3Config(
        **COMMON, intermediate_size=64, moe_intermediate_size=64, num_hidden_layers=2, n_routed_experts=8,
        n_shared_experts=2, num_experts_per_tok=3, n_group=4, topk_group=2, norm_topk_prob=True,
        routed_scaling_factor=2.5, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16,
        qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16,
    )
    return {
        "qwen3_moe": (qwen, 1, "mlp", 1),
        "mixtral": (mixtral, 0, "block_sparse_moe", 2),
        "deepseek_v3": (deepseek, 1, "mlp", 1),
    }


def randomize(model, torch):
    """Weights large enough that the activation bends, and routers that prefer some experts."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, values in [*model.named_parameters(), *model.named_buffers()]:
            if not values.is_floating_point() or values.dim() == 0:
                continue
            noise = torch.randn(values.shape, generator=generator)
            if name.endswith("e_score_correction_bias"):
                values.copy_(noise * 0.2)
            elif values.dim() > 1:
                values.copy_(noise * values.shape[-1] ** -0.5)


def make(name, config, layer, block, shards, scratch):
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).float()
    randomize(model, torch)
    # What a bf16 checkpoint holds, computed with in float32.
    bias = {n: b.clone() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
    model = model.to(torch.bfloat16)
    for buffer, values in bias.items():
        owner, _, attribute = buffer.rpartition(".")
        setattr(model.get_submodule(owner), attribute, torch.nn.Buffer(values))
    saved = scratch / name
    model.save_pretrained(saved)

    folder = HERE / name
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    prefix = f"model.layers.{layer}.{block}."
    kept = {}
    for part in sorted(saved.glob("*.safetensors")):
        kept.update({n: v for n, v in load_file(part).items() if n.startswith(prefix)})
    if shards == 1:
        save_file(kept, folder / "model.safetensors", {"format": "pt"})
    else:
        names = sorted(kept)
        weight_map = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            own = names[shard::shards]
            save_file({n: kept[n] for n in own}, folder / file, {"format": "pt"})
            weight_map.update(dict.fromkeys(own, file))
        index = {"metadata": {}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (folder / "config.json").write_text((saved / "config.json").read_text())

    generator = torch.Generator().manual_seed(11)
    x = torch.randn((TOKENS, config.hidden_size), generator=generator).to(torch.bfloat16)
    moe = model.float().model.layers[layer].mlp
    with torch.no_grad():
        out = moe(x.float()[None])[0]
        _, weights, experts = moe.gate(x.float())
    save_file({"x": x}, folder / "tokens.safetensors")
    expected = {
        "out": out.contiguous(),
        "topk_experts": experts.contiguous(),
        "router_weights": weights.float().contiguous(),
    }
    save_file(expected, folder / "expected.safetensors")
    print(f"{name}: {len(kept)} tensors, out {out.norm():.3f}")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make.py FOLDER")
    folder = pathlib.Path(sys.argv[1]).resolve()
    python = folder / "venv/bin/python"
    if os.environ.get("MOK_CHECKPOINTS_INSIDE") is None:
        folder.mkdir(parents=True, exist_ok=True)
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        inside = {**os.environ, "MOK_CHECKPOINTS_INSIDE": "1", "HF_HUB_OFFLINE": "1"}
        sys.exit(subprocess.run([python, "-B", __file__, folder], env=inside).returncode)
    for name, (config, layer, block, shards) in families().items():
        make(name, config, layer, block, shards, folder)


main()
