//! The tiles of a forward pass, in their order: whose they are, where they lie, and what they wait for.

use crate::forward::{ForwardArgs, HALVES, MAPS, Step, map, shared_word, step_word, word};
use crate::gemm::{Form, TILE_K};
use crate::ptx::reg;
use crate::ptx::tma::TensorMapRef;
use crate::role::order::Order;
use crate::role::product::Maps;
use crate::role::table::SharedTable;
use crate::schedule::forward::{ByStrip, Line, OneGroup, Places, Stage, Strips, pieces};
use crate::schedule::grouped::{Problem, Tile, Tiling};
use crate::trace::{COLUMN, Task};

/// Where a tile goes: what consumers need to know when they see it out, and not before. So it takes none of their
/// registers while they multiply.
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

impl Note {
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

    /// The tensor maps that its operands are loaded by, of a launch whose maps start at `first`.
    #[inline(always)]
    pub fn maps(&self, first: TensorMapRef) -> Maps {
        let inputs = if self.is_down() {
            map::DOWN
        } else {
            map::GATE_UP
        };
        let map = |place| map_at(first, self.is_shared(), inputs + place);
        Maps {
            a: [map(0), map(1), map(2)],
            b: map(3),
            beside: (),
        }
    }
}

/// A tile that has been drawn.
#[derive(Clone, Copy)]
pub struct Drawn {
    /// The tile, where its rows lie.
    pub tile: Tile,
    /// Where it goes.
    pub note: Note,
    /// Its strip.
    pub strip: u32,
    /// What it waits for: a word.
    pub word: u32,
    /// And how far that must be.
    pub target: u32,
}

/// A tile's loads, as they are recorded.
#[inline(always)]
pub fn what(note: &Note) -> u32 {
    (Task::LoadGateUp as u32 + note.kind) | note.column << COLUMN
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
pub fn tiles_of_strip<S: Tiling>(hidden: u32, inner: u32) -> (u32, u32) {
    let tiles = |stage| problem(hidden, inner, stage).fixed_tiles::<ByStrip<S>>();
    (tiles(Stage::GateUp), tiles(Stage::Down))
}

/// Tiles of down that there are of the shared expert.
#[inline(always)]
pub fn shared_downs<S: Tiling>(args: &ForwardArgs) -> u32 {
    shared_strips::<S>(args) * tiles_of_strip::<S>(args.moves.hidden, args.shared.gate_up.gemm.n).1
}

/// The order of all tiles, the shared expert's first: they need no other rank, and fill the wait for them.
///
/// What doesn't change from tile to tile is worked out anew for each all the same: the producer has few registers.
pub struct Source<'a, S> {
    args: &'a ForwardArgs,
    routed: Strips<SharedTable, S>,
}

impl<'a, S: Tiling> Source<'a, S> {
    /// Of a launch, whose block has this table.
    #[inline(always)]
    pub fn new(args: &'a ForwardArgs, table: SharedTable) -> Source<'a, S> {
        let routed = Strips::new(table, args.minibatch);
        Source { args, routed }
    }

    /// The order of an expert's tiles.
    #[inline(always)]
    fn line(&self, strips: u32, inner: u32) -> Line {
        let hidden = reg::anew(self.args.moves.hidden);
        let (gates, downs) = tiles_of_strip::<S>(hidden, reg::anew(inner));
        Line::new(strips, self.args.minibatch, gates, downs)
    }

    /// The tile of a ticket.
    #[inline(always)]
    pub fn get(&mut self, ticket: u64) -> Option<Drawn> {
        let args = self.args;
        let own = &args.shared.gate_up.gemm;
        let mut strips = Strips::<_, S>::new(shared_group::<S>(args), args.minibatch);
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
                tiles_of_strip::<S>(args.moves.hidden, own.n).0,
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
                tiles_of_strip::<S>(args.moves.hidden, inner).0,
            )
        };
        Some(Drawn::new(args, tile, strip, (stage, shared), gates))
    }
}

impl Drawn {
    /// A tile of a strip, of the shared expert or not, whose strips have so many tiles of gate-and-up.
    #[inline(always)]
    fn new(
        args: &ForwardArgs,
        tile: Tile,
        strip: u32,
        (stage, shared): (Stage, bool),
        gates: u32,
    ) -> Drawn {
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
        Drawn {
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
        }
    }

    /// What is dealt beside the tile.
    #[inline(always)]
    pub fn tag(&self) -> u32 {
        self.note.kind | self.strip << 2
    }

    /// What was dealt.
    #[inline(always)]
    pub fn dealt<S: Tiling>(args: &ForwardArgs, (tile, tag): (Tile, u32)) -> Drawn {
        let stage = if tag & 1 == Stage::Down as u32 {
            Stage::Down
        } else {
            Stage::GateUp
        };
        let shared = tag & 2 != 0;
        let (gates, _) = tiles_of_strip::<S>(args.moves.hidden, inner(args, shared));
        Drawn::new(args, tile, tag >> 2, (stage, shared), gates)
    }

    /// The product that it is a tile of.
    #[inline(always)]
    pub fn problem(&self, args: &ForwardArgs) -> Problem {
        let stage = if self.note.is_down() {
            Stage::Down
        } else {
            Stage::GateUp
        };
        problem(args.moves.hidden, inner(args, self.note.is_shared()), stage)
    }

    /// The order for it: all stages count in full.
    #[inline(always)]
    pub fn order(&self, args: &ForwardArgs) -> Order {
        Order {
            depth: self.depth(args),
            last: TILE_K,
            count: self.tile.count,
            row: self.note.row,
            column: self.note.column,
            group: self.tile.group,
        }
    }

    /// Stages of 64 of the contraction.
    #[inline(always)]
    pub fn depth(&self, args: &ForwardArgs) -> u32 {
        let length = if self.note.is_down() {
            inner(args, self.note.is_shared())
        } else {
            args.moves.hidden
        };
        length.div_ceil(TILE_K)
    }
}

/// Intermediate size of the routed experts, or of the shared one.
#[inline(always)]
fn inner(args: &ForwardArgs, shared: bool) -> u32 {
    if shared {
        args.shared.gate_up.gemm.n
    } else {
        args.routed.gate_up.gemm.n
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
fn shared_group<S>(args: &ForwardArgs) -> OneGroup<S> {
    OneGroup::new(if args.shared.gate_up.gemm.groups == 0 {
        0
    } else {
        reg::anew(args.weigh.tokens)
    })
}

/// Strips of the shared expert.
#[inline(always)]
pub fn shared_strips<S: Tiling>(args: &ForwardArgs) -> u32 {
    Strips::<_, S>::new(shared_group::<S>(args), 1).total()
}

/// A place's tensor map, of the routed experts' or the shared one's.
#[inline(always)]
pub fn map_at(first: TensorMapRef, shared: bool, place: u32) -> TensorMapRef {
    let index = place + shared as u32 * MAPS as u32;
    TensorMapRef(first.0 + 128 * index as u64)
}
