//! What goes wrong: which error each rank gets, what the outputs hold, and that all goes on after
//! `recover`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mok::layer::{Group, LayerError, MoeConfig, Path, Schedule, Transport, Workspace};
use mok::{Device, DevicePtr, EmulatorConfig, Error, Result};
use mok_tests::layer::{Problem, Routing};
use mok_tests::rank::{Rank, on_ranks};

use super::numbers::ranks;

const RANKS: usize = 3;
pub const TOKENS: u32 = 5;

/// Rows travel either way.
const BOTH: [Transport; 2] = [Transport::Peer, Transport::Nccl];

/// And over the other ranks' memory in separate launches, or in one.
pub const WAYS: [(Transport, Path); 3] = [
    (Transport::Peer, Path::Unfused),
    (Transport::Nccl, Path::Unfused),
    (Transport::Peer, Path::Fused),
];

fn config() -> MoeConfig {
    MoeConfig::new(6, 64, 64, 2, TOKENS)
}

/// Every rank has the same tokens.
pub fn problem(config: MoeConfig) -> Problem {
    Problem::new(config, &[TOKENS as usize], Routing::Uniform, 1).repeated(RANKS)
}

/// Whether a pass works after `recover`, with a choice of experts that is right.
fn recovers(rank: &mut Rank) -> Result<()> {
    rank.workspace.recover()?;
    rank.topk_experts
        .copy_from(&[0, 1, 2, 3, 4, 5, 0, 3, -1, 5])?;
    assert!(rank.output()?.iter().all(|value| value.is_finite()));
    Ok(())
}

/// Runs something on every rank of a group.
fn on_all<T: Send>(config: &MoeConfig, run: impl Fn(&mut Rank) -> T + Sync) -> Vec<T> {
    on_ranks(ranks(RANKS, 4), |device, group| {
        let mut rank = Rank::new(&problem(*config), &device, &group).unwrap();
        let result = run(&mut rank);
        group.barrier().unwrap();
        result
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
    for (bad, (transport, path)) in bad.iter().flat_map(|bad| WAYS.map(|way| (*bad, way))) {
        let config = config().with_transport(transport).with_path(path);
        let errors = on_all(&config, |rank| {
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
            recovers(rank).unwrap();
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
    for (transport, path) in WAYS {
        let small = config()
            .with_schedule_capacity(128)
            .with_transport(transport)
            .with_path(path);
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
        ("before `forward`", forward_unscheduled),
        ("stream belongs to another device", |rank| {
            let other = Device::emulated(EmulatorConfig::default())?.stream()?;
            rank.stream = other;
            let refused = rank.schedule(TOKENS);
            rank.stream = rank.device.stream()?;
            refused
        }),
    ];
    for ((text, call), way) in calls.iter().flat_map(|call| WAYS.map(|way| (call, way))) {
        let config = config().with_transport(way.0).with_path(way.1);
        let errors = on_all(&config, |rank| {
            let error = match rank.group.rank() {
                2 => {
                    let error = call(rank).unwrap_err().to_string();
                    assert!(error.contains(text), "{error}");
                    layer_error(rank.workspace.synchronize(&rank.stream))
                }
                _ => {
                    let error = layer_error(rank.pass());
                    // All had a schedule then, so this rank's pass was made, or refused.
                    assert!(!text.contains("aligned") || rank.outputs_are_nan());
                    error
                }
            };
            recovers(rank).unwrap();
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

fn forward_unscheduled(rank: &mut Rank) -> Result<()> {
    rank.schedule = Schedule::new(&rank.workspace)?;
    rank.forward()
}

#[test]
fn a_rank_that_does_not_come_ends_the_others_wait() {
    let cases = [false, true].map(|scheduled| WAYS.map(|way| (scheduled, way)));
    for (scheduled, (transport, path)) in cases.into_iter().flatten() {
        // Emulated kernels take their time, which an exchange counts.
        let deadline = Duration::from_millis(match transport {
            Transport::Peer => 1000,
            Transport::Nccl => 2000,
        });
        let hasty = config()
            .with_deadlines(deadline, deadline)
            .with_transport(transport)
            .with_path(path);
        let start = Instant::now();
        let errors = on_all(&hasty, |rank| {
            if rank.group.rank() == 0 {
                // It makes some of the calls, then goes its own way, for a while.
                if scheduled {
                    let _ = rank.schedule(TOKENS);
                    let _ = rank.stream.synchronize();
                }
                std::thread::sleep(deadline + Duration::from_millis(500));
                recovers(rank).unwrap();
                return None;
            }
            let error = layer_error(rank.pass());
            recovers(rank).unwrap();
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

/// What each rank gets that makes a workspace with a configuration of its own.
fn disagreeing(own: impl Fn(usize) -> MoeConfig + Sync) -> Vec<String> {
    on_ranks(ranks(RANKS, 0), |device, group| {
        let made = Workspace::new(&device, &group, &own(group.rank()));
        made.unwrap_err().to_string()
    })
}

#[test]
fn ranks_must_agree() {
    let experts = disagreeing(|rank| MoeConfig {
        experts: 6 + u32::from(rank == 1),
        ..config()
    });
    for text in &experts {
        let says = |part: &str| text.contains(part);
        assert!(
            says("rank 1 has") && says("7") && says("experts") && says("6"),
            "{text}"
        );
    }
    let transports = disagreeing(|rank| config().with_transport(BOTH[usize::from(rank == 1)]));
    for text in &transports {
        let says = |part: &str| text.contains(part);
        assert!(
            says("rank 1 has") && says("transport") && says("Nccl") && says("Peer"),
            "{text}"
        );
    }
}

#[test]
fn a_limit_that_one_rank_breaks_is_everybodys_error() {
    let texts = disagreeing(|rank| MoeConfig {
        hidden: 64 + u32::from(rank == 1),
        ..config()
    });
    assert_eq!(texts[1], "hidden is 65, not a multiple of 64");
    for other in [&texts[0], &texts[2]] {
        assert!(
            other.contains("rank 1") && other.contains(&texts[1]),
            "{other}"
        );
    }
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
        recovers(rank).unwrap();
        rank.group.barrier().unwrap();
        error
    });
    assert_eq!(errors, vec![LayerError::OtherSchedule; RANKS]);
}

#[test]
fn an_exchange_is_not_captured() {
    let exchanged = config().with_transport(Transport::Nccl);
    let errors = on_all(&exchanged, |rank| {
        let captures = rank.group.rank() == 1;
        if captures {
            rank.stream.begin_capture().unwrap();
        }
        let error = layer_error(rank.schedule(TOKENS));
        if captures {
            rank.stream.end_capture().unwrap();
        }
        recovers(rank).unwrap();
        error
    });
    assert_eq!(errors[1], LayerError::Captured);
    assert!(errors[1].to_string().contains("Transport::Peer"));
    for other in [&errors[0], &errors[2]] {
        let told = matches!(other, LayerError::Aborted { rank: 1, .. });
        assert!(told && other.to_string().contains("captured"), "{other}");
    }
}

#[test]
fn different_calls_are_everybodys_error() {
    for (transport, path) in WAYS {
        for other in [0, 2] {
            let config = config().with_transport(transport).with_path(path);
            let errors = on_all(&config, |rank| {
                rank.schedule(TOKENS).unwrap();
                rank.workspace.synchronize(&rank.stream).unwrap();
                rank.group.barrier().unwrap();
                let called = if rank.group.rank() == other {
                    rank.forward()
                } else {
                    rank.schedule(TOKENS)
                };
                let told = called.and_then(|()| rank.workspace.synchronize(&rank.stream));
                let error = layer_error(told);
                recovers(rank).unwrap();
                error
            });
            // Who sees it first says what it saw, and may reach another rank before that one has seen it too.
            let different = |error: &&LayerError| matches!(error, LayerError::Different { .. });
            let first = errors.iter().find(different).unwrap().to_string();
            assert!(first.contains("the same calls"), "{first}");
            for error in errors {
                let told = match &error {
                    LayerError::Different { .. } => true,
                    LayerError::Aborted { reason, .. } => reason.contains("different calls"),
                    _ => false,
                };
                assert!(told, "{transport:?}: {error}");
            }
        }
    }
}

/// What was reported before is what is allocated, but for a few words of state.
#[test]
fn memory_is_reported() {
    for (transport, path) in WAYS {
        let config = MoeConfig::new(7, 128, 192, 3, 50)
            .with_shared(64)
            .with_transport(transport)
            .with_path(path);
        let device = Device::emulated(EmulatorConfig::default()).unwrap();
        device.kernels().unwrap();
        let group = Arc::new(Group::threads(1).unwrap().remove(0));
        let free = || device.memory().unwrap().free as u64;
        let before = free();
        let workspace = Workspace::new(&device, &group, &config).unwrap();
        let with_workspace = free();
        let schedule = Schedule::new(&workspace).unwrap();
        let with_schedule = free();
        let memory = config.memory(1).unwrap();
        let more = |used: u64, told: u64| used.checked_sub(told).is_some_and(|more| more <= 256);
        let used = before - with_workspace;
        let told = memory.symmetric + memory.workspace;
        assert!(more(used, told), "{transport:?}: {used}, told {told}");
        let (used, told) = (with_workspace - with_schedule, memory.schedule);
        assert!(more(used, told), "{transport:?}: {used}, told {told}");
        drop((schedule, workspace));
        assert_eq!(free(), before);
    }
}

/// No room is enough for no rows, and an error that says what is needed for any.
#[test]
fn no_room_at_all() {
    for (transport, path) in WAYS {
        let none = config().with_schedule_capacity(0);
        let none = none.with_transport(transport).with_path(path);
        let errors = on_all(&none, |rank| {
            let error = layer_error(rank.pass());
            rank.workspace.recover().unwrap();
            rank.topk_experts.fill(0xff).unwrap();
            assert!(
                rank.output()
                    .unwrap()
                    .iter()
                    .all(|value| value.to_f32() == 0.0)
            );
            error
        });
        for error in errors {
            let expected = matches!(
                error,
                LayerError::Overflow {
                    needed: 256,
                    capacity: 0,
                    ..
                }
            );
            assert!(expected, "{error}");
        }
    }
}
