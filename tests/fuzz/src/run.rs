//! Running programs, and what they leave in memory.

use mok::launch::{KernelSpec, Param};
use mok::{Buffer, Device, EmulatorConfig, Module, Stream};
use sha2::{Digest, Sha256};

use crate::program::{Program, UNWRITTEN};
use crate::render;
use crate::values;

/// What a program stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// [`Program::words`] a thread, which are the same on every device.
    pub exact: Vec<u64>,
    /// Three words a site, [`Program::sites`] a thread.
    pub near: Vec<u64>,
}

impl Output {
    /// The first 64 bits of the exact words' SHA-256.
    pub fn hash(&self) -> u64 {
        let mut hash = Sha256::new();
        for word in &self.exact {
            hash.update(word.to_le_bytes());
        }
        hash.finalize()[..8]
            .iter()
            .fold(0, |all, &byte| all << 8 | u64::from(byte))
    }

    /// Whether any thread stored to this word.
    pub fn is_written(&self, words: u32, word: u32) -> bool {
        let unwritten = u64::from_le_bytes([UNWRITTEN; 8]);
        self.exact
            .chunks_exact(words.max(1) as usize)
            .any(|row| row[word as usize] != unwritten)
    }
}

/// A device with the inputs in its memory.
pub struct Runner {
    device: Device,
    stream: Stream,
    tables: Buffer<u8>,
}

impl Runner {
    /// On any device. `seed` is the generator's.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: Device, seed: u64) -> mok::Result<Runner> {
        let stream = device.stream()?;
        let tables = device.buffer_from(&values::tables(seed))?;
        Ok(Runner {
            device,
            stream,
            tables,
        })
    }

    /// On an emulated GPU. `check`: look for faults of the program too.
    ///
    /// # Errors
    /// The device's.
    pub fn emulated(seed: u64, check: bool) -> mok::Result<Runner> {
        let config = EmulatorConfig {
            check,
            ..EmulatorConfig::default()
        };
        Runner::new(Device::emulated(config)?, seed)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The outputs of programs, in order.
    ///
    /// # Errors
    /// The driver's compiler or a launch refuses them; after a fault on a GPU every further call
    /// fails too.
    pub fn run(&self, programs: &[&Program]) -> mok::Result<Vec<Output>> {
        self.run_text(programs, &render::module(programs))
    }

    /// The same, with another text for the module: for tests that change it.
    ///
    /// # Errors
    /// As [`Runner::run`]'s.
    pub fn run_text(&self, programs: &[&Program], text: &str) -> mok::Result<Vec<Output>> {
        let module = Module::from_ptx(&self.device, text)?;
        let mut running = Vec::new();
        for program in programs {
            let params = [8, 8, 8, 4, 4].map(Param::Bytes);
            let spec = KernelSpec::new(program.entry(), program.shape.threads).with_params(&params);
            let kernel = module.kernel(spec)?;
            let threads = program.shape.all();
            let words = threads * program.words as usize;
            let sites = (threads * 3 * program.sites as usize).max(1);
            let exact = self.device.buffer_filled::<u64>(words, UNWRITTEN)?;
            let near = self.device.buffer_filled::<u64>(sites, UNWRITTEN)?;
            let launch = kernel
                .launch()
                .grid([program.shape.blocks, 1, 1])
                .arg(&self.tables.ptr())
                .arg(&exact.ptr())
                .arg(&near.ptr())
                .arg(&0u32)
                .arg(&program.salt);
            // SAFETY: the parameters are those of `render::kernel`: the tables that its addresses
            // point into, and rows for all threads, which live until the stream has passed.
            unsafe { launch.enqueue(&self.stream) }?;
            running.push((exact, near));
        }
        self.stream.synchronize()?;
        running
            .iter()
            .map(|(exact, near)| {
                Ok(Output {
                    exact: exact.to_vec()?,
                    near: near.to_vec()?,
                })
            })
            .collect()
    }
}
