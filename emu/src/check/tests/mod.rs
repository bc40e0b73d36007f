//! Planted faults, each with a twin that is right.

mod copies;
mod maps;
mod pairs;
mod pipeline;
mod products;
mod ring;
mod speed;
mod tensor;
mod threads;
mod unwritten;

use crate::machine::{Completion, Config, Launch, Machine};
use crate::program::Program;
use crate::report::{Finding, FindingKind};

/// A kernel `k` with buffers for parameters, run with several seeds and completions.
pub(super) struct Plant {
    body: String,
    blocks: u32,
    cluster: u32,
    threads: u32,
    gpus: usize,
    buffers: u32,
    /// Bytes of each buffer that the host writes.
    written: usize,
    target: &'static str,
}

impl Plant {
    pub fn new(body: &str) -> Plant {
        Plant {
            body: body.into(),
            blocks: 1,
            cluster: 1,
            threads: 64,
            gpus: 1,
            buffers: 2,
            written: 1 << 16,
            target: "sm_90a",
        }
    }

    pub fn target(mut self, target: &'static str) -> Plant {
        self.target = target;
        self
    }

    pub fn blocks(mut self, blocks: u32) -> Plant {
        self.blocks = blocks;
        self
    }

    pub fn cluster(mut self, cluster: u32) -> Plant {
        self.cluster = cluster;
        self
    }

    pub fn threads(mut self, threads: u32) -> Plant {
        self.threads = threads;
        self
    }

    pub fn gpus(mut self, gpus: usize) -> Plant {
        self.gpus = gpus;
        self
    }

    pub fn written(mut self, bytes: usize) -> Plant {
        self.written = bytes;
        self
    }

    /// The same with one text for another.
    pub fn with(&self, from: &str, to: &str) -> Plant {
        assert!(self.body.contains(from), "{from} is not there");
        Plant {
            body: self.body.replace(from, to),
            ..*self
        }
    }

    /// The same without an instruction.
    pub fn without(&self, line: &str) -> Plant {
        self.with(line, "")
    }

    fn text(&self) -> String {
        let params: Vec<String> = (0..self.buffers)
            .map(|at| format!(".param .u64 p{at}"))
            .collect();
        format!(
            ".version 8.8\n.target {}\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n\
             .visible .entry k({}) {{\n.reg .pred %p<16>;\n.reg .b32 %r<64>;\n.reg .b64 %rd<16>;\n.reg .f32 %f<300>;\n\
             ld.param.u64 %rd0, [p0];\nld.param.u64 %rd1, [p1];\nmov.u32 %r0, %tid.x;\nmov.u32 %r1, %ctaid.x;\n{}\nret;\n}}\n",
            self.target,
            params.join(", "),
            self.body
        )
    }

    fn once(&self, seed: u64, completion: Completion) -> Vec<Finding> {
        let mut machine = Machine::new(Config {
            gpus: self.gpus,
            seed,
            completion,
            instruction_limit: 1_000_000,
            ..Config::default()
        });
        let buffers: Vec<u64> = (0..self.buffers)
            .map(|_| machine.memory.alloc(0, 1 << 16).unwrap())
            .collect();
        for &buffer in &buffers {
            let zeros = vec![0; self.written];
            machine.memory.host_write(buffer, &zeros).unwrap();
        }
        for gpu in 0..self.gpus {
            let program = Program::load(&mut machine, gpu, &self.text()).unwrap();
            let mut params: Vec<u8> = buffers.iter().flat_map(|b| b.to_le_bytes()).collect();
            params.truncate(program.entries[0].param_bytes as usize);
            machine
                .launch(Launch {
                    entry: program.entries[0].clone(),
                    gpu,
                    grid: [self.blocks, 1, 1],
                    block: [self.threads, 1, 1],
                    cluster: [self.cluster, 1, 1],
                    dynamic_shared: 64 << 10,
                    params,
                })
                .unwrap();
        }
        machine.run();
        machine.take_findings()
    }

    fn all(&self) -> impl Iterator<Item = Vec<Finding>> {
        [Completion::Random, Completion::Early, Completion::Late]
            .into_iter()
            .flat_map(move |completion| (0..8).map(move |seed| self.once(seed, completion)))
    }

    /// Nothing is found, whatever the seed.
    pub fn clean(&self) {
        for found in self.all() {
            assert!(found.is_empty(), "{}", found[0]);
        }
    }

    /// A finding of one of these kinds, whatever the seed.
    pub fn finds_one_of(&self, kinds: &[FindingKind]) {
        for found in self.all() {
            let any = found.iter().any(|found| kinds.contains(&found.kind));
            assert!(any, "none of {kinds:?} in {found:?}");
        }
    }

    /// A finding of this kind, whatever the seed, at a line with this text; gives its message.
    pub fn finds(&self, kind: FindingKind, at: &str) -> String {
        let text = self.text();
        let mut message = String::new();
        for found in self.all() {
            let of_kind = found.iter().find(|found| found.kind == kind);
            let of_kind = of_kind.unwrap_or_else(|| panic!("no {} in {found:?}", kind.name()));
            let line = text.lines().nth(of_kind.line as usize - 1).unwrap_or("");
            assert!(line.contains(at), "`{line}`: {of_kind}");
            message = of_kind.to_string();
        }
        message
    }
}
