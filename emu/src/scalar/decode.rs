//! From a dotted name to a [`ScalarOp`], through the rows of [`super::table`].

use super::op::{Mods, Op, Operands, Part, ScalarOp};
use super::table::{ROWS, Row, set};
use super::types::Ty;

/// One place of a pattern.
struct Slot {
    names: Vec<&'static str>,
    optional: bool,
}

impl Slot {
    fn is_type(&self) -> bool {
        Ty::from_name(self.names[0]).is_some()
    }
}

/// The opcode and the slots of a row.
fn slots(row: &Row) -> (&'static str, Vec<Slot>) {
    let mut words = row.pattern.split(' ');
    let opcode = words.next().unwrap_or_default();
    let slots = words
        .map(|word| {
            let inner = word.strip_prefix('[').and_then(|w| w.strip_suffix(']'));
            let names = inner
                .unwrap_or(word)
                .split('|')
                .flat_map(|name| set(name).map_or_else(|| vec![name], |s| s.split('|').collect()))
                .collect();
            Slot {
                names,
                optional: inner.is_some(),
            }
        })
        .collect();
    (opcode, slots)
}

/// How far a name fits a row.
enum Fit {
    Whole,
    /// The types differ.
    Types,
    /// A modifier that the row doesn't take.
    Stray(usize),
    /// A modifier that the row needs.
    Lacks(Vec<&'static str>),
}

fn fit(slots: &[Slot], types: &[&str], modifiers: &[&str]) -> Fit {
    let (of_type, others): (Vec<_>, Vec<_>) = slots.iter().partition(|s| s.is_type());
    if of_type.len() != types.len() || !of_type.iter().zip(types).all(|(s, t)| s.names.contains(t))
    {
        return Fit::Types;
    }
    let mut used = vec![false; modifiers.len()];
    let mut lacks = None;
    for slot in others {
        let found = (0..modifiers.len()).find(|&i| !used[i] && slot.names.contains(&modifiers[i]));
        match found {
            Some(i) => used[i] = true,
            None if slot.optional => {}
            None => lacks = Some(slot.names.clone()),
        }
    }
    match (used.iter().position(|u| !u), lacks) {
        (Some(i), _) => Fit::Stray(i),
        (None, Some(names)) => Fit::Lacks(names),
        (None, None) => Fit::Whole,
    }
}

impl ScalarOp {
    /// Decodes a dotted name split at its dots, such as `["add", "rn", "ftz", "f32"]`.
    ///
    /// `Ok(None)`: not a scalar instruction (memory, control, barriers, warp-wide ones).
    ///
    /// # Errors
    /// A scalar instruction with a modifier or type that no form of it has; the text names it.
    pub fn decode(opcode: &[&str]) -> Result<Option<ScalarOp>, String> {
        let Some((&head, tail)) = opcode.split_first() else {
            return Ok(None);
        };
        let rows: Vec<_> = ROWS
            .iter()
            .filter(|row| row.pattern.split(' ').next() == Some(head))
            .map(|row| (row, slots(row)))
            .collect();
        if rows.is_empty() {
            return Ok(None);
        }
        let whole = opcode.join(".");
        let known = |t: &&str| {
            rows.iter()
                .any(|(_, (_, slots))| slots.iter().any(|s| s.names.contains(t)))
        };
        if let Some(stranger) = tail.iter().find(|t| !known(t)) {
            return Err(format!("{whole}: {head} has no .{stranger}"));
        }
        let (types, modifiers): (Vec<&str>, Vec<&str>) =
            tail.iter().partition(|t| Ty::from_name(t).is_some());
        let (mut stray, mut lacks) = (None, Vec::new());
        for (row, (_, slots)) in &rows {
            match fit(slots, &types, &modifiers) {
                Fit::Whole => {
                    return build(row, &types, &modifiers)
                        .map(Some)
                        .map_err(|e| format!("{whole}: {e}"));
                }
                Fit::Types => {}
                Fit::Stray(i) => stray = stray.or(Some(modifiers[i])),
                Fit::Lacks(names) => lacks.extend(
                    names
                        .into_iter()
                        .filter(|n| !lacks.contains(n))
                        .collect::<Vec<_>>(),
                ),
            }
        }
        Err(match stray {
            _ if !lacks.is_empty() => format!("{whole}: needs one of .{}", lacks.join(", .")),
            Some(modifier) => format!("{whole}: .{modifier} does not go with the rest"),
            None => format!("{whole}: no form of {head} has these types"),
        })
    }

    /// Types of the destinations in order (`setp` has an optional second one).
    pub fn dst(&self) -> &[Ty] {
        &self.dst.types[..self.dst.count as usize]
    }

    /// Types of the sources in order. A vector operand (`cvt.pack` has none) counts an element each.
    pub fn src(&self) -> &[Ty] {
        &self.src.types[..self.src.count as usize]
    }

    /// How many of [`ScalarOp::dst`] must be written out.
    pub fn dst_required(&self) -> usize {
        self.dst.required as usize
    }

    /// How many of [`ScalarOp::src`] must be there. `min` and `max` of f32 take two or three.
    pub fn src_required(&self) -> usize {
        self.src.required as usize
    }

    /// The lowest `sm_` that has this form; 90 stands for "90 or earlier".
    pub fn arch(&self) -> u16 {
        self.arch
    }

    /// Whether it reads, and whether it writes, the carry flag.
    pub fn uses_carry(&self) -> (bool, bool) {
        (
            matches!(self.op, Op::Addc | Op::Subc | Op::Madc),
            self.mods.cc,
        )
    }

    /// Only within a documented bound, not bit-exact: `.approx` and `div.full`.
    pub fn is_approximate(&self) -> bool {
        self.mods.approx
    }
}

fn build(row: &Row, types: &[&str], modifiers: &[&str]) -> Result<ScalarOp, String> {
    let named: Vec<Ty> = types.iter().filter_map(|t| Ty::from_name(t)).collect();
    let ty = *named.first().ok_or("no type")?;
    let from = *named.get(1).unwrap_or(&ty);
    let mut mods = Mods::NONE;
    for token in modifiers {
        mods.note(row.op, token);
    }
    if row.op == Op::CvtInt && mods.sat && !clamps(ty, from) {
        return Err(format!(
            ".sat has no effect from .{} to .{}",
            from.name(),
            ty.name()
        ));
    }
    let (dst, src) = operands(row.op, ty, from, &mods);
    Ok(ScalarOp {
        op: row.op,
        ty,
        from,
        mods,
        arch: row.arch,
        dst,
        src,
    })
}

/// Some value of `from` lies outside `to`.
fn clamps(to: Ty, from: Ty) -> bool {
    match (to.is_signed(), from.is_signed()) {
        (true, true) | (false, false) => to.bits() < from.bits(),
        (true, false) => to.bits() <= from.bits(),
        (false, true) => true,
    }
}

/// Destination and source types.
fn operands(op: Op, ty: Ty, from: Ty, mods: &Mods) -> (Operands<2>, Operands<6>) {
    use Ty::{B32, Pred, S32, U32};
    let wide = match (mods.part, ty) {
        (Part::Wide, Ty::U16) => Ty::U32,
        (Part::Wide, Ty::S16) => Ty::S32,
        (Part::Wide, Ty::U32) => Ty::U64,
        (Part::Wide, Ty::S32) => Ty::S64,
        _ => ty,
    };
    let one = |d: Ty, src: &[Ty]| (Operands::new(&[d], 1), Operands::new(src, src.len()));
    match op {
        // Mixed precision: the narrow sources come first.
        Op::Add | Op::Sub if from != ty => one(ty, &[from, ty]),
        Op::Fma if from != ty => one(ty, &[from, from, ty]),
        Op::Min | Op::Max if ty == Ty::F32 && mods.abs && !mods.xorsign => one(ty, &[ty; 3]),
        Op::Min | Op::Max if ty == Ty::F32 && !mods.xorsign => {
            (Operands::new(&[ty], 1), Operands::new(&[ty; 3], 2))
        }
        Op::Mul => one(wide, &[ty, ty]),
        Op::Mad => one(wide, &[ty, ty, wide]),
        Op::Madc | Op::Mad24 | Op::Fma | Op::Sad => one(ty, &[ty; 3]),
        Op::Add | Op::Addc | Op::Sub | Op::Subc | Op::Mul24 | Op::Div | Op::Rem => {
            one(ty, &[ty; 2])
        }
        Op::Min | Op::Max | Op::And | Op::Or | Op::Xor | Op::Copysign => one(ty, &[ty; 2]),
        Op::Abs | Op::Neg | Op::Brev | Op::Not | Op::Cnot | Op::Mov => one(ty, &[ty]),
        Op::Rcp | Op::Sqrt | Op::Rsqrt | Op::Sin | Op::Cos | Op::Lg2 | Op::Ex2 | Op::Tanh => {
            one(ty, &[ty])
        }
        Op::Popc | Op::Clz | Op::Bfind => one(U32, &[ty]),
        Op::Fns => one(B32, &[B32, B32, S32]),
        Op::Bfe => one(ty, &[ty, U32, U32]),
        Op::Bfi => one(ty, &[ty, ty, U32, U32]),
        Op::Szext => one(ty, &[ty, U32]),
        Op::Bmsk => one(B32, &[U32, U32]),
        Op::Dp4a | Op::Dp2a => {
            let sum = if ty.is_signed() || from.is_signed() {
                S32
            } else {
                U32
            };
            one(sum, &[ty, from, sum])
        }
        Op::Lop3 if mods.with.is_some() => (
            Operands::new(&[ty, Pred], 2),
            Operands::new(&[ty, ty, ty, U32, Pred], 5),
        ),
        Op::Lop3 => one(ty, &[ty, ty, ty, U32]),
        Op::Shf => one(ty, &[ty, ty, U32]),
        Op::Shl | Op::Shr => one(ty, &[ty, U32]),
        Op::Prmt => one(ty, &[ty; 3]),
        Op::Testp => one(Pred, &[ty]),
        Op::Setp | Op::Set => {
            let of = if op == Op::Setp { ty } else { from };
            let src = [of, of, Pred];
            let src = &src[..2 + usize::from(mods.with.is_some())];
            match (op, of.lanes()) {
                (Op::Set, _) => one(ty, src),
                // The 16-bit floats have no complement; their pairs put the upper half there.
                (_, 1) if of.bits() == 16 && of.is_float() => one(Pred, src),
                _ => (
                    Operands::new(&[Pred, Pred], 1),
                    Operands::new(src, src.len()),
                ),
            }
        }
        Op::Selp => one(ty, &[ty, ty, Pred]),
        Op::Slct => one(ty, &[ty, ty, from]),
        Op::CvtInt | Op::CvtToInt | Op::CvtFromInt | Op::CvtFloat => one(ty, &[from]),
        // Two f32 for a pair, the first to the upper half; the random bits last.
        Op::CvtPacked if mods.stochastic => one(ty, &[from, from, B32]),
        Op::CvtPacked if from.lanes() == 1 => one(ty, &[from, from]),
        Op::CvtPacked => one(ty, &[from]),
        Op::CvtPack if ty.bits() < 16 => one(B32, &[S32, S32, B32]),
        Op::CvtPack => one(B32, &[S32, S32]),
    }
}

/// A row of the table of supported scalar instructions.
#[derive(Clone, Debug)]
pub struct IsaRow {
    /// The opcode, without modifiers.
    pub opcode: &'static str,
    /// The alternatives for each type of the name, in order.
    pub types: Vec<Vec<Ty>>,
    /// The alternatives for each modifier, in order; true: it may be left out.
    pub modifiers: Vec<(Vec<&'static str>, bool)>,
    /// The lowest `sm_` that has it; 90 stands for "90 or earlier".
    pub arch: u16,
    pattern: Vec<(Vec<&'static str>, bool)>,
}

impl IsaRow {
    /// Every dotted name of the row that decodes.
    pub fn names(&self) -> Vec<String> {
        let mut names = vec![self.opcode.to_string()];
        for (alternatives, optional) in &self.pattern {
            let mut next = if *optional { names.clone() } else { Vec::new() };
            for name in &names {
                next.extend(alternatives.iter().map(|a| format!("{name}.{a}")));
            }
            names = next;
        }
        names.retain(|n| {
            matches!(
                ScalarOp::decode(&n.split('.').collect::<Vec<_>>()),
                Ok(Some(_))
            )
        });
        names
    }
}

/// Part of a name as tables write it: `.a`, or `.(a|b)`; in braces if it may be left out.
pub fn notation(alternatives: &[&str], optional: bool) -> String {
    let joined = match alternatives {
        [one] => format!(".{one}"),
        several => format!(".({})", several.join("|")),
    };
    if optional {
        format!("{{{joined}}}")
    } else {
        joined
    }
}

/// The supported scalar instructions, from the table that [`ScalarOp::decode`] reads.
pub fn isa() -> Vec<IsaRow> {
    ROWS.iter()
        .map(|row| {
            let (opcode, slots) = slots(row);
            let (types, modifiers): (Vec<_>, Vec<_>) = slots.iter().partition(|s| s.is_type());
            IsaRow {
                opcode,
                types: types
                    .iter()
                    .map(|s| s.names.iter().filter_map(|n| Ty::from_name(n)).collect())
                    .collect(),
                modifiers: modifiers
                    .iter()
                    .map(|s| (s.names.clone(), s.optional))
                    .collect(),
                arch: row.arch,
                pattern: slots
                    .iter()
                    .map(|s| (s.names.clone(), s.optional))
                    .collect(),
            }
        })
        .collect()
}
