//! The trace as events of the Trace Event Format, which Perfetto opens.

use std::io::Write;

use anyhow::Result;
use mok::layer::{Work, Worker};
use serde::Serialize;
use serde::ser::SerializeSeq;
use serde_json::{Value, json};

use super::{Event, KINDS, LANES, kind, lane, name_of};

/// A complete event: times in microseconds.
#[derive(Serialize)]
struct Complete {
    ph: &'static str,
    pid: usize,
    tid: u32,
    name: &'static str,
    ts: f64,
    dur: f64,
    args: Value,
}

/// Writes all ranks' events, each rank a process and each worker a thread of it.
pub fn write(out: &mut impl Write, ranks: &[Vec<Event>]) -> Result<()> {
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":")?;
    let mut json = serde_json::Serializer::new(&mut *out);
    let mut all = serde::Serializer::serialize_seq(&mut json, None)?;
    for (rank, events) in ranks.iter().enumerate() {
        let name = |what: &str, tid: u32, name: String| json!({"ph": "M", "pid": rank, "tid": tid, "name": what, "args": {"name": name}});
        all.serialize_element(&name("process_name", 0, format!("rank {rank}")))?;
        let mut workers: Vec<(u32, Worker)> = events
            .iter()
            .map(|event| (event.block, event.worker))
            .collect();
        workers.sort();
        workers.dedup();
        for (block, worker) in workers {
            let title = format!("block {block} {}", name_of(worker));
            all.serialize_element(&name("thread_name", tid(block, worker), title))?;
            all.serialize_element(&json!({
                "ph": "M", "pid": rank, "tid": tid(block, worker), "name": "thread_sort_index",
                "args": {"sort_index": tid(block, worker)},
            }))?;
        }
        for event in events {
            for complete in completes(rank, event) {
                all.serialize_element(&complete)?;
            }
        }
    }
    all.end()?;
    out.write_all(b"}\n")?;
    Ok(())
}

fn tid(block: u32, worker: Worker) -> u32 {
    block * LANES + lane(worker)
}

/// The wait, if there was one, and the work.
fn completes(rank: usize, event: &Event) -> impl Iterator<Item = Complete> {
    let name = KINDS[kind(event.work)].0;
    let complete = |name, from: u64, to: u64, args| Complete {
        ph: "X",
        pid: rank,
        tid: tid(event.block, event.worker),
        name,
        ts: from as f64 / 1e3,
        dur: to.saturating_sub(from) as f64 / 1e3,
        args,
    };
    let waits = event.ready > event.start;
    let wait = waits.then(|| complete("wait", event.start, event.ready, json!({"for": name})));
    let work = complete(name, event.ready, event.end, arguments(event.work));
    wait.into_iter().chain([work])
}

fn arguments(work: Work) -> Value {
    match work {
        Work::Stage(piece) => json!({"piece": piece}),
        Work::MeetTokens => json!({"for": "tokens"}),
        Work::MeetResults => json!({"for": "results"}),
        Work::Dispatch(strip, piece) | Work::Combine(strip, piece) => {
            json!({"strip": strip, "piece": piece})
        }
        Work::Load(tile) | Work::Products(tile) => json!({
            "of": if tile.down { "down" } else { "gate-and-up" },
            "shared": tile.shared, "strip": tile.strip, "column": tile.column,
        }),
        Work::Sum(token) => json!({"token": token}),
    }
}

#[cfg(test)]
mod tests {
    use super::super::aligned;
    use super::super::tests::two_ranks;
    use super::*;

    #[test]
    fn events_have_what_perfetto_asks_for() {
        let mut text = Vec::new();
        write(&mut text, &aligned(&two_ranks())).unwrap();
        let parsed: Value = serde_json::from_slice(&text).unwrap();
        let events = parsed["traceEvents"].as_array().unwrap();
        let of = |phase: &str| -> Vec<&Value> {
            let of_phase = events.iter().filter(|event| event["ph"] == phase);
            of_phase.collect()
        };
        // Two processes, three threads with a place each.
        assert_eq!(of("M").len(), 2 + 3 * 2);
        let complete = of("X");
        assert_eq!(complete.len(), 5);
        let wait = complete
            .iter()
            .find(|event| event["name"] == "wait")
            .unwrap();
        assert_eq!((&wait["pid"], &wait["tid"]), (&json!(1), &json!(6 + 5)));
        assert_eq!(wait["args"]["for"], "down");
        let down = complete
            .iter()
            .find(|event| event["name"] == "down")
            .unwrap();
        assert_eq!((&down["ts"], &down["dur"]), (&json!(0.05), &json!(0.015)));
        assert_eq!(down["args"]["strip"], 2);
        let mut none = Vec::new();
        write(&mut none, &[]).unwrap();
        assert!(serde_json::from_slice::<Value>(&none).is_ok());
    }
}
