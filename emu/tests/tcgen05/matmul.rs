//! Products with `tcgen05`, from PTX written here: of bf16, or of e4m3 with a scale for 32 elements.

use mok_emu::machine::{Config, Launch, Machine, Random};
use mok_emu::program::Program;
use mok_emu::report::Finding;

/// Products of one row of 128 bytes.
const STEPS: usize = 4;

/// `D = A B^T` for each block, or each pair of blocks.
pub struct Matmul {
    m: usize,
    n: usize,
    group: usize,
    columns: usize,
    /// Whether operands are e4m3 with scales.
    scaled: bool,
}

/// A small number in bf16.
fn bits_of(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// A small number in e4m3.
fn e4m3(value: i32) -> u8 {
    let size = [0, 0x38, 0x40, 0x44, 0x48][value.unsigned_abs() as usize];
    size | if value < 0 { 0x80 } else { 0 }
}

impl Matmul {
    pub fn new(m: usize, n: usize, group: usize) -> Matmul {
        Matmul {
            m,
            n,
            group,
            columns: 64,
            scaled: false,
        }
    }

    pub fn scaled(self) -> Matmul {
        Matmul {
            scaled: true,
            columns: 128,
            ..self
        }
    }

    /// Columns of A and rows of B: 128 bytes.
    fn k(&self) -> usize {
        if self.scaled { 128 } else { 64 }
    }

    /// The power of two that 32 elements of a row are scaled by.
    fn power(row: usize, block: usize) -> usize {
        (row + 3 * block) % 4
    }

    pub fn columns(self, columns: usize) -> Matmul {
        Matmul { columns, ..self }
    }

    /// The matrices of a block or a pair.
    fn operands(&self, number: usize) -> [Vec<i32>; 2] {
        let mut random = Random::new(number as u64 + 7);
        [self.m, self.n].map(|rows| {
            (0..rows * self.k())
                .map(|_| random.below(9) as i32 - 4)
                .collect()
        })
    }

    /// The sums of each block, as it stores them: lane by lane, as many columns as it has there.
    pub fn want(&self, number: usize) -> Vec<u32> {
        let [a, b] = self.operands(number);
        let sum = |row: usize, column: usize| -> u32 {
            let depth = self.k();
            let products = (0..depth).map(|k| {
                let powers = match self.scaled {
                    true => Self::power(row, k / 32) + Self::power(column, k / 32),
                    false => 0,
                };
                (a[row * depth + k] * b[column * depth + k]) << powers
            });
            (products.sum::<i32>() as f32).to_bits()
        };
        let width = self.width();
        let mut words = Vec::new();
        for rank in 0..self.group {
            for lane in 0..128 {
                for column in 0..width {
                    let (row, column) = match (self.m, self.group) {
                        (128, 2) => (64 * rank + lane % 64, column + lane / 64 * width),
                        (64, _) if lane % 32 >= 16 => {
                            words.push(0);
                            continue;
                        }
                        (64, _) => (lane / 32 * 16 + lane % 16, column),
                        _ => (128 * rank + lane, column),
                    };
                    words.push(sum(row, column));
                }
            }
        }
        words
    }

    /// Columns of D in a lane.
    fn width(&self) -> usize {
        match (self.m, self.group) {
            (128, 2) => self.n / 2,
            _ => self.n,
        }
    }

    /// The shared memory of each block: rows of 128 bytes, swizzled; A's, then B's, then scales.
    fn image(&self, blocks: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for block in 0..blocks {
            let (number, rank) = (block / self.group, block % self.group);
            for rows in self.operands(number) {
                let share = rows.len() / self.group;
                let own = &rows[rank * share..(rank + 1) * share];
                for (row, values) in own.chunks(self.k()).enumerate() {
                    let per = self.k() / 8;
                    for chunk in 0..8 {
                        for value in &values[(chunk ^ (row % 8)) * per..][..per] {
                            match self.scaled {
                                true => bytes.push(e4m3(*value)),
                                false => bytes.extend(bits_of(*value as f32).to_le_bytes()),
                            }
                        }
                    }
                }
            }
            if self.scaled {
                // A's of the block's own rows, and all of B's.
                for first in [rank * 128, 0] {
                    let mut scales = [0u8; 512];
                    for row in 0..128 {
                        for block in 0..4 {
                            scales[row % 32 * 16 + row / 32 * 4 + block] =
                                (127 + Self::power(first + row, block)) as u8;
                        }
                    }
                    bytes.extend(scales);
                }
            }
        }
        bytes
    }

    fn shared(&self) -> usize {
        (self.m + self.n) / self.group * 128 + if self.scaled { 1024 } else { 0 }
    }

    pub fn text(&self) -> String {
        let (group, width, columns) = (self.group, self.width(), self.columns);
        let shared = self.shared();
        let rows = self.m / self.group * 128;
        let plain = 1 << 4 | 1 << 7 | 1 << 10 | (self.n / 8) << 17 | (self.m / 16) << 24;
        let mut body = String::new();
        // Each thread copies its share of the image, 16 bytes at a time.
        body += &format!(
            "mov.u32 %r0, %tid.x;\nmov.u32 %r1, %ctaid.x;\nmov.u32 %r2, smem;\nmov.u32 %r3, bars;\n\
             mul.lo.u32 %r4, %r1, {shared};\nshl.b32 %r5, %r0, 4;\nadd.u32 %r4, %r4, %r5;\n\
             cvt.u64.u32 %rd2, %r4;\nadd.s64 %rd2, %rd2, %rd0;\nadd.u32 %r6, %r2, %r5;\n\
             COPY:\nld.global.v4.u32 {{%r20, %r21, %r22, %r23}}, [%rd2];\n\
             st.shared.v4.u32 [%r6], {{%r20, %r21, %r22, %r23}};\n\
             add.s64 %rd2, %rd2, 2048;\nadd.u32 %r6, %r6, 2048;\nadd.u32 %r5, %r5, 2048;\n\
             setp.lt.u32 %p0, %r5, {shared};\n@%p0 bra COPY;\nfence.proxy.async.shared::cta;\n"
        );
        // Warp 0 allocates; one thread makes the mbarrier.
        body += &format!(
            "setp.eq.u32 %p1, %r0, 0;\n@%p1 mbarrier.init.shared.b64 [%r3], 1;\n\
             @%p1 fence.mbarrier_init.release.cluster;\nshr.u32 %r7, %r0, 5;\nsetp.ne.u32 %p2, %r7, 0;\n\
             @%p2 bra ALLOCATED;\n\
             tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r3+8], {columns};\n\
             tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;\n\
             ALLOCATED:\ntcgen05.fence::before_thread_sync;\n{}\ntcgen05.fence::after_thread_sync;\n\
             ld.shared.u32 %r10, [%r3+8];\n",
            self.meet()
        );
        body += &format!(
            "bfe.u32 %r8, %r2, 4, 14;\ncvt.u64.u32 %rd3, %r8;\nor.b64 %rd3, %rd3, 0x4000404000010000;\n\
             add.s64 %rd4, %rd3, {};\nmov.u32 %r9, %cluster_ctarank;\nsetp.ne.u32 %p3, %r9, 0;\n\
             or.pred %p3, %p3, %p2;\nsetp.ne.u32 %p4, %r0, 0;\nor.pred %p3, %p3, %p4;\n@%p3 bra ISSUED;\n\
             setp.ne.u32 %p5, %r0, %r0;\n",
            rows >> 4
        );
        if self.scaled {
            // Four columns for A's scales, four for B's, behind the accumulators.
            for (at, offset) in [
                (64, rows + self.n / group * 128),
                (68, rows + self.n / group * 128 + 512),
            ] {
                body += &format!(
                    "and.b64 %rd5, %rd3, 0x3fff;\nadd.s64 %rd5, %rd5, 0x{:x};\n\
                     tcgen05.cp.cta_group::{group}.32x128b.warpx4 [%r10+{at}], %rd5;\n",
                    0x0000_4008_0001_0000u64 + (offset as u64 >> 4)
                );
            }
        }
        for step in 0..STEPS {
            let (kind, instruction, scales) = match self.scaled {
                false => ("f16", plain, ""),
                true => {
                    let ids = step << 4 | step << 29;
                    let shape = (self.n / 8) << 17 | 1 << 23 | (self.m / 128) << 27;
                    let scales = "[%r10+64], [%r10+68], ";
                    ("mxf8f6f4.block_scale.block32", ids | shape, scales)
                }
            };
            body += &format!(
                "add.s64 %rd5, %rd3, {0};\nadd.s64 %rd6, %rd4, {0};\n\
                 tcgen05.mma.cta_group::{group}.kind::{kind} [%r10], %rd5, %rd6, {instruction}, {scales}%p5;\n\
                 setp.eq.u32 %p5, %r0, %r0;\n",
                2 * step
            );
        }
        body += &match group {
            1 => "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];\n".to_owned(),
            _ => "mov.u16 %h0, 3;\ntcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r3], %h0;\n".to_owned(),
        };
        body += "ISSUED:\nmbarrier.try_wait.parity.shared.b64 %p6, [%r3], 0;\n@!%p6 bra ISSUED;\n\
                 tcgen05.fence::after_thread_sync;\n";
        // Each lane's columns to its row, eight at a time.
        body += &format!(
            "shl.b32 %r11, %r7, 21;\nadd.u32 %r11, %r11, %r10;\nmul.lo.u32 %r12, %r1, 128;\n\
             add.u32 %r12, %r12, %r0;\nmul.lo.u32 %r12, %r12, {};\ncvt.u64.u32 %rd7, %r12;\n\
             add.s64 %rd7, %rd7, %rd1;\nand.b32 %r13, %r0, 31;\nsetp.lt.u32 %p7, %r13, {};\n",
            4 * width,
            if self.m == 64 { 16 } else { 32 }
        );
        for first in (0..width).step_by(8) {
            let registers: Vec<String> = (24..32).map(|at| format!("%r{at}")).collect();
            body += &format!(
                "tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{}}}, [%r11+{first}];\ntcgen05.wait::ld.sync.aligned;\n",
                registers.join(", ")
            );
            for half in 0..2 {
                body += &format!(
                    "@%p7 st.global.v4.u32 [%rd7+{}], {{{}}};\n",
                    4 * first + 16 * half,
                    registers[4 * half..4 * half + 4].join(", ")
                );
            }
        }
        body += &format!(
            "tcgen05.fence::before_thread_sync;\n{}\n@%p2 bra END;\n\
             tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r10, {columns};\nEND:\nret;\n",
            self.meet()
        );
        format!(
            ".version 8.8\n.target sm_100a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n\
             .visible .entry k(.param .u64 a, .param .u64 b)\n{{\n.shared .align 16 .b8 bars[16];\n\
             .reg .pred %p<8>;\n.reg .b16 %h<2>;\n.reg .b32 %r<32>;\n.reg .b64 %rd<8>;\n\
             ld.param.u64 %rd0, [a];\nld.param.u64 %rd1, [b];\n{body}}}\n"
        )
    }

    /// All threads of the block, or of the pair, meet.
    fn meet(&self) -> &'static str {
        match self.group {
            1 => "bar.sync 0;",
            _ => "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
        }
    }

    fn start(&self, text: &str, blocks: usize, config: Config) -> (Machine, Launch, u64) {
        let mut machine = Machine::new(config);
        let program = Program::load(&mut machine, 0, text).expect("it loads");
        let image = self.image(blocks);
        let words = blocks * 128 * self.width();
        let memory = |machine: &mut Machine, bytes: &[u8]| {
            let address = machine.memory.alloc(0, bytes.len() as u64).expect("memory");
            machine.memory.host_write(address, bytes).expect("memory");
            address
        };
        let from = memory(&mut machine, &image);
        let to = memory(&mut machine, &vec![0; 4 * words]);
        let launch = Launch {
            entry: program.entry("k").expect("the kernel").clone(),
            gpu: 0,
            grid: [blocks as u32, 1, 1],
            block: [128, 1, 1],
            cluster: [self.group as u32, 1, 1],
            dynamic_shared: self.shared() as u32,
            params: [from, to].iter().flat_map(|at| at.to_le_bytes()).collect(),
        };
        (machine, launch, to)
    }

    /// Runs so many blocks: what they stored, and what was found.
    pub fn run(&self, blocks: usize, config: Config) -> (Vec<u32>, Vec<Finding>) {
        self.run_text(&self.text(), blocks, config)
    }

    /// Runs a changed text.
    pub fn run_text(&self, text: &str, blocks: usize, config: Config) -> (Vec<u32>, Vec<Finding>) {
        let (mut machine, launch, to) = self.start(text, blocks, config);
        machine.launch(launch).expect("it launches");
        machine.run();
        let bytes = 4 * (blocks * 128 * self.width()) as u64;
        let words = machine.memory.read(to, bytes).expect("the sums");
        let words = words
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
        (words.collect(), machine.take_findings())
    }

    /// Why a launch can't be.
    pub fn launch_error(&self, blocks: usize, config: Config) -> String {
        let (mut machine, launch, _) = self.start(&self.text(), blocks, config);
        machine
            .launch(launch)
            .expect_err("it does not launch")
            .to_string()
    }
}

/// Why a text does not load.
pub fn load_error(text: &str) -> String {
    Program::load(&mut Machine::new(Config::default()), 0, text)
        .expect_err("it does not load")
        .to_string()
}
