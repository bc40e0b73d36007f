//! Running small programs.

use mok_emu::machine::{Config, Launch, Machine, Outcome};
use mok_emu::program::Program;
use mok_emu::report::Finding;

/// Runs one kernel with one pointer parameter to `words` zeroed words; the words, and what was found.
pub fn run(
    body: &str,
    [grid, cluster]: [u32; 2],
    threads: u32,
    words: usize,
    config: Config,
) -> (Vec<u32>, Vec<Finding>, Outcome) {
    let text = format!(
        ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n\
         .reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %rd<8>;\nld.param.u64 %rd1, [p];\n{body}\n}}\n"
    );
    let mut machine = Machine::new(config);
    let program = Program::load(&mut machine, 0, &text).expect("it loads");
    let address = machine.memory.alloc(0, 4 * words as u64).expect("memory");
    let zeros = vec![0; 4 * words];
    machine.memory.host_write(address, &zeros).expect("memory");
    let launch = Launch {
        entry: program.entry("k").expect("the kernel").clone(),
        gpu: 0,
        grid: [grid, 1, 1],
        block: [threads, 1, 1],
        cluster: [cluster, 1, 1],
        dynamic_shared: 0,
        params: address.to_le_bytes().to_vec(),
    };
    machine.launch(launch).expect("it launches");
    let outcome = machine.run();
    let bytes = machine
        .memory
        .read(address, 4 * words as u64)
        .expect("the words");
    let values = bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
        .collect();
    (values, machine.take_findings(), outcome)
}
