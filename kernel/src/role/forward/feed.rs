//! The producer of a forward pass: one thread that draws tiles and loads them once they can be.

use super::stamp::Stamp;
use crate::forward::{ForwardArgs, HALVES, MAPS, Step, map, shared_word, step_word, word};
use crate::gemm::{DEALS, Form, ORDER, STAGE, STAGES, SharedPlan, TILE_K};
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::tma::TensorMapRef;
use crate::ptx::{fence, reg};
use crate::role::order::Order;
use crate::role::product::{Forward, GateUp, Maps, Product, Whole};
use crate::role::table::SharedTable;
use crate::schedule::forward::{ByStrip, Line, OneGroup, Places, Stage, Strips, pieces};
use crate::schedule::grouped::{Problem, Tile};
use crate::sync::ring::{Producer, Ring};
use crate::sync::words::Words;
use crate::trace::{COLUMN, Task};

/// Where a tile goes: what consumers need to know when they see it out, and not before. So it takes none of their
/// registers while they multiply. It stands in one of [`NOTES`] places in turn, which the tile's order names.
#[derive(Clone, Copy)]
pub struct Note {
    /// A [`Stage`] and whose.
    pub kind: u32,
    /// Row of H or Y where the tile starts.
    pub row: u32,
    /// Column, likewise.
    pub column: u32,
    /// The word that counts its halves.
    pub counts: u32,
}

/// Places for notes. A note holds until its tile has been stored, which is after its stages are let go of: so the
/// producer may be as many tiles ahead as there are stages, and one more of them may be on its way out.
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

    /// Of a tile.
    const fn kind(stage: Stage, shared: bool) -> u32 {
        stage as u32 + 2 * shared as u32
    }

    /// Whether it is a tile of down.
    pub const fn is_down(&self) -> bool {
        self.kind & 1 == Stage::Down as u32
    }

    /// Whether it is the shared expert's.
    pub const fn is_shared(&self) -> bool {
        self.kind > 1
    }
}

/// A tile that has been drawn.
#[derive(Clone, Copy)]
struct Drawn {
    tile: Tile,
    note: Note,
    strip: u32,
    /// What it waits for: a word and how far that must be.
    word: u32,
    target: u32,
}

/// A tile's loads, as they are recorded.
#[inline(always)]
fn what(drawn: &Drawn) -> u32 {
    (Task::LoadGateUp as u32 + drawn.note.kind) | drawn.note.column << COLUMN
}

const _: () = assert!(Task::LoadSharedDown as u32 - Task::LoadGateUp as u32 == 3);

/// A product of an expert.
#[inline(always)]
fn problem(hidden: u32, inner: u32, stage: Stage) -> Problem {
    match stage {
        Stage::GateUp => Problem::gate_up(inner, hidden),
        Stage::Down => Problem::new(Form::Forward, 0, hidden, inner, 0),
    }
}

/// Tiles of a strip in both products.
#[inline(always)]
pub fn tiles_of_strip(hidden: u32, inner: u32) -> (u32, u32) {
    let tiles = |stage| problem(hidden, inner, stage).fixed_tiles::<ByStrip>();
    (tiles(Stage::GateUp), tiles(Stage::Down))
}

/// Tiles of down that there are of the shared expert.
#[inline(always)]
pub fn shared_downs(args: &ForwardArgs) -> u32 {
    let strips = Strips::new(shared_group(args), 1).total();
    strips * tiles_of_strip(args.moves.hidden, args.shared.gate_up.gemm.n).1
}

/// The order of all tiles, the shared expert's first: they need no other rank, and fill the wait for them.
///
/// What doesn't change from tile to tile is worked out anew for each all the same: the producer has few registers.
struct Source<'a> {
    args: &'a ForwardArgs,
    routed: Strips<SharedTable>,
}

impl Source<'_> {
    /// The order of an expert's tiles.
    #[inline(always)]
    fn line(&self, strips: u32, inner: u32) -> Line {
        let hidden = reg::anew(self.args.moves.hidden);
        let (gates, downs) = tiles_of_strip(hidden, reg::anew(inner));
        Line::new(strips, self.args.minibatch, gates, downs)
    }

    /// The tile of a ticket.
    #[inline(always)]
    fn get(&mut self, ticket: u64) -> Option<Drawn> {
        let args = self.args;
        let own = &args.shared.gate_up.gemm;
        let mut strips = Strips::new(shared_group(args), args.minibatch);
        let line = self.line(strips.total(), own.n);
        let shared = ticket < line.total();
        let (stage, tile, strip, gates) = if shared {
            let (stage, number) = line.get(ticket);
            let problem = problem(args.moves.hidden, own.n, stage);
            let (tile, strip) = strips.tile(&problem, number)?;
            (
                stage,
                tile,
                strip,
                tiles_of_strip(args.moves.hidden, own.n).0,
            )
        } else {
            let ticket = ticket - line.total();
            let inner = args.routed.gate_up.gemm.n;
            let line = self.line(self.routed.total(), inner);
            if ticket >= line.total() {
                return None;
            }
            let (stage, number) = line.get(ticket);
            let problem = problem(args.moves.hidden, inner, stage);
            let (mut tile, strip) = self.routed.tile(&problem, number)?;
            // Where its rows lie, and nobody asks for more of them.
            (tile.row_start, tile.wide) = (places(args).row(strip), 0);
            (
                stage,
                tile,
                strip,
                tiles_of_strip(args.moves.hidden, inner).0,
            )
        };
        let halves = HALVES * gates;
        let step = |step| step_word(step, args.strips, strip);
        let activated = if shared {
            shared_word(args.strips, strip)
        } else {
            step(Step::Activated)
        };
        let (word, target, counts) = match stage {
            Stage::GateUp if shared => (
                word::STAGED,
                pieces(reg::anew(args.weigh.tokens)),
                activated,
            ),
            Stage::GateUp => (step(Step::Arrived), pieces(tile.count), activated),
            Stage::Down if shared => (activated, halves, word::SHARED),
            Stage::Down => (activated, halves, step(Step::Computed)),
        };
        Some(Drawn {
            tile,
            note: Note {
                kind: Note::kind(stage, shared),
                row: tile.row_start + tile.wide,
                column: tile.fixed,
                counts,
            },
            strip,
            word,
            target,
        })
    }
}

/// Where strips lie.
#[inline(always)]
pub fn places(args: &ForwardArgs) -> Places {
    Places {
        count: reg::anew(args.places),
        minibatch: args.minibatch,
    }
}

/// The shared expert's rows, none if there is no such expert.
#[inline(always)]
pub fn shared_group(args: &ForwardArgs) -> OneGroup {
    OneGroup {
        rows: if args.shared.gate_up.gemm.groups == 0 {
            0
        } else {
            reg::anew(args.weigh.tokens)
        },
    }
}

/// A place's tensor map, of the routed experts' or the shared one's.
#[inline(always)]
pub fn map_at(first: TensorMapRef, shared: bool, place: u32) -> TensorMapRef {
    let index = place + shared as u32 * MAPS as u32;
    TensorMapRef(first.0 + 128 * index as u64)
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
    let routed = Strips::new(table, args.minibatch);
    let mut source = Source { args, routed };
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
            stamp.begin(what(&drawn), drawn.strip);
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
            let (down, shared) = (drawn.note.is_down(), drawn.note.is_shared());
            let inputs = if down { map::DOWN } else { map::GATE_UP };
            let map = |place| map_at(first, shared, inputs + place);
            let maps = Maps {
                a: [map(0), map(1), map(2)],
                b: map(3),
                beside: (),
            };
            let depth = if !down {
                args.moves.hidden
            } else if shared {
                args.shared.gate_up.gemm.n
            } else {
                args.routed.gate_up.gemm.n
            };
            // Consumers ask for no more of it.
            let order = Order {
                depth: depth.div_ceil(TILE_K),
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
                if down {
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
