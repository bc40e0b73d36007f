//! What ranks do with symmetric memory: the same as threads and as processes.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, result};
use mok_comm::{Group, HandleKind, Rendezvous, SymmetricMemory, Topology};

type Outcome = Result<String, Box<dyn Error>>;

/// The bodies that both ranks come out of alive.
pub const NAMES: [&str; 7] = [
    "write and read",
    "by descriptors",
    "by fabric",
    "free in any order",
    "no leak",
    "unequal sizes",
    "topology",
];

/// Bytes of a buffer: not a multiple of any granularity.
const BYTES: usize = (5 << 20) + 12;

/// How many devices there are, at least one.
pub fn devices() -> Result<usize, String> {
    // SAFETY: opening the driver library runs its initialisers, which it is made for.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err("no CUDA driver".into());
    }
    match CudaContext::device_count() {
        Ok(0) => Err("no GPU".into()),
        Ok(count) => Ok(count as usize),
        Err(error) => Err(error.to_string()),
    }
}

/// Joins the job of the environment, then runs a body.
pub fn run_process(body: &str) -> String {
    let joined = Rendezvous::from_env()
        .and_then(|rendezvous| Group::connect(&rendezvous.deadline(Duration::from_secs(30))));
    match joined {
        Ok(group) => run(body, group),
        Err(error) => format!("join: {error}"),
    }
}

/// Runs a body: `ok` with what it says, or the error.
pub fn run(body: &str, group: Group) -> String {
    group.set_timeout(Duration::from_secs(60));
    let run = || -> Outcome {
        let context = CudaContext::new(group.local_rank() % devices()?)?;
        context.bind_to_thread()?;
        let rank = Rank { group, context };
        match body {
            "write and read" => rank.write_and_read(None),
            "by descriptors" => rank.write_and_read(Some(HandleKind::Descriptor)),
            "by fabric" => rank.by_fabric(),
            "free in any order" => rank.free_in_any_order(),
            "no leak" => rank.no_leak(),
            "unequal sizes" => rank.unequal_sizes(),
            "topology" => rank.topology(),
            "survive a killed peer" => rank.survive(),
            other => Err(format!("no body {other}").into()),
        }
    };
    match run() {
        Ok(said) => format!("ok {said}"),
        Err(error) => error.to_string(),
    }
}

struct Rank {
    group: Group,
    context: Arc<CudaContext>,
}

/// Bytes that tell writer, reader and place apart.
fn pattern(from: usize, to: usize) -> Vec<u8> {
    (0..BYTES)
        .map(|at| (at ^ (at >> 8)) as u8 ^ (17 * from + 5 * to + 1) as u8)
        .collect()
}

fn put(address: u64, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    // SAFETY: a mapped buffer of at least this size.
    unsafe { result::memcpy_htod_sync(address, bytes)? };
    Ok(())
}

fn get(address: u64, bytes: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut read = vec![0xee; bytes];
    // SAFETY: a mapped buffer of at least this size.
    unsafe { result::memcpy_dtoh_sync(&mut read, address)? };
    Ok(read)
}

fn expect(what: &str, got: &[u8], want: &[u8]) -> Result<(), Box<dyn Error>> {
    match got.iter().zip(want).position(|(got, want)| got != want) {
        None if got.len() == want.len() => Ok(()),
        at => Err(format!("{what}: differs at {at:?}").into()),
    }
}

impl Rank {
    fn peer(&self) -> usize {
        1 - self.group.rank()
    }

    fn allocate(&self, kind: Option<HandleKind>) -> mok_comm::Result<SymmetricMemory> {
        SymmetricMemory::allocate_with(&self.group, &self.context, BYTES, kind)
    }

    /// Each writes the other's buffer through its own mapping, and finds the other's bytes in its own.
    fn exchange(&self, memory: &SymmetricMemory) -> Result<(), Box<dyn Error>> {
        let (own, peer) = (self.group.rank(), self.peer());
        let bases = &memory.addresses().bases;
        put(bases[peer], &pattern(own, peer))?;
        self.group.barrier()?;
        expect(
            "what the peer wrote",
            &get(bases[own], BYTES)?,
            &pattern(peer, own),
        )?;
        expect(
            "what was written",
            &get(bases[peer], BYTES)?,
            &pattern(own, peer),
        )?;
        self.group.barrier()?;
        Ok(())
    }

    fn write_and_read(&self, kind: Option<HandleKind>) -> Outcome {
        let memory = self.allocate(kind)?;
        let granularity = SymmetricMemory::granularity(&self.context)?;
        if memory.bytes() != BYTES.next_multiple_of(granularity) {
            return Err(format!("{} bytes, in steps of {granularity}", memory.bytes()).into());
        }
        if kind.is_some_and(|kind| kind != memory.kind()) {
            return Err(format!("by {}", memory.kind()).into());
        }
        for (rank, base) in memory.addresses().bases.iter().enumerate() {
            let zeros = vec![0; memory.bytes()];
            let what = format!("rank {rank}'s fresh memory");
            expect(&what, &get(*base, memory.bytes())?, &zeros)?;
        }
        self.group.barrier()?;
        self.exchange(&memory)?;
        Ok(memory.kind().to_string())
    }

    /// Fabric handles need an IMEX channel: without one the refusal has to be clear, and the group of
    /// use afterwards.
    fn by_fabric(&self) -> Outcome {
        match self.write_and_read(Some(HandleKind::Fabric)) {
            Ok(said) => Ok(said),
            Err(error) => {
                let text = error.to_string();
                let clear = [
                    "NOT_PERMITTED",
                    "NOT_SUPPORTED",
                    "fabric handles: the device of",
                ];
                if !clear.iter().any(|clear| text.contains(clear)) {
                    return Err(error);
                }
                self.exchange(&self.allocate(None)?)?;
                Ok(format!("not here: {text}"))
            }
        }
    }

    /// The other rank's buffer stays readable after that rank freed it.
    fn free_in_any_order(&self) -> Outcome {
        for first in [0, 1] {
            let memory = self.allocate(None)?;
            self.exchange(&memory)?;
            if self.group.rank() == first {
                drop(memory);
                self.group.barrier()?;
            } else {
                self.group.barrier()?;
                let (own, peer) = (self.group.rank(), self.peer());
                let base = memory.addresses().bases[peer];
                expect(
                    "after the peer freed it",
                    &get(base, BYTES)?,
                    &pattern(own, peer),
                )?;
                put(base, &pattern(7, 7))?;
                expect("written after it", &get(base, BYTES)?, &pattern(7, 7))?;
                drop(memory);
            }
            self.group.barrier()?;
        }
        Ok("0 first, 1 first".into())
    }

    /// As much memory is free after many allocations as before them.
    fn no_leak(&self) -> Outcome {
        const ROUNDS: usize = 50;
        // What the driver keeps for itself it has taken after the first.
        drop(self.allocate(None)?);
        self.group.barrier()?;
        let before = self.context.mem_get_info()?.0;
        self.group.barrier()?;
        for round in 0..ROUNDS {
            let memory = self.allocate(None)?;
            // Also on the way out of an error.
            if round % 2 == 0 {
                self.group
                    .agree::<(), _>(Err("planted"))
                    .expect_err("planted");
            }
            drop(memory);
        }
        self.group.barrier()?;
        let after = self.context.mem_get_info()?.0;
        self.group.barrier()?;
        if before > after + BYTES {
            return Err(format!("{before} bytes free before, {after} after").into());
        }
        Ok(format!(
            "{} bytes fewer after {ROUNDS} rounds",
            before.saturating_sub(after)
        ))
    }

    fn unequal_sizes(&self) -> Outcome {
        let bytes = BYTES << self.group.rank();
        match SymmetricMemory::allocate(&self.group, &self.context, bytes) {
            Err(error @ mok_comm::Error::Unequal { .. }) => {
                self.exchange(&self.allocate(None)?)?;
                Ok(error.to_string())
            }
            other => Err(format!("{other:?}").into()),
        }
    }

    fn topology(&self) -> Outcome {
        let topology = Topology::gather(&self.group, Some(&self.context))?;
        let shared = !topology.shared_devices().is_empty();
        if shared != (devices()? == 1) {
            return Err(format!("shared: {shared}").into());
        }
        Ok(topology.to_string())
    }

    /// Rank 1 is killed while rank 0 watches; rank 0 still reads its memory, frees all, and goes on.
    fn survive(&self) -> Outcome {
        let memory = self.allocate(None)?;
        self.exchange(&memory)?;
        println!("watching");
        let error = loop {
            if let Some(error) = self.group.failed() {
                break error;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let (own, peer) = (self.group.rank(), self.peer());
        let base = memory.addresses().bases[peer];
        expect(
            "the dead rank's memory",
            &get(base, BYTES)?,
            &pattern(own, peer),
        )?;
        drop(memory);
        if self.allocate(None).is_ok() {
            return Err("allocated with a dead rank".into());
        }
        let alone = Group::threads(1)?.remove(0);
        let memory = SymmetricMemory::allocate(&alone, &self.context, BYTES)?;
        put(memory.addresses().base(), &pattern(3, 3))?;
        expect(
            "alone",
            &get(memory.addresses().base(), BYTES)?,
            &pattern(3, 3),
        )?;
        Ok(error.to_string())
    }
}
