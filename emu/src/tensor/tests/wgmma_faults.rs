//! Planted faults of a wgmma: each wrong field changes the product, each illegal form is named.

use super::Random;
use super::layouts::{describe, table};
use super::wgmma::{FORMS, SHARED, all_columns, decode, offsets, operand, place};
use crate::tensor::descriptor::{Descriptor, Major};
use crate::tensor::number::Element;
use crate::tensor::product::Numerics;
use crate::tensor::swizzle::Swizzle;
use crate::tensor::wgmma::{Immediate, Modifiers, OperandA};

/// A bf16 product of 64 by 64 by 16 with one thing wrong must differ; the same with a field
/// changed that doesn't count must not.
#[test]
fn planted_faults_change_the_result() {
    let mut random = Random(13);
    for (major, swizzle) in [Major::K, Major::Mn]
        .into_iter()
        .flat_map(|m| Swizzle::ALL.map(|s| (m, s)))
    {
        let w = decode(64, 16, "f32.bf16.bf16");
        let mut shared: Vec<u8> = (0..SHARED).map(|_| random.next() as u8 & 0x3f).collect();
        let how = (major, swizzle, 0);
        let a = operand(
            &mut random,
            &mut shared,
            0x400,
            (64, 16),
            Element::Bf16,
            how,
        );
        let b = operand(
            &mut random,
            &mut shared,
            0x8000,
            (64, 16),
            Element::Bf16,
            how,
        );
        let good = Modifiers {
            trans_a: major == Major::Mn,
            trans_b: major == Major::Mn,
            ..Modifiers::default()
        };
        let run = |a: Descriptor, b: Descriptor, modifiers: Modifiers| {
            let mut d = vec![vec![1.0_f32.to_bits(); 32]; 128];
            let desc_a = OperandA::Desc(a.encode());
            w.execute(
                Numerics::Exact,
                &shared,
                desc_a,
                b.encode(),
                modifiers,
                &mut d,
            )
            .unwrap();
            d
        };
        let right = run(a.descriptor, b.descriptor, good);
        let differs = |a, b, modifiers, what: &str| {
            assert_ne!(run(a, b, modifiers), right, "{major:?} {swizzle:?}: {what}");
        };
        let (da, db) = (a.descriptor, b.descriptor);
        // LBO counts except in a swizzled K-major tile, and in an MN-major one of one panel.
        let lbo_counts = match (major, swizzle) {
            (Major::K, swizzle) => swizzle == Swizzle::None,
            (Major::Mn, swizzle) => swizzle != Swizzle::B128,
        };
        let wrong = Descriptor {
            leading: db.leading + 16,
            ..db
        };
        if lbo_counts {
            differs(da, wrong, good, "LBO of B");
        } else {
            assert_eq!(run(da, wrong, good), right, "LBO doesn't count");
        }
        differs(
            da,
            Descriptor {
                stride: db.stride + 16,
                ..db
            },
            good,
            "SBO of B",
        );
        differs(
            Descriptor {
                stride: da.stride + 128,
                ..da
            },
            db,
            good,
            "SBO of A",
        );
        differs(
            Descriptor {
                start: da.start + 16,
                ..da
            },
            db,
            good,
            "start of A",
        );
        for other in Swizzle::ALL {
            if other != swizzle {
                differs(
                    da,
                    Descriptor {
                        swizzle: other,
                        ..db
                    },
                    good,
                    "swizzle of B",
                );
            }
        }
        if swizzle != Swizzle::None {
            differs(
                da,
                Descriptor {
                    base_offset: 1,
                    ..db
                },
                good,
                "base offset of B",
            );
        }
        differs(
            da,
            db,
            Modifiers {
                trans_a: !good.trans_a,
                ..good
            },
            "transpose of A",
        );
        differs(
            da,
            db,
            Modifiers {
                trans_b: !good.trans_b,
                ..good
            },
            "transpose of B",
        );
        differs(
            da,
            db,
            Modifiers {
                neg_a: true,
                ..good
            },
            "sign of A",
        );
        differs(
            da,
            db,
            Modifiers {
                scale_d: false,
                ..good
            },
            "scale of D",
        );
    }
}

#[test]
fn reads_are_the_bytes_of_the_operands() {
    let mut random = Random(17);
    for swizzle in Swizzle::ALL {
        for major in [Major::K, Major::Mn] {
            let w = decode(72, 16, "f32.f16.f16");
            let mut shared = vec![0; SHARED];
            let how = (major, swizzle, 32);
            let b = operand(
                &mut random,
                &mut shared,
                0x2000,
                (72, 16),
                Element::F16,
                how,
            );
            let mut expected = vec![false; SHARED];
            let (lbo, sbo) = offsets(major, swizzle, 72, 32);
            for mn in 0..72 {
                for k in 0..16 {
                    let at = table(major, swizzle, 2, (0x2000, lbo, sbo), (mn, k));
                    expected[at..at + 2].fill(true);
                }
            }
            let modifiers = Modifiers {
                trans_b: major == Major::Mn,
                ..Modifiers::default()
            };
            let a = OperandA::Regs(&[[0; 4]; 128]);
            let desc_b = b.descriptor.encode();
            let mut d = vec![vec![0; w.registers()]; 128];
            let reads = w
                .execute(Numerics::Exact, &shared, a, desc_b, modifiers, &mut d)
                .unwrap();
            let mut found = vec![false; SHARED];
            for range in &reads.ranges {
                found[range.start as usize..range.end as usize].fill(true);
            }
            assert_eq!(found, expected, "{major:?} {swizzle:?}");
            assert!(
                reads
                    .ranges
                    .windows(2)
                    .all(|pair| pair[0].end < pair[1].start)
            );
            // Marks find the one row that holds a marked byte.
            for (mn, k) in [(0, 0), (71, 15), (40, 7)] {
                let at = table(major, swizzle, 2, (0x2000, lbo, sbo), (mn, k)) as u32;
                let marked = |chunk: u32| if at & !15 == chunk { 2 << (at % 16) } else { 0 };
                let marks = w.marks(marked, a, desc_b, modifiers).unwrap();
                assert_eq!(marks.rows, [false; 64]);
                let columns: Vec<usize> = (0..72).filter(|c| marks.columns[*c]).collect();
                assert_eq!(columns, [mn]);
            }
        }
    }
    let mut masks = [[0; 4]; 128];
    masks[5][1] = 1; // row 8 + 5 / 4
    let w = decode(8, 16, "f32.f16.f16");
    let marks = w
        .marks(|_| 0, OperandA::Regs(&masks), 0, Modifiers::default())
        .unwrap();
    assert_eq!((0..64).filter(|r| marks.rows[*r]).collect::<Vec<_>>(), [9]);
}

#[test]
fn what_cannot_be_is_refused() {
    let refuse = |types: &str, k: usize, modifiers: Modifiers, regs: bool, what: &str| {
        let w = decode(8, k, types);
        let registers = [[0; 4]; 128];
        let a = if regs {
            OperandA::Regs(&registers)
        } else {
            OperandA::Desc(0)
        };
        let mut d = vec![vec![0; w.registers()]; 128];
        let shared = vec![0; 4096];
        let error = w
            .execute(Numerics::Exact, &shared, a, 0, modifiers, &mut d)
            .unwrap_err();
        assert!(error.contains(what), "{error}");
    };
    let trans_a = Modifiers {
        trans_a: true,
        ..Modifiers::default()
    };
    let trans_b = Modifiers {
        trans_b: true,
        ..Modifiers::default()
    };
    let neg_a = Modifiers {
        neg_a: true,
        ..Modifiers::default()
    };
    refuse("f32.e4m3.e4m3", 32, trans_b, false, "transposes B");
    refuse("f32.tf32.tf32", 8, trans_a, false, "transposes A");
    refuse("f32.bf16.bf16", 16, trans_a, true, "transposes A");
    refuse("s32.s8.s8", 32, neg_a, false, "negates A");

    let w = decode(256, 16, "f32.bf16.bf16");
    let shared = vec![0; 8192];
    let desc = describe(0, 0, 1024, Swizzle::B128).encode();
    let mut d = vec![vec![0; 128]; 128];
    let a = OperandA::Desc(desc);
    let plain = Modifiers::default();
    let error = w
        .execute(Numerics::Exact, &shared, a, desc, plain, &mut d)
        .unwrap_err();
    assert!(
        error.contains("operand B") && error.contains("0x2000"),
        "{error}"
    );
    let mut short = vec![vec![0; 127]; 128];
    assert!(
        w.execute(Numerics::Exact, &shared, a, desc, plain, &mut short)
            .is_err()
    );
    let high = OperandA::Desc(1 << 46);
    let error = w
        .execute(Numerics::Exact, &shared, high, desc, plain, &mut d)
        .unwrap_err();
    assert!(
        error.contains("operand A") && error.contains("reserved"),
        "{error}"
    );
}

/// Any descriptor is an `Ok` or an `Err`.
#[test]
fn random_descriptors_do_not_panic() {
    let mut random = Random(19);
    let shared = vec![0x38; 65536];
    let (mut good, mut bad) = (0, 0);
    for i in 0..20_000 {
        let (types, a, ..) = FORMS[i % FORMS.len()];
        let w = decode(all_columns(a)[i % 16], 32 / a.bytes(), types);
        let mut bits = random.next();
        if i % 3 != 0 {
            bits &= 0xc00e_03ff_00ff_03ff;
        }
        let modifiers = Modifiers {
            trans_b: i % 2 == 0,
            ..Modifiers::default()
        };
        let mut d = vec![vec![0; w.registers()]; 128];
        let a = OperandA::Desc(bits.rotate_left((i % 5 == 0) as u32));
        let numerics = [Numerics::Exact, Numerics::HopperFp8][i % 2];
        match w.execute(numerics, &shared, a, bits, modifiers, &mut d) {
            Ok(_) => good += 1,
            Err(_) => bad += 1,
        }
    }
    assert!(good > 100 && bad > 100, "{good} {bad}");
}

#[test]
fn saturation() {
    let shared = vec![0x7f; 65536];
    for (name, expected) in [
        ("satfinite.s32", i32::MAX),
        ("s32", i32::MIN + 32 * 127 * 127 - 1),
    ] {
        let w = decode(8, 32, &format!("{name}.s8.s8"));
        let mut d = vec![vec![i32::MAX as u32; 4]; 128];
        let desc = describe(0, 128, 128, Swizzle::None).encode();
        let plain = Modifiers::default();
        let a = OperandA::Desc(desc);
        w.execute(Numerics::Exact, &shared, a, desc, plain, &mut d)
            .unwrap();
        assert!(d.iter().flatten().all(|bits| *bits as i32 == expected));
    }
}

#[test]
fn immediates_follow_the_syntax() {
    use Immediate::{ScaleA, ScaleB, TransA, TransB};
    let half = decode(8, 16, "f32.f16.f16");
    assert_eq!(half.immediates(false), [ScaleA, ScaleB, TransA, TransB]);
    assert_eq!(half.immediates(true), [ScaleA, ScaleB, TransB]);
    assert_eq!(
        decode(8, 32, "f16.e5m2.e4m3").immediates(true),
        [ScaleA, ScaleB]
    );
    assert_eq!(decode(8, 32, "s32.u8.s8").immediates(false), []);
}

/// The place that is told to the machine is that of the figure, for D's every element.
#[test]
fn places_of_d() {
    for (types, k) in [("f32.f16.f16", 16), ("f16.f16.f16", 16), ("s32.u8.u8", 32)] {
        let w = decode(96, k, types);
        for row in 0..64 {
            for column in 0..96 {
                let (thread, register, shift) = place(w.d(), row, column);
                assert_eq!(
                    w.place(thread, register, shift as usize / 16),
                    (row, column)
                );
            }
        }
    }
}
