//! A mixture-of-experts layer on one emulated GPU: `cargo run --example layer`.

use std::sync::Arc;

use half::bf16;
use mok::layer::{Group, MoeConfig, MoeLayer, Schedule, Weights, Workspace};
use mok::{Device, EmulatorConfig, fill, gemm::Matrix};

fn main() -> mok::Result<()> {
    // 4 experts of 128 over hidden size 64, 2 for each of at most 8 tokens.
    let config = MoeConfig::new(4, 64, 128, 2, 8);
    let device = Device::emulated(EmulatorConfig::default())?; // or Device::cuda(0)
    let group = Arc::new(Group::threads(1)?.remove(0)); // or Group::from_env: one process a GPU
    let workspace = Workspace::new(&device, &group, &config)?;

    // All experts' matrices after each other: [4][128][64], the same, and [4][64][128].
    let random = |seed, len| device.buffer_from(&fill::normal::<bf16>(seed, len, 0.1));
    let [gate, up, down] = [
        random(1, 4 * 128 * 64)?,
        random(2, 4 * 128 * 64)?,
        random(3, 4 * 64 * 128)?,
    ];
    let weights = Weights::new(Matrix::of(&gate), Matrix::of(&up), Matrix::of(&down));
    let layer = MoeLayer::new(&workspace, weights)?;

    // Three tokens, the experts of each, and how much each expert counts; -1 is no expert.
    let x = random(4, 3 * 64)?;
    let topk_experts = device.buffer_from(&[0i32, 1, 2, 3, 3, -1])?;
    let router_weights = device.buffer_from(&[0.5f32, 0.5, 0.9, 0.1, 1.0, 0.0])?;
    let out = device.buffer_uninit::<bf16>(3 * 64)?;

    let (stream, mut schedule) = (device.stream()?, Schedule::new(&workspace)?);
    // SAFETY: all of it lives until the stream has been waited for.
    unsafe {
        layer.schedule(&mut schedule, topk_experts.ptr(), 3, &stream)?;
        layer.forward(&schedule, x.ptr(), router_weights.ptr(), out.ptr(), &stream)?;
    }
    workspace.synchronize(&stream)?; // tells what went wrong on any rank
    println!("the first token became {:.4?} ...", &out.to_vec()?[..4]);
    Ok(())
}
