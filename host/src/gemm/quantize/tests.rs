use super::*;
use crate::memory::DevicePtr;

fn at(address: u64) -> Matrix {
    Matrix::new(DevicePtr::from_raw(address))
}

fn to(address: u64) -> Mxfp8Matrix {
    Mxfp8Matrix::new(at(address), at(address + 0x80_0000))
}

/// Two matrices of 384 rows by 256 columns, both ways.
fn call() -> QuantizeCall {
    QuantizeCall::new(2, 384, 256, at(0x100_0000))
        .along_columns(to(0x200_0000))
        .along_rows(to(0x300_0000))
}

#[test]
fn strides_are_packed() {
    call().check().unwrap();
    let args = call().args();
    assert_eq!((args.row_stride, args.group_stride), (256, 384 * 256));
    let strides = |to: &QuantizedArgs| {
        [
            to.row_stride,
            to.group_stride,
            to.scale_band_stride,
            to.scale_group_stride,
        ]
    };
    assert_eq!(
        strides(&args.along_columns),
        [256, 384 * 256, 2 * 512, 3 * 2 * 512]
    );
    assert_eq!(
        strides(&args.along_rows),
        [384, 256 * 384, 3 * 512, 2 * 3 * 512]
    );
    assert_eq!(call().grid(100), 12, "a block for each tile");
    assert_eq!(call().grid(2), 8);
    let columns = QuantizeCall::new(1, 1, 128, at(0x1000)).along_columns(to(0x2000));
    assert_eq!(columns.args().along_rows.values, 0);
}

#[test]
fn each_limit_is_named() {
    let refused = |call: QuantizeCall| call.check().unwrap_err();
    assert_eq!(
        refused(QuantizeCall {
            rows: 300,
            ..call()
        }),
        QuantizeError::Size {
            what: "rows",
            value: 300,
            why: ", where blocks are along rows"
        }
    );
    let columns = QuantizeCall {
        along_rows: None,
        ..call()
    };
    QuantizeCall {
        rows: 300,
        ..columns
    }
    .check()
    .unwrap();
    let error = refused(QuantizeCall {
        columns: 64,
        ..call()
    });
    assert_eq!(
        error.to_string(),
        "quantize: columns are 64, and here they are multiples of 128"
    );
    assert!(matches!(
        refused(QuantizeCall {
            rows: MAX_EXTENT + 128,
            ..call()
        }),
        QuantizeError::Extent { what: "rows", .. }
    ));
    assert_eq!(
        refused(QuantizeCall {
            along_columns: None,
            along_rows: None,
            ..call()
        }),
        QuantizeError::NoResult
    );
    assert!(matches!(
        refused(QuantizeCall {
            groups: u32::MAX,
            ..call()
        }),
        QuantizeError::Tiles { .. }
    ));
    let error = refused(QuantizeCall {
        from: at(8),
        ..call()
    });
    assert_eq!(
        error.to_string(),
        "quantize: the address 0x8 of the matrix is not a multiple of 16 bytes"
    );
    assert!(matches!(
        refused(call().along_rows(Mxfp8Matrix::new(at(0x1000), at(0)))),
        QuantizeError::Matrix(GemmError::Null {
            what: "the scales along rows"
        })
    ));
    assert!(matches!(
        refused(call().along_columns(Mxfp8Matrix::new(
            at(0x1000).with_row_stride(264),
            at(0x2000)
        ))),
        QuantizeError::Matrix(GemmError::StrideAlign {
            what: "the values",
            ..
        })
    ));
}

#[test]
fn nothing_to_do_launches_nothing() {
    let nowhere = Mxfp8Matrix::new(at(0), at(0));
    for (groups, rows, columns) in [(0, 128, 128), (1, 0, 128), (1, 128, 0)] {
        let call = QuantizeCall::new(groups, rows, columns, at(0)).along_columns(nowhere);
        call.check().unwrap();
        assert_eq!(call.grid(132), 0);
    }
}
