//! One step: an instruction, its operands, and where its result goes.

use mok_emu::scalar::Ty;

use crate::generate::Builder;
use crate::isa::Name;
use crate::program::{Instruction, NUMBERS, POOL, Place, Step};
use crate::values::{Kind, immediate};

/// Registers of a width, in the order of [`POOL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    /// Predicates.
    Pred,
    /// 16 bits.
    Half,
    /// 32 bits.
    Word,
    /// 64 bits.
    Double,
}

impl Pool {
    fn of(bits: u32) -> Pool {
        match bits {
            1 => Pool::Pred,
            2..=16 => Pool::Half,
            17..=32 => Pool::Word,
            _ => Pool::Double,
        }
    }
}

/// Temporaries of a step.
#[derive(Default)]
struct Temporaries {
    /// The first is left to conditions and stores.
    used: [usize; 4],
}

/// How an instruction stands to the carry flag.
fn carry(name: &Name) -> (bool, bool) {
    name.op.uses_carry()
}

impl Builder<'_> {
    /// A step around a name.
    pub fn step(&mut self, name: usize) -> Step {
        let target = self.catalogue.names[name].clone();
        let mut step = Step::default();
        let mut temporaries = Temporaries::default();
        let (reads, writes) = carry(&target);
        if reads || writes {
            for name in self.chain(name, &target, reads, writes) {
                self.place(name, &mut step, &mut temporaries);
            }
        } else {
            // ptxas 13.0 converts what a guarded `set` leaves as it was, as if it were the result;
            // it writes what a guarded `testp` should leave; and it makes guarded signs a choice of
            // operands, where a NaN keeps its payload.
            let miscompiled = matches!(target.opcode(), "set" | "testp" | "abs" | "neg");
            let may_stand_guarded = !target.op.is_approximate() && !miscompiled;
            if may_stand_guarded && self.random.percent(20) {
                let negate = if self.random.percent(50) { "!" } else { "" };
                step.guard = Some(format!("{negate}%p{}", self.random.below(POOL[0].2)));
            }
            self.place(name, &mut step, &mut temporaries);
        }
        for (most, used) in self.temporaries.iter_mut().zip(temporaries.used) {
            *most = (*most).max(used + 1);
        }
        step
    }

    /// A run of instructions that sets the flag before it is read, and reads it where it is set.
    fn chain(&mut self, name: usize, target: &Name, reads: bool, writes: bool) -> Vec<usize> {
        let bits = target.op.dst()[0].bits();
        // Sums and differences mean opposite things by the flag's bit in hardware, so both ways.
        let mixed = self.random.percent(10);
        let subtracts = target.opcode().starts_with("sub");
        let fits = |other: &Name, wanted: (bool, bool)| {
            carry(other) == wanted
                && other.op.dst()[0].bits() == bits
                && (mixed || other.opcode().starts_with("sub") == subtracts)
        };
        let mut candidates = [(false, true), (true, true), (true, false)].map(|wanted| {
            let names = self.catalogue.names.iter().enumerate();
            names
                .filter(|(_, other)| fits(other, wanted))
                .map(|(at, _)| at)
                .collect::<Vec<_>>()
        });
        let [first, middle, last] = &mut candidates;
        let mut chain = Vec::new();
        if reads {
            chain.push(*self.random.pick(first));
            for _ in 0..self.random.below(3) {
                chain.push(*self.random.pick(middle));
            }
        }
        chain.push(name);
        if writes {
            for _ in 0..self.random.below(2) {
                chain.push(*self.random.pick(middle));
            }
            chain.push(*self.random.pick(last));
        }
        chain
    }

    /// Adds one instruction to a step.
    fn place(&mut self, index: usize, step: &mut Step, temporaries: &mut Temporaries) {
        let name = self.catalogue.names[index].clone();
        let sources = self.sources(&name, step, temporaries);
        let approximate = name.op.is_approximate();
        let destinations = self.destinations(&name, &sources, step, temporaries);
        let written = match destinations.as_slice() {
            [(one, _)] => one.clone(),
            [(first, _), (second, _), ..] => format!("{first}|{second}"),
            [] => String::new(),
        };
        let place = if approximate {
            self.sites += 1;
            Place::Site(self.sites - 1)
        } else {
            Place::Words(self.words, destinations.len() as u32)
        };
        let texts: Vec<&str> = sources.iter().map(|(text, _)| text.as_str()).collect();
        step.code.push(Instruction {
            name: index,
            text: format!("{} {written}, {}", name.text, texts.join(", ")),
            sources: sources.clone(),
            place,
        });
        match place {
            Place::Site(site) => {
                let values = sources
                    .iter()
                    .take(2)
                    .enumerate()
                    .chain([(2, &destinations[0])]);
                for (at, (register, ty)) in values {
                    let at = 24 * site as usize + 8 * at;
                    let bits = ty.bits();
                    step.after.push((
                        false,
                        format!("st.global.b{bits} [%near+{at}], {register};"),
                    ));
                }
            }
            Place::Words(..) => {
                for (register, ty) in &destinations {
                    let word = self.word();
                    if register == "_" {
                        continue;
                    }
                    let bits = register_bits(register, *ty);
                    self.store(register, bits, word, true, &mut step.after);
                    if !register.starts_with("%t") {
                        self.flavours.insert(register.clone(), *ty);
                    }
                    self.detach(register, bits, &mut step.after);
                }
            }
        }
    }

    /// Keeps ptxas from seeing through a register: a zero that only the launch knows stands between
    /// an instruction and what uses its result. The ISA lets assemblers fuse a product whose
    /// rounding the name leaves out with a sum; ptxas 13.0 also drops a conversion between f16 and
    /// bf16 before another, takes what `set` wrote for 1, moves signs into operands, where a NaN
    /// keeps its payload, and goes wrong about predicates that it has seen branch.
    fn detach(&self, register: &str, bits: u32, to: &mut Vec<(bool, String)>) {
        let lines = match bits {
            1 => vec![
                "xor.b32 %tr0, %tr0, %zero;".into(),
                format!("setp.ne.u32 {register}, %tr0, 0;"),
            ],
            16 => vec![format!("xor.b16 {register}, {register}, %zeroh;")],
            32 => vec![format!("xor.b32 {register}, {register}, %zero;")],
            64 => vec![format!("xor.b64 {register}, {register}, %zerod;")],
            // Bytes are converted before they are used.
            _ => Vec::new(),
        };
        to.extend(lines.into_iter().map(|line| (false, line)));
    }

    /// Registers for the results.
    fn destinations(
        &mut self,
        name: &Name,
        sources: &[(String, Ty)],
        step: &Step,
        temporaries: &mut Temporaries,
    ) -> Vec<(String, Ty)> {
        let mut found: Vec<(String, Ty)> = Vec::new();
        let types = name.op.dst();
        let second = types.len() == 2 && (name.op.dst_required() == 2 || self.random.percent(50));
        for ty in &types[..if second { 2 } else { 1 }] {
            if name.op.is_approximate() {
                found.push((temporary(temporaries, Pool::of(ty.bits())), *ty));
                continue;
            }
            // ptxas 13.0 wants lop3's predicate, and crashes on a guarded `setp _|p`.
            let may_go = step.guard.is_none() && !(name.opcode() == "lop3" && *ty == Ty::Pred);
            if second
                && may_go
                && self.random.percent(10)
                && !found.iter().any(|(one, _)| one == "_")
            {
                found.push(("_".into(), *ty));
                continue;
            }
            // Conversions to integers may write a register that is wider, and extend into it.
            if strict(name) && ty.bits() == 8 {
                found.push(("%tb0".into(), *ty));
                continue;
            }
            let mut pool = Pool::of(ty.bits());
            if widens(name, *ty) && self.random.percent(25) {
                pool = *self
                    .random
                    .pick(&[Pool::Half, Pool::Word, Pool::Double][pool as usize - 1..]);
            }
            let (letter, _, count) = POOL[pool as usize];
            // Neither the guard, by which results are stored, nor another result.
            loop {
                let register = format!("%{letter}{}", self.random.below(count));
                let guards = step
                    .guard
                    .as_ref()
                    .is_some_and(|guard| guard.trim_start_matches('!') == register);
                // ptxas 13.0 computes the second of two predicates from what the first overwrote.
                let reads = second
                    && sources
                        .iter()
                        .any(|(source, _)| source.trim_start_matches('!') == register);
                let taken = |step: &Step| {
                    step.after
                        .iter()
                        .any(|(_, line)| line.contains(&format!(" {register};")))
                };
                if !guards
                    && !reads
                    && !found.iter().any(|(one, _)| *one == register)
                    && !taken(step)
                {
                    found.push((register, *ty));
                    break;
                }
            }
        }
        found
    }

    fn sources(
        &mut self,
        name: &Name,
        step: &mut Step,
        temporaries: &mut Temporaries,
    ) -> Vec<(String, Ty)> {
        let types = name.op.src()[..name.op.src_required()].to_vec();
        let free = self.random.below(types.len().max(1));
        let mut registers = 0;
        let mut found = Vec::new();
        for (position, ty) in types.iter().enumerate() {
            // The last one must be a register if none was. Approximate ones are stored.
            let several = types.len() > 1 && (registers > 0 || position + 1 < types.len());
            let constant = !name.op.is_approximate() && (several || name.opcode() == "mov");
            let mut text = if name.passes_payload() && position != free {
                self.number(constant, step, temporaries)
            } else {
                self.source(name, position, *ty, constant, step, temporaries)
            };
            // ptxas takes the smaller of a value and itself for a move, NaN or not.
            let folds = matches!(name.opcode(), "min" | "max");
            if folds && found.iter().any(|(other, _)| *other == text) {
                text = self.load(Kind::of(*ty), ty.bits(), step, temporaries);
            }
            registers += usize::from(text.starts_with(['%', '!']));
            found.push((text, *ty));
        }
        found
    }

    /// An f64 that is no NaN.
    fn number(&mut self, constant: bool, step: &mut Step, temporaries: &mut Temporaries) -> String {
        match self.random.below(10) {
            0..2 if constant => immediate(&mut self.random, Ty::F64).unwrap_or_default(),
            0..5 => format!("%n{}", self.random.below(NUMBERS)),
            _ => self.load(Kind::Number, 64, step, temporaries),
        }
    }

    /// A value of the tables, in a temporary.
    fn load(
        &mut self,
        kind: Kind,
        bits: u32,
        step: &mut Step,
        temporaries: &mut Temporaries,
    ) -> String {
        let register = temporary(temporaries, Pool::of(bits));
        let address = self.input(kind, bits as usize / 8);
        let nc = if self.random.percent(20) { ".nc" } else { "" };
        step.before
            .push(format!("ld.global{nc}.b{bits} {register}, {address};"));
        register
    }

    /// A 32-bit value that the compiler doesn't know, in the pool or `%tr0`.
    pub fn any(&mut self, bits: u32, kind: Kind, before: &mut Vec<String>) -> String {
        if self.random.percent(60) {
            let address = self.input(kind, bits as usize / 8);
            before.push(format!("ld.global.b{bits} %tr0, {address};"));
            "%tr0".into()
        } else {
            format!("%r{}", self.random.below(POOL[2].2))
        }
    }

    fn source(
        &mut self,
        name: &Name,
        position: usize,
        ty: Ty,
        constant: bool,
        step: &mut Step,
        temporaries: &mut Temporaries,
    ) -> String {
        let opcode = name.opcode();
        let converts = opcode == "cvt";
        if opcode == "lop3" && position == 3 {
            return format!("{:#04x}", self.random.below(256));
        }
        if ty == Ty::Pred {
            let negate = matches!(opcode, "setp" | "set" | "lop3") && self.random.percent(30);
            let register = format!("%p{}", self.random.below(POOL[0].2));
            return if negate {
                format!("!{register}")
            } else {
                register
            };
        }
        // ptxas 13.0 cuts constant shifts to 16 bits, and takes a constant that picks to be negative.
        let constant = constant && !matches!((opcode, position), ("shl" | "shr", 1) | ("slct", 2));
        if let Some(most) = limit(opcode, position) {
            return self.limited(most, constant, step, temporaries);
        }
        if constant && !converts && self.random.percent(15) {
            let zero = |text: &str| matches!(text, "0" | "0x0" | "0U");
            let divides = matches!(opcode, "div" | "rem") && position == 1;
            match immediate(&mut self.random, ty) {
                // By a constant zero the result is the compiler's, not the machine's.
                Some(text) if !(divides && zero(&text)) => return text,
                _ => {}
            }
        }
        if strict(name) && ty.bits() == 8 {
            let address = self.input(Kind::I8, 1);
            step.before.push(format!("ld.global.b8 %tb1, {address};"));
            return "%tb1".into();
        }
        let mut pool = Pool::of(ty.bits());
        if widens(name, ty) && self.random.percent(15) {
            pool = *self
                .random
                .pick(&[Pool::Half, Pool::Word, Pool::Double][pool as usize - 1..]);
        }
        let (letter, bits, count) = POOL[pool as usize];
        let roll = self.random.below(100);
        if roll < 45 {
            let kind = match Kind::of(ty) {
                Kind::F32 if name.op.is_approximate() && self.random.percent(60) => Kind::Moderate,
                Kind::I32 if position > 0 && self.random.percent(30) => Kind::Small,
                // What is behind the bits that count is anything.
                kind if kind.bits() < bits => match bits {
                    16 => Kind::I16,
                    32 if ty.lanes() == 1 => Kind::I32,
                    64 => Kind::I64,
                    _ => kind,
                },
                kind => kind,
            };
            return self.load(kind, bits, step, temporaries);
        }
        let mut fitting: Vec<String> = (0..count).map(|at| format!("%{letter}{at}")).collect();
        if roll < 85 {
            let alike = |held: &Ty| Kind::of(*held) == Kind::of(ty) && held.lanes() == ty.lanes();
            let holds = |register: &&String| self.flavours.get(*register).is_some_and(alike);
            let same: Vec<String> = fitting.iter().filter(holds).cloned().collect();
            if !same.is_empty() {
                fitting = same;
            }
        }
        self.random.pick(&fitting).clone()
    }

    /// An operand that the ISA confines to 0 to `most`, which is one less than a power of two.
    fn limited(
        &mut self,
        most: u32,
        constant: bool,
        step: &mut Step,
        temporaries: &mut Temporaries,
    ) -> String {
        if constant && self.random.percent(30) {
            // Beyond the operand's bits a constant's result is ptxas's, not the machine's.
            return self.random.below(32.min(most as usize + 1)).to_string();
        }
        let kind = if self.random.percent(70) {
            Kind::Small
        } else {
            Kind::I32
        };
        let from = self.load(kind, 32, step, temporaries);
        step.before.push(format!("and.b32 {from}, {from}, {most};"));
        from
    }
}

/// Operands beyond whose limit the ISA leaves the result open.
fn limit(opcode: &str, position: usize) -> Option<u32> {
    match (opcode, position) {
        ("fns", 1) => Some(31),
        ("bfe", 1 | 2) | ("bfi", 2 | 3) => Some(255),
        _ => None,
    }
}

/// Whether ptxas insists on registers of an operand's very width: in conversions with bf16, where
/// only a `.b8` register will do for 8 bits.
fn strict(name: &Name) -> bool {
    name.opcode() == "cvt" && name.has("bf16")
}

/// Whether an operand of this type may be a wider register.
fn widens(name: &Name, ty: Ty) -> bool {
    name.opcode() == "cvt" && !ty.is_float() && !name.has("pack") && !strict(name)
}

/// Bits of a register of this name.
pub(crate) fn register_bits(register: &str, ty: Ty) -> u32 {
    let letter = register
        .trim_start_matches('%')
        .trim_start_matches('t')
        .chars()
        .next();
    let bank = POOL.iter().find(|(name, ..)| name.chars().next() == letter);
    bank.map_or(ty.bits(), |(_, bits, _)| *bits)
}

fn temporary(temporaries: &mut Temporaries, pool: Pool) -> String {
    let used = &mut temporaries.used[pool as usize];
    *used += 1;
    format!("%t{}{used}", POOL[pool as usize].0)
}
