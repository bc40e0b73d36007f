//! From a seed and a number to a program.

use std::collections::HashMap;

use mok_emu::scalar::Ty;

use crate::isa::Catalogue;
use crate::operands::Pool;
use crate::program::{Body, Item, NUMBERS, POOL, Program, Setup, Shape, Step};
use crate::random::Random;
use crate::render::PASSED;
use crate::values::{ENTRY, Kind};

/// Changes whenever the same seed gives other programs.
pub const VERSION: u32 = 1;

/// How the threads of a program lie: most have a warp that is not full.
const SHAPES: [(u32, u32); 6] = [(2, 48), (1, 96), (3, 32), (2, 33), (1, 128), (4, 20)];

/// Makes programs.
#[derive(Clone, Debug)]
pub struct Generator {
    catalogue: Catalogue,
    seed: u64,
    /// Instructions of a program that are chosen by the order, not needed by others.
    chosen: usize,
}

impl Generator {
    /// Programs over the names of `catalogue`, so long that `programs` of them choose each name
    /// at least `times`.
    pub fn new(catalogue: Catalogue, seed: u64, programs: u32, times: usize) -> Generator {
        let chosen = (catalogue.names.len() * times)
            .div_ceil(programs.max(1) as usize)
            .max(1);
        Generator {
            catalogue,
            seed,
            chosen,
        }
    }

    /// The names.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The names that a program must use: its part of an endless row of shuffled catalogues, so
    /// that after any number of programs no name is more than one use ahead of another.
    fn names(&self, number: u32) -> Vec<usize> {
        let all = self.catalogue.names.len();
        let start = number as usize * self.chosen;
        let mut names = Vec::with_capacity(self.chosen);
        let mut round = usize::MAX;
        let mut order: Vec<usize> = Vec::new();
        for at in start..start + self.chosen {
            if at / all != round {
                round = at / all;
                order = (0..all).collect();
                Random::new(self.seed, 0x0de5_0000_0000 + round as u64).shuffle(&mut order);
            }
            names.push(order[at % all]);
        }
        names
    }

    /// The program of this number.
    pub fn program(&self, number: u32) -> Program {
        let mut builder = Builder {
            catalogue: &self.catalogue,
            random: Random::new(self.seed, number.into()),
            names: self.names(number),
            words: 0,
            sites: 0,
            temporaries: [1; 4],
            flavours: HashMap::new(),
            functions: Vec::new(),
            in_function: false,
            leaves: 0,
        };
        let (blocks, threads) = *builder.random.pick(&SHAPES);
        let salt = builder.random.bits() as u32;
        let setup = builder.setup();
        let mut items = builder.items(usize::MAX, 0, 0);
        builder.dump(&mut items);
        Program {
            number,
            shape: Shape { blocks, threads },
            salt,
            words: builder.words.next_multiple_of(2),
            sites: builder.sites,
            temporaries: builder.temporaries,
            main: Body { setup, items },
            functions: builder.functions,
        }
    }
}

/// Registers of a width, what they may start with, and how many are loaded together.
type Bank = (Pool, &'static [(Kind, Ty)], usize);

/// A program being made.
pub(crate) struct Builder<'a> {
    pub catalogue: &'a Catalogue,
    pub random: Random,
    /// What must still be used.
    names: Vec<usize>,
    pub words: u32,
    pub sites: u32,
    /// Temporaries that any step needed.
    pub temporaries: [usize; 4],
    /// The type of what each register of the pool probably holds.
    pub flavours: HashMap<String, Ty>,
    functions: Vec<Body>,
    in_function: bool,
    leaves: usize,
}

impl Builder<'_> {
    /// The address, in a table, of as many bytes for this thread; aligned to them.
    pub fn input(&mut self, kind: Kind, bytes: usize) -> String {
        let most = crate::values::ENTRIES - 128;
        let entry = self.random.below(most);
        let inner = self.random.below(ENTRY / bytes) * bytes;
        format!("[%in+{}]", kind.offset() + entry * ENTRY + inner)
    }

    /// Values for the whole pool.
    fn setup(&mut self) -> Setup {
        let mut lines = Vec::new();
        self.flavours.clear();
        let banks: [Bank; 3] = [
            (
                Pool::Half,
                &[
                    (Kind::I16, Ty::B16),
                    (Kind::F16, Ty::F16),
                    (Kind::Bf16, Ty::Bf16),
                ],
                2,
            ),
            (
                Pool::Word,
                &[
                    (Kind::I32, Ty::B32),
                    (Kind::F32, Ty::F32),
                    (Kind::F16, Ty::F16x2),
                    (Kind::Bf16, Ty::Bf16x2),
                ],
                4,
            ),
            (
                Pool::Double,
                &[(Kind::I64, Ty::B64), (Kind::F64, Ty::F64)],
                2,
            ),
        ];
        for (pool, kinds, together) in banks {
            let (name, bits, count) = POOL[pool as usize];
            let mut at = 0;
            while at < count {
                let (kind, ty) = *self.random.pick(kinds);
                let many = together.min(count - at);
                let registers: Vec<String> =
                    (at..at + many).map(|at| format!("%{name}{at}")).collect();
                let address = self.input(kind, many * bits as usize / 8);
                let list = registers.join(", ");
                lines.push((
                    registers.clone(),
                    format!("ld.global.v{many}.b{bits} {{{list}}}, {address};"),
                ));
                for register in registers {
                    self.flavours.insert(register, ty);
                }
                at += many;
            }
        }
        for at in (0..NUMBERS).step_by(2) {
            let address = self.input(Kind::Number, 16);
            let registers = [format!("%n{at}"), format!("%n{}", at + 1)];
            let line = format!("ld.global.v2.b64 {{{}}}, {address};", registers.join(", "));
            lines.push((registers.to_vec(), line));
        }
        if self.in_function {
            for (at, (ty, register)) in PASSED.iter().enumerate().skip(5) {
                lines.push((
                    vec![(*register).to_owned()],
                    format!("ld.param.{ty} {register}, [a{at}];"),
                ));
            }
        }
        for at in 0..POOL[0].2 {
            let register = format!("%p{at}");
            let from = self.random.below(POOL[2].2);
            let limit = *self.random.pick(&["0", "1", "-3", "1000000", "1065353216"]);
            let line = format!("setp.gt.s32 {register}, %r{from}, {limit};");
            lines.push((vec![register.clone()], line));
            self.flavours.insert(register, Ty::Pred);
        }
        Setup(lines)
    }

    /// Items that use at most so many of the names that are left.
    fn items(&mut self, most: usize, depth: usize, loops: usize) -> Vec<Item> {
        let mut items = Vec::new();
        let end = self.names.len().saturating_sub(most);
        while self.names.len() > end {
            let left = self.names.len() - end;
            let choice = self.random.below(100);
            let base = if self.in_function { 2 } else { 0 };
            let some = |random: &mut Random, most: usize| (1 + random.below(most)).min(left);
            match choice {
                0..8 if depth < 3 => {
                    let many = some(&mut self.random, 7);
                    let other = self.random.below(many);
                    items.push(self.branch(many - other, other, depth, loops));
                }
                // Functions have counters of their own, so that a call may be replaced by its body.
                8..11 if depth < 3 && loops - base < 2 => {
                    let many = some(&mut self.random, 5);
                    let mut before = Vec::new();
                    let from = self.any(32, Kind::I32, &mut before);
                    let most = if loops == base { 3 } else { 1 };
                    before.push(format!("and.b32 %c{loops}, {from}, {most};"));
                    let body = self.items(many, depth + 1, loops + 1);
                    items.push(Item::Loop {
                        before,
                        depth: loops,
                        body,
                    });
                }
                11..13 if !self.in_function && self.functions.len() < 2 => {
                    items.push(self.call(left));
                }
                13 if self.leaves < 2 => {
                    self.leaves += 1;
                    let mut before = Vec::new();
                    let from = self.any(32, Kind::I32, &mut before);
                    let value = self.random.below(8);
                    before.push(format!("and.b32 %tr0, {from}, 7;"));
                    before.push(format!("setp.eq.u32 %tp0, %tr0, {value};"));
                    let exit = self.random.percent(50);
                    items.push(Item::Leave {
                        before,
                        condition: "%tp0".into(),
                        exit,
                    });
                }
                _ => {
                    if let Some(name) = self.names.pop() {
                        items.push(Item::Step(self.step(name)));
                    }
                }
            }
        }
        items
    }

    fn branch(&mut self, then: usize, other: usize, depth: usize, loops: usize) -> Item {
        let mut before = Vec::new();
        let uniform = self.random.percent(15);
        let bit = 1u32 << self.random.below(5);
        let condition = if uniform {
            before.push(format!("and.b32 %tr0, %salt, {bit};"));
            before.push("setp.ne.u32 %tp0, %tr0, 0;".into());
            "%tp0".to_owned()
        } else if self.random.percent(60) {
            let from = self.any(32, Kind::I32, &mut before);
            before.push(format!("and.b32 %tr0, {from}, {bit};"));
            before.push("setp.ne.u32 %tp0, %tr0, 0;".into());
            "%tp0".to_owned()
        } else {
            format!("%p{}", self.random.below(POOL[0].2))
        };
        let negate = if self.random.percent(50) { "!" } else { "" };
        let then = self.items(then, depth + 1, loops);
        let other = if other > 0 {
            self.items(other, depth + 1, loops)
        } else {
            Vec::new()
        };
        Item::If {
            before,
            condition: format!("{negate}{condition}"),
            uniform,
            then,
            other,
        }
    }

    fn call(&mut self, left: usize) -> Item {
        let many = (2 + self.random.below(6)).min(left);
        let outer = std::mem::take(&mut self.flavours);
        self.in_function = true;
        let setup = self.setup();
        let items = self.items(many, 1, 2);
        self.in_function = false;
        self.flavours = outer;
        self.functions.push(Body { setup, items });
        let result = format!("%r{}", self.random.below(POOL[2].2));
        self.flavours.insert(result.clone(), Ty::B32);
        Item::Call {
            function: self.functions.len() - 1,
            arguments: [
                format!("%r{}", self.random.below(POOL[2].2)),
                format!("%d{}", self.random.below(POOL[3].2)),
            ],
            result,
        }
    }

    /// Stores the pool: what should not have been written shows.
    fn dump(&mut self, items: &mut Vec<Item>) {
        for (pool, together) in [(Pool::Half, 4), (Pool::Word, 4), (Pool::Double, 2)] {
            let (name, bits, count) = POOL[pool as usize];
            let mut at = 0;
            while at < count {
                let many = match count - at {
                    left if left >= together => together,
                    left if left >= 2 => 2,
                    _ => 1,
                };
                let registers: Vec<String> =
                    (at..at + many).map(|at| format!("%{name}{at}")).collect();
                let word = self.words.next_multiple_of(2);
                self.words = word + 2;
                let vector = if many > 1 {
                    format!(".v{many}")
                } else {
                    String::new()
                };
                let list = registers.join(", ");
                let line = format!("st.global{vector}.b{bits} [%out+{}], {{{list}}};", 8 * word);
                let line = if many > 1 {
                    line
                } else {
                    line.replace(['{', '}'], "")
                };
                items.push(Item::Step(Step {
                    after: vec![(false, line)],
                    ..Step::default()
                }));
                at += many;
            }
        }
        for at in 0..POOL[0].2 {
            let mut step = Step::default();
            let word = self.word();
            self.store(&format!("%p{at}"), 1, word, false, &mut step.after);
            items.push(Item::Step(step));
        }
    }

    /// The next word of the exact output.
    pub fn word(&mut self) -> u32 {
        self.words += 1;
        self.words - 1
    }

    /// Stores a register to a word of the exact output.
    pub fn store(
        &mut self,
        register: &str,
        bits: u32,
        word: u32,
        guarded: bool,
        to: &mut Vec<(bool, String)>,
    ) {
        let at = 8 * word;
        if bits == 1 {
            to.push((false, format!("selp.b32 %tr0, 1, 0, {register};")));
            to.push((guarded, format!("st.global.b32 [%out+{at}], %tr0;")));
        } else {
            to.push((
                guarded,
                format!("st.global.b{bits} [%out+{at}], {register};"),
            ));
        }
    }
}
