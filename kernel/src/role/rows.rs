//! What is done row by row: moving between ranks, the activation, the weighted sum. A warp a row.

use crate::ptx::cvt::{pack_bf16, unpack_bf16};
use crate::ptx::float::fma;
use crate::ptx::{global, reg};
use crate::role::activation;
use crate::role::peers::{failed, region};
use crate::route::Route;
use crate::unfused::{Direction, MoveArgs, PermuteArgs, SwigluArgs, WeighArgs};

/// bf16 elements of 16 bytes.
pub(super) const CHUNK: u32 = 8;
/// Two bf16 NaNs.
pub(super) const NAN: u32 = 0x7fff_7fff;

/// This warp's number in the grid, and how many there are.
#[inline(always)]
fn warp() -> (u32, u32) {
    let per_block = reg::block_dim() / 32;
    let own = reg::block_idx() * per_block + reg::thread_idx() / 32;
    (own, reg::grid_dim() * per_block)
}

/// The route of a row.
///
/// # Safety
/// `rows` addresses the routes of more rows than `row`, which nobody writes.
#[inline(always)]
pub(super) unsafe fn route_of(rows: u64, row: u32) -> Route {
    // SAFETY: the caller's contract.
    Route(unsafe { global::load_u32(rows + 4 * row as u64) })
}

/// Copies a row of `elements` bf16, by all lanes.
///
/// # Safety
/// Both rows are valid, 16-byte aligned, and nobody else touches them meanwhile.
#[inline(always)]
pub(super) unsafe fn copy_row(to: u64, from: u64, elements: u32) {
    let chunks = elements / CHUNK;
    let mut chunk = reg::lane();
    // Several loads in flight: a row from a peer is far away.
    while chunk + 96 < chunks {
        let at = |step: u32| 16 * (chunk + 32 * step) as u64;
        // SAFETY: inside the rows.
        unsafe {
            let a = global::load_v4(from + at(0));
            let b = global::load_v4(from + at(1));
            let c = global::load_v4(from + at(2));
            let d = global::load_v4(from + at(3));
            global::store_v4(to + at(0), a);
            global::store_v4(to + at(1), b);
            global::store_v4(to + at(2), c);
            global::store_v4(to + at(3), d);
        }
        chunk += 128;
    }
    while chunk < chunks {
        let at = 16 * chunk as u64;
        // SAFETY: inside the rows.
        unsafe { global::store_v4(to + at, global::load_v4(from + at)) };
        chunk += 32;
    }
}

/// Where a route's token stands on its rank.
///
/// # Safety
/// `args` describes live memory, and the route is one of the schedule's.
#[inline(always)]
pub(super) unsafe fn token_at(args: &MoveArgs, route: Route) -> u64 {
    // SAFETY: the caller's contract.
    let peer = unsafe { region(&args.rank, route.rank()) };
    peer + args.rank.plan.x + 2 * route.token() as u64 * args.hidden as u64
}

/// Where a route's result belongs on its rank.
///
/// # Safety
/// As [`token_at`].
#[inline(always)]
pub(super) unsafe fn slot_at(args: &MoveArgs, route: Route) -> u64 {
    // SAFETY: the caller's contract.
    let peer = unsafe { region(&args.rank, route.rank()) };
    let slot = route.token() as u64 * args.top_k as u64 + route.k() as u64;
    peer + args.rank.plan.slots + 2 * slot * args.hidden as u64
}

/// Any grid: pulls each row's token from its rank.
///
/// # Safety
/// Whole warps run it; `args` describes live memory, every rank's tokens are there, and the
/// schedule is complete.
#[inline(always)]
pub unsafe fn dispatch(args: &MoveArgs) {
    // SAFETY: the caller's contract; a row has one warp, and block 0 the sizes.
    unsafe {
        if reg::block_idx() == 0 {
            let gone = failed(args.rank.state);
            let mut expert = reg::thread_idx();
            while expert < args.local_experts {
                let at = 4 * expert as u64;
                let size = if gone {
                    0
                } else {
                    global::load_u32(args.sizes + at)
                };
                global::store_u32(args.pass_sizes + at, size);
                expert += reg::block_dim();
            }
        }
        for_rows(args, |row, route| {
            copy_row(row, token_at(args, route), args.hidden)
        });
    }
}

/// Any grid: pushes each row into its route's slot.
///
/// # Safety
/// As [`dispatch`]; the peers have read what their slots held before.
#[inline(always)]
pub unsafe fn combine(args: &MoveArgs) {
    // SAFETY: the caller's contract; a route has one row.
    unsafe {
        for_rows(args, |row, route| {
            copy_row(slot_at(args, route), row, args.hidden)
        });
    }
}

/// Calls `each` with the address and the route of every row of this warp.
///
/// # Safety
/// `args` describes live memory, and the schedule is complete.
#[inline(always)]
unsafe fn for_rows(args: &MoveArgs, each: impl Fn(u64, Route)) {
    let (mut row, warps) = warp();
    // SAFETY: the caller's contract.
    unsafe {
        if failed(args.rank.state) {
            return;
        }
        let total = global::load_u32(args.row_total);
        while row < total {
            let route = route_of(args.rows, row);
            if !route.is_padding() {
                each(args.matrix + 2 * row as u64 * args.hidden as u64, route);
            }
            row += warps;
        }
    }
}

/// Any grid: rows into the order of a list, or out of it.
///
/// # Safety
/// Whole warps run it; `args` describes live memory that nobody else touches; a list that says
/// where rows go names no row twice.
#[inline(always)]
pub unsafe fn permute(args: &PermuteArgs) {
    let (mut row, warps) = warp();
    let gathers = args.direction == Direction::Gather as u32;
    // Never 0; said so that the division can't panic.
    let share = args.share.max(1);
    // SAFETY: the caller's contract; a row has one warp.
    unsafe {
        while row < args.count {
            let named = global::load_u32(args.list + 4 * row as u64);
            let (to, from) = if gathers {
                (row, named / share)
            } else {
                (named, row)
            };
            let at = |row: u32| 2 * row as u64 * args.hidden as u64;
            copy_row(args.to + at(to), args.from + at(from), args.hidden);
            row += warps;
        }
    }
}

/// Any grid: the activation.
///
/// # Safety
/// Whole warps run it; `args` describes live memory that nobody else touches.
#[inline(always)]
pub unsafe fn swiglu(args: &SwigluArgs) {
    let (mut row, warps) = warp();
    let limit = f32::from_bits(args.limit);
    // SAFETY: the caller's contract; a row has one warp.
    unsafe {
        if failed(args.state) {
            return;
        }
        let total = global::load_u32(args.row_total);
        while row < total {
            if args.rows == 0 || !route_of(args.rows, row).is_padding() {
                let mut chunk = reg::lane();
                while chunk < args.columns / CHUNK {
                    let at = 2 * (row as u64 * args.columns as u64 + (chunk * CHUNK) as u64);
                    let gate = global::load_v4(args.gate + at);
                    let up = global::load_v4(args.up + at);
                    let pair = |at: usize| activation::swiglu(gate[at], up[at], limit);
                    global::store_v4(args.out + at, [pair(0), pair(1), pair(2), pair(3)]);
                    chunk += 32;
                }
            }
            row += warps;
        }
    }
}

/// Any grid: the weighted sum of each token's slots.
///
/// # Safety
/// Whole warps run it; `args` describes live memory that nobody else touches, and every rank's
/// results are there.
#[inline(always)]
pub unsafe fn weigh(args: &WeighArgs) {
    let (mut token, warps) = warp();
    // SAFETY: the caller's contract; a token has one warp.
    unsafe {
        let gone = failed(args.rank.state);
        while token < args.tokens {
            weigh_token!(args, token, gone; 0);
            token += warps;
        }
    }
}

/// The weighted sum of a token's slots, by all lanes; NaN if the rank is `gone`:
/// `weigh_token!(args, token, gone; 0 1)`. A lane has eight columns in flight for each of the last numbers: as many as
/// make up for how few warps do it.
///
/// # Safety
/// As [`weigh`], but for results if the rank is gone.
macro_rules! weigh_token {
    ($args:expr, $token:expr, $gone:expr; $($index:literal)+) => {{
        use $crate::role::rows::{CHUNK, NAN, Sum, Term, eight};

        let (args, token): (&WeighArgs, u32) = ($args, $token);
        let chunks = args.hidden / CHUNK;
        let slots = region(&args.rank, args.rank.rank) + args.rank.plan.slots;
        let at = |chunk| 2 * (token as u64 * args.hidden as u64 + (chunk * CHUNK) as u64);
        let mut first = reg::lane();
        while first < chunks {
            let own = [$(first + 32 * $index),+];
            let mut results = [$({ let _ = $index; [NAN; 4] }),+];
            if !$gone {
                let mut sums = [$(Sum::of(if args.shared != 0 && own[$index] < chunks {
                    global::load_v4(args.shared + at(own[$index]))
                } else {
                    [0; 4]
                })),+];
                let mut k = 0;
                while k < args.top_k {
                    // Several loads in flight, as where rows are copied: first all that they depend on.
                    let terms = eight(|step| Term::of(args, token, k + step));
                    let values = [$({
                        let chunk = own[$index];
                        eight(|step| terms[step as usize].values(args, slots, chunk, chunk < chunks))
                    }),+];
                    $(sums[$index].add_all(&terms, &values[$index]);)+
                    k += 8;
                }
                results = [$(sums[$index].rounded()),+];
            }
            $(if own[$index] < chunks {
                global::store_v4(args.out + at(own[$index]), results[$index]);
            })+
            first += 32 * own.len() as u32;
        }
    }};
}
pub(super) use weigh_token;

/// As many of something, in registers.
#[inline(always)]
pub(super) fn eight<T>(each: impl Fn(u32) -> T) -> [T; 8] {
    let four = |first| {
        [
            each(first),
            each(first + 1),
            each(first + 2),
            each(first + 3),
        ]
    };
    let ([a, b, c, d], [e, f, g, h]) = (four(0), four(4));
    [a, b, c, d, e, f, g, h]
}

/// A route of a token, which may add nothing.
pub(super) struct Term {
    there: bool,
    weight: f32,
    place: u64,
}

impl Term {
    /// Route `k`, or none where there isn't one.
    ///
    /// # Safety
    /// As [`weigh`].
    #[inline(always)]
    pub(super) unsafe fn of(args: &WeighArgs, token: u32, k: u32) -> Term {
        let route = token as u64 * args.top_k as u64 + k as u64;
        let mut term = Term {
            there: false,
            weight: 0.0,
            place: route,
        };
        // SAFETY: the caller's contract.
        unsafe {
            if k < args.top_k {
                term.there = global::load_u32(args.topk_experts + 4 * route) as i32 >= 0;
                term.weight = f32::from_bits(global::load_u32(args.router_weights + 4 * route));
                if args.places != 0 && term.there {
                    term.place = global::load_u32(args.places + 4 * route) as u64;
                }
            }
        }
        term
    }

    /// Eight neighbouring elements of its slot, of those that start at `slots`, if they are `there`.
    ///
    /// # Safety
    /// As [`weigh`].
    #[inline(always)]
    pub(super) unsafe fn values(
        &self,
        args: &WeighArgs,
        slots: u64,
        chunk: u32,
        there: bool,
    ) -> [u32; 4] {
        if !self.there || !there {
            return [0; 4];
        }
        let at = 2 * (self.place * args.hidden as u64 + (chunk * CHUNK) as u64);
        // SAFETY: the caller's contract.
        unsafe { global::load_v4(slots + at) }
    }
}

/// Sums of eight neighbouring elements.
pub(super) struct Sum {
    pairs: [(f32, f32); 4],
}

impl Sum {
    #[inline(always)]
    pub(super) fn of(words: [u32; 4]) -> Sum {
        Sum {
            pairs: [
                unpack_bf16(words[0]),
                unpack_bf16(words[1]),
                unpack_bf16(words[2]),
                unpack_bf16(words[3]),
            ],
        }
    }

    #[inline(always)]
    pub(super) fn add_all(&mut self, terms: &[Term; 8], values: &[[u32; 4]; 8]) {
        self.add(&terms[0], values[0]);
        self.add(&terms[1], values[1]);
        self.add(&terms[2], values[2]);
        self.add(&terms[3], values[3]);
        self.add(&terms[4], values[4]);
        self.add(&terms[5], values[5]);
        self.add(&terms[6], values[6]);
        self.add(&terms[7], values[7]);
    }

    #[inline(always)]
    fn add(&mut self, term: &Term, words: [u32; 4]) {
        if !term.there {
            return;
        }
        let weight = term.weight;
        let one = |(a, b): (f32, f32), word: u32| {
            let (x, y) = unpack_bf16(word);
            (fma(weight, x, a), fma(weight, y, b))
        };
        let [a, b, c, d] = self.pairs;
        self.pairs = [
            one(a, words[0]),
            one(b, words[1]),
            one(c, words[2]),
            one(d, words[3]),
        ];
    }

    #[inline(always)]
    pub(super) fn rounded(&self) -> [u32; 4] {
        let [a, b, c, d] = self.pairs;
        [
            pack_bf16(a.0, a.1),
            pack_bf16(b.0, b.1),
            pack_bf16(c.0, c.1),
            pack_bf16(d.0, d.1),
        ]
    }
}
