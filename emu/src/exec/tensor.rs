//! Tensor-core products and matrix fragments.

use super::{Step, lanes};
use crate::check::Use;
use crate::code::{Op, Order, WgmmaCall};
use crate::machine::{Machine, Warp};
use crate::report::FindingKind;
use crate::tensor::matrix::transpose;
use crate::tensor::product::Numerics;
use crate::tensor::wgmma::{Modifiers, OperandA};

use super::memory::Target;

/// A product that a warp has issued and not waited for.
///
/// Its operands are read when it is settled, as late as the hardware may: a stage that is
/// overwritten too early gives a wrong result.
#[derive(Clone, Debug)]
pub(crate) struct IssuedWgmma {
    /// The instruction.
    pc: u32,
    /// A's descriptor, or this warp's four registers.
    a: Vec<[u32; 32]>,
    descriptor_a: u64,
    descriptor_b: u64,
    modifiers: Modifiers,
}

impl Machine {
    pub(super) fn tensor(&mut self, warp: &mut Warp, at: usize, op: &Op, active: u32) -> Step {
        if !self.whole_warp(warp, at) {
            return Step::Blocked;
        }
        let pc = warp.fragments[at].pc;
        if active != warp.live || warp.live != u32::MAX {
            let message = format!("only threads {active:#010x} of the warp take part");
            self.report(warp, pc, None, FindingKind::Divergent, message);
        }
        match op {
            Op::WgmmaFence => self.check_groups(op, active),
            Op::Wgmma(call) => {
                let issued = IssuedWgmma {
                    pc,
                    a: if call.a_registers {
                        call.a
                            .iter()
                            .map(|&slot| narrow(warp.lanes(slot)))
                            .collect()
                    } else {
                        Vec::new()
                    },
                    descriptor_a: warp.lanes(call.a[0])[0],
                    descriptor_b: warp.lanes(call.b)[0],
                    modifiers: Modifiers {
                        scale_d: warp.lanes(call.scale_d)[0] != 0,
                        ..call.modifiers
                    },
                };
                self.check_product(
                    call,
                    issued.descriptor_a,
                    issued.descriptor_b,
                    issued.modifiers,
                );
                warp.wgmma_open.push(issued);
            }
            Op::WgmmaCommit => {
                self.check_groups(op, active);
                let open = std::mem::take(&mut warp.wgmma_open);
                warp.wgmma.push_back(open);
            }
            Op::WgmmaWait { pending } => {
                self.check_groups(op, active);
                while warp.wgmma.len() > *pending as usize {
                    let group = warp.wgmma.pop_front().unwrap_or_default();
                    for issued in group {
                        self.settle_wgmma(warp, &issued);
                    }
                }
            }
            Op::Mma { mma, d, a, b, c } => {
                let read = |slots: &[u32]| {
                    slots
                        .iter()
                        .map(|&slot| narrow(warp.lanes(slot)))
                        .collect::<Vec<_>>()
                };
                match mma.execute(Numerics::default(), &read(a), &read(b), &read(c)) {
                    Ok(sums) => {
                        for (&slot, values) in d.iter().zip(&sums) {
                            warp.registers[slot as usize] = values.map(u64::from);
                        }
                    }
                    Err(message) => self.report(warp, pc, None, FindingKind::Illegal, message),
                }
            }
            Op::WmmaMove { .. } | Op::WmmaProduct { .. } => self.wmma(warp, at, op),
            Op::LoadMatrix { op, dst, address } => {
                let addresses = std::array::from_fn(|lane| Self::address_of(warp, address, lane));
                let mut places = Vec::new();
                let rows = op
                    .rows(&addresses)
                    .map_err(|message| (FindingKind::Misaligned, message))
                    .and_then(|rows| {
                        rows.iter()
                            .map(|&(lane, at)| {
                                let target = self.target(warp, address.space, at)?;
                                let mut row = [0u8; 16];
                                row.copy_from_slice(self.bytes_of(warp, lane, target, 16)?);
                                if let Target::Place(place) = target {
                                    self.check_access(lane, place, 16, Use::Read, Order::default());
                                    places.push(place);
                                }
                                Ok(row)
                            })
                            .collect::<Result<Vec<_>, String>>()
                            .map_err(|message| {
                                (FindingKind::OutOfBounds, format!("reads {message}"))
                            })
                    });
                match rows {
                    Ok(rows) => {
                        self.check_matrix(op, dst, &places);
                        for (&slot, values) in dst.iter().zip(op.load(&rows)) {
                            warp.registers[slot as usize] = values.map(u64::from);
                        }
                    }
                    Err((kind, message)) => self.report(warp, pc, None, kind, message),
                }
            }
            Op::StoreMatrix { op, src, address } => {
                let values: Vec<[u32; 32]> =
                    src.iter().map(|&slot| narrow(warp.lanes(slot))).collect();
                let addresses = std::array::from_fn(|lane| Self::address_of(warp, address, lane));
                let stored = op
                    .rows(&addresses)
                    .map_err(|message| (FindingKind::Misaligned, message))
                    .and_then(|rows| {
                        for ((lane, at), row) in rows.into_iter().zip(op.store(&values)) {
                            let stored = self.target(warp, address.space, at).and_then(|target| {
                                self.bytes_of(warp, lane, target, 16)?;
                                match target {
                                    Target::Place(place) => {
                                        self.check_access(
                                            lane,
                                            place,
                                            16,
                                            Use::Write,
                                            Order::default(),
                                        );
                                        self.write_place(place, &row, None)
                                    }
                                    _ => Err("no shared memory".into()),
                                }
                            });
                            stored.map_err(|message| {
                                (FindingKind::OutOfBounds, format!("writes {message}"))
                            })?;
                        }
                        Ok(())
                    });
                self.progress += 1;
                if let Err((kind, message)) = stored {
                    self.report(warp, pc, None, kind, message);
                }
            }
            Op::MoveMatrix { dst, src } => {
                let moved = transpose(&narrow(warp.lanes(*src)));
                warp.registers[*dst as usize] = moved.map(u64::from);
            }
            _ => {}
        }
        Step::Next
    }

    /// Computes this warp's 16 rows of a product.
    ///
    /// A warpgroup's product reads 64 rows of A; what the other warps' rows give is theirs. So the
    /// whole product is computed on a copy, and this warp's part of it kept.
    fn settle_wgmma(&mut self, warp: &mut Warp, issued: &IssuedWgmma) {
        let entry = warp.entry.clone();
        let Op::Wgmma(call) = &entry.code[issued.pc as usize].op else {
            return;
        };
        let part = (warp.number % 4) as usize;
        match self.multiply(warp, call, issued, part) {
            Ok(sums) => {
                for (register, &slot) in call.d.iter().enumerate() {
                    for lane in 0..32 {
                        warp.registers[slot as usize][lane] =
                            sums[32 * part + lane][register].into();
                    }
                }
            }
            Err(message) => self.report(warp, issued.pc, None, FindingKind::Illegal, message),
        }
    }

    fn multiply(
        &self,
        warp: &Warp,
        call: &WgmmaCall,
        issued: &IssuedWgmma,
        part: usize,
    ) -> Result<Vec<Vec<u32>>, String> {
        let shared = &self.block(warp.block).shared;
        let mut sums = vec![vec![0u32; call.d.len()]; 128];
        for (register, &slot) in call.d.iter().enumerate() {
            for lane in 0..32 {
                sums[32 * part + lane][register] = warp.lanes(slot)[lane] as u32;
            }
        }
        let mut registers = [[0u32; 4]; 128];
        for (register, values) in issued.a.iter().enumerate() {
            for lane in lanes(u32::MAX) {
                registers[32 * part + lane][register] = values[lane];
            }
        }
        let a = if call.a_registers {
            OperandA::Regs(&registers)
        } else {
            OperandA::Desc(issued.descriptor_a)
        };
        call.op.execute(
            Numerics::default(),
            shared,
            a,
            issued.descriptor_b,
            issued.modifiers,
            &mut sums,
        )?;
        Ok(sums)
    }
}

pub(super) fn narrow(values: &[u64; 32]) -> [u32; 32] {
    values.map(|value| value as u32)
}
