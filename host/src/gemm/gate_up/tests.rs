use super::*;
use crate::error::Error;
use crate::groups::Groups;
use crate::memory::DevicePtr;

fn at(address: u64) -> Matrix {
    Matrix::new(DevicePtr::from_raw(address))
}

/// Three groups in 512 rows, n = 136, k = 192; `[groups][gate's rows, up's rows][k]` at 0x100_0000.
fn call() -> GateUpCall {
    let rows = Groups::new(&[100, 0, 300]).unwrap();
    let rows = rows.at(DevicePtr::from_raw(0x100));
    let half = 136 * 192;
    let gate = at(0x100_0000).with_group_stride(2 * half);
    let up = at(0x100_0000 + 2 * half).with_group_stride(2 * half);
    GateUpCall::new(rows, 136, 192, at(0x1_0000), [gate, up], at(0x1000_0000))
}

#[track_caller]
fn refused(call: GateUpCall) -> GemmError {
    match call.check() {
        Err(Error::Gemm(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_weights_map_alternates_gate_and_up() {
    call().check().unwrap();
    let [most, more, x, weights] = call().tensor_maps().unwrap();
    assert_eq!([most.tile()[1], more.tile()[1]], [128, 32]);
    assert_eq!((x.dims(), x.tile()), (&[192, 512][..], &[64, 8][..]));
    assert_eq!(weights.dims(), [192, 8, 2, 17, 3]);
    let row = 2 * 192;
    assert_eq!(weights.strides(), [row, 136 * row, 8 * row, 2 * 136 * row]);
    assert_eq!(weights.tile(), [64, 8, 2, 4, 1]);
    assert_eq!(weights.base(), DevicePtr::from_raw(0x100_0000));
    assert_eq!(call().args(DevicePtr::NULL).unwrap().up_first, 0);
    // 512 rows in 3 tiles and 3 groups that may begin one; 2 times 2 tiles of columns.
    assert_eq!(call().grid(132), 24);
}

#[test]
fn what_comes_first_is_the_maps_base() {
    let mut turned = call();
    std::mem::swap(&mut turned.product.b, &mut turned.up);
    turned.check().unwrap();
    assert_eq!(turned.tensor_maps().unwrap(), call().tensor_maps().unwrap());
    let args = turned.args(DevicePtr::NULL).unwrap();
    assert_eq!(
        (args.up_first, args.gate, args.limit),
        (1, 0, f32::INFINITY.to_bits())
    );
}

#[test]
fn what_is_kept_is_told() {
    let kept = call().keeping(at(0x2000_0000).with_row_stride(144), at(0x3000_0000));
    kept.check().unwrap();
    let args = kept.with_limit(7.0).args(DevicePtr::NULL).unwrap();
    assert_eq!((args.gate, args.gate_row_stride), (0x2000_0000, 144));
    assert_eq!((args.up, args.up_row_stride), (0x3000_0000, 136));
    assert_eq!(args.limit, 7f32.to_bits());
    let what = "the kept up";
    assert_eq!(
        refused(call().keeping(at(0x2000_0000), at(0))),
        GemmError::Null { what }
    );
}

#[test]
fn weights_that_lie_differently_are_told() {
    let with = |up: Matrix| GateUpCall { up, ..call() };
    let unlike = with(call().up.with_row_stride(200));
    assert!(!unlike.fits());
    let (what, gate, up) = ("row", 192, 200);
    assert_eq!(refused(unlike), GemmError::Unlike { what, gate, up });
    let half = 136 * 192;
    let (what, gate, up) = ("group", 2 * half, 3 * half);
    let unlike = with(call().up.with_group_stride(3 * half));
    assert_eq!(refused(unlike), GemmError::Unlike { what, gate, up });
    let stride = 2 * half;
    for (address, bytes) in [(0x100_0000, 0), (0x100_0000 + (1 << 40), 1 << 40)] {
        let far = with(at(address).with_group_stride(stride));
        assert!(!far.fits());
        assert_eq!(refused(far), GemmError::Apart { bytes });
    }
    assert!(call().fits());
}

#[test]
fn each_matrix_is_named() {
    let with = |change: fn(&mut GateUpCall)| {
        let mut call = call();
        change(&mut call);
        refused(call)
    };
    let null = |what| GemmError::Null { what };
    assert_eq!(with(|call| call.product.a = at(0)), null("X"));
    assert_eq!(with(|call| call.product.b = at(0)), null("gate"));
    assert_eq!(with(|call| call.up = at(0)), null("up"));
    assert_eq!(with(|call| call.product.d = at(0)), null("H"));
    assert_eq!(
        with(|call| call.product.n = 12),
        GemmError::Size {
            what: "n",
            value: 12
        }
    );
    for limit in [0.0, -1.0, f32::NAN] {
        let error = refused(call().with_limit(limit)).to_string();
        assert!(error.contains("not a positive number"), "{error}");
    }
}

#[test]
fn nothing_to_do_launches_nothing() {
    let mut none = call();
    none.product.rows = Groups::new(&[]).unwrap().at(DevicePtr::from_raw(0x100));
    none.check().unwrap();
    assert_eq!(none.grid(132), 0);
    let mut none = call();
    none.product.rows = none.product.rows.with_capacity(0);
    // What isn't there may have any stride.
    (none.product.a, none.product.d) = (at(0).with_row_stride(193), at(0));
    none.check().unwrap();
    assert_eq!(none.grid(132), 0);
}
