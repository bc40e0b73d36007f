//! The layer on memory and a stream that cudarc owns (as candle's and burn's CUDA backends do):
//! `cargo run --example cudarc`. Without a GPU it says so, and ends.

use std::error::Error;
use std::sync::Arc;

use half::bf16;
use mok::cudarc::driver::{CudaContext, DevicePtr as _, DevicePtrMut as _};
use mok::gemm::Matrix;
use mok::layer::{Group, MoeConfig, MoeLayer, Schedule, Weights, Workspace};
use mok::{Device, DevicePtr, Stream, fill};

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(error) = Device::cuda(0) {
        println!("nothing to show here: {error}");
        return Ok(());
    }
    // What your program has already.
    let context = CudaContext::new(0)?;
    let theirs = context.new_stream()?;
    let random = |seed, len| theirs.clone_htod(&fill::normal::<bf16>(seed, len, 0.1));
    let [gate, up, down] = [
        random(1, 4 * 128 * 64)?,
        random(2, 4 * 128 * 64)?,
        random(3, 4 * 64 * 128)?,
    ];
    let x = random(4, 3 * 64)?;
    let topk_experts = theirs.clone_htod(&[0i32, 1, 2, 3, 3, -1])?;
    let router_weights = theirs.clone_htod(&[0.5f32, 0.5, 0.9, 0.1, 1.0, 0.0])?;
    let mut out = theirs.alloc_zeros::<bf16>(3 * 64)?;

    // The same context and stream, as this library's.
    let device = Device::from_cudarc(context)?;
    let stream = Stream::from_cudarc(&device, theirs.clone())?;
    let group = Arc::new(Group::threads(1)?.remove(0));
    let workspace = Workspace::new(&device, &group, &MoeConfig::new(4, 64, 128, 2, 8))?;
    let mut schedule = Schedule::new(&workspace)?;
    {
        // cudarc keeps an order between streams while these guards live.
        let (gate, _gate) = gate.device_ptr(&theirs);
        let (up, _up) = up.device_ptr(&theirs);
        let (down, _down) = down.device_ptr(&theirs);
        let (x, _x) = x.device_ptr(&theirs);
        let (topk_experts, _experts) = topk_experts.device_ptr(&theirs);
        let (router_weights, _weights) = router_weights.device_ptr(&theirs);
        let (out, _out) = out.device_ptr_mut(&theirs);
        let at = DevicePtr::from_raw;
        let [gate, up, down] = [gate, up, down].map(|address| Matrix::new(at(address)));
        let layer = MoeLayer::new(&workspace, Weights::new(gate, up, down))?;
        // SAFETY: cudarc's slices live until their stream has been waited for, below.
        unsafe {
            layer.schedule(&mut schedule, at(topk_experts), 3, &stream)?;
            layer.forward(&schedule, at(x), at(router_weights), at(out), &stream)?;
        }
    }
    workspace.synchronize(&stream)?;
    println!(
        "the first token became {:.4?} ...",
        &theirs.clone_dtoh(&out)?[..4]
    );
    Ok(())
}
