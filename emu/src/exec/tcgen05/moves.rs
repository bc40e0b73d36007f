//! `tcgen05.ld`, `tcgen05.st` and their waits (PTX ISA 9.0, 9.7.16.8).

use super::Fault;
use crate::check::{Found, Role, Use};
use crate::code::{Address as Operand, Slot};
use crate::exec::lanes;
use crate::machine::{Completion, Machine, Warp};
use crate::tensor::tcgen05::fragment::Fragment;
use crate::tensor::tcgen05::memory::Address;
use crate::tensor::tcgen05::reduction::Reduction;

/// A load whose registers are not written yet.
#[derive(Clone, Debug)]
pub(crate) struct IssuedLoad {
    fragment: Fragment,
    at: Address,
    dst: Vec<Slot>,
    reduction: Option<(Reduction, Slot)>,
}

/// A store that is not done yet: its values, and whether somebody wrote them.
#[derive(Clone, Debug)]
pub(crate) struct IssuedStore {
    fragment: Fragment,
    at: Address,
    values: Vec<[(u32, bool); 32]>,
}

impl Machine {
    /// Whether what is issued now happens only at its wait.
    fn happens_late(&mut self) -> bool {
        match self.config().completion {
            Completion::Early => false,
            Completion::Late => true,
            Completion::Random => self.random.below(2) == 1,
        }
    }

    fn move_address(
        &mut self,
        warp: &Warp,
        (fragment, address): (&Fragment, &Operand),
        active: u32,
        verb: &str,
    ) -> Result<Address, Fault> {
        let at = Address::of(Self::uniform_address(warp, address, active)?);
        fragment.check(at, warp.number).map_err(super::illegal)?;
        self.owned(warp.block, &fragment.areas(at), verb)?;
        Ok(at)
    }

    pub(super) fn tensor_load(
        &mut self,
        warp: &mut Warp,
        (fragment, dst, address, reduction): (
            &Fragment,
            &[Slot],
            &Operand,
            Option<(Reduction, Slot)>,
        ),
        active: u32,
    ) -> Result<(), Fault> {
        let at = self.move_address(warp, (fragment, address), active, "loads")?;
        let sm = self.sm_of(warp.block);
        self.checked(|check| {
            let ticket = check.tensor_move(true);
            let areas = fragment.areas(at);
            check.tensor_touch(0, ticket, sm, &areas, (Use::Read, Role::Load));
            check.tensor_flight(dst, ticket.1);
            check.tensor_flight(reduction.map(|(_, slot)| slot).as_slice(), ticket.1);
        });
        let issued = IssuedLoad {
            fragment: *fragment,
            at,
            dst: dst.to_vec(),
            reduction,
        };
        warp.tensor_open[1] = true;
        // A register holds the last that was loaded, so loads happen in order.
        let earlier = !warp.tensor_loads.is_empty();
        if self.happens_late() || earlier {
            warp.tensor_loads.push(issued);
        } else {
            self.settle_load(warp, &issued);
        }
        Ok(())
    }

    fn settle_load(&mut self, warp: &mut Warp, issued: &IssuedLoad) {
        let IssuedLoad {
            fragment,
            at,
            dst,
            reduction,
        } = issued;
        let mut unwritten = 0u32;
        let checks = self.check.is_some();
        for (register, &slot) in (0..).zip(dst) {
            for lane in lanes(warp.live) {
                let (row, column) = fragment.place(lane as u32, register);
                let (row, column) = (at.lane + row, at.column + column);
                let cells = &self.tensor_memory(warp.block).cells;
                let mut value = cells.get(row, column);
                let mut written = cells.is_written(row, column);
                if fragment.width() == 2 {
                    value = value & 0xffff | cells.get(row, column + 1) << 16;
                    written &= cells.is_written(row, column + 1);
                }
                warp.registers[slot as usize][lane] = value.into();
                unwritten |= u32::from(!written) << lane;
                if checks {
                    let found = if written {
                        Found::Written
                    } else {
                        Found::Unwritten
                    };
                    self.checked(|check| check.loaded(slot, lane, found));
                }
            }
        }
        let Some((reduction, slot)) = reduction else {
            return;
        };
        for lane in lanes(warp.live) {
            let values = dst.iter().map(|&slot| warp.lanes(slot)[lane] as u32);
            warp.registers[*slot as usize][lane] = reduction.of(values).into();
            let found = match unwritten >> lane & 1 {
                0 => Found::Written,
                _ => Found::Unwritten,
            };
            self.checked(|check| check.loaded(*slot, lane, found));
        }
    }

    pub(super) fn tensor_store(
        &mut self,
        warp: &mut Warp,
        (fragment, src, address): (&Fragment, &[Slot], &Operand),
        active: u32,
    ) -> Result<(), Fault> {
        let at = self.move_address(warp, (fragment, address), active, "stores to")?;
        let sm = self.sm_of(warp.block);
        self.checked(|check| {
            let ticket = check.tensor_move(false);
            let areas = fragment.areas(at);
            check.tensor_touch(0, ticket, sm, &areas, (Use::Write, Role::Store));
        });
        let mut values = Vec::with_capacity(src.len());
        for &slot in src {
            let mut of_slot = warp.lanes(slot).map(|value| (value as u32, true));
            if let Some(check) = &mut self.check {
                for (lane, (_, written)) in of_slot.iter_mut().enumerate() {
                    *written = check.held(slot, lane) == Found::Written;
                }
            }
            values.push(of_slot);
        }
        let issued = IssuedStore {
            fragment: *fragment,
            at,
            values,
        };
        warp.tensor_open[0] = true;
        let earlier = !warp.tensor_stores.is_empty();
        if self.happens_late() || earlier {
            warp.tensor_stores.push(issued);
        } else {
            self.settle_store(warp, &issued);
        }
        Ok(())
    }

    fn settle_store(&mut self, warp: &Warp, issued: &IssuedStore) {
        let IssuedStore {
            fragment,
            at,
            values,
        } = issued;
        let cells = &mut self.tensor_memory(warp.block).cells;
        for (register, values) in (0..).zip(values) {
            for (lane, &(value, written)) in values.iter().enumerate() {
                let (row, column) = fragment.place(lane as u32, register);
                let (row, column) = (at.lane + row, at.column + column);
                if fragment.width() == 2 {
                    cells.set(row, column, value & 0xffff, written);
                    cells.set(row, column + 1, value >> 16, written);
                } else {
                    cells.set(row, column, value, written);
                }
            }
        }
    }

    pub(super) fn tensor_wait(&mut self, warp: &mut Warp, load: bool, active: u32) {
        warp.tensor_open[usize::from(load)] = false;
        if load {
            for issued in std::mem::take(&mut warp.tensor_loads) {
                self.settle_load(warp, &issued);
            }
        } else {
            for issued in std::mem::take(&mut warp.tensor_stores) {
                self.settle_store(warp, &issued);
            }
        }
        self.checked(|check| check.tensor_wait(load, active));
        self.progress += 1;
    }
}
