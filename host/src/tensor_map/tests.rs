use super::*;
use TensorMapError as E;

/// 4,096 rows of 1,024 bf16: a spec within every limit.
fn good() -> TensorMapSpec {
    TensorMapSpec::new(DataType::Bf16, DevicePtr::from_raw(0x1_0000))
        .with_dims(&[1024, 4096])
        .with_tile(&[64, 128])
        .with_swizzle(Swizzle::B128)
}

/// A rank-3 interleaved spec within every limit.
fn interleaved() -> TensorMapSpec {
    TensorMapSpec::new(DataType::U8, DevicePtr::from_raw(0x1_0000))
        .with_dims(&[32, 64, 8])
        .with_tile(&[32, 8, 1])
        .with_interleave(Interleave::B32)
        .with_swizzle(Swizzle::B32)
}

fn typed(data_type: DataType) -> TensorMapSpec {
    TensorMapSpec {
        data_type,
        ..good()
    }
}

#[test]
fn a_spec_within_the_limits_passes() {
    assert_eq!(good().check(), Ok(()));
    assert_eq!(interleaved().check(), Ok(()));
    assert_eq!(good().strides(), [2048]);
    let edges = good()
        .with_dims(&[1 << 32, 1 << 32])
        .with_strides(&[(1 << 33) + 16])
        .with_tile(&[64, 256])
        .with_element_strides(&[1, 8]);
    assert_eq!(edges.check(), Err(E::AddressOverflow), "2^65 bytes");
    assert_eq!(edges.with_dims(&[1 << 32, 1 << 20]).check(), Ok(()));
}

#[test]
fn every_rank_from_1_to_5_passes_and_no_other() {
    for rank in 0..=6 {
        let spec = good().with_dims(&vec![64; rank]).with_tile(&vec![8; rank]);
        let expected = if (1..=5).contains(&rank) {
            Ok(())
        } else {
            Err(E::Rank { rank })
        };
        assert_eq!(spec.check(), expected);
    }
    let flat = interleaved().with_dims(&[32, 64]).with_tile(&[32, 8]);
    assert_eq!(flat.check(), Err(E::InterleaveRank { rank: 2 }));
}

#[test]
fn lists_must_match_the_rank() {
    let count = |what, len, needed| {
        Err(E::Count {
            what,
            len,
            rank: 2,
            needed,
        })
    };
    assert_eq!(good().with_strides(&[]).check(), count("strides", 0, 1));
    assert_eq!(
        good().with_strides(&[2048, 4096]).check(),
        count("strides", 2, 1)
    );
    assert_eq!(good().with_tile(&[64]).check(), count("box extents", 1, 2));
    assert_eq!(
        good().with_element_strides(&[1; 3]).check(),
        count("element strides", 3, 2)
    );
}

#[test]
fn base_addresses() {
    let at = |address| {
        TensorMapSpec {
            base: DevicePtr::from_raw(address),
            ..good()
        }
        .check()
    };
    assert_eq!(at(0), Err(E::NullBase));
    assert_eq!(
        at(8),
        Err(E::BaseAlign {
            address: 8,
            align: 16
        })
    );
    assert_eq!(at(16), Ok(()));
    assert_eq!(at(u64::MAX - 15), Err(E::AddressOverflow));
    let wide = TensorMapSpec {
        base: DevicePtr::from_raw(16),
        ..interleaved()
    };
    assert_eq!(
        wide.check(),
        Err(E::BaseAlign {
            address: 16,
            align: 32
        })
    );
}

#[test]
fn dimensions() {
    assert_eq!(
        good().with_dims(&[0, 4]).check(),
        Err(E::Dim { dim: 0, value: 0 })
    );
    assert_eq!(
        good().with_dims(&[64, 0]).check(),
        Err(E::Dim { dim: 1, value: 0 })
    );
    let over = (1 << 32) + 1;
    assert_eq!(
        good().with_dims(&[64, over]).check(),
        Err(E::Dim {
            dim: 1,
            value: over
        })
    );
    assert_eq!(good().with_dims(&[64, 1 << 32]).check(), Ok(()));
}

#[test]
fn strides() {
    let with = |stride| good().with_strides(&[stride]).check();
    assert_eq!(
        with(2056),
        Err(E::StrideAlign {
            dim: 1,
            value: 2056,
            multiple: 16
        })
    );
    assert_eq!(
        with(1 << 40),
        Err(E::StrideSize {
            dim: 1,
            value: 1 << 40
        })
    );
    assert_eq!(with((1 << 40) - 16), Ok(()));
    assert_eq!(with(0), Ok(()), "every row the same is legal");
    let wide = interleaved().with_strides(&[48, 2048]).check();
    assert_eq!(
        wide,
        Err(E::StrideAlign {
            dim: 1,
            value: 48,
            multiple: 32
        })
    );
    let packed = good().with_dims(&[1 << 32, 1 << 31, 1]).with_tile(&[8; 3]);
    assert_eq!(packed.check(), Err(E::AddressOverflow));
    let odd = good().with_dims(&[7, 4]).check();
    assert_eq!(
        odd,
        Err(E::StrideAlign {
            dim: 1,
            value: 14,
            multiple: 16
        }),
        "packed rows of 14 bytes"
    );
}

#[test]
fn boxes() {
    assert_eq!(
        good().with_tile(&[64, 0]).check(),
        Err(E::Box { dim: 1, value: 0 })
    );
    assert_eq!(
        good().with_tile(&[64, 257]).check(),
        Err(E::Box { dim: 1, value: 257 })
    );
    assert_eq!(good().with_tile(&[64, 256]).check(), Ok(()));
    assert_eq!(
        good().with_tile(&[60, 8]).check(),
        Err(E::BoxRow { bytes: 120 })
    );
    assert_eq!(good().with_tile(&[8, 8]).check(), Ok(()), "16 bytes");
}

#[test]
fn box_rows_fit_the_swizzle() {
    for (swizzle, span) in [(Swizzle::B32, 32), (Swizzle::B64, 64), (Swizzle::B128, 128)] {
        let with = |bytes: u32| {
            good()
                .with_swizzle(swizzle)
                .with_tile(&[bytes / 2, 8])
                .check()
        };
        assert_eq!(with(span), Ok(()));
        let bytes = u64::from(span) + 16;
        assert_eq!(
            with(span + 16),
            Err(E::SwizzleSpan {
                bytes,
                swizzle,
                span: span.into()
            })
        );
    }
    assert_eq!(
        good()
            .with_swizzle(Swizzle::None)
            .with_tile(&[256, 8])
            .check(),
        Ok(())
    );
    let other = interleaved().with_swizzle(Swizzle::B64).check();
    assert_eq!(
        other,
        Err(E::SwizzleWith {
            swizzle: Swizzle::B64,
            with: "interleave B32"
        })
    );
    assert_eq!(
        interleaved().with_interleave(Interleave::B16).check(),
        Ok(())
    );
}

#[test]
fn element_strides() {
    let with = |stride| good().with_element_strides(&[1, stride]).check();
    assert_eq!(with(0), Err(E::ElementStride { dim: 1, value: 0 }));
    assert_eq!(with(9), Err(E::ElementStride { dim: 1, value: 9 }));
    assert_eq!(with(8), Ok(()));
}

#[test]
fn nan_fill_is_for_floating_point() {
    for data_type in DataType::ALL {
        let check = typed(data_type)
            .with_dims(&[1024, 64])
            .with_tile(&[128, 8])
            .with_swizzle(Swizzle::None)
            .with_fill(OutOfBounds::Nan)
            .check();
        let expected = if data_type.is_float() {
            Ok(())
        } else {
            Err(E::NanFill { data_type })
        };
        assert_eq!(check, expected);
    }
}

#[test]
fn packed_types() {
    let data_type = DataType::U4x16Align16;
    let spec = typed(data_type).with_dims(&[256, 64]).with_tile(&[128, 8]);
    assert_eq!(spec.check(), Ok(()));
    assert_eq!(spec.strides(), [128]);
    let dims = spec.clone().with_dims(&[192, 64]).check();
    assert_eq!(
        dims,
        Err(E::PackedDim {
            value: 192,
            data_type,
            multiple: 128
        })
    );
    let tile = spec.clone().with_tile(&[64, 8]).check();
    assert_eq!(
        tile,
        Err(E::PackedBox {
            value: 64,
            data_type
        })
    );
    let swizzle = spec.with_swizzle(Swizzle::B64).check();
    let with = "a type padded to 16 bytes";
    assert_eq!(
        swizzle,
        Err(E::SwizzleWith {
            swizzle: Swizzle::B64,
            with
        })
    );
    let odd = typed(DataType::U4x16Align8)
        .with_dims(&[33, 1])
        .with_strides(&[32])
        .check();
    assert_eq!(
        odd,
        Err(E::PackedDim {
            value: 33,
            data_type: DataType::U4x16Align8,
            multiple: 2
        })
    );
}

#[test]
fn codes_are_the_drivers() {
    use cudarc::driver::sys::{
        CUtensorMapDataType as T, CUtensorMapFloatOOBfill as F, CUtensorMapInterleave as I,
        CUtensorMapL2promotion as L, CUtensorMapSwizzle as S,
    };
    let types = [
        (DataType::U8, T::CU_TENSOR_MAP_DATA_TYPE_UINT8),
        (DataType::I64, T::CU_TENSOR_MAP_DATA_TYPE_INT64),
        (DataType::F16, T::CU_TENSOR_MAP_DATA_TYPE_FLOAT16),
        (DataType::F32, T::CU_TENSOR_MAP_DATA_TYPE_FLOAT32),
        (DataType::Bf16, T::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
        (DataType::Tf32Ftz, T::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ),
        (
            DataType::U6x16Align16,
            T::CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B,
        ),
    ];
    for (ours, drivers) in types {
        assert_eq!(ours.code(), drivers as i32, "{ours:?}");
    }
    assert_eq!(Swizzle::B128.code(), S::CU_TENSOR_MAP_SWIZZLE_128B as i32);
    assert_eq!(
        Interleave::B32.code(),
        I::CU_TENSOR_MAP_INTERLEAVE_32B as i32
    );
    assert_eq!(
        L2Promotion::B256.code(),
        L::CU_TENSOR_MAP_L2_PROMOTION_L2_256B as i32
    );
    let nan = F::CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
    assert_eq!(OutOfBounds::Nan.code(), nan as i32);
}
