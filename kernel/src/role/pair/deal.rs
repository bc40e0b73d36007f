//! One thread of the leader: draws tiles, and deals them to both blocks.

use crate::role::load::Source;
use crate::sync::pair::{Dealer, Pair};

/// Deals tiles until there are no more.
///
/// Waits for: a free place (`taken`), in both blocks. Signals: a tile (`dealt`), in both.
///
/// # Safety
/// One thread of the leader runs it; the barriers are initialised in both blocks.
#[inline(always)]
pub unsafe fn deal(mut source: impl Source, pair: Pair) {
    let mut dealer = Dealer::new(pair);
    loop {
        // SAFETY: the caller's contract.
        let tile = unsafe {
            let tile = source.next();
            dealer.deal(tile);
            tile
        };
        if tile.is_none() {
            return;
        }
    }
}
