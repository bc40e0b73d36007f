//! What the machine tells the checker. Without a checker each of these does nothing.

use super::clock::Domain;
use super::warps::WarpInfo;
use super::{Check, Use};
use crate::code::{Fence, Op, Order, WgmmaCall};
use crate::machine::{Launch, Machine, Piece, Place, Warp};
use crate::tensor::wgmma::Modifiers;

impl Machine {
    /// Tells the checker something, and takes what it found.
    #[inline]
    pub(crate) fn checked(&mut self, tell: impl FnOnce(&mut Check)) {
        if let Some(check) = &mut self.check {
            tell(check);
            if !check.found.is_empty() {
                self.take_checked();
            }
        }
    }

    #[cold]
    fn take_checked(&mut self) {
        let found = self
            .check
            .as_mut()
            .map(|check| std::mem::take(&mut check.found));
        for finding in found.unwrap_or_default() {
            self.find(finding);
        }
    }

    /// What the checker did not check, and why; nothing if it checked everything.
    pub fn notes(&self) -> Vec<String> {
        let Some(check) = &self.check else {
            return Vec::new();
        };
        let mut notes = check.notes.clone();
        if check.global.full {
            notes.push(
                "more device memory was touched than the checker remembers: \
                 races in the rest are not found"
                    .into(),
            );
        }
        notes
    }

    /// The number of a new warp.
    pub(crate) fn check_start(
        &mut self,
        launch: &Launch,
        block: usize,
        number: u32,
        live: u32,
    ) -> u32 {
        let Some(at) = self.blocks[block].as_ref() else {
            return 0;
        };
        let info = WarpInfo {
            entry: launch.entry.clone(),
            block: at.index,
            number,
            domain: Domain {
                block,
                cluster: at.cluster[0],
                gpu: at.gpu,
            },
            launch: self.grids[at.grid].as_ref().map_or(0, |grid| grid.number),
            first: 0,
        };
        let shared = at.shared.len();
        self.check
            .as_mut()
            .map_or(0, |check| check.start(info, live, shared))
    }

    pub(crate) fn check_end_warp(&mut self, warp: &Warp) {
        self.checked(|check| check.end_warp(warp.checked));
    }

    pub(crate) fn check_end_block(&mut self, block: usize) {
        self.checked(|check| check.end_block(block));
    }

    pub(crate) fn check_end_launch(&mut self, launch: u64) {
        let enqueued = self.launched;
        self.checked(|check| check.launches.end(launch, enqueued));
    }

    /// All that was launched is over.
    pub(crate) fn check_idle(&mut self) {
        self.checked(Check::forget);
    }

    #[inline]
    pub(crate) fn check_enter(&mut self, warp: &Warp, pc: u32, mask: u32, active: u32) {
        self.checked(|check| {
            check.enter(warp.checked, pc, mask, active, warp.live);
            check.carry(warp, &warp.entry.code[pc as usize], active);
        });
    }

    #[inline]
    pub(crate) fn check_access(
        &mut self,
        lane: usize,
        place: Place,
        bytes: usize,
        what: Use,
        order: Order,
    ) {
        self.checked(|check| check.access(lane as u32, place, bytes as u32, what, order));
    }

    pub(crate) fn check_fence(&mut self, fence: Fence, mask: u32) {
        self.checked(|check| check.fence(fence, mask));
    }

    pub(crate) fn check_named(&mut self, warp: &Warp, at: usize, id: u32, wait: bool) {
        self.checked(|check| check.arrive_named(warp.block, id, warp.fragments[at].mask, wait));
    }

    pub(crate) fn check_settled_bar(&mut self, (block, offset): (usize, u32), phase: u64) {
        self.checked(|check| check.settle_bar(block, offset, phase));
    }

    /// Copies that an mbarrier will count are issued: by the asynchronous proxy or not, to reduce
    /// or not.
    pub(crate) fn check_counted(
        &mut self,
        lane: usize,
        pieces: &[Piece],
        bar: (usize, u32),
        (proxy, reduces): (bool, bool),
    ) {
        if self.check.is_none() {
            return;
        }
        let phase = self.blocks[bar.0]
            .as_ref()
            .and_then(|block| block.mbarriers.get(&bar.1))
            .map_or(0, |bar| bar.phase);
        self.checked(|check| check.counted(lane as u32, pieces, (bar, phase), (proxy, reduces)));
    }

    pub(crate) fn check_grouped(&mut self, lane: u32, pieces: &[Piece], group: u64, reduces: bool) {
        if self.check.is_none() {
            return;
        }
        self.checked(|check| check.grouped(lane, pieces, group, reduces));
        let unwritten = |piece: &Piece| !self.all_written(piece.from, piece.bytes as usize);
        if pieces.iter().any(unwritten) {
            self.checked(|check| check.unwritten(lane, "stored to device memory in bulk"));
        }
    }

    /// Threads wait for their bulk groups.
    pub(crate) fn check_bulk_wait(&mut self, warp: &Warp, active: u32, pending: u32, read: bool) {
        self.checked(|check| {
            for lane in crate::exec::lanes(active) {
                let complete = warp.bulk[lane].current.saturating_sub(pending.into());
                check.wait_grouped(lane as u32, complete, read);
            }
        });
    }

    pub(crate) fn check_product(&mut self, call: &WgmmaCall, a: u64, b: u64, modifiers: Modifiers) {
        self.checked(|check| check.product(call, a, b, modifiers));
    }

    /// The fences and groups of products and of small copies.
    pub(crate) fn check_groups(&mut self, op: &Op, mask: u32) {
        self.checked(|check| match op {
            Op::WgmmaFence => check.fence_products(),
            Op::WgmmaCommit => check.commit_products(),
            Op::WgmmaWait { pending } => check.wait_products(mask, *pending),
            Op::CopyCommit => check.commit_small(),
            Op::CopyWait { pending, all } => check.wait_small(mask, *pending, *all),
            _ => {}
        });
    }
}
