//! The warps of a forward pass that move rows: tokens to where they are read, rows to this rank, and back to where
//! they came from.

use core::marker::PhantomData;

use super::source::{places, shared_downs, tiles_of_strip};
use super::stamp::Stamp;
use crate::failure::Wait;
use crate::forward::{ForwardArgs, HALVES, Step, step_word, word};
use crate::ptx::shared::SmemAddr;
use crate::ptx::{global, reg};
use crate::role::peers::{answer, call, region};
use crate::role::rows::{copy_row, route_of, slot_at, token_at, weigh_token};
use crate::role::table::SharedTable;
use crate::schedule::forward::{Move, Moves, PIECE, Piece, Strips, pieces, pieces_of_strip};
use crate::schedule::grouped::Tiling;
use crate::sync::words::Words;
use crate::trace::{self, Task};
use crate::unfused::{MoveArgs, RankArgs, STATE_EPOCH, WeighArgs};
use crate::{shuffle, warp_sync};

/// A warp that moves rows. What doesn't change is worked out anew for each move: it has few registers.
struct Mover<'a, S> {
    args: &'a ForwardArgs,
    tiling: PhantomData<S>,
    words: Words,
    /// Where the block's table starts.
    table: SmemAddr,
    /// Whether the rank has failed, as far as this warp has seen.
    gone: bool,
}

/// Draws from a word for a warp, whose lanes are all here. The literal names the place.
macro_rules! draw {
    ($words:expr, $word:expr, $what:literal) => {{
        let mut ticket = 0;
        if reg::lane() == 0 {
            // There are fewer than 2^32.
            ticket = $words.draw($word) as u32;
        }
        shuffle!(ticket, 0u32, $what)
    }};
}

/// Stamps a task of this warp's, by its first lane.
///
/// # Safety
/// The warp's stream is its own.
macro_rules! stamp {
    ($args:expr, $($stamp:tt)+) => {
        if reg::lane() == 0 {
            Stamp::of_warp($args).$($stamp)+;
        }
    };
}

/// Draws moves and makes them, until there are no more. After a failure it goes on to draw, and moves nothing.
///
/// Waits for: the other ranks; the strip that had a place before; a strip's tiles of down. Signals: pieces that are
/// staged, have arrived, were brought back; that ranks have met.
///
/// # Safety
/// Whole warps run it; `args` describes live memory, the schedule is complete, the block's table starts at `table`.
#[inline(always)]
pub unsafe fn travel<S: Tiling>(args: &ForwardArgs, table: SmemAddr, words: Words) {
    let mut mover = Mover::<S> {
        args,
        tiling: PhantomData,
        words,
        table,
        gone: false,
    };
    loop {
        let tokens = reg::anew(args.weigh.tokens);
        let moves = Moves::<S>::new(tokens, mover.strips().total(), args.minibatch);
        // SAFETY: the words are the launch's; all lanes are here.
        let ticket = unsafe { draw!(words, word::MOVES, "moves") };
        let (what, index) = moves.get(ticket);
        // SAFETY: the caller's contract; all lanes go the same way.
        unsafe {
            if what != Move::End {
                stamp!(args, begin(what as u32, Mover::<S>::number(what, index)));
            }
            if what == Move::Dispatch {
                mover.dispatch(index);
            } else if what == Move::Combine {
                mover.combine(index);
            } else if what == Move::Stage {
                mover.stage(index);
            } else if what == Move::End {
                return;
            } else {
                mover.meet(what == Move::Results);
            }
        }
    }
}

/// Sums the tokens that are drawn, or fills them with NaN if the rank has failed.
///
/// Where few warps of an SM do it, each has more loads in flight, and registers for them.
///
/// Waits for: the other ranks' results.
///
/// # Safety
/// Whole warps run it that have no other task left; `args` describes live memory.
#[inline(always)]
pub unsafe fn weigh_all<const FEW: bool>(args: &ForwardArgs, words: Words) {
    loop {
        // SAFETY: the words are the launch's; all lanes are here.
        let token = unsafe { draw!(words, word::SUMS, "sums") };
        if token >= args.weigh.tokens {
            return;
        }
        // SAFETY: the caller's contract; nothing fails a rank any more once results are here, so all tokens go
        // the same way.
        unsafe {
            stamp!(args, begin(Task::Sum as u32, token));
            let there = words.wait(word::RESULTS, 1);
            stamp!(args, ready());
            if FEW {
                weigh_token!(&args.weigh, token, !there; 0 1 2 3);
            } else {
                weigh_token!(&args.weigh, token, !there; 0 1);
            }
            stamp!(args, end());
        }
    }
}

/// Waits for a word, by the first lane for all. The literal numbers the place.
///
/// # Safety
/// All lanes are here.
macro_rules! wait {
    ($mover:expr, $word:expr, $target:expr, $what:literal) => {{
        let mut there = 0;
        if reg::lane() == 0 {
            there = $mover.words.wait($word, $target) as u32;
        }
        // The shuffle brings the answer, the barrier what the first lane has waited for.
        $mover.gone |= shuffle!(there, 0u32, $what) == 0;
        warp_sync!($what, "in");
    }};
}

impl<S: Tiling> Mover<'_, S> {
    const PIECES: u32 = pieces_of_strip::<S>();

    /// A move's number, as it is recorded.
    #[inline(always)]
    const fn number(what: Move, index: u32) -> u32 {
        match what {
            Move::Dispatch | Move::Combine => {
                ((index / Self::PIECES) << trace::PIECE) | (index % Self::PIECES)
            }
            _ => index,
        }
    }

    /// What is moved.
    #[inline(always)]
    fn moves(&self) -> MoveArgs {
        let moves = &self.args.moves;
        MoveArgs {
            hidden: reg::anew(moves.hidden),
            top_k: reg::anew(moves.top_k),
            ..*moves
        }
    }

    /// The word of a strip's step.
    #[inline(always)]
    fn step(&self, step: Step, strip: u32) -> u32 {
        step_word(step, reg::anew(self.args.strips), strip)
    }

    /// The strips of all rows.
    #[inline(always)]
    fn strips(&self) -> Strips<SharedTable, S> {
        let groups = reg::anew(self.args.routed.gate_up.gemm.groups);
        Strips::new(SharedTable::new(groups, self.table), self.args.minibatch)
    }

    /// Where row `row` of a piece lies in the ring.
    #[inline(always)]
    fn place(&self, moves: &MoveArgs, strip: u32, index: u32, row: u32) -> u64 {
        let first = places(self.args).row(strip) + PIECE * index;
        moves.matrix + offset(first + row, moves.hidden)
    }

    /// Copies some of the rank's tokens to where other ranks read them.
    ///
    /// # Safety
    /// As [`dispatch`](Mover::dispatch).
    #[inline(always)]
    unsafe fn stage(&mut self, index: u32) {
        let (args, moves) = (self.args, &self.moves());
        let Some(piece) = Piece::of(0, args.weigh.tokens, index) else {
            return;
        };
        // SAFETY: the caller's contract; nobody reads this rank's tokens before it has met the others.
        unsafe {
            if !self.gone {
                let staged = region(&moves.rank, moves.rank.rank) + moves.rank.plan.x;
                each_row(&piece, |row| {
                    let at = offset(piece.row + row, moves.hidden);
                    copy_row(staged + at, args.x + at, moves.hidden);
                });
                warp_sync!("staged");
                if reg::lane() == 0 {
                    self.words.count(word::STAGED);
                }
                stamp!(args, end());
            }
        }
    }

    /// Fetches a piece's rows from their ranks, once nobody needs what lies in its strip's place.
    ///
    /// # Safety
    /// All lanes are here, with a piece that is this warp's alone.
    #[inline(always)]
    unsafe fn dispatch(&mut self, number: u32) {
        let (strip, index) = (number / Self::PIECES, number % Self::PIECES);
        let places = places(self.args).count;
        // SAFETY: the caller's contract; the other ranks' tokens are there once they have been met.
        unsafe {
            if !self.gone {
                wait!(self, word::TOKENS, 1, "tokens");
            }
            let Some(piece) = self.strips().piece(strip, index) else {
                return;
            };
            if !self.gone && strip >= places {
                let word = self.step(Step::Combined, strip - places);
                wait!(self, word, Self::PIECES as u64, "place");
            }
            if !self.gone {
                stamp!(self.args, ready());
                let moves = &self.moves();
                each_row(&piece, |row| {
                    let from = token_at(moves, route_of(moves.rows, piece.row + row));
                    copy_row(self.place(moves, strip, index, row), from, moves.hidden);
                });
                warp_sync!("arrived");
                if reg::lane() == 0 {
                    let word = self.step(Step::Arrived, strip);
                    self.words.count(word);
                }
                stamp!(self.args, end());
            }
        }
    }

    /// Brings a piece's rows to the slots of their routes.
    ///
    /// # Safety
    /// As [`dispatch`](Mover::dispatch).
    #[inline(always)]
    unsafe fn combine(&mut self, number: u32) {
        let args = self.args;
        let moves = &self.moves();
        let (strip, index) = (number / Self::PIECES, number % Self::PIECES);
        // SAFETY: the caller's contract; the rows are computed, and a route has one row.
        unsafe {
            if let Some(piece) = self.strips().piece(strip, index) {
                if !self.gone {
                    let inner = reg::anew(args.routed.gate_up.gemm.n);
                    let (_, downs) = tiles_of_strip::<S>(moves.hidden, inner);
                    let word = self.step(Step::Computed, strip);
                    wait!(self, word, (HALVES * downs) as u64, "computed");
                }
                if !self.gone {
                    stamp!(args, ready());
                    each_row(&piece, |row| {
                        let to = slot_at(moves, route_of(moves.rows, piece.row + row));
                        copy_row(to, self.place(moves, strip, index, row), moves.hidden);
                    });
                    stamp!(args, end());
                }
            }
            warp_sync!("combined");
            if reg::lane() == 0 {
                self.words.count(self.step(Step::Combined, strip));
                self.words.count(word::COMBINED);
            }
        }
    }

    /// Meets the other ranks, unless this one has failed: once its tokens are staged, or its rows have been brought
    /// back and the shared expert's are there.
    ///
    /// # Safety
    /// All lanes are here; the meeting is one warp's.
    #[inline(always)]
    unsafe fn meet(&mut self, results: bool) {
        let args = self.args;
        let rank = &args.moves.rank;
        // SAFETY: the caller's contract.
        unsafe {
            let (wait, deadline, done) = if results {
                (Wait::Results, args.results_deadline, word::RESULTS)
            } else {
                (Wait::Tokens, args.tokens_deadline, word::TOKENS)
            };
            let mut there = false;
            if reg::lane() == 0 {
                let words = self.words;
                there = if words.failed() {
                    false
                } else if results {
                    let combined = Moves::<S>::new(0, self.strips().total(), 0).combined();
                    let halves = HALVES * shared_downs::<S>(args);
                    // Where there are no rows nothing else says that the other meeting is over.
                    words.wait(word::TOKENS, 1)
                        && words.wait(word::COMBINED, combined as u64)
                        && words.wait(word::SHARED, halves as u64)
                } else {
                    words.wait(word::STAGED, pieces(args.weigh.tokens) as u64)
                };
            }
            // As in `wait`.
            self.gone |= shuffle!(there as u32, 0u32, "done") == 0;
            warp_sync!("done");
            if self.gone {
                return;
            }
            stamp!(args, ready());
            let (epoch, wait) = (next_epoch(rank), wait as u64);
            let mut peer = reg::lane();
            while peer < rank.ranks {
                call(rank, peer, epoch, wait);
                peer += 32;
            }
            peer = reg::lane();
            while peer < rank.ranks {
                answer(rank, peer, epoch, wait, deadline);
                peer += 32;
            }
            warp_sync!("here");
            // The same for all lanes: whoever failed did so before the barrier.
            self.gone = self.words.failed();
            if !self.gone {
                if reg::lane() == 0 {
                    self.words.count(done);
                }
                stamp!(args, end());
            }
        }
    }
}

/// Bytes from a matrix's start to a row.
#[inline(always)]
fn offset(row: u32, columns: u32) -> u64 {
    2 * row as u64 * columns as u64
}

/// Calls `each` with the numbers of a piece's rows in it.
#[inline(always)]
fn each_row(piece: &Piece, mut each: impl FnMut(u32)) {
    let mut row = 0;
    while row < piece.rows {
        each(row);
        row += 1;
    }
}

/// The number of the wait that now comes.
///
/// # Safety
/// All lanes of the only warp that meets anybody.
#[inline(always)]
unsafe fn next_epoch(rank: &RankArgs) -> u64 {
    let at = rank.state + 8 * STATE_EPOCH;
    // SAFETY: the rank's own word; all lanes have read it before the first one writes.
    unsafe {
        let epoch = global::load_u64(at) + 1;
        warp_sync!("epoch");
        if reg::lane() == 0 {
            global::store_u64(at, epoch);
        }
        epoch
    }
}
