//! A pass that is captured once and replayed with other inputs.

use std::sync::Arc;

use half::bf16;
use mok::gemm::Matrix;
use mok::layer::{Group, MoeConfig, MoeLayer, Schedule, Weights, Workspace};
use mok::{Device, Result};
use mok_tests::layer::{Problem, Routing};

use super::numbers::ranks;

const TOKENS: usize = 6;
const ROUNDS: u64 = 5;

fn problem(round: u64) -> Problem {
    let config = MoeConfig::new(4, 64, 64, 2, TOKENS as u32);
    let mut problem = Problem::new(config, &[TOKENS, TOKENS], Routing::Loose, round);
    // The weights stay.
    problem.routed = Problem::new(config, &[], Routing::Nobody, 0).routed;
    problem
}

fn replay(device: &Device, group: &Arc<Group>) -> Result<Vec<Vec<bf16>>> {
    let first = problem(0);
    let workspace = Workspace::new(device, group, &first.config)?;
    let (rank, stream) = (group.rank(), device.stream()?);
    let local = rank * 2 * 64 * 64..(rank + 1) * 2 * 64 * 64;
    let part = |which: usize| device.buffer_from(&first.routed[which][local.clone()]);
    let (gate, up, down) = (part(0)?, part(1)?, part(2)?);
    let weights = Weights::new(Matrix::of(&gate), Matrix::of(&up), Matrix::of(&down));
    let layer = MoeLayer::new(&workspace, weights)?;
    let mut x = device.buffer_zeroed::<bf16>(TOKENS * 64)?;
    let mut topk_experts = device.buffer_zeroed::<i32>(TOKENS * 2)?;
    let mut router_weights = device.buffer_zeroed::<f32>(TOKENS * 2)?;
    let out = device.buffer_filled::<bf16>(TOKENS * 64, 0xff)?;
    let mut schedule = Schedule::new(&workspace)?;
    stream.begin_capture()?;
    // SAFETY: everything lives until the last replay is over.
    unsafe {
        layer.schedule(&mut schedule, topk_experts.ptr(), TOKENS as u32, &stream)?;
        layer.forward(&schedule, x.ptr(), router_weights.ptr(), out.ptr(), &stream)?;
    }
    let graph = stream.end_capture()?;
    assert!(
        out.to_vec()?.iter().all(|value| value.is_nan()),
        "nothing ran yet"
    );
    let mut outputs = Vec::new();
    for round in 0..ROUNDS {
        let data = problem(round);
        let part = |width: usize| rank * TOKENS * width..(rank + 1) * TOKENS * width;
        x.copy_from(&data.x[part(64)])?;
        topk_experts.copy_from(&data.topk_experts[part(2)])?;
        router_weights.copy_from(&data.router_weights[part(2)])?;
        graph.launch(&stream)?;
        workspace.synchronize(&stream)?;
        outputs.push(out.to_vec()?);
    }
    group.barrier()?;
    Ok(outputs)
}

#[test]
fn a_captured_pass_takes_new_inputs() {
    let groups = Group::threads(2).unwrap();
    let outputs: Vec<Vec<Vec<bf16>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks(2, 9)
            .into_iter()
            .zip(groups)
            .map(|(device, group)| scope.spawn(move || replay(&device, &Arc::new(group)).unwrap()))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for round in 0..ROUNDS {
        let both = [&outputs[0][round as usize][..], &outputs[1][round as usize]].concat();
        problem(round).check(&both);
    }
}
