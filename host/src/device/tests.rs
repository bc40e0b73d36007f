use std::sync::MutexGuard;

use half::bf16;
use mok_kernel::gemm::{GemmArgs, shared_plan};

use super::*;
use crate::backend::fake::{Fake, Launched, State};
use crate::gemm::{GemmCall, GroupedGemm, Matrix, OverflowWord, Sink};
use crate::groups::Groups;
use crate::launch::{KernelSpec, Param};
use crate::memory::DevicePtr;
use crate::module::{Image, Module};
use crate::tensor_map::{DataType, TensorMapSpec};

fn device() -> Device {
    Device::with(Arc::new(Fake::new()))
}

fn state(device: &Device) -> MutexGuard<'_, State> {
    let any: &dyn Any = &*device.inner.backend;
    any.downcast_ref::<Fake>().unwrap().state.lock().unwrap()
}

fn module(device: &Device) -> Module {
    Module::from_ptx(device, ".version 8.4").unwrap()
}

#[test]
fn everything_can_move_between_threads() {
    fn is<T: Send + Sync>() {}
    is::<Device>();
    is::<Buffer<f32>>();
    is::<Stream>();
    is::<Event>();
    is::<Module>();
    is::<crate::module::Kernel>();
    is::<GroupedGemm>();
    is::<Error>();
}

/// Runs on machines with a driver and without.
#[test]
fn opening_a_device_never_panics() {
    match Device::cuda_count() {
        Ok(count) => assert!(matches!(
            Device::cuda(count),
            Err(Error::NoSuchDevice { ordinal, count: shown }) if (ordinal, shown) == (count, count)
        )),
        Err(Error::NoDriver) => {
            let error = Device::cuda(0).unwrap_err();
            assert!(error.to_string().contains("no CUDA driver"), "{error}");
        }
        // A library with no GPU behind it.
        Err(error) => assert!(matches!(error, Error::Driver { .. }), "{error}"),
    }
    assert!(Device::cuda(usize::MAX).is_err());
}

#[test]
fn buffers_hold_what_they_are_given() {
    let device = device();
    let stream = device.stream().unwrap();
    let mut buffer = device.buffer_from(&[1u32, 2, 3, 4]).unwrap();
    assert_eq!(buffer.slice(1..3).unwrap().to_vec().unwrap(), [2, 3]);
    assert_eq!(
        buffer
            .slice(1..)
            .unwrap()
            .slice(..=1)
            .unwrap()
            .to_vec()
            .unwrap(),
        [2, 3]
    );
    buffer.slice_mut(2..).unwrap().copy_from(&[7, 8]).unwrap();
    buffer
        .slice_mut(..1)
        .unwrap()
        .fill_on(0xFF, &stream)
        .unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [u32::MAX, 2, 7, 8]);
    let mut other = device.buffer_zeroed::<u32>(2).unwrap();
    let source = buffer.slice(1..3).unwrap();
    other.view_mut().copy_from_device(source, &stream).unwrap();
    let mut out = [0; 2];
    other.view().copy_to_on(&mut out, &stream).unwrap();
    assert_eq!(out, [2, 7]);
    assert_eq!(
        device
            .buffer_filled::<f32>(1, 0xFF)
            .unwrap()
            .to_vec()
            .unwrap()[0]
            .to_bits(),
        !0
    );
}

#[test]
fn what_does_not_fit_a_buffer_is_an_error() {
    let device = device();
    let mut buffer = device.buffer_from(&[1u16, 2, 3]).unwrap();
    let error = buffer.copy_from(&[1, 2]).unwrap_err();
    assert!(matches!(
        error,
        Error::Length {
            call: "copy_from",
            host: 2,
            device: 3
        }
    ));
    let error = buffer.copy_to(&mut [0; 4]).unwrap_err();
    assert!(matches!(
        error,
        Error::Length {
            call: "copy_to",
            host: 4,
            device: 3
        }
    ));
    for (start, end) in [(0, 4), (4, 4), (3, 2), (usize::MAX, usize::MAX)] {
        let error = buffer.slice(start..end).unwrap_err();
        assert!(
            matches!(error, Error::Range { len: 3, .. }),
            "{start}..{end}"
        );
    }
    assert!(buffer.slice(..=usize::MAX).is_err());
    assert!(buffer.slice(3..).unwrap().is_empty());
    for len in [usize::MAX, usize::MAX / 2, isize::MAX as usize / 8 + 1] {
        let error = device.buffer_uninit::<u64>(len).unwrap_err();
        assert!(matches!(error, Error::TooLarge { size: 8, .. }), "{len}");
    }
}

#[test]
fn more_than_the_host_holds_is_an_error() {
    let device = device();
    let address = DevicePtr::from_raw(16);
    // SAFETY: nothing is read there, and it's given up below.
    let large = unsafe { Buffer::<u8>::from_raw(&device, address, isize::MAX as usize) };
    let error = large.to_vec().unwrap_err();
    assert!(
        matches!(error, Error::HostMemory { size: 1, .. }),
        "{error}"
    );
    large.into_raw();
}

#[test]
fn nothing_takes_no_memory() {
    let device = device();
    let mut empty = device.buffer_from::<f32>(&[]).unwrap();
    assert!(empty.ptr().is_null() && empty.is_empty());
    empty.fill(1).unwrap();
    empty.copy_from(&[]).unwrap();
    assert!(empty.to_vec().unwrap().is_empty());
    assert!(empty.slice(..).unwrap().is_empty());
    let units = device.buffer_from(&[(); 5]).unwrap();
    assert_eq!(
        (units.len(), units.bytes(), units.to_vec().unwrap().len()),
        (5, 0, 5)
    );
    assert!(state(&device).memory.is_empty());
}

#[test]
fn everything_is_given_back() {
    let device = device();
    {
        let buffer = device.buffer_zeroed::<u8>(100).unwrap();
        let stream = device.stream().unwrap();
        let _clone = stream.clone();
        let event = device.event().unwrap();
        event.record(&stream).unwrap();
        stream.wait(&event).unwrap();
        let _kernel = module(&device)
            .kernel(KernelSpec::new("entry", 32))
            .unwrap();
        let _default = device.default_stream();
        // SAFETY: a stream of the device, which outlives this one.
        let _raw = unsafe { Stream::from_raw(&device, stream.as_raw()) };
        assert_eq!(buffer.to_vec().unwrap().len(), 100);
        assert_eq!(state(&device).memory.len(), 1);
        assert_eq!(state(&device).handles.len(), 3);
    }
    assert!(state(&device).memory.is_empty());
    assert!(state(&device).handles.is_empty());

    let address = device.buffer_zeroed::<u8>(1).unwrap().into_raw();
    assert_eq!(state(&device).memory.len(), 1, "given up, not freed");
    // SAFETY: the memory was given up just now.
    drop(unsafe { Buffer::<u8>::from_raw(&device, address, 1) });
    assert!(state(&device).memory.is_empty());
}

#[test]
fn objects_of_two_devices_do_not_mix() {
    let (one, two) = (device(), device());
    assert!(one.is_same(&one.clone()) && !one.is_same(&two));
    let stream = two.stream().unwrap();
    let event = one.event().unwrap();
    let mut buffer = one.buffer_zeroed::<u8>(4).unwrap();
    let other = two.buffer_zeroed::<u8>(4).unwrap();
    let kernel = module(&one).kernel(KernelSpec::new("entry", 32)).unwrap();
    let own = one.stream().unwrap();
    // SAFETY: it takes no arguments, and is refused.
    let launch = unsafe { kernel.launch().grid([1; 3]).enqueue(&stream) };
    for refused in [
        event.record(&stream),
        stream.wait(&event),
        buffer.fill_on(0, &stream),
        buffer.view().copy_to_on(&mut [0; 4], &stream),
        buffer.view_mut().copy_from_device(other.view(), &own),
        event.elapsed_ms(&two.event().unwrap()).map(drop),
        launch,
    ] {
        assert!(
            matches!(refused, Err(Error::OtherDevice { .. })),
            "{refused:?}"
        );
    }
    let mixed = GroupedGemm::from_module(&two, &module(&one));
    assert!(matches!(
        mixed,
        Err(Error::OtherDevice { what: "module", .. })
    ));
    assert!(matches!(one.raw_context(), Err(Error::NotCuda { .. })));
    assert!(matches!(one.cudarc_context(), Err(Error::NotCuda { .. })));
}

#[test]
fn modules_refuse_what_is_none() {
    let device = device();
    let load = |cubin: Option<&[u8]>, ptx| Module::load(&device, cubin, ptx);
    assert!(matches!(load(None, None), Err(Error::EmptyModule)));
    assert!(matches!(
        load(Some(b"no ELF"), None),
        Err(Error::BadCubin { .. })
    ));
    assert!(matches!(load(None, Some("")), Err(Error::BadPtx { .. })));
    assert!(matches!(
        load(None, Some(".version\08.4")),
        Err(Error::BadPtx { .. })
    ));
    // The driver would take it for a cubin, and read where its headers point.
    assert!(matches!(
        load(None, Some("\x7fELF\x02\x01 .version 8.4")),
        Err(Error::BadPtx { .. })
    ));
    let module = load(Some(b"no ELF"), Some(".version 8.4")).unwrap();
    assert_eq!(module.image(), Image::Ptx);
    assert!(matches!(module.cubin_error(), Some(Error::BadCubin { .. })));
    for entry in ["missing", "a\0b"] {
        let error = module.kernel(KernelSpec::new(entry, 32)).unwrap_err();
        assert!(matches!(error, Error::NoEntry { entry: named } if named == entry));
    }
    assert!(matches!(
        module.kernel(KernelSpec::new("entry", 0)),
        Err(Error::Launch(_))
    ));
    assert_eq!(
        state(&device).handles.len(),
        1,
        "only the module that loaded"
    );
}

#[test]
fn a_launch_arrives_as_it_was_put_together() {
    let device = device();
    let stream = device.stream().unwrap();
    let params = [
        Param::TensorMap,
        Param::Bytes(192),
        Param::Bytes(4),
        Param::Bytes(0),
    ];
    let spec = KernelSpec::new("entry", 64)
        .with_params(&params)
        .with_cluster(2)
        .with_max_shared(512);
    let kernel = module(&device).kernel(spec).unwrap();
    let map = TensorMapSpec::new(DataType::Bf16, DevicePtr::from_raw(64))
        .with_dims(&[64])
        .with_tile(&[8]);
    let map = device.tensor_map(&map).unwrap();
    let large: [u16; 96] = std::array::from_fn(|index| index as u16);
    let launch = kernel.launch().grid([6, 2, 1]).shared(512);
    let launch = launch.map(&map).arg(&large).arg(&7u32).arg(&());
    // SAFETY: nothing runs.
    unsafe { launch.enqueue(&stream) }.unwrap();
    // SAFETY: refused.
    let refused = unsafe { kernel.launch().grid([2, 1, 1]).enqueue(&stream) };
    assert!(matches!(refused, Err(Error::Launch(_))));
    let expected = Launched {
        grid: [6, 2, 1],
        threads: [64, 1, 1],
        cluster: 2,
        shared: 512,
        stream: stream.as_raw().addr(),
        args: vec![
            map.as_bytes().to_vec(),
            bytemuck::bytes_of(&large).to_vec(),
            7u32.to_ne_bytes().to_vec(),
            Vec::new(),
        ],
    };
    assert_eq!(state(&device).launched, [expected]);
}

#[test]
fn a_grouped_gemm_is_one_launch() {
    let device = device();
    let stream = device.stream().unwrap();
    let gemm = GroupedGemm::from_module(&device, &module(&device)).unwrap();
    assert!(matches!(gemm.clone().with_sms(0), Err(Error::Gemm(_))));
    let groups = Groups::new(&[300, 0, 1]).unwrap();
    let rows = groups.capacity() as usize;
    let sizes = device.buffer_from(groups.sizes()).unwrap();
    let word = OverflowWord::new(&device).unwrap();
    let [a, b] = [64, 256].map(|cols| device.buffer_zeroed::<bf16>(rows * cols).unwrap());
    let d = device.buffer_zeroed::<f32>(3 * 64 * 256).unwrap();
    let at = groups.at(sizes.ptr()).with_overflow(word.ptr());
    let call = GemmCall::wgrad(at, 64, 256, Matrix::of(&a), Matrix::of(&b), Matrix::of(&d))
        .with_sink(Sink::F32);
    // SAFETY: nothing runs.
    unsafe { gemm.clone().with_sms(2).unwrap().enqueue(&call, &stream) }.unwrap();
    word.check(&at).unwrap();
    let launched = state(&device).launched.clone();
    assert_eq!(launched.len(), 1);
    assert_eq!(
        (launched[0].grid, launched[0].shared),
        ([2, 1, 1], shared_plan(3).bytes)
    );
    let args: GemmArgs = bytemuck::pod_read_unaligned(&launched[0].args[3]);
    assert_eq!(
        (args.d, args.overflow),
        (d.ptr().as_raw(), word.ptr().as_raw())
    );
    assert_eq!(
        (args.m, args.n, args.capacity, args.sink),
        (64, 256, 512, Sink::F32 as u32)
    );
    // A buffer that is one element short.
    let short = Matrix::in_slice(&d.slice(1..).unwrap());
    let call = GemmCall::wgrad(at, 64, 256, Matrix::of(&a), Matrix::of(&b), short);
    // SAFETY: refused.
    let refused = unsafe { gemm.enqueue(&call.with_sink(Sink::F32), &stream) };
    assert!(matches!(refused, Err(Error::Gemm(_))));
    assert_eq!(state(&device).launched.len(), 1);
}
