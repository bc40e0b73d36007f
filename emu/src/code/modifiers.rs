//! The dotted parts of an instruction's name.

use super::{Number, Order, Scope};
use crate::ptx::ast::Space;

/// The parts, taken one by one; what is left at the end is unknown.
pub(super) struct Modifiers<'a> {
    parts: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    /// The parts behind the first.
    pub fn new(opcode: &'a str) -> Modifiers<'a> {
        Modifiers {
            parts: opcode.split('.').skip(1).collect(),
        }
    }

    /// Takes a part if it is there.
    pub fn take(&mut self, name: &str) -> bool {
        let at = self.parts.iter().position(|part| *part == name);
        at.inspect(|&at| {
            self.parts.remove(at);
        })
        .is_some()
    }

    /// Takes the first part that means something.
    pub fn find<T>(&mut self, meaning: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, value) = self
            .parts
            .iter()
            .enumerate()
            .find_map(|(at, part)| Some((at, meaning(part)?)))?;
        self.parts.remove(at);
        Some(value)
    }

    /// Drops parts that change nothing here: cache hints.
    pub fn drop_hints(&mut self) {
        self.parts.retain(|part| {
            !(part.starts_with("L1::")
                || part.starts_with("L2::")
                || matches!(*part, "nc" | "ca" | "cg" | "cs" | "cv" | "lu" | "wb" | "wt"))
        });
    }

    /// Whether a cache policy operand follows.
    pub fn take_cache_policy(&mut self) -> bool {
        self.take("L2::cache_hint")
    }

    /// The state space; generic if none is named.
    pub fn space(&mut self) -> Space {
        self.find(|part| {
            Some(match part {
                "global" => Space::Global,
                "const" => Space::Const,
                "shared" | "shared::cta" => Space::Shared,
                "shared::cluster" => Space::SharedCluster,
                "local" => Space::Local,
                "param" | "param::entry" | "param::func" => Space::Param,
                _ => return None,
            })
        })
        .unwrap_or(Space::Generic)
    }

    /// The scope, if one is named.
    pub fn scope(&mut self) -> Option<Scope> {
        self.find(|part| {
            Some(match part {
                "cta" => Scope::Block,
                "cluster" => Scope::Cluster,
                "gpu" => Scope::Gpu,
                "sys" => Scope::System,
                _ => return None,
            })
        })
    }

    /// Order and scope of a memory access.
    pub fn order(&mut self, default: Scope) -> Order {
        let mut order = Order {
            scope: default,
            ..Order::default()
        };
        if self.take("weak") {
            return order;
        }
        if self.take("volatile") || self.take("mmio") {
            order.strong = true;
            order.scope = Scope::System;
            self.take("relaxed");
        }
        if self.take("relaxed") {
            order.strong = true;
        }
        if self.take("acquire") {
            (order.strong, order.acquire) = (true, true);
        }
        if self.take("release") {
            (order.strong, order.release) = (true, true);
        }
        if self.take("acq_rel") || self.take("sc") {
            (order.strong, order.acquire, order.release) = (true, true, true);
        }
        if let Some(scope) = self.scope() {
            order.scope = scope;
        }
        order
    }

    /// Elements of a vector.
    pub fn vector(&mut self) -> usize {
        self.find(|part| match part {
            "v2" => Some(2),
            "v4" => Some(4),
            "v8" => Some(8),
            _ => None,
        })
        .unwrap_or(1)
    }

    /// Bytes of the element type, and whether it is signed.
    pub fn element(&mut self) -> Result<(u32, bool), String> {
        self.find(|part| {
            let bytes = crate::ptx::type_bytes(part).filter(|_| part != "pred")?;
            Some((bytes, part.starts_with('s')))
        })
        .ok_or_else(|| "no type".into())
    }

    /// Number format and bytes of an atomic's type, and how many lie in one register.
    pub fn number(&mut self) -> Result<(Number, u32, u32), String> {
        self.find(|part| {
            Some(match part {
                "u32" | "b32" => (Number::Unsigned, 4, 1),
                "s32" => (Number::Signed, 4, 1),
                "u64" | "b64" => (Number::Unsigned, 8, 1),
                "s64" => (Number::Signed, 8, 1),
                "b16" | "u16" => (Number::Unsigned, 2, 1),
                "f16" => (Number::F16, 2, 1),
                "bf16" => (Number::Bf16, 2, 1),
                "f16x2" => (Number::F16, 2, 2),
                "bf16x2" => (Number::Bf16, 2, 2),
                "f32" => (Number::F32, 4, 1),
                "f64" => (Number::F64, 8, 1),
                "b128" => (Number::Unsigned, 16, 1),
                _ => return None,
            })
        })
        .ok_or_else(|| "no type".into())
    }

    /// An error if parts are left.
    pub fn done(self) -> Result<(), String> {
        match self.parts.first() {
            None => Ok(()),
            Some(part) => Err(format!("unknown modifier `.{part}`")),
        }
    }
}
