//! How ranks come to be: threads of this process, processes that it starts, or processes that a
//! launcher has started already.

use std::env;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use mok::Device;
use mok::layer::{Group, LayerError};

use super::output::Outputs;
use super::problem::Problem;
use super::rank::{self, Finished, Work, gather};
use crate::progress::Progress;

/// What ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Launch {
    /// Threads of this process
    Threads,
    /// Processes, which this one starts
    Processes,
}

/// Whether a launcher has started this process as one rank of several.
pub fn launched() -> bool {
    ["RANK", "WORLD_SIZE"]
        .iter()
        .any(|name| env::var_os(name).is_some())
}

/// A thread may have to wait for another's hours of emulation.
const PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);

/// All ranks as threads, each with its device; what rank 0 found, and all outputs.
pub fn threads(
    problem: &Problem,
    work: Work,
    devices: &[Option<Device>],
    progress: &Progress,
) -> Result<(Finished, Outputs)> {
    let groups = Group::threads(devices.len())?;
    let results: Vec<Result<Finished>> = thread::scope(|scope| {
        let threads: Vec<_> = groups
            .into_iter()
            .zip(devices)
            .map(|(group, device)| {
                scope.spawn(move || {
                    group.set_timeout(PATIENCE);
                    let hidden = Progress::hidden();
                    let shown = if group.rank() == 0 { progress } else { &hidden };
                    rank::run(problem, work, device.as_ref(), &Arc::new(group), shown)
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("the rank's thread panicked: this is a fault of mok-rs"),
        });
        joined.collect()
    });
    let mut finished = Vec::new();
    let mut failed: Option<(u32, anyhow::Error)> = None;
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(rank) => finished.push(rank),
            Err(error) => {
                let hearsay = hearsay(&error);
                if failed.as_ref().is_none_or(|(least, _)| hearsay < *least) {
                    failed = Some((hearsay, error.context(format!("rank {rank}"))));
                }
            }
        }
    }
    if let Some((_, error)) = failed {
        return Err(error);
    }
    let mut outputs = Outputs::default();
    for rank in &finished {
        outputs.out.extend(&rank.out);
        outputs.topk_experts.extend(&rank.data.routes.experts);
        outputs.router_weights.extend(&rank.data.routes.weights);
    }
    let first = finished.into_iter().next();
    Ok((first.context("there is no rank")?, outputs))
}

/// How little an error says of its own cause: what other ranks have told comes last.
fn hearsay(error: &anyhow::Error) -> u32 {
    if error.downcast_ref::<mok_comm::Error>().is_some() {
        return 2;
    }
    match error.downcast_ref::<mok::Error>() {
        Some(mok::Error::Comm(_)) => 2,
        Some(mok::Error::Layer(LayerError::Aborted { .. })) => 1,
        _ => 0,
    }
}

/// This process as one rank. Outputs are gathered if `outputs`, which all ranks say alike.
pub fn member(
    problem: &Problem,
    work: Work,
    device: Option<&Device>,
    group: Group,
    progress: &Progress,
    outputs: bool,
) -> Result<(Finished, Outputs)> {
    let group = Arc::new(group);
    let finished = rank::run(problem, work, device, &group, progress)?;
    let mut all = Outputs::default();
    if outputs {
        let routes = &finished.data.routes;
        all.out = joined(&group, bytemuck::cast_slice(&finished.out))?;
        all.topk_experts = joined(&group, bytemuck::cast_slice(&routes.experts))?;
        all.router_weights = joined(&group, bytemuck::cast_slice(&routes.weights))?;
    }
    // Rank 0 carries the messages: it goes last.
    group.barrier()?;
    Ok((finished, all))
}

fn joined<T: bytemuck::Pod>(group: &Group, own: &[u8]) -> Result<Vec<T>> {
    let bytes = gather(group, own)?.concat();
    let elements = bytes.chunks_exact(size_of::<T>());
    Ok(elements.map(bytemuck::pod_read_unaligned).collect())
}

/// How long ranks have to end by themselves once one has failed: longer than the layer's deadline.
const GRACE: Duration = Duration::from_secs(60);

/// What started ranks left behind.
pub struct Ended {
    /// Rank 0's standard output.
    pub printed: String,
    /// How each rank ended.
    pub statuses: Vec<ExitStatus>,
}

impl Ended {
    /// The ranks that did not come to their report.
    pub fn lost(&self) -> Vec<String> {
        let ended = self.statuses.iter().enumerate();
        ended
            .filter(|(_, status)| !matches!(status.code(), Some(0 | 1)))
            .map(|(rank, status)| format!("rank {rank}: {status}"))
            .collect()
    }
}

/// Starts this program once more for each rank, and waits for all.
pub fn processes(ranks: usize) -> Result<Ended> {
    let program = env::current_exe().context("finding this program")?;
    // Freed at once: should another take it, the job's id leads the ranks to the next port.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.context("finding a free port")?.port();
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let job = format!("mok-run-{}-{}", std::process::id(), now.as_nanos());
    let mut started = Started(Vec::new());
    for rank in 0..ranks {
        let mut command = Command::new(&program);
        command
            .args(env::args_os().skip(1))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("LOCAL_WORLD_SIZE", ranks.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("MOK_JOB_ID", &job)
            .stdin(Stdio::null())
            .stdout(if rank == 0 {
                Stdio::piped()
            } else {
                Stdio::null()
            });
        let child = command
            .spawn()
            .with_context(|| format!("starting rank {rank}"))?;
        started.0.push(child);
    }
    let pipe = started.0.first_mut().and_then(|child| child.stdout.take());
    let reader = thread::spawn(move || {
        let mut printed = String::new();
        if let Some(mut pipe) = pipe {
            // What can't be read was not printed.
            let _ = pipe.read_to_string(&mut printed);
        }
        printed
    });
    let statuses = started.wait()?;
    Ok(Ended {
        printed: reader.join().unwrap_or_default(),
        statuses,
    })
}

/// Running ranks; whoever is left when this goes is ended.
struct Started(Vec<Child>);

impl Started {
    fn wait(&mut self) -> Result<Vec<ExitStatus>> {
        let mut statuses: Vec<Option<ExitStatus>> = vec![None; self.0.len()];
        let mut failed: Option<Instant> = None;
        loop {
            for (child, status) in self.0.iter_mut().zip(&mut statuses) {
                if status.is_none() {
                    *status = child.try_wait().context("waiting for a rank")?;
                    if status.is_some_and(|status| !status.success()) {
                        failed.get_or_insert_with(Instant::now);
                    }
                }
            }
            if statuses.iter().all(Option::is_some) {
                return Ok(statuses.into_iter().flatten().collect());
            }
            if failed.is_some_and(|since| since.elapsed() > GRACE) {
                for child in &mut self.0 {
                    // One that has ended already can't be ended.
                    let _ = child.kill();
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        for child in &mut self.0 {
            if let Ok(None) = child.try_wait() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
