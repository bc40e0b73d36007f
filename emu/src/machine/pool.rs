//! A block's registers that `setmaxnreg` moves.

use std::collections::VecDeque;

/// Warps of a warpgroup.
const GROUP: u32 = 4;

/// Registers that no warp of the block owns, and who has executed which `setmaxnreg`.
///
/// At launch there are none, and those of a warp that ends do not come back: the ISA names only
/// `dec` as what releases any.
#[derive(Clone, Debug)]
pub(crate) struct RegisterPool {
    /// Registers, of all lanes.
    pub free: u32,
    groups: Vec<Group>,
}

/// A warpgroup. Warps are bits.
#[derive(Clone, Debug, Default)]
struct Group {
    warps: u8,
    ended: u8,
    /// The number of the first of `open`.
    first: u32,
    /// `setmaxnreg` that some have executed and some have not, in order: where, and who has.
    open: VecDeque<(u32, u8)>,
}

/// What is wrong with the warps of a warpgroup, all of which execute the same `setmaxnreg`. The ISA
/// also wants them to meet before the next; compilers don't where that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Apart {
    /// Others have executed the one at this instruction.
    Other(u32),
    /// Others have ended without any more.
    Ended,
}

impl RegisterPool {
    /// Of a block with so many warps.
    pub fn of(warps: u32) -> RegisterPool {
        let group = |first: u32| Group {
            warps: (1 << (warps - first).min(GROUP)) - 1,
            ..Group::default()
        };
        RegisterPool {
            free: 0,
            groups: (0..warps).step_by(GROUP as usize).map(group).collect(),
        }
    }

    /// A warp that has executed so many comes to the next, perhaps again after a wait.
    pub fn come(&mut self, warp: u32, executed: u32, pc: u32) -> Result<(), Apart> {
        let bit = 1u8 << (warp % GROUP);
        let Some(group) = self.groups.get_mut((warp / GROUP) as usize) else {
            return Ok(());
        };
        let Some(at) = executed.checked_sub(group.first) else {
            return Ok(());
        };
        if let Some((other, here)) = group.open.get_mut(at as usize) {
            let other = *other;
            *here |= bit;
            group.settle();
            return match other == pc {
                true => Ok(()),
                false => Err(Apart::Other(other)),
            };
        }
        // Who has ended is named once, here or when it ended.
        let missing = group.ended != 0;
        group.open.push_back((pc, bit | group.ended));
        group.settle();
        match missing {
            true => Err(Apart::Ended),
            false => Ok(()),
        }
    }

    /// A warp that has executed so many ends; if others have executed more, where.
    pub fn end(&mut self, warp: u32, executed: u32) -> Option<u32> {
        let group = self.groups.get_mut((warp / GROUP) as usize)?;
        let bit = 1 << (warp % GROUP);
        group.ended |= bit;
        let at = executed.checked_sub(group.first);
        let next = at.and_then(|at| group.open.get(at as usize).map(|(pc, _)| *pc));
        for (_, here) in &mut group.open {
            *here |= bit;
        }
        group.settle();
        next
    }
}

impl Group {
    fn settle(&mut self) {
        while self
            .open
            .front()
            .is_some_and(|(_, here)| *here == self.warps)
        {
            self.open.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warps_of_a_warpgroup_keep_together() {
        let mut pool = RegisterPool::of(6);
        for warp in [2, 0, 1] {
            assert_eq!(pool.come(warp, 0, 7), Ok(()));
        }
        // Again, after a wait; and another warpgroup, of two warps, at others.
        assert_eq!(pool.come(0, 0, 7), Ok(()));
        for (warp, executed, pc) in [(4, 0, 9), (4, 1, 11), (5, 0, 9), (5, 0, 9), (5, 1, 11)] {
            assert_eq!(pool.come(warp, executed, pc), Ok(()));
        }
        assert_eq!(pool.clone().come(3, 0, 8), Err(Apart::Other(7)));
        assert_eq!(pool.clone().end(3, 0), Some(7));
        // One may be ahead.
        assert_eq!(pool.come(2, 1, 8), Ok(()));
        assert_eq!(pool.come(3, 0, 7), Ok(()));
        assert_eq!(pool.come(3, 1, 9), Err(Apart::Other(8)));
        assert_eq!(pool.end(3, 2), None);
        assert_eq!(pool.come(2, 2, 10), Err(Apart::Ended));
        assert_eq!(pool.come(0, 1, 8), Ok(()));
        assert_eq!(pool.end(0, 2), Some(10));
        // A block has as many warps as the caller says.
        assert_eq!(pool.come(8, 0, 0), Ok(()));
        assert_eq!(pool.end(8, 0), None);
    }
}
