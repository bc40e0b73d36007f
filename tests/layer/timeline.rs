//! The trace of a pass in one launch: every task, once, after what it waits for; and the same bits.

use std::collections::HashMap;

use mok::Error;
use mok::layer::{LayerError, MoeConfig, Path, Tile, Timed, Timeline, Work, Worker};
use mok_kernel::gemm::Form;
use mok_kernel::schedule::forward::ByStrip;
use mok_kernel::schedule::grouped::Problem as Product;
use mok_tests::layer::{Problem, Routing};
use mok_tests::rank::{Rank, on_ranks};

use super::fused::ranks_with;

fn problem() -> Problem {
    let config = MoeConfig::new(16, 64, 128, 3, 20)
        .with_shared(192)
        .with_path(Path::Fused)
        .with_minibatch_rows(256)
        .with_macrobatch_rows(1024);
    Problem::new(config, &[20, 9], Routing::Loose, 3)
}

/// A traced pass, after one that isn't, which must give the same bits.
fn traced(records: u32) -> Vec<Timeline> {
    let problem = problem();
    on_ranks(ranks_with(3, 2, 1), |device, group| {
        let mut rank = Rank::new(&problem, &device, &group).unwrap();
        let expected = rank.output().unwrap();
        assert_eq!(rank.workspace.take_trace().unwrap(), None);
        rank.workspace.start_trace(records).unwrap();
        assert!(rank.output().unwrap() == expected);
        let timeline = rank.workspace.take_trace().unwrap().unwrap();
        // No more of it.
        assert!(rank.output().unwrap() == expected);
        assert_eq!(rank.workspace.take_trace().unwrap(), None);
        timeline
    })
}

/// What was done, each once; halves of tiles by both consumers.
fn by_work(tasks: &[Timed]) -> HashMap<Work, Vec<&Timed>> {
    let mut found: HashMap<Work, Vec<&Timed>> = HashMap::new();
    for task in tasks {
        found.entry(task.work).or_default().push(task);
    }
    for (work, tasks) in &found {
        let workers: Vec<Worker> = tasks.iter().map(|task| task.worker).collect();
        match work {
            Work::Products(_) => {
                let both = [Worker::Consumer(0), Worker::Consumer(1)];
                assert_eq!(workers, both, "{work:?}");
            }
            Work::Load(_) => assert_eq!(workers, [Worker::Producer]),
            Work::Sum(_) => assert!(matches!(workers[..], [Worker::Producer | Worker::Mover(_)])),
            _ => assert!(matches!(workers[..], [Worker::Mover(1..=3)]), "{work:?}"),
        }
    }
    found
}

#[test]
fn a_trace_has_every_task_once_after_what_it_waits_for() {
    let problem = problem();
    for (rank, timeline) in traced(100).into_iter().enumerate() {
        assert_eq!(timeline.dropped, 0);
        for task in &timeline.tasks {
            let Timed {
                start, ready, end, ..
            } = *task;
            assert!(0 < start && start <= ready && ready <= end, "{task:?}");
        }
        let found = by_work(&timeline.tasks);
        let tokens = problem.tokens[rank] as u32;
        let of = |work| {
            let tasks: Option<&Vec<&Timed>> = found.get(&work);
            tasks.unwrap_or_else(|| panic!("rank {rank} has no {work:?}"))[0]
        };
        let meeting = of(Work::MeetTokens);
        for piece in 0..tokens.div_ceil(8) {
            assert!(of(Work::Stage(piece)).start <= meeting.ready);
        }
        for token in 0..tokens {
            assert!(of(Work::MeetResults).ready <= of(Work::Sum(token)).ready);
        }
        let mut counts = [0; 6];
        for (work, tasks) in &found {
            let kind = match *work {
                Work::Dispatch(strip, piece) => {
                    assert!(meeting.ready <= tasks[0].ready);
                    of(Work::Combine(strip, piece));
                    0
                }
                Work::Combine(strip, piece) => {
                    assert!(of(Work::Dispatch(strip, piece)).ready <= tasks[0].ready);
                    let tile = Tile {
                        down: true,
                        shared: false,
                        strip,
                        column: 0,
                    };
                    assert!(of(Work::Products(tile)).end <= tasks[0].ready);
                    1
                }
                Work::Load(tile) => {
                    assert!(tasks[0].ready <= of(Work::Products(tile)).start);
                    if tile.down {
                        let gate_up = Tile {
                            down: false,
                            column: 0,
                            ..tile
                        };
                        assert!(of(Work::Products(gate_up)).end <= tasks[0].ready);
                    }
                    2 + u32::from(tile.shared)
                }
                Work::Products(tile) => {
                    of(Work::Load(tile));
                    4
                }
                _ => 5,
            };
            counts[kind as usize] += 1;
        }
        let [dispatched, combined, routed, shared, products, others] = counts;
        // Few rows: a strip is one piece, or two.
        assert!(dispatched == combined && dispatched >= 8, "{counts:?}");
        // Columns of H, and of Y.
        let tiles = |inner| {
            Product::gate_up(inner, 64).fixed_tiles::<ByStrip>()
                + Product::new(Form::Forward, 0, 64, inner, 0).fixed_tiles::<ByStrip>()
        };
        assert_eq!(routed % tiles(128), 0);
        assert_eq!(shared, tiles(192));
        assert_eq!(products, routed + shared);
        assert_eq!(others, tokens.div_ceil(8) + tokens + 2);
    }
}

#[test]
fn tasks_past_the_room_are_counted() {
    for timeline in traced(1) {
        assert!(timeline.dropped > 0 && !timeline.tasks.is_empty());
    }
    for timeline in traced(0) {
        assert!(timeline.dropped > 0 && timeline.tasks.is_empty());
    }
}

#[test]
fn separate_launches_have_no_trace() {
    let mut problem = problem();
    problem.config.path = Path::Unfused;
    on_ranks(ranks_with(3, 2, 1), |device, group| {
        let rank = Rank::new(&problem, &device, &group).unwrap();
        let error = rank.workspace.start_trace(8).unwrap_err();
        assert!(
            matches!(error, Error::Layer(LayerError::NoTrace)),
            "{error}"
        );
    });
}
