//! The producer of a forward pass: one thread that draws tiles and loads them once they can be.

use super::source::{Note, Source, what};
use super::stamp::Stamp;
use crate::forward::{ForwardArgs, word};
use crate::gemm::{DEALS, ORDER, STAGE, STAGES, SharedPlan};
use crate::ptx::fence;
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::tma::TensorMapRef;
use crate::role::order::Order;
use crate::role::product::{Forward, GateUp, Product, Whole};
use crate::role::table::SharedTable;
use crate::schedule::grouped::ByBlock;
use crate::sync::ring::{Producer, Ring};
use crate::sync::words::Words;

/// Places for notes, which stand in them in turn; a tile's order names the place. A note holds until its tile has been
/// stored, which is after its stages are let go of: so the producer may be as many tiles ahead as there are stages, and
/// one more of them may be on its way out.
pub const NOTES: u32 = 8;
const _: () = assert!(NOTES > STAGES + 1 && NOTES.is_power_of_two());
const _: () = assert!(NOTES * size_of::<Note>() as u32 <= DEALS * ORDER);

impl Note {
    /// Writes the note of a tile.
    ///
    /// # Safety
    /// The producer calls it before it announces the tile's first stage; `base` and `plan` are the block's.
    #[inline(always)]
    unsafe fn put(&self, base: SmemAddr, plan: &SharedPlan, place: u32) {
        let words = [self.kind, self.row, self.column, self.counts];
        // SAFETY: one of the places, where nobody deals.
        unsafe { shared::store_v4(base.add(plan.deals + 16 * place), words) };
    }

    /// The note in a place.
    ///
    /// # Safety
    /// The tile's first stage has been awaited, and the next one's hasn't.
    #[inline(always)]
    pub unsafe fn get(base: SmemAddr, plan: &SharedPlan, place: u32) -> Note {
        // SAFETY: as above.
        let [kind, row, column, counts] =
            unsafe { shared::load_v4(base.add(plan.deals + 16 * place)) };
        Note {
            kind,
            row,
            column,
            counts,
        }
    }
}

/// Has consumers tell of what they hold: nothing to multiply just now.
const REST: Order = Order {
    depth: 1,
    ..Order::END
};

/// Draws tiles, orders them and loads their stages.
///
/// Waits for: a tile's rows or what the product before leaves (the strip's words); a free stage
/// (`ring.empty`). Signals: the stage's bytes (`ring.full`), through TMA's own completion.
///
/// Consumers tell of a tile when they store the next one. So where it has to wait, they are first sent to rest, and
/// tell at once: it may be this very tile that waits for that.
///
/// # Safety
/// One thread of the block runs it; the ring is initialised, `base` and `plan` are the block's, the maps from
/// `first` on have the products' boxes.
#[inline(always)]
pub unsafe fn feed(
    args: &ForwardArgs,
    table: SharedTable,
    words: Words,
    first: TensorMapRef,
    ring: Ring,
    base: SmemAddr,
    plan: &SharedPlan,
) {
    let mut source = Source::<ByBlock>::new(args, table);
    let mut stages = Producer::new(ring);
    let mut note = 0;
    // Whether consumers may not have told of a tile.
    let mut held = false;
    // SAFETY: the caller's contract: the words are the launch's; loads go to the acquired stage, and together
    // bring what it announces.
    unsafe {
        let mut ticket = words.draw(word::TILES);
        while !words.failed() {
            let Some(drawn) = source.get(ticket) else {
                break;
            };
            let stamp = Stamp::new(args, 0);
            stamp.begin(what(&drawn.note), drawn.strip);
            if !words.reached(drawn.word, drawn.target as u64) {
                if held {
                    let slot = stages.acquire();
                    REST.put(base, plan, slot.stage);
                    stages.announce(slot, 0);
                }
                if !words.wait(drawn.word, drawn.target as u64) {
                    break;
                }
            }
            stamp.ready();
            // Rows come and go by ordinary accesses; tensor copies read them.
            fence::proxy_async();
            // The next one's number comes while this one is loaded.
            ticket = words.draw(word::TILES);
            let maps = drawn.note.maps(first);
            // Consumers ask for no more of it.
            let order = Order {
                depth: drawn.depth(args),
                count: drawn.tile.count,
                group: note,
                ..Order::END
            };
            let bytes = Forward::bytes::<Whole>(&drawn.tile);
            held = true;
            let mut step = 0;
            while step < order.depth {
                let slot = stages.acquire();
                if step == 0 {
                    drawn.note.put(base, plan, note);
                    order.put(base, plan, slot.stage);
                }
                stages.announce(slot, bytes);
                let fixed = base.add(plan.fixed + slot.stage * STAGE);
                let wide = base.add(plan.wide + slot.stage * STAGE);
                let to = Whole(slot.bar);
                if drawn.note.is_down() {
                    Forward::load(maps, &drawn.tile, step, fixed, wide, to);
                } else {
                    GateUp::load(maps, &drawn.tile, step, fixed, wide, to);
                }
                step += 1;
            }
            stamp.end();
            note = (note + 1) % NOTES;
        }
        let slot = stages.acquire();
        Order::END.put(base, plan, slot.stage);
        stages.end(slot);
    }
}
