//! Labels, which belong to the braces around them, and what jumps to them.

use std::collections::HashMap;

use super::{Decoder, LoadError};
use crate::code::Op;

/// An instruction whose target is known only at the end.
pub(super) struct Jump {
    from: usize,
    /// Which of its targets.
    position: usize,
    scope: usize,
    label: String,
    line: u32,
}

impl Decoder<'_> {
    /// A label of the innermost scope.
    pub(super) fn label(&mut self, name: &str) {
        let at = self.code.len() as u32;
        self.labels.insert((self.scope(), name.to_owned()), at);
    }

    /// A label as a target of the instruction that is being decoded.
    pub(in crate::code) fn target(&mut self, position: usize, label: &str, line: u32) {
        self.jumps.push(Jump {
            from: self.code.len(),
            position,
            scope: self.scope(),
            label: label.to_owned(),
            line,
        });
    }

    /// What a name means in a scope or the next one around it, up to the function.
    fn around<'t, T>(
        &self,
        table: &'t HashMap<(usize, String), T>,
        scope: usize,
        name: &str,
    ) -> Option<&'t T> {
        let scopes = std::iter::successors(Some(scope), |&scope| self.outer[scope]);
        scopes
            .filter_map(|scope| table.get(&(scope, name.to_owned())))
            .next()
    }

    /// The labels of a table.
    pub(in crate::code) fn table(&self, name: &str) -> Option<&Vec<String>> {
        self.around(&self.tables, self.scope(), name)
    }

    /// Gives every jump its target.
    pub(super) fn resolve(&mut self) -> Result<(), LoadError> {
        for jump in std::mem::take(&mut self.jumps) {
            let Some(&to) = self.around(&self.labels, jump.scope, &jump.label) else {
                return Err(self.error(jump.line, format!("there is no label `{}`", jump.label)));
            };
            match &mut self.code[jump.from].op {
                Op::Branch(target) => *target = to,
                Op::BranchIndexed { targets, .. } => targets[jump.position] = to,
                _ => {}
            }
        }
        Ok(())
    }
}
