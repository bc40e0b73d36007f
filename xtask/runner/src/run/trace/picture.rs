//! The trace as a picture: a row for each worker, time from left to right.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::Result;
use mok::layer::Worker;

use super::{Event, KINDS, LANES, kind, lane, name_of};

/// Blocks of a rank that are shown, evenly of all: more rows nobody can read.
const BLOCKS: usize = 6;
/// Pixels of a row, of the names beside it, of the time axis.
const ROW: u32 = 12;
const NAMES: f64 = 150.0;
const AXIS: f64 = 1500.0;
/// Colour of waits.
const WAIT: &str = "#e8e8e8";

/// Blocks that are shown.
fn shown(events: &[Event]) -> Vec<u32> {
    let blocks: BTreeSet<u32> = events.iter().map(|event| event.block).collect();
    let blocks: Vec<u32> = blocks.into_iter().collect();
    let count = blocks.len().min(BLOCKS);
    (0..count)
        .map(|index| blocks[index * blocks.len() / count])
        .collect()
}

/// A round step for about ten marks.
fn step(end: u64) -> u64 {
    let least = (end / 10).max(1);
    let power = 10u64.pow(least.ilog10());
    let steps = [1, 2, 5, 10].map(|factor| factor * power);
    steps
        .into_iter()
        .find(|&step| step >= least)
        .unwrap_or(least)
}

/// Writes the picture of all ranks.
pub fn write(out: &mut impl Write, ranks: &[Vec<Event>]) -> Result<()> {
    let end = ranks.iter().flatten().map(|event| event.end).max();
    let end = end.unwrap_or(0).max(1);
    let x = |time: u64| NAMES + AXIS * time as f64 / end as f64;
    let blocks: Vec<Vec<u32>> = ranks.iter().map(|events| shown(events)).collect();
    let rows: usize = blocks
        .iter()
        .map(|blocks| blocks.len() * LANES as usize + 2)
        .sum();
    let (width, height) = (NAMES + AXIS + 20.0, 4 * ROW + ROW * rows as u32);
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"9\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    )?;
    legend(out)?;
    let mut time = 0;
    while time <= end {
        let at = x(time);
        writeln!(
            out,
            "<path d=\"M{at:.1} {} V{height}\" stroke=\"#dddddd\"/><text x=\"{at:.1}\" y=\"{}\">{} µs</text>",
            3 * ROW,
            3 * ROW - 2,
            time as f64 / 1e3
        )?;
        time += step(end);
    }
    let mut top = 4 * ROW;
    for (rank, (events, blocks)) in ranks.iter().zip(&blocks).enumerate() {
        let all: BTreeSet<u32> = events.iter().map(|event| event.block).collect();
        writeln!(
            out,
            "<text x=\"4\" y=\"{top}\" font-weight=\"bold\">rank {rank}: {} of {} blocks</text>",
            blocks.len(),
            all.len()
        )?;
        for event in events {
            let Some(block) = blocks.iter().position(|&block| block == event.block) else {
                continue;
            };
            let row = block as u32 * LANES + lane(event.worker);
            let y = top + 4 + row * ROW;
            let mut bar = |from: u64, to: u64, fill: &str, title: &str| {
                let (from, to) = (x(from), x(to));
                // What is too short to be seen is a line.
                let width = (to - from).max(0.2);
                writeln!(
                    out,
                    "<rect x=\"{from:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{}\" fill=\"{fill}\">\
                     <title>{title}</title></rect>",
                    ROW - 2
                )
            };
            let (name, colour) = KINDS[kind(event.work)];
            if event.ready > event.start {
                bar(event.start, event.ready, WAIT, &format!("wait: {name}"))?;
            }
            bar(event.ready, event.end, colour, &format!("{:?}", event.work))?;
        }
        for (index, block) in blocks.iter().enumerate() {
            let workers = (0..LANES).map(|lane| match lane {
                0 => Worker::Producer,
                4.. => Worker::Consumer(lane - 4),
                _ => Worker::Mover(lane),
            });
            for worker in workers {
                let row = index as u32 * LANES + lane(worker);
                let y = top + 2 + ROW + row * ROW;
                let name = name_of(worker);
                writeln!(out, "<text x=\"4\" y=\"{y}\">block {block} {name}</text>")?;
            }
        }
        top += (blocks.len() as u32 * LANES + 2) * ROW;
    }
    writeln!(out, "</svg>")?;
    Ok(())
}

/// What the colours mean.
fn legend(out: &mut impl Write) -> Result<()> {
    let kinds = KINDS.into_iter().chain([("wait", WAIT)]);
    for (index, (name, colour)) in kinds.enumerate() {
        let x = NAMES + 120.0 * index as f64;
        writeln!(
            out,
            "<rect x=\"{x}\" y=\"4\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{}\" y=\"13\">{name}</text>",
            x + 14.0
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::aligned;
    use super::super::tests::{timed, two_ranks};
    use super::*;
    use mok::layer::{Timeline, Work};

    fn picture(timelines: &[Timeline]) -> String {
        let mut text = Vec::new();
        write(&mut text, &aligned(timelines)).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn every_task_has_its_bar() {
        let text = picture(&two_ranks());
        // Ground, legend, four tasks and a wait.
        assert_eq!(text.matches("<rect ").count(), 1 + KINDS.len() + 1 + 5);
        assert_eq!(text.matches("</rect>").count(), 5);
        assert!(text.contains("<title>wait: down</title>"));
        assert!(text.contains("block 1 consumer 1"));
        assert!(picture(&[]).ends_with("</svg>\n"));
    }

    #[test]
    fn few_blocks_of_many_are_shown() {
        let task = |block| timed(Work::Sum(block), block, Worker::Producer, [1, 1, 2]);
        let tasks = (0..132).map(task).collect();
        let text = picture(&[Timeline { tasks, dropped: 0 }]);
        assert!(text.contains("6 of 132 blocks"));
        assert!(text.contains("block 110 producer") && !text.contains("block 111 producer"));
    }

    #[test]
    fn marks_are_round() {
        for (end, expected) in [
            (1, 1),
            (99, 10),
            (101, 10),
            (150, 20),
            (13_410_000, 2_000_000),
        ] {
            assert_eq!(step(end), expected, "{end}");
        }
    }
}
