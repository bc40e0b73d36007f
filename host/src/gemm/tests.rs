use super::*;
use crate::error::Error;
use crate::groups::Groups;
use crate::tensor_map::TensorMapError;

fn at(address: u64) -> Matrix {
    Matrix::new(DevicePtr::from_raw(address))
}

fn rows(sizes: &[u32]) -> GroupRows {
    Groups::new(sizes).unwrap().at(DevicePtr::from_raw(0x100))
}

/// A call of a form: 3 groups in 512 rows, n = 256, m or k = 192.
fn call(form: Form) -> GemmCall {
    let rows = rows(&[100, 0, 300]);
    let (a, b, d) = (at(0x1_0000), at(0x100_0000), at(0x1000_0000));
    match form {
        Form::Forward => GemmCall::forward(rows, 256, 192, a, b, d),
        Form::Dgrad => GemmCall::dgrad(rows, 256, 192, a, b, d),
        Form::Wgrad => GemmCall::wgrad(rows, 192, 256, a, b, d),
    }
}

#[track_caller]
fn refused(call: GemmCall) -> GemmError {
    match call.check() {
        Err(Error::Gemm(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn maps_have_the_boxes_that_the_kernels_load() {
    let shape = |spec: &TensorMapSpec| (spec.dims().to_vec(), spec.strides(), spec.tile().to_vec());
    let maps = call(Form::Forward).tensor_maps();
    let [_, a, _, b, d] = &maps[..] else { panic!() };
    assert_eq!(shape(a), (vec![192, 512], vec![384], vec![64, 32]));
    assert_eq!(
        shape(b),
        (vec![192, 256, 3], vec![384, 384 * 256], vec![64, 128, 1])
    );
    assert_eq!(shape(d), (vec![256, 512], vec![512], vec![64, 8]));
    let maps = call(Form::Dgrad).tensor_maps();
    let [_, a, _, b, d] = &maps[..] else { panic!() };
    assert_eq!(shape(a), (vec![192, 512], vec![384], vec![64, 32]));
    assert_eq!(
        shape(b),
        (vec![256, 192, 3], vec![512, 512 * 192], vec![64, 64, 1])
    );
    assert_eq!(shape(d), (vec![256, 512], vec![512], vec![64, 8]));
    for sink in Sink::ALL {
        let maps = call(Form::Wgrad).with_sink(sink).tensor_maps();
        let [a, b, d] = &maps[..] else { panic!() };
        assert_eq!(shape(a), (vec![192, 512], vec![384], vec![64, 64]));
        assert_eq!(shape(b), (vec![256, 512], vec![512], vec![64, 64]));
        let (data_type, bytes, columns) = match sink {
            Sink::Bf16 | Sink::AddBf16 => (DataType::Bf16, 2, 64),
            Sink::F32 | Sink::AddF32 => (DataType::F32, 4, 32),
        };
        let strides = vec![256 * bytes, 192 * 256 * bytes];
        assert_eq!(
            shape(d),
            (vec![256, 192, 3], strides, vec![columns, 64, 1]),
            "{sink:?}"
        );
        assert_eq!(d.data_type(), data_type, "{sink:?}");
    }
    for form in Form::ALL {
        call(form).check().unwrap();
        let maps = call(form).tensor_maps();
        let bases: Vec<u64> = maps.iter().map(|map| map.base().as_raw()).collect();
        let wanted: &[u64] = match form {
            Form::Wgrad => &[0x1_0000, 0x100_0000, 0x1000_0000],
            _ => &[0x1_0000, 0x1_0000, 0x1_0000, 0x100_0000, 0x1000_0000],
        };
        assert_eq!(bases, wanted);
        for map in maps {
            assert_eq!(
                (map.swizzle(), map.data_type()),
                (Swizzle::B128, DataType::Bf16)
            );
        }
    }
}

#[test]
fn grids_never_exceed_the_tiles() {
    assert_eq!(
        call(Form::Forward).grid(132),
        12,
        "512 rows in 3 tiles, and 3 groups that may each begin one; 2 tiles of columns"
    );
    assert_eq!(
        call(Form::Wgrad).grid(132),
        12,
        "3 groups, 2 tiles of rows, 2 of columns"
    );
    assert_eq!(call(Form::Wgrad).grid(1), 1);
}

#[test]
fn nothing_to_do_launches_nothing() {
    let empty = |form, rows| GemmCall { rows, ..call(form) };
    let no_groups = rows(&[]);
    let no_rows = rows(&[0, 0]);
    for form in Form::ALL {
        let none = GemmCall {
            a: at(0),
            b: at(0),
            d: at(0),
            ..empty(form, no_groups)
        };
        none.check().unwrap();
        assert_eq!(none.grid(132), 0);
    }
    // Without rows their buffers are empty, and their addresses null.
    let forward = GemmCall {
        a: at(0),
        d: at(0),
        ..empty(Form::Forward, no_rows)
    };
    forward.check().unwrap();
    assert_eq!(forward.grid(132), 0);
    // But an overflow must be told.
    let told = GemmCall {
        rows: no_rows.with_overflow(DevicePtr::from_raw(8)),
        ..forward
    };
    told.check().unwrap();
    assert_eq!(told.grid(132), 1);
    let maps = told.tensor_maps();
    let [a, .., d] = &maps[..] else { panic!() };
    assert_eq!((a.dims(), d.dims()), (&[192, 1][..], &[256, 1][..]));
    assert_eq!((a.base(), d.base()), (told.b.ptr, told.b.ptr));
}

#[test]
fn fresh_weight_gradients_of_no_rows_are_still_written() {
    let wgrad = GemmCall {
        a: at(0),
        b: at(0),
        rows: rows(&[0, 0]),
        ..call(Form::Wgrad)
    };
    for sink in Sink::ALL {
        let wgrad = wgrad.with_sink(sink);
        wgrad.check().unwrap();
        assert_eq!(wgrad.grid(132), if sink.adds() { 0 } else { 8 }, "{sink:?}");
        let maps = wgrad.tensor_maps();
        let [a, b, d] = &maps[..] else { panic!() };
        for map in [a, b] {
            assert_eq!(
                (map.base(), map.dims()[1]),
                (DevicePtr::from_raw(0x1000_0000), 1)
            );
        }
        assert_eq!(d.dims(), [256, 192, 2]);
    }
}

#[test]
fn group_counts_and_capacities() {
    let with = |form, rows| refused(GemmCall { rows, ..call(form) });
    for form in Form::ALL {
        assert_eq!(
            with(form, rows(&[0; 1025])),
            GemmError::Groups { groups: 1025 }
        );
        assert_eq!(
            with(form, rows(&[1]).with_capacity(200)),
            GemmError::Capacity { capacity: 200 }
        );
    }
    let most = GemmCall {
        rows: rows(&[1; 1024]),
        ..call(Form::Wgrad)
    };
    most.check().unwrap();
}

#[test]
fn sizes() {
    for value in [0, 4, 100] {
        let what = "n";
        for form in Form::ALL {
            assert_eq!(
                refused(GemmCall {
                    n: value,
                    ..call(form)
                }),
                GemmError::Size { what, value }
            );
        }
        let what = "k";
        assert_eq!(
            refused(GemmCall {
                k: value,
                ..call(Form::Dgrad)
            }),
            GemmError::Size { what, value }
        );
        let what = "m";
        assert_eq!(
            refused(GemmCall {
                m: value,
                ..call(Form::Wgrad)
            }),
            GemmError::Size { what, value }
        );
    }
    let most = 1 << 31;
    let wide = GemmCall {
        n: most,
        m: most,
        rows: rows(&[1; 1024]),
        ..call(Form::Wgrad)
    };
    assert!(matches!(refused(wide), GemmError::Tiles { .. }));
}

/// Coordinates of tensor copies are signed: past 2^31 a load would bring zeros, in silence.
#[test]
fn extents_stay_within_signed_coordinates() {
    for form in Form::ALL {
        let call = call(form);
        let third = if form == Form::Wgrad { "m" } else { "k" };
        for what in ["capacity", "n", third] {
            let with = |value| {
                let mut call = call;
                match what {
                    "capacity" => call.rows = call.rows.with_capacity(value),
                    "m" => call.m = value,
                    "k" => call.k = value,
                    _ => call.n = value,
                }
                call
            };
            // The largest k, m and n of these calls take strides past a tensor map's.
            let most = with(1 << 31).check();
            assert!(
                matches!(most, Ok(()) | Err(Error::TensorMap(_))),
                "{most:?}"
            );
            let value = (1 << 31) + 128;
            assert_eq!(refused(with(value)), GemmError::Extent { what, value });
        }
    }
}

#[test]
fn the_grid_of_an_absurd_call_is_a_number_too() {
    let absurd = GemmCall {
        rows: GroupRows {
            groups: u32::MAX,
            ..rows(&[1])
        },
        m: u32::MAX,
        n: u32::MAX,
        ..call(Form::Wgrad)
    };
    assert_eq!(absurd.grid(132), 132);
}

#[test]
fn sinks() {
    for sink in Sink::ALL {
        call(Form::Wgrad).with_sink(sink).check().unwrap();
        for form in [Form::Forward, Form::Dgrad] {
            let call = call(form).with_sink(sink);
            match sink {
                Sink::Bf16 => call.check().unwrap(),
                _ => assert_eq!(refused(call), GemmError::Sink { form, sink }),
            }
        }
    }
}

#[test]
fn addresses() {
    for form in Form::ALL {
        let call = call(form);
        for (what, null, odd) in [
            (
                "A",
                GemmCall { a: at(0), ..call },
                GemmCall { a: at(8), ..call },
            ),
            (
                "B",
                GemmCall { b: at(0), ..call },
                GemmCall { b: at(8), ..call },
            ),
            (
                "D",
                GemmCall { d: at(0), ..call },
                GemmCall { d: at(8), ..call },
            ),
        ] {
            assert_eq!(refused(null), GemmError::Null { what });
            let address = DevicePtr::from_raw(8);
            assert_eq!(
                refused(odd),
                GemmError::Align {
                    what,
                    address,
                    align: 16
                }
            );
        }
        let sizes = |address| {
            let sizes = DevicePtr::from_raw(address);
            refused(GemmCall {
                rows: GroupRows { sizes, ..call.rows },
                ..call
            })
        };
        assert_eq!(
            sizes(0),
            GemmError::Null {
                what: "group sizes"
            }
        );
        assert!(matches!(
            sizes(2),
            GemmError::Align {
                what: "group sizes",
                align: 4,
                ..
            }
        ));
        let word = call.rows.with_overflow(DevicePtr::from_raw(4));
        assert!(matches!(
            refused(GemmCall { rows: word, ..call }),
            GemmError::Align {
                what: "overflow word",
                align: 8,
                ..
            }
        ));
    }
}

#[test]
fn strides() {
    let short = GemmCall {
        a: at(16).with_row_stride(184),
        ..call(Form::Forward)
    };
    assert_eq!(
        refused(short),
        GemmError::RowStride {
            what: "A",
            stride: 184,
            cols: 192
        }
    );
    let odd = GemmCall {
        a: at(16).with_row_stride(196),
        ..call(Form::Forward)
    };
    assert_eq!(
        refused(odd),
        GemmError::StrideAlign {
            what: "A",
            kind: "row",
            stride: 196
        }
    );
    let f32_rows = call(Form::Wgrad).with_sink(Sink::F32);
    GemmCall {
        d: at(16).with_row_stride(260),
        ..f32_rows
    }
    .check()
    .unwrap();
    let overlap = GemmCall {
        d: at(16).with_group_stride(256),
        ..call(Form::Wgrad)
    };
    assert_eq!(
        refused(overlap),
        GemmError::GroupStride {
            what: "D",
            stride: 256
        }
    );
    // [rows, groups, columns]: groups side by side.
    let beside = at(16).with_row_stride(3 * 256).with_group_stride(256);
    GemmCall {
        d: beside,
        ..call(Form::Wgrad)
    }
    .check()
    .unwrap();
    let narrow = at(16).with_row_stride(2 * 256).with_group_stride(256);
    assert!(matches!(
        refused(GemmCall {
            d: narrow,
            ..call(Form::Wgrad)
        }),
        GemmError::GroupStride { what: "D", .. }
    ));
    let far = GemmCall {
        a: at(16).with_row_stride(1 << 39),
        ..call(Form::Forward)
    };
    assert!(
        matches!(far.check(), Err(Error::TensorMap(_))),
        "2^40 bytes from row to row"
    );
    let huge = GemmCall {
        d: at(16).with_row_stride(u64::MAX - 7),
        ..call(Form::Forward)
    };
    assert!(matches!(
        refused(huge),
        GemmError::AddressSpace { what: "D", .. }
    ));
}

/// D leaves by tensor copies in every form, so it has a tensor map's limits.
#[test]
fn strides_of_d_are_within_a_tensor_map() {
    let with = |sink, d| GemmCall {
        d,
        ..call(Form::Wgrad).with_sink(sink)
    };
    let group_stride = |stride| at(16).with_group_stride(stride);
    for sink in Sink::ALL {
        let size = u64::from(sink.element_size());
        // As many elements as 8 bytes have, more than packed: groups apart, but not by 16 bytes.
        let odd = 192 * 256 + 8 / size;
        assert_eq!(
            refused(with(sink, group_stride(odd))),
            GemmError::StrideAlign {
                what: "D",
                kind: "group",
                stride: odd
            },
            "{sink:?}"
        );
        with(sink, group_stride(192 * 256 + 16 / size))
            .check()
            .unwrap();
        let odd = 256 + 8 / size;
        assert_eq!(
            refused(with(sink, at(16).with_row_stride(odd))),
            GemmError::StrideAlign {
                what: "D",
                kind: "row",
                stride: odd
            },
            "{sink:?}"
        );
        let far = (1 << 40) / size;
        for (dim, d) in [(1, at(16).with_row_stride(far)), (2, group_stride(far))] {
            let error = with(sink, d).check().unwrap_err();
            let Error::TensorMap(TensorMapError::StrideSize { dim: of, value }) = error else {
                panic!("{sink:?}: {error:?}");
            };
            assert_eq!((of, value), (dim, 1 << 40), "{sink:?}");
        }
        // Under 2^40 from row to row, and 192 times that from group to group.
        let apart = at(16).with_row_stride((1 << 39) / size);
        let error = with(sink, apart).check().unwrap_err();
        assert!(
            error.to_string().contains(&(192u64 << 39).to_string()),
            "{error}"
        );
        with(sink, group_stride(far - 16 / size)).check().unwrap();
    }
    for form in [Form::Forward, Form::Dgrad] {
        let far = GemmCall {
            d: at(16).with_row_stride(1 << 39),
            ..call(form)
        };
        let error = far.check().unwrap_err();
        assert!(
            error.to_string().contains(&(1u64 << 40).to_string()),
            "{error}"
        );
    }
}

/// The stride to the next group is never used where there is none, whatever it says.
#[test]
fn one_group_has_no_group_stride() {
    for sink in Sink::ALL {
        for stride in [0, 1, 1 << 60, u64::MAX] {
            let one = GemmCall {
                rows: rows(&[100]),
                d: at(16).with_group_stride(stride),
                ..call(Form::Wgrad).with_sink(sink)
            };
            one.check().unwrap();
            let maps = one.tensor_maps();
            let [.., d] = &maps[..] else { panic!() };
            let row = 256 * u64::from(sink.element_size());
            assert_eq!((d.dims(), d.strides()), (&[256, 192, 1][..], vec![row; 2]));
        }
    }
    for form in [Form::Forward, Form::Dgrad] {
        let one = GemmCall {
            rows: rows(&[100]),
            b: at(16).with_group_stride(1),
            d: at(16).with_group_stride(1),
            ..call(form)
        };
        one.check().unwrap();
    }
}

#[test]
fn matrices_fit_their_buffers() {
    for form in Form::ALL {
        let call = call(form);
        let d_bytes = match form {
            Form::Wgrad => 3 * 192 * 256 * 2,
            _ => 512 * 256 * 2,
        };
        let with = |bytes| GemmCall {
            d: Matrix {
                bytes: Some(bytes),
                ..call.d
            },
            ..call
        };
        with(d_bytes).check().unwrap();
        let error = GemmError::Bytes {
            what: "D",
            needed: d_bytes.into(),
            bytes: d_bytes - 1,
        };
        assert_eq!(refused(with(d_bytes - 1)), error);
    }
    let f32_sink = call(Form::Wgrad).with_sink(Sink::F32);
    let half = Matrix {
        bytes: Some(3 * 192 * 256 * 2),
        ..f32_sink.d
    };
    assert!(matches!(
        refused(GemmCall {
            d: half,
            ..f32_sink
        }),
        GemmError::Bytes { .. }
    ));
}

#[test]
fn arguments_are_filled_in() {
    let args = call(Form::Wgrad)
        .with_sink(Sink::AddF32)
        .args(DevicePtr::from_raw(0x80));
    assert_eq!(
        (args.m, args.n, args.groups, args.capacity),
        (192, 256, 3, 512)
    );
    assert_eq!(
        (args.d, args.d_row_stride, args.d_group_stride),
        (0x1000_0000, 256, 192 * 256)
    );
    assert_eq!((args.group_rows, args.overflow, args.sink), (0x100, 0, 2));
    assert_eq!(args.tickets, 0x80);
}
