//! The instructions that programs are made of: the emulator's own table.

use mok_emu::scalar::{self, ScalarOp, Ty, notation};

/// One instruction name, with all modifiers and types.
#[derive(Clone, Debug)]
pub struct Name {
    /// As PTX writes it.
    pub text: String,
    /// Its row of the table.
    pub row: usize,
    /// Decoded.
    pub op: ScalarOp,
}

impl Name {
    /// The first part.
    pub fn opcode(&self) -> &str {
        self.text.split('.').next().unwrap_or_default()
    }

    /// Whether the name has this part.
    pub fn has(&self, part: &str) -> bool {
        self.text.split('.').any(|own| own == part)
    }

    /// Whether a NaN operand's payload passes into the result, which of several the ISA does not say.
    pub fn passes_payload(&self) -> bool {
        let arithmetic = ["add", "sub", "mul", "fma", "mad", "div", "min", "max"];
        self.op.src()[0] == Ty::F64 && arithmetic.contains(&self.opcode())
    }
}

/// A row of the table: what a family of names looks like.
#[derive(Clone, Debug)]
pub struct Row {
    /// Opcode, modifiers and types as `cargo xtask emu --isa` prints them.
    pub pattern: String,
    /// The lowest `sm_` that has it; 90 stands for "90 or earlier".
    pub arch: u16,
}

/// All names that a GPU has.
#[derive(Clone, Debug)]
pub struct Catalogue {
    /// The names; programs refer to them by index.
    pub names: Vec<Name>,
    /// The rows.
    pub rows: Vec<Row>,
    /// How many names are left out, since the GPU does not have them.
    pub later: usize,
}

impl Catalogue {
    /// The names that `sm_<arch>` has.
    pub fn new(arch: u16) -> Catalogue {
        let mut names: Vec<Name> = Vec::new();
        let mut rows = Vec::new();
        let mut seen = std::collections::HashSet::new();
        let mut later = 0;
        for row in scalar::isa() {
            for text in row.names() {
                let parts: Vec<&str> = text.split('.').collect();
                // `names` lists only what decodes.
                let Ok(Some(op)) = ScalarOp::decode(&parts) else {
                    continue;
                };
                if !seen.insert(text.clone()) {
                    continue;
                }
                if op.arch() > arch {
                    later += 1;
                    continue;
                }
                names.push(Name {
                    text,
                    row: rows.len(),
                    op,
                });
            }
            let modifiers = row
                .modifiers
                .iter()
                .map(|(names, optional)| notation(names, *optional));
            let types = row.types.iter().map(|types| {
                let names: Vec<&str> = types.iter().map(|ty| ty.name()).collect();
                notation(&names, false)
            });
            let pattern = modifiers
                .chain(types)
                .fold(row.opcode.to_owned(), |all, one| all + &one);
            rows.push(Row {
                pattern,
                arch: row.arch,
            });
        }
        Catalogue { names, rows, later }
    }

    /// The index of a name.
    pub fn find(&self, text: &str) -> Option<usize> {
        self.names.iter().position(|name| name.text == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_out() {
        let catalogue = Catalogue::new(90);
        assert!(catalogue.names.len() > 5000 && catalogue.later > 50);
        let name = |text: &str| &catalogue.names[catalogue.find(text).expect("a name")];
        assert!(name("add.f64").passes_payload() && !name("add.f32").passes_payload());
        assert!(catalogue.find("add.f32x2").is_none());
        let all = Catalogue::new(u16::MAX);
        assert_eq!(all.names.len(), catalogue.names.len() + catalogue.later);
    }
}
