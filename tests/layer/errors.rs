//! What goes wrong: which error each rank gets, what the outputs hold, and that all goes on after
//! `recover`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use half::bf16;
use mok::gemm::Matrix;
use mok::layer::{
    Group, LayerError, MoeConfig, MoeLayer, Schedule, Transport, Weights, Workspace,
};
use mok::{Buffer, Device, DevicePtr, EmulatorConfig, Error, Result, Stream};
use mok_tests::layer::{Problem, Routing};

use super::numbers::ranks;

const RANKS: usize = 3;
pub const TOKENS: u32 = 5;

/// Rows travel either way.
const BOTH: [Transport; 2] = [Transport::Peer, Transport::Nccl];

fn config() -> MoeConfig {
    MoeConfig::new(6, 64, 64, 2, TOKENS)
}

/// A rank with everything that its calls need.
pub struct Rank {
    device: Device,
    group: Arc<Group>,
    stream: Stream,
    pub workspace: Arc<Workspace>,
    layer: MoeLayer,
    schedule: Schedule,
    x: Buffer<bf16>,
    topk_experts: Buffer<i32>,
    router_weights: Buffer<f32>,
    out: Buffer<bf16>,
    weights: [Buffer<bf16>; 3],
}

impl Rank {
    pub fn new(device: &Device, group: &Arc<Group>, config: &MoeConfig) -> Result<Rank> {
        let problem = Problem::new(*config, &[TOKENS as usize], Routing::Uniform, 1);
        let workspace = Workspace::new(device, group, config)?;
        let local = 2 * 64 * 64;
        let part = |which: usize| device.buffer_from(&problem.routed[which][..local]);
        let weights = [part(0)?, part(1)?, part(2)?];
        let [gate, up, down] = weights.each_ref().map(Matrix::of);
        Ok(Rank {
            layer: MoeLayer::new(&workspace, Weights::new(gate, up, down))?,
            schedule: Schedule::new(&workspace)?,
            x: device.buffer_from(&problem.x)?,
            topk_experts: device.buffer_from(&problem.topk_experts)?,
            router_weights: device.buffer_from(&problem.router_weights)?,
            out: device.buffer_filled(problem.x.len(), 0)?,
            stream: device.stream()?,
            device: device.clone(),
            group: group.clone(),
            workspace,
            weights,
        })
    }

    pub fn schedule(&mut self, tokens: u32) -> Result<()> {
        let topk_experts = self.topk_experts.ptr();
        // SAFETY: everything lives until the rank is dropped, which waits for the device.
        unsafe {
            self.layer
                .schedule(&mut self.schedule, topk_experts, tokens, &self.stream)
        }
    }

    pub fn forward(&self) -> Result<()> {
        let [x, weights, out] = [self.x.ptr(), self.router_weights.ptr(), self.out.ptr()];
        // SAFETY: as in `schedule`.
        unsafe {
            self.layer
                .forward(&self.schedule, x, weights, out, &self.stream)
        }
    }

    /// Both, and what the device says of them.
    pub fn pass(&mut self) -> Result<()> {
        self.schedule(TOKENS)?;
        self.forward()?;
        self.workspace.synchronize(&self.stream)
    }

    /// Whether a pass works after `recover`, with a choice of experts that is right.
    fn recovers(&mut self) -> Result<()> {
        self.workspace.recover()?;
        self.topk_experts
            .copy_from(&[0, 1, 2, 3, 4, 5, 0, 3, -1, 5])?;
        self.out.fill(0xff)?;
        self.pass()?;
        assert!(self.out.to_vec()?.iter().all(|value| value.is_finite()));
        assert!(self.weights.iter().all(|weights| !weights.is_empty()));
        Ok(())
    }

    fn outputs_are_nan(&self) -> bool {
        let out = self.out.to_vec();
        out.is_ok_and(|out| out.iter().all(|value| value.is_nan()))
    }
}

/// Runs something on every rank of a group.
fn on_all<T: Send>(config: &MoeConfig, run: impl Fn(&mut Rank) -> T + Sync) -> Vec<T> {
    let devices = ranks(RANKS, 4);
    let groups = Group::threads(RANKS).unwrap();
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = devices
            .into_iter()
            .zip(groups)
            .map(|(device, group)| {
                scope.spawn(move || {
                    let mut rank = Rank::new(&device, &Arc::new(group), config).unwrap();
                    let result = run(&mut rank);
                    rank.group.barrier().unwrap();
                    assert!(rank.device.is_emulated());
                    result
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn layer_error(result: Result<()>) -> LayerError {
    match result {
        Err(Error::Layer(error)) => error,
        other => panic!("not an error of the layer: {other:?}"),
    }
}

#[test]
fn a_bad_expert_is_every_ranks_error() {
    let bad = [6, -2, i32::MIN, i32::MAX];
    for (bad, transport) in bad.iter().flat_map(|bad| BOTH.map(|by| (*bad, by))) {
        let errors = on_all(&config().with_transport(transport), |rank| {
            if rank.group.rank() == 1 {
                rank.topk_experts
                    .copy_from(&[0, 1, 2, 3, 4, 5, 0, bad, 1, bad])
                    .unwrap();
            }
            let error = layer_error(rank.pass());
            // An exchange tells of it before there is a pass.
            assert_eq!(rank.outputs_are_nan(), transport == Transport::Peer);
            // Refused until all recover, by every kind of call.
            assert_eq!(layer_error(rank.workspace.status()), error);
            assert_eq!(layer_error(rank.schedule(1)), error);
            assert_eq!(layer_error(rank.forward()), error);
            rank.recovers().unwrap();
            error
        });
        let expected = LayerError::BadExpert {
            rank: 1,
            token: 3,
            k: 1,
            expert: bad,
            experts: 6,
        };
        assert_eq!(errors, vec![expected.clone(); RANKS]);
        let text = expected.to_string();
        assert!(text.contains("rank 1, token 3, k 1") && text.contains(&bad.to_string()));
    }
}

#[test]
fn an_overflow_says_what_is_needed_on_every_rank() {
    let needed = 256;
    for transport in BOTH {
        let small = config()
            .with_schedule_capacity(128)
            .with_transport(transport);
        let errors = on_all(&small, |rank| {
            let error = layer_error(rank.pass());
            assert_eq!(rank.outputs_are_nan(), transport == Transport::Peer);
            rank.workspace.recover().unwrap();
            // No more than one expert a rank: that fits.
            rank.topk_experts
                .copy_from(&[0, 2, 4, 0, 2, 4, 0, 2, 4, -1])
                .unwrap();
            rank.pass().unwrap();
            error
        });
        for error in errors {
            let expected = matches!(error, LayerError::Overflow { needed: rows, capacity: 128, .. } if rows == needed);
            assert!(expected, "{error:?}");
        }
        let enough = small.with_schedule_capacity(needed as u32);
        for result in on_all(&enough, Rank::pass) {
            result.unwrap();
        }
    }
}

#[test]
fn a_failed_check_is_told_to_the_others() {
    type Call = fn(&mut Rank) -> Result<()>;
    let calls: [(&str, Call); 5] = [
        ("tokens", |rank| rank.schedule(TOKENS + 1)),
        ("topk_experts is at 0x0", |rank| {
            // SAFETY: the check refuses it.
            unsafe {
                rank.layer
                    .schedule(&mut rank.schedule, DevicePtr::NULL, 1, &rank.stream)
            }
        }),
        ("not 16-byte aligned", |rank| {
            rank.schedule(TOKENS)?;
            let x = DevicePtr::from_raw(rank.x.ptr().as_raw() + 2);
            let [weights, out] = [rank.router_weights.ptr(), rank.out.ptr()];
            // SAFETY: the check refuses it.
            unsafe {
                rank.layer
                    .forward(&rank.schedule, x, weights, out, &rank.stream)
            }
        }),
        ("before `forward`", Rank::forward_unscheduled),
        ("stream belongs to another device", |rank| {
            let other = Device::emulated(EmulatorConfig::default())?.stream()?;
            rank.stream = other;
            let refused = rank.schedule(TOKENS);
            rank.stream = rank.device.stream()?;
            refused
        }),
    ];
    for ((text, call), transport) in calls.iter().flat_map(|call| BOTH.map(|by| (call, by))) {
        let errors = on_all(&config().with_transport(transport), |rank| {
            let error = match rank.group.rank() {
                2 => {
                    let error = call(rank).unwrap_err().to_string();
                    assert!(error.contains(text), "{error}");
                    layer_error(rank.workspace.synchronize(&rank.stream))
                }
                _ => {
                    let error = layer_error(rank.pass());
                    // Of a pass that was begun nothing is left.
                    let begun = transport == Transport::Peer || text.contains("aligned");
                    assert_eq!(rank.outputs_are_nan(), begun, "{text}");
                    error
                }
            };
            rank.recovers().unwrap();
            error
        });
        for error in &errors[..2] {
            assert!(
                matches!(error, LayerError::Aborted { rank: 2, .. }),
                "{error}"
            );
        }
        assert_eq!(errors[2], LayerError::HostCheck { rank: 2 });
    }
}

impl Rank {
    fn forward_unscheduled(&mut self) -> Result<()> {
        self.schedule = Schedule::new(&self.workspace)?;
        self.forward()
    }
}

#[test]
fn a_rank_that_does_not_come_ends_the_others_wait() {
    let cases = [false, true].map(|scheduled| BOTH.map(|by| (scheduled, by)));
    for (scheduled, transport) in cases.into_iter().flatten() {
        // Emulated kernels take their time, which an exchange counts.
        let deadline = Duration::from_millis(match transport {
            Transport::Peer => 60,
            Transport::Nccl => 2000,
        });
        let hasty = config()
            .with_deadlines(deadline, deadline)
            .with_transport(transport);
        let start = Instant::now();
        let errors = on_all(&hasty, |rank| {
            if rank.group.rank() == 0 {
                // It makes some of the calls, then goes its own way, for a while.
                if scheduled {
                    let _ = rank.schedule(TOKENS);
                    let _ = rank.stream.synchronize();
                }
                std::thread::sleep(deadline + Duration::from_millis(500));
                rank.recovers().unwrap();
                return None;
            }
            let error = layer_error(rank.pass());
            rank.recovers().unwrap();
            Some(error)
        });
        assert_eq!(errors[0], None);
        for error in errors[1..].iter().flatten() {
            let text = error.to_string();
            let wait = if scheduled { "tokens" } else { "routes" };
            let told = match (transport, error) {
                (Transport::Peer, LayerError::Deadline { rank: 0, .. }) => true,
                (Transport::Peer, LayerError::Aborted { .. }) => true,
                (Transport::Nccl, LayerError::Late { ranks, .. }) => ranks == &[0],
                _ => false,
            };
            assert!(told && text.contains(wait), "{text}");
        }
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn ranks_must_agree() {
    let devices = ranks(RANKS, 0);
    let groups = Group::threads(RANKS).unwrap();
    let texts: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = devices
            .into_iter()
            .zip(groups)
            .map(|(device, group)| {
                scope.spawn(move || {
                    let mut own = config();
                    own.experts += u32::from(group.rank() == 1);
                    let made = Workspace::new(&device, &Arc::new(group), &own);
                    made.unwrap_err().to_string()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for text in &texts {
        let says = |part: &str| text.contains(part);
        assert!(
            says("rank 1 has") && says("7") && says("experts") && says("6"),
            "{text}"
        );
    }
}

#[test]
fn a_limit_that_one_rank_breaks_is_everybodys_error() {
    let devices = ranks(2, 0);
    let groups = Group::threads(2).unwrap();
    let texts: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = devices
            .into_iter()
            .zip(groups)
            .map(|(device, group)| {
                scope.spawn(move || {
                    let mut own = config();
                    own.hidden += group.rank() as u32;
                    let made = Workspace::new(&device, &Arc::new(group), &own);
                    made.unwrap_err().to_string()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(texts[1], "hidden is 65, not a multiple of 64");
    assert!(
        texts[0].contains("rank 1") && texts[0].contains(&texts[1]),
        "{}",
        texts[0]
    );
}

#[test]
fn a_schedule_stays_with_its_workspace() {
    let errors = on_all(&config(), |rank| {
        let other = Workspace::new(&rank.device, &rank.group, &config()).unwrap();
        let mut schedule = Schedule::new(&other).unwrap();
        let topk_experts = rank.topk_experts.ptr();
        // SAFETY: the check refuses it.
        let refused = unsafe {
            rank.layer
                .schedule(&mut schedule, topk_experts, TOKENS, &rank.stream)
        };
        let error = layer_error(refused);
        rank.recovers().unwrap();
        rank.group.barrier().unwrap();
        error
    });
    assert_eq!(errors, vec![LayerError::OtherSchedule; RANKS]);
}
