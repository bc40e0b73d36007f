//! A kernel of one's own, loaded, checked and launched like the shipped ones:
//! `cargo run --example own_kernel`. It runs on the emulator here; on a GPU it is the same.

use mok::launch::{KernelSpec, Param};
use mok::{Device, EmulatorConfig, Module};

/// `y[i] += a * x[i]` for every i below n. What any compiler writes will do: rustc, nvcc, Triton.
const PTX: &str = "
.version 8.0
.target sm_90a
.address_size 64
.visible .entry axpy(.param .u64 p_y, .param .u64 p_x, .param .f32 p_a, .param .u32 p_n)
.reqntid 128, 1, 1
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .f32 %f<4>;
    .reg .b64 %d<5>;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %tid.x;
    mad.lo.u32 %r0, %r0, 128, %r1;
    ld.param.u32 %r2, [p_n];
    setp.ge.u32 %p, %r0, %r2;
    @%p bra DONE;
    ld.param.u64 %d0, [p_y];
    ld.param.u64 %d1, [p_x];
    ld.param.f32 %f0, [p_a];
    mul.wide.u32 %d2, %r0, 4;
    add.s64 %d3, %d0, %d2;
    add.s64 %d4, %d1, %d2;
    ld.global.f32 %f1, [%d3];
    ld.global.f32 %f2, [%d4];
    fma.rn.f32 %f3, %f0, %f2, %f1;
    st.global.f32 [%d3], %f3;
DONE:
    ret;
}
";

fn main() -> mok::Result<()> {
    let device = Device::emulated(EmulatorConfig::default())?; // or Device::cuda(0)
    // What a launch must look like; compared with the code now, and with each launch.
    let params = [
        Param::Bytes(8),
        Param::Bytes(8),
        Param::Bytes(4),
        Param::Bytes(4),
    ];
    let spec = KernelSpec::new("axpy", 128).with_params(&params);
    let axpy = Module::from_ptx(&device, PTX)?.kernel(spec)?;

    let (x, y) = (
        device.buffer_from(&[1.0f32; 300])?,
        device.buffer_from(&[10.0f32; 300])?,
    );
    let stream = device.stream()?;
    let launch = axpy.launch().grid([3, 1, 1]);
    let launch = launch.arg(&y.ptr()).arg(&x.ptr()).arg(&0.5f32).arg(&300u32);
    // SAFETY: the arguments are what the kernel takes them for, and live until the wait below.
    unsafe { launch.enqueue(&stream) }?;
    stream.synchronize()?;
    assert_eq!(y.to_vec()?, [10.5; 300]);

    // A launch that does not fit is an error here, and nothing is launched.
    let forgotten = axpy.launch().grid([3, 1, 1]).arg(&y.ptr());
    // SAFETY: refused before anything runs.
    let error = unsafe { forgotten.enqueue(&stream) }.expect_err("arguments are missing");
    println!("axpy ran; with an argument alone: {error}");
    Ok(())
}
