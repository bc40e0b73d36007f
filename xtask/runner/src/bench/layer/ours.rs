//! This library's ranks, a thread each, that run a layer on command.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use half::bf16;
use mok::gemm::Matrix;
use mok::layer::{Group, MoeLayer, Schedule, Weights, Workspace};
use mok::{Buffer, Device};
use mok_kernel::route::local_experts;

use super::{Inputs, OurSide};
use crate::bench::tiled;

/// What a rank is told to do.
#[derive(Clone, Copy, Debug)]
enum Command {
    Run {
        side: OurSide,
        warmup: usize,
        timed: usize,
    },
    /// One more pass, and its output.
    Output(OurSide),
}

/// What a rank answers.
enum Answer {
    Times(Vec<f32>),
    Output(Vec<bf16>),
}

struct Rank {
    to: Sender<Command>,
    from: Receiver<Result<Answer>>,
    thread: Option<JoinHandle<()>>,
}

/// All ranks. They end when this is dropped.
pub struct Ours {
    ranks: Vec<Rank>,
}

impl Ours {
    /// Starts a thread for each rank, on the GPU of its number.
    pub fn start(inputs: &Arc<Inputs>, sides: &[OurSide]) -> Result<Ours> {
        let groups = Group::threads(inputs.tokens.len())?;
        let ranks = groups.into_iter().map(|group| {
            let (to, commands) = channel();
            let (answers, from) = channel();
            let (inputs, sides) = (inputs.clone(), sides.to_vec());
            let thread = std::thread::spawn(move || {
                let answered = answers.clone();
                if let Err(error) = serve(&inputs, &sides, group, &commands, &answers) {
                    // Nobody listens once the bench has failed elsewhere.
                    let _ = answered.send(Err(error));
                }
            });
            Rank {
                to,
                from,
                thread: Some(thread),
            }
        });
        let mut ours = Ours {
            ranks: ranks.collect(),
        };
        // The first answers say that everything is loaded.
        ours.answers().map(|_| ours)
    }

    /// Milliseconds of each timed pass: the slowest rank's.
    pub fn run(&mut self, side: OurSide, warmup: usize, timed: usize) -> Result<Vec<f32>> {
        self.tell(Command::Run {
            side,
            warmup,
            timed,
        })?;
        let ranks = self.answers()?.into_iter().map(|answer| match answer {
            Answer::Times(times) => times,
            Answer::Output(_) => Vec::new(),
        });
        Ok(super::slowest(&ranks.collect::<Vec<_>>()))
    }

    /// What every rank gives in one more pass.
    pub fn outputs(&mut self, side: OurSide) -> Result<Vec<Vec<bf16>>> {
        self.tell(Command::Output(side))?;
        let ranks = self.answers()?.into_iter().map(|answer| match answer {
            Answer::Output(output) => output,
            Answer::Times(_) => Vec::new(),
        });
        Ok(ranks.collect())
    }

    fn tell(&self, command: Command) -> Result<()> {
        for rank in &self.ranks {
            rank.to
                .send(command)
                .map_err(|_| anyhow!("a rank has ended"))?;
        }
        Ok(())
    }

    fn answers(&mut self) -> Result<Vec<Answer>> {
        let ranks = self.ranks.iter().enumerate();
        ranks
            .map(|(number, rank)| {
                let answer = rank.from.recv().map_err(|_| anyhow!("it ended"))?;
                answer.with_context(|| format!("rank {number}"))
            })
            .collect()
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            // Its commands end, and with them its work.
            rank.to = channel().0;
        }
        for rank in &mut self.ranks {
            let _ = rank.thread.take().map(JoinHandle::join);
        }
    }
}

/// The block, scaled, again and again, as the baseline has it.
fn scaled(device: &Device, block: &[bf16], scale: f32, len: usize) -> Result<Buffer<bf16>> {
    let scaled: Vec<bf16> = block
        .iter()
        .take(len)
        .map(|value| bf16::from_f32(value.to_f32() * scale))
        .collect();
    Ok(tiled(device, &device.buffer_from(&scaled)?, 0, len)?)
}

/// One rank's life.
fn serve(
    inputs: &Inputs,
    sides: &[OurSide],
    group: Group,
    commands: &Receiver<Command>,
    answers: &Sender<Result<Answer>>,
) -> Result<()> {
    let group = Arc::new(group);
    let (rank, ranks) = (group.rank(), group.world_size());
    let device = Device::cuda(rank)?;
    let stream = device.stream()?;
    let shape = &inputs.shape;
    let local = local_experts(rank as u32, shape.experts, ranks as u32) as usize;
    let (hidden, inner) = (shape.hidden as usize, shape.intermediate as usize);
    let shared = shape.shared as usize;
    let weights = |scale, len| scaled(&device, &inputs.block, scale, len);
    let gate_up = weights(inputs.up_scale, local * 2 * inner * hidden)?;
    let down = weights(inputs.down_scale, local * hidden * inner)?;
    let shared_gate_up = weights(inputs.up_scale, 2 * shared * hidden)?;
    let shared_down = weights(inputs.down_scale, hidden * shared)?;
    // Halves of one tensor, as the baseline's.
    let half = |of: &Buffer<bf16>, which: usize, rows: usize| -> Result<Matrix> {
        let from = which * rows * hidden;
        let stride = (2 * rows * hidden) as u64;
        Ok(Matrix::in_slice(&of.slice(from..)?).with_group_stride(stride))
    };
    let mut all = Weights::new(
        half(&gate_up, 0, inner)?,
        half(&gate_up, 1, inner)?,
        Matrix::of(&down),
    );
    if shared > 0 {
        all = all.with_shared(
            half(&shared_gate_up, 0, shared)?,
            half(&shared_gate_up, 1, shared)?,
            Matrix::of(&shared_down),
        );
    }
    let most = inputs.tokens.iter().copied().max().unwrap_or(0);
    let layers = sides.iter().map(|&side| {
        let config = side.of(inputs.batches.of(shape.config(most)));
        let workspace = Workspace::new(&device, &group, &config)?;
        let layer = MoeLayer::new(&workspace, all)?;
        Ok((side, layer, Schedule::new(&workspace)?))
    });
    let mut layers: Vec<(OurSide, MoeLayer, Schedule)> = layers.collect::<Result<_>>()?;
    let start = inputs.tokens[..rank].iter().sum::<usize>();
    let tokens = inputs.tokens[rank];
    let part = |width: usize| start * width..(start + tokens) * width;
    let x = device.buffer_from(&inputs.x[part(hidden)])?;
    let top_k = shape.top_k as usize;
    let topk_experts = device.buffer_from(&inputs.routes.experts[part(top_k)])?;
    let router_weights = device.buffer_from(&inputs.routes.weights[part(top_k)])?;
    let mut out = device.buffer_filled::<bf16>(tokens * hidden, 0xff)?;
    let (from, to) = (device.event()?, device.event()?);
    let send = |answer| {
        answers
            .send(Ok(answer))
            .map_err(|_| anyhow!("nobody listens"))
    };
    send(Answer::Times(Vec::new()))?;
    while let Ok(command) = commands.recv() {
        let (side, warmup, timed) = match command {
            Command::Run {
                side,
                warmup,
                timed,
            } => (side, warmup, timed),
            Command::Output(side) => {
                // Nothing of another side's stays.
                out.fill(0xff)?;
                (side, 1, 0)
            }
        };
        let layer = layers.iter_mut().find(|layer| layer.0 == side);
        let (_, layer, schedule) = layer.context("a side that was not asked for")?;
        let mut times = Vec::with_capacity(timed);
        for number in 0..warmup + timed {
            device.synchronize()?;
            group.barrier()?;
            from.record(&stream)?;
            let (tokens, to_out) = (tokens as u32, out.ptr());
            // SAFETY: everything lives until the synchronisation, and only this stream uses it.
            unsafe {
                layer.schedule(schedule, topk_experts.ptr(), tokens, &stream)?;
                layer.forward(schedule, x.ptr(), router_weights.ptr(), to_out, &stream)?;
            }
            to.record(&stream)?;
            layer.workspace().synchronize(&stream)?;
            if number >= warmup {
                times.push(from.elapsed_ms(&to)?);
            }
        }
        send(match command {
            Command::Run { .. } => Answer::Times(times),
            Command::Output(_) => Answer::Output(out.to_vec()?),
        })?;
    }
    group.barrier()?;
    Ok(())
}
