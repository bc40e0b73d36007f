//! The emulated GPUs of one machine, and the order in which their work runs.
//!
//! Each GPU has one queue: work runs in the order in which it was enqueued, whatever its stream,
//! when something waits for it. Threads that wait take turns in running the machine for all GPUs,
//! so a kernel may wait for one that another thread has yet to enqueue. Simulated time jumps over
//! idle waits only while every GPU has a thread waiting; until then it passes as it does here, so
//! that a kernel's deadline leaves the other ranks time to come.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mok_emu::code::Entry;
use mok_emu::machine::{Launch, Machine, Outcome};
use mok_emu::program::Program;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Handle;
use super::emulated::fault;
use crate::error::{Error, Result};

/// Turns of the machine between looks at what others enqueue.
const SLICE: u64 = 256;
/// How long a GPU's work waits for other ranks to enqueue theirs, so that a seed fixes one order.
const GATHER: Duration = Duration::from_millis(2);
/// How long nothing but polls may go on while some GPU has nobody waiting: then nobody will come.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often idle polls look at the time.
const NAP: Duration = Duration::from_millis(1);

/// Work of a queue.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// A kernel, and its number in the machine once it is enqueued.
    Launch(Launch, u64),
    Write {
        to: u64,
        values: Arc<[u8]>,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Fill {
        to: u64,
        byte: u8,
        bytes: usize,
    },
    Record(Handle),
}

/// An event: the operation that records it, and the simulated time when that ran.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    pub operation: u64,
    pub time: u64,
}

/// One GPU's queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pending: VecDeque<Op>,
    /// The launch that runs.
    active: Option<u64>,
    pub enqueued: u64,
    pub completed: u64,
    /// What its threads wait for, by the number of an operation.
    waiters: Vec<u64>,
    /// What went wrong, until somebody waits.
    errors: Vec<String>,
    /// Whether its device is still there.
    gone: bool,
    /// Where a stream's work goes instead while it is captured.
    pub capture: Option<(Handle, Vec<Op>)>,
}

impl Queue {
    fn waited_for(&self) -> bool {
        self.waiters.iter().any(|&target| target > self.completed)
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub machine: Machine,
    pub queues: Vec<Queue>,
    pub modules: HashMap<Handle, Program>,
    pub functions: HashMap<Handle, Arc<Entry>>,
    pub events: HashMap<Handle, Recorded>,
    pub graphs: HashMap<Handle, Vec<Op>>,
    /// How often each shared allocation is mapped.
    pub shared: HashMap<u64, usize>,
    next: Handle,
    /// When something was last enqueued or began to wait.
    stirred: Instant,
}

impl State {
    pub fn handle(&mut self) -> Handle {
        self.next += 1;
        self.next
    }

    /// Puts work at the end of a GPU's queue, or into its capture.
    pub fn enqueue(&mut self, gpu: usize, stream: Handle, op: Op) {
        if let Some((captured, ops)) = &mut self.queues[gpu].capture
            && *captured == stream
        {
            ops.push(op);
            return;
        }
        self.push(gpu, op);
    }

    pub fn push(&mut self, gpu: usize, op: Op) {
        let op = match op {
            Op::Launch(launch, _) => Op::Launch(launch, self.machine.reserve_launch()),
            other => other,
        };
        let queue = &mut self.queues[gpu];
        queue.enqueued += 1;
        if let Op::Record(event) = op {
            let operation = queue.enqueued;
            self.events.insert(event, Recorded { operation, time: 0 });
        }
        queue.pending.push_back(op);
        self.stirred = Instant::now();
    }

    /// Whether a stream's work goes into a graph now.
    pub fn is_captured(&self, gpu: usize, stream: Handle) -> bool {
        let capture = self.queues[gpu].capture.as_ref();
        capture.is_some_and(|capture| capture.0 == stream)
    }

    /// Sends a stream's work into a graph.
    pub fn capture_begin(&mut self, gpu: usize, stream: Handle) -> Result<()> {
        if self.queues[gpu].capture.is_some() {
            return Err(fault(
                "capture",
                "a stream of this device is being captured",
            ));
        }
        self.queues[gpu].capture = Some((stream, Vec::new()));
        Ok(())
    }

    /// The graph of what was enqueued since.
    pub fn capture_end(&mut self, gpu: usize, stream: Handle) -> Result<Handle> {
        if !self.is_captured(gpu, stream) {
            return Err(fault("capture", "the stream is not being captured"));
        }
        let ops = self.queues[gpu].capture.take().map(|capture| capture.1);
        let graph = self.handle();
        self.graphs.insert(graph, ops.unwrap_or_default());
        Ok(graph)
    }

    /// Starts what can start.
    fn pump(&mut self) {
        for gpu in 0..self.queues.len() {
            loop {
                let queue = &mut self.queues[gpu];
                if let Some(active) = queue.active {
                    if !self.machine.is_done(active) {
                        break;
                    }
                    queue.active = None;
                    queue.completed += 1;
                    continue;
                }
                let Some(op) = queue.pending.pop_front() else {
                    break;
                };
                match self.start(op) {
                    Ok(active) => {
                        let queue = &mut self.queues[gpu];
                        queue.active = active;
                        queue.completed += u64::from(active.is_none());
                    }
                    Err(error) => {
                        self.queues[gpu].errors.push(error);
                        self.queues[gpu].completed += 1;
                    }
                }
            }
        }
    }

    /// Does an operation, or gives the number of the launch that it began.
    fn start(&mut self, op: Op) -> Result<Option<u64>, String> {
        let memory = &mut self.machine.memory;
        match op {
            Op::Launch(launch, number) => {
                let launched = self.machine.launch_reserved(launch, number);
                return launched.map(|()| Some(number)).map_err(|e| e.to_string());
            }
            Op::Write { to, values } => memory.host_write(to, &values),
            Op::Copy { to, from, bytes } => memory.host_copy(to, from, bytes as u64),
            Op::Fill { to, byte, bytes } => memory.host_fill(to, byte, bytes as u64),
            Op::Record(event) => {
                if let Some(recorded) = self.events.get_mut(&event) {
                    recorded.time = self.machine.time();
                }
                Ok(())
            }
        }
        .map(|()| None)
        .map_err(|fault| fault.reason)
    }

    /// Hands what the machine found to the GPUs it was found on.
    fn collect(&mut self, stopped: bool) {
        let findings = self.machine.take_findings();
        for (gpu, queue) in self.queues.iter_mut().enumerate() {
            let concerns = |found: &&mok_emu::report::Finding| {
                found.gpu == gpu || (stopped && queue.active.is_some())
            };
            let errors = findings.iter().filter(concerns).map(ToString::to_string);
            queue.errors.extend(errors);
        }
    }

    /// Whether nobody is left who could enqueue what others wait for.
    fn all_wait(&self) -> bool {
        let waits = |queue: &Queue| queue.gone || queue.waited_for();
        self.queues.iter().all(waits)
    }
}

/// Emulated GPUs whose kernels reach each other's memory.
#[derive(Debug)]
pub(super) struct Fleet {
    state: Mutex<State>,
    stirred: Condvar,
}

impl Fleet {
    pub fn new(machine: Machine) -> Fleet {
        let gpus = machine.config().gpus.max(1);
        Fleet {
            state: Mutex::new(State {
                machine,
                queues: (0..gpus).map(|_| Queue::default()).collect(),
                modules: HashMap::new(),
                functions: HashMap::new(),
                events: HashMap::new(),
                graphs: HashMap::new(),
                shared: HashMap::new(),
                next: 0,
                stirred: Instant::now(),
            }),
            stirred: Condvar::new(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Wakes threads that idle for want of what was enqueued.
    pub fn stir(&self) {
        self.stirred.notify_all();
    }

    /// A GPU's device is dropped: nothing more comes from it.
    pub fn leave(&self, gpu: usize) {
        self.state().queues[gpu].gone = true;
        self.stir();
    }

    /// Runs until everything that a GPU's queue holds now is over.
    pub fn settled(&self, gpu: usize) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        let target = state.queues[gpu].enqueued;
        self.wait(&mut state, gpu, target)?;
        Ok(state)
    }

    /// Runs until a GPU has completed an operation. What was found on it is an error, once.
    pub fn wait(&self, state: &mut MutexGuard<'_, State>, gpu: usize, target: u64) -> Result<()> {
        state.queues[gpu].waiters.push(target);
        state.stirred = Instant::now();
        self.stir();
        let mut idle: Option<Instant> = None;
        loop {
            state.pump();
            if state.queues[gpu].completed >= target {
                break;
            }
            let all_wait = state.all_wait();
            if !all_wait && state.stirred.elapsed() < GATHER {
                self.stirred.wait_for(state, GATHER);
                continue;
            }
            let patient = idle.is_none_or(|since| since.elapsed() < PATIENCE);
            state.machine.hold_time(!all_wait && patient);
            let outcome = state.machine.run_turns(SLICE);
            state.collect(outcome == Outcome::Stopped);
            if outcome == Outcome::Polling {
                idle.get_or_insert_with(Instant::now);
                let before = Instant::now();
                self.stirred.wait_for(state, NAP);
                let nanoseconds = before.elapsed().as_nanos() as u64;
                state.machine.pass_time(nanoseconds);
            } else {
                idle = None;
                MutexGuard::bump(state);
            }
        }
        let queue = &mut state.queues[gpu];
        if let Some(at) = queue.waiters.iter().position(|&other| other == target) {
            queue.waiters.swap_remove(at);
        }
        let errors = std::mem::take(&mut queue.errors);
        self.stir();
        match errors.is_empty() {
            true => Ok(()),
            false => Err(Error::Emulator { findings: errors }),
        }
    }

    /// Whether a range lies in memory, before it is enqueued to be touched.
    pub fn check(state: &State, call: &'static str, address: u64, bytes: usize) -> Result<()> {
        let found = state.machine.memory.read(address, bytes as u64);
        found.map(drop).map_err(|error| fault(call, error.reason))
    }
}
