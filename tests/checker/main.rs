//! The shipped kernels in the emulator: clean as they are, and no synchronisation too many.

mod mutations;
mod seeds;

use half::bf16;
use mok::gemm::{Form, GemmCall, GroupedGemm, Matrix};
use mok::{Arch, Completion, Device, EmulatorConfig, Error, Groups, Module};

/// When asynchronous work completes, all ways.
const COMPLETIONS: [Completion; 3] = [Completion::Random, Completion::Early, Completion::Late];

/// The PTX that the library ships for Hopper.
fn shipped() -> &'static str {
    let code = mok::kernels::embedded(Arch::Sm90a);
    code.expect("kernels for sm_90a are part of every build")
        .ptx
}

/// Small integers, the same ones each time.
fn integers(count: usize, seed: u32) -> Vec<bf16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bf16::from_f32((state >> 24) as f32 % 5.0 - 2.0)
    };
    (0..count).map(|_| next()).collect()
}

/// Sizes of 41 groups (more than a warp has threads), with tails in rows and in depth.
fn sizes() -> Vec<u32> {
    let mut sizes = vec![0; 41];
    sizes[..4].copy_from_slice(&[300, 0, 40, 129]);
    sizes[40] = 1;
    sizes
}

/// D of one form on an emulated GPU of two SMs, or what was found.
fn product(ptx: &str, form: Form, config: EmulatorConfig) -> Result<Vec<u8>, Error> {
    // Each block has more than the four stages that the kernel holds at once, over tiles too.
    let (n, k) = match form {
        Form::Forward | Form::Wgrad => (64, 448),
        Form::Dgrad => (448, 64),
    };
    let device = Device::emulated(EmulatorConfig { sms: 2, ..config })?;
    let module = Module::from_ptx(&device, ptx)?;
    let gemm = GroupedGemm::from_module(&device, &module)?;
    let groups = Groups::new(&sizes())?;
    let sizes = device.buffer_from(groups.sizes())?;
    let rows = groups.capacity() as usize;
    let x = device.buffer_from(&integers(rows * k, 1))?;
    let dy = device.buffer_from(&integers(rows * n, 2))?;
    let w = device.buffer_from(&integers(groups.len() * n * k, 3))?;
    let elements = match form {
        Form::Forward => rows * n,
        Form::Dgrad => rows * k,
        Form::Wgrad => groups.len() * n * k,
    };
    let d = device.buffer_filled::<bf16>(elements, 0x55)?;
    let at = groups.at(sizes.ptr());
    let [x, dy, w] = [&x, &dy, &w].map(Matrix::of);
    let (n, k) = (n as u32, k as u32);
    let call = match form {
        Form::Forward => GemmCall::forward(at, n, k, x, w, Matrix::of(&d)),
        Form::Dgrad => GemmCall::dgrad(at, k, n, dy, w, Matrix::of(&d)),
        Form::Wgrad => GemmCall::wgrad(at, n, k, dy, x, Matrix::of(&d)),
    };
    let stream = device.stream()?;
    // SAFETY: the buffers live until the synchronisation, and only this call uses them.
    unsafe { gemm.enqueue(&call, &stream) }?;
    stream.synchronize()?;
    let bits = d
        .to_vec()?
        .iter()
        .flat_map(|value| value.to_bits().to_le_bytes())
        .collect();
    Ok(bits)
}
