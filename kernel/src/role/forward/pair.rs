//! What the warps of a pair of blocks do in a forward pass, where that differs from one product's
//! ([`role::pair`](crate::role::pair)): tiles are of either product, and wait for others.
//!
//! One thread draws tiles and waits for what they need; but what is dealt is stored asynchronously, and says nothing of
//! what its thread has seen. So whoever touches rows or H looks at the tile's word again, which has come by then.

use super::settle::Settle;
use super::source::{Drawn, Source};
use crate::forward::{ForwardArgs, word};
use crate::gemm::pair::PairPlan;
use crate::mma::accumulators::Accumulators;
use crate::mma::sm100::{COLUMNS, load_sums};
use crate::ptx::shared::SmemAddr;
use crate::ptx::tma::TensorMapRef;
use crate::ptx::{fence, reg};
use crate::role::order::Order;
use crate::role::pair::bring::place_of;
use crate::role::pair::elements::Bf16;
use crate::role::pair::issue::multiply;
use crate::role::pair::load::fill;
use crate::role::product::{Forward, GateUp};
use crate::role::table::SharedTable;
use crate::schedule::grouped::ByPair;
use crate::sync::pair::{Buffers, Dealer, Dealt, Issuer, Pair, Producer};
use crate::sync::words::Words;
use crate::warp_sync;

/// Deals tiles in their order, each once what it needs is there. After a failure it deals no more.
///
/// Waits for: a tile's rows or what the product before leaves (the strip's words); a free place (`taken`), in both
/// blocks. Signals: a tile (`dealt`), in both.
///
/// # Safety
/// One thread of the leader runs it; the barriers are initialised in both blocks, the table is the block's.
#[inline(always)]
pub unsafe fn deal(args: &ForwardArgs, table: SharedTable, words: Words, pair: Pair) {
    let mut source = Source::<ByPair>::new(args, table);
    let mut dealer = Dealer::new(pair);
    // SAFETY: the caller's contract: the words are the launch's.
    unsafe {
        let mut ticket = words.draw(word::TILES);
        while !words.failed() {
            let Some(drawn) = source.get(ticket) else {
                break;
            };
            if !words.wait(drawn.word, drawn.target as u64) {
                break;
            }
            ticket = words.draw(word::TILES);
            dealer.deal_tagged(Some(drawn.tile), drawn.tag());
        }
        dealer.deal(None);
    }
}

/// Looks again at the word that a dealt tile has waited for.
///
/// # Safety
/// The words are the launch's.
#[inline(always)]
unsafe fn look_again(words: Words, drawn: &Drawn) {
    // SAFETY: the caller's contract. The dealer has seen it there.
    unsafe { while !words.reached(drawn.word, drawn.target as u64) {} }
}

/// Loads the block's half of each tile's stages.
///
/// Waits for: a tile (`dealt`), a free stage (`empty`). Signals: the stage's bytes (`full`, in the leader), through TMA's
/// own completion.
///
/// # Safety
/// One thread of each block runs it; the barriers are initialised in both, `base` and `plan` are the block's, the maps
/// from `first` on have the products' boxes.
#[inline(always)]
pub unsafe fn load(
    args: &ForwardArgs,
    words: Words,
    first: TensorMapRef,
    pair: Pair,
    base: SmemAddr,
    plan: &PairPlan,
) {
    let mut tiles = Dealt::new(pair);
    let mut stages = Producer::new(pair);
    // SAFETY: the caller's contract; the loads go to the acquired stage, and together bring what it announces.
    unsafe {
        while let Some(dealt) = tiles.next_tagged(true) {
            let drawn = Drawn::dealt::<ByPair>(args, dealt);
            look_again(words, &drawn);
            // Rows come and go by ordinary accesses; tensor copies read them.
            fence::proxy_async();
            let (maps, problem) = (drawn.note.maps(first), &drawn.problem(args));
            let (tile, order, memory) = (&drawn.tile, &drawn.order(args), (base, plan));
            if drawn.note.is_down() {
                fill::<Forward, Bf16>(&mut stages, problem, maps, tile, order, memory, pair);
            } else {
                fill::<GateUp, Bf16>(&mut stages, problem, maps, tile, order, memory, pair);
            }
        }
        stages.drain();
    }
}

/// Issues the products of every tile of the pair, into one buffer of tensor memory and the other in turn.
///
/// Waits for: a tile (`dealt`), a free buffer (`drained`), each stage's bytes in both blocks (`full`). Signals, when
/// products are done, in both blocks: the stage (`empty`), the sums (`accumulated`).
///
/// # Safety
/// One thread of the leader runs it; the barriers are initialised in both blocks, `base` and `plan` are the block's,
/// `tensor` is the address of all of tensor memory.
#[inline(always)]
pub unsafe fn issue(args: &ForwardArgs, pair: Pair, tensor: u32, base: SmemAddr, plan: &PairPlan) {
    let mut tiles = Dealt::new(pair);
    let mut issuer = Issuer::new(pair);
    // SAFETY: the caller's contract: the producers fill so many stages a tile, and the buffer is the issuer's.
    unsafe {
        while let Some(dealt) = tiles.next_tagged(false) {
            let drawn = Drawn::dealt::<ByPair>(args, dealt);
            let share = drawn.problem(args).share::<ByPair>(drawn.tile.count);
            let (tile, order) = (&drawn.tile, &drawn.order(args));
            // Both products' operands lie alike.
            multiply::<Forward, Bf16>(&mut issuer, tile, share, order, tensor, base, plan);
        }
    }
}

/// Writes the block's half of every tile to H or Y ([`bring`](crate::role::pair::bring::bring)), and tells of it at once:
/// the tensor cores are at the next one meanwhile.
///
/// Waits for: a tile (`dealt`), its sums (`accumulated`). Signals, for each warp: the tile is read (`taken`), and so are
/// the sums (`drained`), in the leader; for the block: the tile is in memory.
///
/// # Safety
/// The 128 threads of a warpgroup run it, one warpgroup a part; the barriers are initialised in both blocks, `base` and
/// `plan` are the block's, `tensor` is the address of all of tensor memory, `way` leads to the launch's H and Y.
#[inline(always)]
pub unsafe fn bring(
    args: &ForwardArgs,
    way: Settle<'_, impl Fn() -> TensorMapRef>,
    part: u32,
    pair: Pair,
    tensor: u32,
    base: SmemAddr,
    plan: &PairPlan,
) {
    let warp = reg::thread_idx() / 32 % 4;
    let mut tiles = Dealt::new(pair);
    let mut buffers = Buffers::new(pair);
    // SAFETY: the caller's contract.
    while let Some(dealt) = unsafe { tiles.read_tagged() } {
        let drawn = Drawn::dealt::<ByPair>(args, dealt);
        // SAFETY: all lanes have read the tile before one of them says so. What lay where its results go is done with,
        // which whoever stores them learns by the barriers of the way out.
        let column = unsafe {
            let column = buffers.acquire();
            warp_sync!();
            tiles.done(reg::lane() == 0);
            if reg::lane() == 0 {
                look_again(way.words(), &drawn);
            }
            warp_sync!("again");
            column
        };
        let mut note = drawn.note;
        note.column += pair.rank * drawn.problem(args).apart();
        let count = drawn.tile.count;
        let mut first = 0;
        while first < count {
            let rest = count - first;
            let order = Order {
                count: if rest < COLUMNS { rest } else { COLUMNS },
                ..Order::END
            };
            let mut sums = Accumulators::zero();
            // SAFETY: this block's part of the results, and the consumers' memory.
            unsafe {
                load_sums(
                    &mut sums,
                    tensor + column + first,
                    (part, warp),
                    order.count,
                );
                if rest <= COLUMNS {
                    buffers.release();
                }
                way.put(
                    &sums,
                    &order,
                    note,
                    place_of(reg::anew(part), pair, base, plan),
                );
            }
            note.row += COLUMNS;
            first += COLUMNS;
        }
        // SAFETY: both consumers have stored theirs.
        unsafe { way.tell(note, place_of(reg::anew(part), pair, base, plan)) };
    }
}
