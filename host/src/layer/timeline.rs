//! Who did which task of a pass in one launch, and when.

use mok_kernel::trace::{COLUMN, CONSUMER, PIECE, Record, STREAMS, Task, bytes};
use serde::{Deserialize, Serialize};

use super::error::LayerError;
use super::workspace::Workspace;
use crate::error::Result;
use crate::memory::Buffer;

/// What was recorded of the passes between [`Workspace::start_trace`] and [`Workspace::take_trace`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// In no particular order.
    pub tasks: Vec<Timed>,
    /// Tasks that there was no room for, and looks of consumers for work that got none.
    pub dropped: u64,
}

/// A task, who did it, and when. Times are nanoseconds of the GPU's clock, whose steps may be long: up to a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// What was done.
    pub work: Work,
    /// By a thread of this block.
    pub block: u32,
    /// Which one.
    pub worker: Worker,
    /// When it was drawn; of products, when their first operands were there.
    pub start: u64,
    /// When what it waits for was there.
    pub ready: u64,
    /// When it was done; of loads, when the last one was under way; of products, when they were on their way out.
    pub end: u64,
}

/// Who works in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Worker {
    /// The thread that draws tiles and loads their operands; its warp sums tokens in the end.
    Producer,
    /// A warp that moves rows, 1 to 3, and sums tokens in the end.
    Mover(u32),
    /// A warpgroup that multiplies half of each tile, 0 or 1.
    Consumer(u32),
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Work {
    /// Up to 8 of the rank's tokens are copied to where other ranks read them: which eight.
    Stage(u32),
    /// The wait for the other ranks' tokens.
    MeetTokens,
    /// Up to 8 rows of a strip are fetched: the strip, and which eight.
    Dispatch(u32, u32),
    /// Up to 8 rows of a strip are brought back, likewise.
    Combine(u32, u32),
    /// The wait for the other ranks' results.
    MeetResults,
    /// The operands of a tile are loaded.
    Load(Tile),
    /// Half of a tile is computed.
    Products(Tile),
    /// A token's results are summed.
    Sum(u32),
}

/// A tile of a strip, which is what a tile has of an expert's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tile {
    /// Of down, else of gate and up.
    pub down: bool,
    /// Of the shared expert.
    pub shared: bool,
    /// The strip, numbered over all experts, or over the shared one's rows.
    pub strip: u32,
    /// The first column, of H or of the output.
    pub column: u32,
}

impl Workspace {
    /// From now on passes in one launch are recorded, up to `records` tasks of each of a block's six workers: 200 bytes a
    /// record and SM. Waits for the device. What was recorded before is dropped. Graphs that are captured meanwhile
    /// mustn't be replayed once the trace is taken, or another one is started; those captured before record nothing.
    ///
    /// # Errors
    /// Without [`Path::Fused`](super::Path::Fused), whose tasks they are, or not on Hopper; of memory.
    pub fn start_trace(&self, records: u32) -> Result<()> {
        if self.fused().is_none() || self.device.arch()?.pairs() {
            return Err(LayerError::NoTrace.into());
        }
        // First: it sees whether a rank is lost, which allocating doesn't.
        self.drain()?;
        let words = bytes(self.device.sm_count(), records) / 8;
        let trace = Trace {
            records,
            words: self.device.buffer_zeroed(words as usize)?,
        };
        *self.trace() = Some(trace);
        Ok(())
    }

    /// What was recorded; `None` if nothing was to be. Waits for the device.
    pub fn take_trace(&self) -> Result<Option<Timeline>> {
        self.drain()?;
        let mut trace = self.trace();
        let timeline = trace.as_ref().map(Trace::timeline).transpose()?;
        *trace = None;
        Ok(timeline)
    }
}

/// Where a launch writes its trace.
#[derive(Debug)]
pub(super) struct Trace {
    pub records: u32,
    pub words: Buffer<u64>,
}

impl Trace {
    fn timeline(&self) -> Result<Timeline> {
        Ok(read(&self.words.to_vec()?, self.records as usize))
    }
}

/// The tasks of a trace's memory.
fn read(words: &[u64], records: usize) -> Timeline {
    const STREAM: usize = STREAMS as usize;
    const WORDS: usize = size_of::<Record>() / 8;
    let streams = words.len() / (1 + WORDS * records);
    let (counts, all) = words.split_at(streams);
    let mut timeline = Timeline::default();
    for (block, counts) in counts.chunks_exact(STREAM).enumerate() {
        let mut loads = Vec::new();
        for (stream, &count) in counts.iter().enumerate() {
            timeline.dropped += count.saturating_sub(records as u64);
            let first = (block * STREAM + stream) * WORDS * records;
            let kept = (count as usize).min(records);
            let stream = stream as u32;
            let worker = match stream {
                0 => Worker::Producer,
                CONSUMER.. => Worker::Consumer(stream - CONSUMER),
                _ => Worker::Mover(stream),
            };
            // Halves come in the order of their tiles' loads.
            let mut next = loads.iter();
            let mut found = Vec::new();
            for record in all[first..][..WORDS * kept].chunks_exact(WORDS) {
                let record: Record = bytemuck::cast([record[0], record[1], record[2], record[3]]);
                if record.start == 0 {
                    continue;
                }
                let work = match work_of(&record) {
                    Some(Work::Products(_)) => next.next().map(|&tile| Work::Products(tile)),
                    work => work,
                };
                let Some(work) = work else {
                    timeline.dropped += 1;
                    continue;
                };
                found.push(Timed {
                    work,
                    block: block as u32,
                    worker,
                    start: record.start,
                    ready: record.ready.max(record.start),
                    end: record.end,
                });
            }
            if worker == Worker::Producer {
                let tiles = found.iter().filter_map(|timed| match timed.work {
                    Work::Load(tile) => Some(tile),
                    _ => None,
                });
                loads = tiles.collect();
            }
            timeline.tasks.extend(found);
        }
    }
    timeline
}

/// The work of a record; of products, without their tile.
fn work_of(record: &Record) -> Option<Work> {
    let (task, column) = (record.what & ((1 << COLUMN) - 1), record.what >> COLUMN);
    let task = Task::ALL.into_iter().find(|&one| one as u32 == task)?;
    let index = record.index;
    let (strip, piece) = (index >> PIECE, index & ((1 << PIECE) - 1));
    let tile = |down, shared| Tile {
        down,
        shared,
        strip: index,
        column,
    };
    Some(match task {
        Task::Stage => Work::Stage(index),
        Task::Tokens => Work::MeetTokens,
        Task::Dispatch => Work::Dispatch(strip, piece),
        Task::Combine => Work::Combine(strip, piece),
        Task::Results => Work::MeetResults,
        Task::LoadGateUp => Work::Load(tile(false, false)),
        Task::LoadDown => Work::Load(tile(true, false)),
        Task::LoadSharedGateUp => Work::Load(tile(false, true)),
        Task::LoadSharedDown => Work::Load(tile(true, true)),
        Task::Products => Work::Products(tile(false, false)),
        Task::Sum => Work::Sum(index),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(task: u32, start: u64, index: u32) -> [u64; 4] {
        bytemuck::cast(Record {
            start,
            ready: start + 1,
            end: start + 2,
            what: task,
            index,
        })
    }

    /// Two blocks, room for two records each; a consumer that came for work and got none; one task too many.
    #[test]
    fn streams_are_told_apart_and_halves_get_their_tiles() {
        let mut counts = [0u64; 12];
        let mut records = [[[0u64; 4]; 2]; 12];
        (counts[0], counts[5], counts[7]) = (1, 2, 3);
        records[0][0] = record(Task::LoadSharedDown as u32 | 128 << COLUMN, 10, 3);
        records[5] = [record(0, 0, 0), record(Task::Products as u32, 20, 0)];
        records[7] = [
            record(Task::Combine as u32, 5, 2 << PIECE | 7),
            record(Task::Sum as u32, 9, 4),
        ];
        let words = [&counts[..], records.as_flattened().as_flattened()].concat();
        let timeline = read(&words, 2);
        let tile = Tile {
            down: true,
            shared: true,
            strip: 3,
            column: 128,
        };
        let found = timeline.tasks.iter();
        let found: Vec<_> = found
            .map(|task| (task.work, task.block, task.worker, task.start, task.end))
            .collect();
        assert_eq!(
            found,
            [
                (Work::Load(tile), 0, Worker::Producer, 10, 12),
                (Work::Products(tile), 0, Worker::Consumer(1), 20, 22),
                (Work::Combine(2, 7), 1, Worker::Mover(1), 5, 7),
                (Work::Sum(4), 1, Worker::Mover(1), 9, 11),
            ]
        );
        assert_eq!(timeline.dropped, 1);
    }

    /// What isn't a record, or has lost its load, isn't told of.
    #[test]
    fn what_is_not_a_task_is_dropped() {
        let mut words = vec![0u64; 6 * 5];
        (words[0], words[4]) = (1, 1);
        words[6..10].copy_from_slice(&record(99, 1, 0));
        words[22..26].copy_from_slice(&record(Task::Products as u32, 1, 0));
        let timeline = read(&words, 1);
        assert_eq!((timeline.tasks.len(), timeline.dropped), (0, 2));
        assert_eq!(read(&[], 0), Timeline::default());
    }
}
