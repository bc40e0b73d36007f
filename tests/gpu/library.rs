//! The library on a real device: other code's contexts, streams and pointers; PTX that the
//! driver compiles; specs that disagree with the code.

use cudarc::driver::{CudaContext, DevicePtr as _, DevicePtrMut as _};
use half::bf16;
use libtest_mimic::Trial;
use mok::gemm::{Form, GemmCall, GroupedGemm, Matrix, Sink};
use mok::launch::{KernelSpec, Param};
use mok::{Device, DevicePtr, Error, Groups, Image, Module, Stream, fill, kernels};
use mok_tests::Probes;

use crate::{Outcome, expect_equal, trial};

const N: usize = 192;
const K: usize = 136;

struct Inputs {
    groups: Groups,
    a: Vec<bf16>,
    b: Vec<bf16>,
}

impl Inputs {
    fn new() -> Result<Inputs, Error> {
        let groups = Groups::new(&[200, 0, 3])?;
        let a = fill::normal(1, groups.capacity() as usize * K, 1.0);
        let b = fill::normal(2, groups.len() * N * K, 0.1);
        Ok(Inputs { groups, a, b })
    }

    /// The bits of the forward product, computed with these kernels.
    fn forward(&self, device: &Device, gemm: &GroupedGemm) -> Result<Vec<u16>, Error> {
        let stream = device.stream()?;
        let sizes = device.buffer_from(self.groups.sizes())?;
        let (a, b) = (device.buffer_from(&self.a)?, device.buffer_from(&self.b)?);
        let d = device.buffer_zeroed::<bf16>(self.groups.capacity() as usize * N)?;
        let [to_a, to_b, to_d] = [&a, &b, &d].map(Matrix::of);
        let rows = self.groups.at(sizes.ptr());
        let call = GemmCall::forward(rows, N as u32, K as u32, to_a, to_b, to_d);
        // SAFETY: the buffers live until the synchronisation.
        unsafe { gemm.enqueue(&call, &stream)? };
        stream.synchronize()?;
        Ok(d.to_vec()?.into_iter().map(bf16::to_bits).collect())
    }
}

/// The driver's own compilation of the PTX gives the cubin's bits.
fn compiled_by_the_driver() -> Outcome {
    let device = Device::cuda(0)?;
    let inputs = Inputs::new()?;
    let shipped = inputs.forward(&device, &GroupedGemm::new(&device)?)?;
    let code = kernels::embedded(device.arch()?).ok_or("no kernels for this device")?;
    let module = Module::from_ptx(&device, code.ptx)?;
    if module.image() != Image::Ptx {
        return Err("the module was not loaded from PTX".into());
    }
    let compiled = inputs.forward(&device, &GroupedGemm::from_module(&device, &module)?)?;
    expect_equal("bits", &compiled, &shipped)
}

/// A cubin that this device does not take gives way to the PTX, and says why.
fn cubin_of_another_architecture() -> Outcome {
    let device = Device::cuda(0)?;
    let own = kernels::embedded(device.arch()?).ok_or("no kernels for this device")?;
    let other = kernels::embedded(mok::Arch::Sm100a).and_then(|code| code.cubin);
    let other = other.ok_or("this build has no cubin for sm_100a")?;
    let module = Module::load(&device, Some(other), Some(own.ptx))?;
    match (module.image(), module.cubin_error()) {
        (Image::Ptx, Some(_)) => Ok(()),
        got => Err(format!("{got:?}").into()),
    }
}

/// Context, stream and memory of cudarc (and so of candle and burn), none of ours.
fn shares_with_cudarc() -> Outcome {
    let context = CudaContext::new(0)?;
    let theirs = context.new_stream()?;
    let device = Device::from_cudarc(context)?;
    let stream = Stream::from_cudarc(&device, theirs.clone())?;
    let inputs = Inputs::new()?;
    let bits = |values: &[bf16]| {
        values
            .iter()
            .map(|value| value.to_bits())
            .collect::<Vec<u16>>()
    };
    let sizes = theirs.clone_htod(inputs.groups.sizes())?;
    let (a, b) = (
        theirs.clone_htod(&bits(&inputs.a))?,
        theirs.clone_htod(&bits(&inputs.b))?,
    );
    let mut d = theirs.alloc_zeros::<u16>(inputs.groups.capacity() as usize * N)?;
    {
        let (sizes, _read_sizes) = sizes.device_ptr(&theirs);
        let (a, _read_a) = a.device_ptr(&theirs);
        let (b, _read_b) = b.device_ptr(&theirs);
        let (d, _write_d) = d.device_ptr_mut(&theirs);
        let [a, b, d] = [a, b, d].map(|address| Matrix::new(DevicePtr::from_raw(address)));
        let rows = inputs.groups.at(DevicePtr::from_raw(sizes));
        let call = GemmCall::forward(rows, N as u32, K as u32, a, b, d);
        // SAFETY: cudarc's slices live until its stream has passed the call.
        unsafe { GroupedGemm::new(&device)?.enqueue(&call, &stream)? };
    }
    let got = theirs.clone_dtoh(&d)?;
    theirs.synchronize()?;
    let ours = Device::cuda(0)?;
    expect_equal(
        "bits",
        &got,
        &inputs.forward(&ours, &GroupedGemm::new(&ours)?)?,
    )
}

/// A spec that the code contradicts is an error when the kernel is taken, not a launch that
/// reads past its parameters.
fn specs_that_disagree_with_the_code() -> Outcome {
    let device = Device::cuda(0)?;
    let module = device.kernels()?.module();
    let right = KernelSpec::from(Form::Forward.spec(device.arch()?));
    let maps = [Param::TensorMap, Param::TensorMap];
    let wrong = [
        right.clone().with_params(&maps),
        right
            .clone()
            .with_params(&[maps[0], maps[1], Param::Bytes(60)]),
        right
            .clone()
            .with_params(&[maps[0], maps[1], Param::Bytes(64), Param::Bytes(4)]),
        right.clone().with_threads([1024, 1, 1]),
        right.clone().with_max_shared(device.max_shared() + 1),
        KernelSpec::new("no_such_entry", 32),
    ];
    for spec in wrong {
        if module.kernel(spec.clone()).is_ok() {
            return Err(format!("{spec:?} was accepted").into());
        }
    }
    module.kernel(right)?;
    Ok(())
}

/// The device goes on after a launch that was refused.
fn refused_launches_leave_the_device_usable() -> Outcome {
    let probes = Probes::load()?;
    let device = &probes.device;
    let stream = device.stream()?;
    let kernel = device.kernels()?.gemm(Form::Wgrad);
    // SAFETY: refused before the driver sees it.
    let refused = unsafe { kernel.launch().grid([1, 1, 1]).enqueue(&stream) };
    if refused.is_ok() {
        return Err("a launch without arguments was accepted".into());
    }
    let inputs = Inputs::new()?;
    let call = GemmCall::forward(
        inputs.groups.at(DevicePtr::from_raw(0x100)),
        N as u32,
        K as u32,
        Matrix::new(DevicePtr::from_raw(0x1001)),
        Matrix::new(DevicePtr::from_raw(0x1000)),
        Matrix::new(DevicePtr::from_raw(0x1000)),
    )
    .with_sink(Sink::F32);
    // SAFETY: as above.
    if unsafe { GroupedGemm::new(device)?.enqueue(&call, &stream) }.is_ok() {
        return Err("a call with a misaligned A and a wrong sink was accepted".into());
    }
    stream.synchronize()?;
    inputs
        .forward(device, &GroupedGemm::new(device)?)
        .map(|_| ())
        .map_err(Into::into)
}

pub fn trials() -> Vec<Trial> {
    vec![
        trial("library::compiled_by_the_driver", compiled_by_the_driver),
        trial(
            "library::cubin_of_another_architecture",
            cubin_of_another_architecture,
        ),
        trial("library::shares_with_cudarc", shares_with_cudarc),
        trial(
            "library::specs_that_disagree_with_the_code",
            specs_that_disagree_with_the_code,
        ),
        trial(
            "library::refused_launches_leave_the_device_usable",
            refused_launches_leave_the_device_usable,
        ),
    ]
}
