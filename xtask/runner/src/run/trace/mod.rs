//! What `--trace` leaves: who did which task of a pass in one launch, and when.

mod events;
mod picture;

use std::path::Path;

use anyhow::{Result, bail};
use mok::layer::{Timed, Timeline, Work, Worker};

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// Events that Perfetto and chrome://tracing open.
    Events,
    /// A picture.
    Picture,
}

fn format(path: &Path) -> Result<Format> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("json") => Ok(Format::Events),
        Some("svg") => Ok(Format::Picture),
        _ => bail!(
            "--trace {}: a name that ends in .json (for Perfetto) or in .svg (a picture) says what to write",
            path.display()
        ),
    }
}

/// Fails where the file could not be written, before anything is computed for it.
pub fn check(path: &Path) -> Result<()> {
    format(path)?;
    super::output::check_place("--trace", path)
}

/// Writes the file.
pub fn write(path: &Path, timelines: &[Timeline]) -> Result<()> {
    let (format, ranks) = (format(path)?, aligned(timelines));
    super::output::put(path, |mut out| match format {
        Format::Events => events::write(&mut out, &ranks),
        Format::Picture => picture::write(&mut out, &ranks),
    })?;
    let dropped: u64 = timelines.iter().map(|timeline| timeline.dropped).sum();
    if dropped > 0 {
        eprintln!("note: the trace lacks {dropped} tasks that there was no room for");
    }
    Ok(())
}

/// A task, in nanoseconds from the start of the pass.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Event {
    work: Work,
    block: u32,
    worker: Worker,
    start: u64,
    ready: u64,
    end: u64,
}

/// The tasks of each rank, by their start, from the first one of all. Clocks of different GPUs differ: ranks are laid over
/// each other where they have met, which all see at about the same time.
fn aligned(timelines: &[Timeline]) -> Vec<Vec<Event>> {
    let met = |timeline: &Timeline| {
        let meeting = |task: &&Timed| task.work == Work::MeetTokens;
        timeline
            .tasks
            .iter()
            .find(meeting)
            .map_or(0, |task| task.end)
    };
    // How long each had been under way.
    let before = |timeline: &Timeline| {
        let first = timeline.tasks.iter().map(|task| task.start).min();
        met(timeline).saturating_sub(first.unwrap_or(0))
    };
    let longest = timelines.iter().map(before).max().unwrap_or(0);
    let of_rank = |timeline: &Timeline| {
        let met = met(timeline);
        let place = |time: u64| (time + longest).saturating_sub(met);
        let event = |task: &Timed| Event {
            work: task.work,
            block: task.block,
            worker: task.worker,
            start: place(task.start),
            ready: place(task.ready),
            end: place(task.end),
        };
        let mut events: Vec<Event> = timeline.tasks.iter().map(event).collect();
        events.sort_by_key(|event| (event.start, event.block, event.worker));
        events
    };
    timelines.iter().map(of_rank).collect()
}

/// A worker's number in its block, in the order in which rows are shown.
fn lane(worker: Worker) -> u32 {
    match worker {
        Worker::Producer => 0,
        Worker::Mover(number) => number,
        Worker::Consumer(number) => 4 + number,
    }
}

/// Workers of a block.
const LANES: u32 = 6;

fn name_of(worker: Worker) -> String {
    match worker {
        Worker::Producer => "producer".into(),
        Worker::Mover(number) => format!("mover {number}"),
        Worker::Consumer(number) => format!("consumer {number}"),
    }
}

/// Kinds of work that are told apart: name and colour.
const KINDS: [(&str, &str); 10] = [
    ("stage", "#b07aa1"),
    ("meet", "#9c755f"),
    ("dispatch", "#4e79a7"),
    ("combine", "#59a14f"),
    ("load", "#bab0ac"),
    ("gate-and-up", "#e15759"),
    ("down", "#f28e2b"),
    ("shared gate-and-up", "#ff9da7"),
    ("shared down", "#edc948"),
    ("sum", "#76b7b2"),
];

/// Which of the [`KINDS`].
fn kind(work: Work) -> usize {
    match work {
        Work::Stage(_) => 0,
        Work::MeetTokens | Work::MeetResults => 1,
        Work::Dispatch(..) => 2,
        Work::Combine(..) => 3,
        Work::Load(_) => 4,
        Work::Products(tile) => 5 + usize::from(tile.down) + 2 * usize::from(tile.shared),
        Work::Sum(_) => 9,
    }
}

#[cfg(test)]
mod tests {
    use mok::layer::Tile;

    use super::*;

    pub fn timed(work: Work, block: u32, worker: Worker, times: [u64; 3]) -> Timed {
        Timed {
            work,
            block,
            worker,
            start: times[0],
            ready: times[1],
            end: times[2],
        }
    }

    /// Two ranks whose clocks are far apart, and of which one waits for the other.
    pub fn two_ranks() -> Vec<Timeline> {
        let tile = Tile {
            down: true,
            shared: false,
            strip: 2,
            column: 64,
        };
        let mover = Worker::Mover(1);
        let of = |tasks| Timeline { tasks, dropped: 0 };
        vec![
            of(vec![
                timed(Work::MeetTokens, 0, mover, [1010, 1010, 1040]),
                timed(Work::Stage(0), 0, mover, [1000, 1000, 1010]),
            ]),
            of(vec![
                timed(Work::MeetTokens, 1, mover, [700, 700, 705]),
                timed(
                    Work::Products(tile),
                    1,
                    Worker::Consumer(1),
                    [710, 715, 730],
                ),
            ]),
        ]
    }

    #[test]
    fn ranks_are_laid_over_each_other_where_they_meet() {
        let ranks = aligned(&two_ranks());
        let times = |rank: &Vec<Event>| -> Vec<[u64; 3]> {
            rank.iter()
                .map(|event| [event.start, event.ready, event.end])
                .collect()
        };
        assert_eq!(times(&ranks[0]), [[0, 0, 10], [10, 10, 40]]);
        assert_eq!(times(&ranks[1]), [[35, 35, 40], [45, 50, 65]]);
        assert!(aligned(&[]).is_empty());
        assert_eq!(aligned(&[Timeline::default()]), [vec![]]);
    }

    #[test]
    fn names_say_what_is_written() {
        assert_eq!(format(Path::new("a/b.JSON")).unwrap(), Format::Events);
        assert_eq!(format(Path::new("b.svg")).unwrap(), Format::Picture);
        for name in ["b", "b.txt", ""] {
            let error = format(Path::new(name)).unwrap_err();
            assert!(error.to_string().contains(".json"), "{error}");
        }
    }
}
