use mok_kernel::arch::Arch;

use super::*;
use crate::device::Device;
use crate::emulator::EmulatorConfig;
use crate::error::Error;
use crate::groups::Groups;
use crate::tensor_map::Swizzle;

fn at(address: u64) -> Matrix {
    Matrix::new(DevicePtr::from_raw(address))
}

fn mxfp8(address: u64) -> Mxfp8Matrix {
    Mxfp8Matrix::new(at(address), at(address + 0x80_0000))
}

/// 3 groups in 512 rows, n = 256, k = 384.
fn call() -> Mxfp8Call {
    let rows = Groups::new(&[100, 0, 300]).unwrap();
    let rows = rows.at(DevicePtr::from_raw(0x100));
    let [a, b] = [0x100_0000, 0x200_0000].map(mxfp8);
    Mxfp8Call::forward(rows, 256, 384, a, b, at(0x300_0000))
}

#[track_caller]
fn refused(call: Mxfp8Call) -> GemmError {
    match call.check() {
        Err(Error::Gemm(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn maps_show_bytes_two_by_two_and_scales_tile_by_tile() {
    let call = call();
    call.check().unwrap();
    let maps = call.tensor_maps();
    let shape = |at: usize| {
        let map = &maps[at];
        (map.dims().to_vec(), map.strides(), map.tile().to_vec())
    };
    for (at, rows) in boxes::ROWS.into_iter().enumerate() {
        assert_eq!(shape(at), (vec![192, 512], vec![384], vec![64, rows]));
    }
    assert_eq!(
        shape(3),
        (vec![192, 256, 3], vec![384, 384 * 256], vec![64, 128, 1])
    );
    assert_eq!(shape(4), (vec![256, 512], vec![512], vec![64, 8]));
    let band = 3 * 512;
    assert_eq!(
        shape(5),
        (
            vec![128, 3, 4, 1],
            vec![512, band, band],
            vec![128, 1, 1, 1]
        )
    );
    assert_eq!(
        shape(6),
        (
            vec![128, 3, 2, 3],
            vec![512, band, 2 * band],
            vec![128, 1, 1, 1]
        )
    );
    let swizzles = maps.each_ref().map(|map| map.swizzle());
    assert_eq!(swizzles[..5], [Swizzle::B128; 5]);
    assert_eq!(swizzles[5..], [Swizzle::None; 2]);
    let bases = maps.map(|map| map.base().as_raw());
    assert_eq!(
        bases[2..],
        [0x100_0000, 0x200_0000, 0x300_0000, 0x180_0000, 0x280_0000]
    );
}

#[test]
fn each_limit_is_named() {
    let with = |change: &dyn Fn(&mut GemmCall)| {
        let mut call = call();
        change(&mut call.product);
        refused(call)
    };
    for (value, refusal) in [(320, Some(320)), (384, None)] {
        let n = Mxfp8Call {
            product: GemmCall {
                n: value,
                ..call().product
            },
            ..call()
        };
        match refusal {
            Some(value) => assert_eq!(refused(n), GemmError::Mxfp8Size { what: "n", value }),
            None => n.check().unwrap(),
        }
    }
    assert_eq!(
        with(&|call| call.k = 64),
        GemmError::Mxfp8Size {
            what: "k",
            value: 64
        }
    );
    assert!(matches!(
        with(&|call| call.k = 4),
        GemmError::Size {
            what: "k",
            value: 4
        }
    ));
    assert!(matches!(
        with(&|call| call.rows.capacity = 500),
        GemmError::Capacity { capacity: 500 }
    ));
    assert!(matches!(
        with(&|call| call.a = at(0x100_0008)),
        GemmError::Align {
            what: "A",
            align: 16,
            ..
        }
    ));
    assert!(matches!(
        with(&|call| call.b = call.b.with_row_stride(392)),
        GemmError::StrideAlign {
            what: "B",
            kind: "row",
            stride: 392
        }
    ));
    let scales = |scales_a: Matrix, scales_b: Matrix| {
        refused(Mxfp8Call {
            scales_a,
            scales_b,
            ..call()
        })
    };
    let (a, b) = (call().scales_a, call().scales_b);
    assert_eq!(scales(at(0), b), GemmError::Null { what: "A's scales" });
    assert!(matches!(
        scales(a, b.with_group_stride(3 * 512)),
        GemmError::GroupStride {
            what: "B's scales",
            stride: 1536
        }
    ));
    assert!(matches!(
        scales(a.with_row_stride(2 * 512), b),
        GemmError::RowStride {
            what: "A's scales",
            stride: 1024,
            cols: 1536
        }
    ));
    assert_eq!(
        GemmError::Mxfp8Size {
            what: "n",
            value: 320
        }
        .to_string(),
        "grouped GEMM: n is 320, and MXFP8 takes positive multiples of 128"
    );
}

#[test]
fn buffers_must_reach() {
    let device = Device::emulated(EmulatorConfig::default()).unwrap();
    let scales = |bytes| device.buffer_zeroed::<u8>(bytes).unwrap();
    let (short, enough) = (scales(4 * 1536 - 1), scales(4 * 1536));
    let with = |scales_a| Mxfp8Call { scales_a, ..call() };
    with(Matrix::of(&enough)).check().unwrap();
    assert_eq!(
        refused(with(Matrix::of(&short))),
        GemmError::Bytes {
            what: "A's scales",
            needed: 6144,
            bytes: 6143
        }
    );
}

#[test]
fn no_rows_and_no_groups_need_no_memory() {
    let mut none = call();
    none.product.rows.capacity = 0;
    let nowhere = at(0);
    (none.product.a, none.product.d, none.scales_a) = (nowhere, nowhere, nowhere);
    none.check().unwrap();
    assert_eq!(none.grid(132), 0);
    none.product.rows.overflow = Some(DevicePtr::from_raw(0x200));
    none.check().unwrap();
    assert_eq!(none.grid(132), 1, "an overflow is told all the same");
    none.product.rows.groups = 0;
    (none.product.b, none.scales_b) = (nowhere, nowhere);
    none.check().unwrap();
    assert_eq!(none.grid(132), 0);
}

#[test]
fn without_block_scaling_there_must_be_a_workspace() {
    let device = Device::emulated(EmulatorConfig::default()).unwrap();
    let (gemm, stream) = (GroupedGemm::new(&device).unwrap(), device.stream().unwrap());
    // SAFETY: nothing is enqueued.
    let refused = |call| match unsafe { gemm.enqueue_mxfp8(&call, &stream) } {
        Err(Error::Gemm(error)) => error,
        other => panic!("{other:?}"),
    };
    let (arch, bytes) = (Arch::Sm90a, 2 * 384 * (512 + 3 * 256));
    assert_eq!(call().workspace_bytes(arch), bytes);
    assert_eq!(call().workspace_bytes(Arch::Sm100a), 0);
    let error = refused(call());
    assert_eq!(error, GemmError::Mxfp8Workspace { arch, bytes });
    let text = error.to_string();
    assert!(
        text.contains("sm_90a") && text.contains("with_workspace"),
        "{text}"
    );
    let short = device.buffer_zeroed::<u8>(bytes as usize - 1).unwrap();
    assert_eq!(
        refused(call().with_workspace(Matrix::of(&short))),
        GemmError::Bytes {
            what: "the workspace",
            needed: bytes,
            bytes: bytes as u64 - 1
        }
    );
    assert!(matches!(
        refused(call().with_workspace(at(0x1_0008))),
        GemmError::Align {
            what: "the workspace",
            ..
        }
    ));
}

#[test]
fn operands_in_bf16_follow_each_other() {
    let product = call()
        .with_workspace(at(0x10_0000))
        .in_bf16(Arch::Sm90a)
        .unwrap();
    product.check().unwrap();
    let bases = product
        .tensor_maps()
        .into_iter()
        .map(|map| map.base().as_raw());
    let b = 0x10_0000 + 2 * 384 * 512;
    let want = [0x10_0000, 0x10_0000, 0x10_0000, b, 0x300_0000];
    assert_eq!(bases.collect::<Vec<_>>(), want);
}
