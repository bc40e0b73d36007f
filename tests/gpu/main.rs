//! Tests on a real GPU. Without one they are listed as ignored, with the reason.

mod copies;

mod facts;
mod faults;
mod gate_up;
mod gemm;
mod instructions;
mod large;
mod layer;
mod library;
mod mxfp8;
mod outcome;
mod quantize;
mod shapes;
mod wgmma;

use libtest_mimic::Arguments;

use outcome::{Outcome, expect_equal, trial};

fn main() {
    let mut arguments = Arguments::from_args();
    // One context, large buffers: side by side the tests would only get in each other's way.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    trials.extend(copies::trials());
    trials.extend(facts::trials());
    trials.extend(instructions::trials());
    trials.extend(wgmma::trials());
    trials.extend(gemm::trials(&gemm::hoppers(), |_| true));
    trials.extend(gate_up::trials(&gemm::hoppers()));
    trials.extend(library::trials());
    trials.extend(quantize::trials());
    trials.extend(mxfp8::products(&gemm::hoppers(), |_| true));
    trials.extend(layer::trials());
    if std::env::var_os("MOK_TEST_ALL").is_some() {
        // Minutes, tens of gigabytes, and NCCL.
        trials.extend(shapes::trials());
    }
    trials.extend(large::trials());
    trials.extend(faults::trials());
    if let Some(reason) = mok_tests::no_gpu() {
        eprintln!("GPU tests are ignored: {reason}");
        trials = trials
            .into_iter()
            .map(|trial| trial.with_ignored_flag(true))
            .collect();
    }
    libtest_mimic::run(&arguments, trials).exit();
}
