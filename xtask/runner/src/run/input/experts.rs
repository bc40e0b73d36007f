//! Experts under the names that checkpoints give them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use half::bf16;

use super::{FLOATS, Inputs, Tensor};

/// How a family names the three matrices of its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    /// Qwen3-MoE, DeepSeek and their kin.
    Projections,
    /// Mixtral.
    Numbers,
}

impl Scheme {
    const ALL: [Scheme; 2] = [Scheme::Projections, Scheme::Numbers];

    /// The part of a layer that holds the experts.
    fn block(self) -> &'static str {
        match self {
            Scheme::Projections => "mlp",
            Scheme::Numbers => "block_sparse_moe",
        }
    }

    /// Gate, up, down.
    fn matrices(self) -> [&'static str; 3] {
        match self {
            Scheme::Projections => ["gate_proj", "up_proj", "down_proj"],
            Scheme::Numbers => ["w1", "w3", "w2"],
        }
    }
}

/// A layer of a checkpoint that has experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    layer: u32,
    /// In front of `layers.`.
    prefix: &'a str,
    mixtral: bool,
}

/// Where a name says that an expert is: the layer, and the expert's number.
fn place(name: &str) -> Option<(Place<'_>, usize)> {
    let parts: Vec<&str> = name.split('.').collect();
    let at = parts.iter().position(|part| *part == "layers")?;
    let [layer, block, "experts", expert, matrix, "weight"] = parts.get(at + 1..)? else {
        return None;
    };
    let scheme = Scheme::ALL
        .into_iter()
        .find(|scheme| scheme.block() == *block)?;
    scheme.matrices().contains(matrix).then_some(())?;
    let before: usize = parts[..at].iter().map(|part| part.len() + 1).sum();
    let place = Place {
        layer: layer.parse().ok()?,
        prefix: &name[..before],
        mixtral: scheme == Scheme::Numbers,
    };
    Some((place, expert.parse().ok()?))
}

/// The experts of one layer of a checkpoint.
#[derive(Debug)]
pub struct Experts {
    /// What the names of all its tensors start with, such as `model.layers.3.mlp.`.
    pub block: String,
    pub hidden: usize,
    pub intermediate: usize,
    routed: Vec<[Tensor; 3]>,
    shared: Option<[Tensor; 3]>,
}

impl Experts {
    /// Those of a layer, or of the first that has any; `None` if the inputs have none at all.
    pub fn find(inputs: &Inputs, layer: Option<u32>) -> Result<Option<Experts>> {
        let mut places: BTreeMap<Place<'_>, usize> = BTreeMap::new();
        for (place, expert) in inputs.names().filter_map(place) {
            let most = places.entry(place).or_default();
            *most = expert.max(*most);
        }
        // The model's own layers come before those of its parts.
        let rank = |place: &Place<'_>| match place.prefix {
            "model." => 0,
            "" => 1,
            _ => 2,
        };
        let wanted = places
            .iter()
            .filter(|(place, _)| layer.is_none_or(|layer| layer == place.layer))
            .min_by_key(|(place, _)| (rank(place), **place));
        let Some((place, &last)) = wanted else {
            let Some(layer) = layer else { return Ok(None) };
            let mut layers: Vec<u32> = places.keys().map(|place| place.layer).collect();
            layers.dedup();
            ensure!(
                !layers.is_empty(),
                "--layer {layer}: {} has no layer with experts: {LOOKED_FOR}",
                inputs.shown()
            );
            bail!(
                "--layer {layer} has no experts in {}: layers {layers:?} have",
                inputs.shown()
            );
        };
        Experts::load(inputs, place, last).map(Some)
    }

    fn load(inputs: &Inputs, place: &Place<'_>, last: usize) -> Result<Experts> {
        let scheme = if place.mixtral {
            Scheme::Numbers
        } else {
            Scheme::Projections
        };
        let block = format!("{}layers.{}.{}.", place.prefix, place.layer, scheme.block());
        // Whoever writes a number into a name has not allocated anything for it.
        let most = mok_kernel::route::MAX_EXPERTS as usize;
        ensure!(
            last < most,
            "{block}experts.{last} is an expert beyond the most that a layer can have, {most}"
        );
        let why = format!("layer {} has experts 0 to {last}", place.layer);
        let matrices = |stem: &str| -> Result<[Tensor; 3]> {
            let [gate, up, down] = scheme
                .matrices()
                .map(|matrix| inputs.needed(&format!("{stem}.{matrix}.weight"), &why));
            Ok([gate?, up?, down?])
        };
        let routed = (0..=last)
            .map(|expert| matrices(&format!("{block}experts.{expert}")))
            .collect::<Result<Vec<_>>>()?;
        let stem = format!("{block}shared_experts");
        let has = |stem: &str| inputs.names().any(|name| name.starts_with(stem));
        let shared = if has(&format!("{stem}.")) {
            Some(matrices(&stem)?)
        } else {
            None
        };
        // Qwen2-MoE and Qwen3-Next scale theirs by a gate of its own.
        let gated = format!("{block}shared_expert.");
        ensure!(
            !has(&gated),
            "{gated}* in {}: a shared expert with a gate of its own is not known here",
            inputs.shown()
        );
        let first = routed.first().context("a layer with experts has one")?;
        let [intermediate, hidden] = first[0].matrix(&FLOATS, EXPECTED)?;
        let check = |[gate, up, down]: &[Tensor; 3], inner: usize| -> Result<()> {
            for (tensor, extent) in [
                (gate, [inner, hidden]),
                (up, [inner, hidden]),
                (down, [hidden, inner]),
            ] {
                if tensor.matrix(&FLOATS, EXPECTED)? != extent {
                    return Err(tensor.unfit(&format!("{extent:?}, as {} asks for", first[0].name)));
                }
            }
            Ok(())
        };
        for matrices in &routed {
            check(matrices, intermediate)?;
        }
        if let Some(shared) = &shared {
            let [inner, _] = shared[0].matrix(&FLOATS, EXPECTED)?;
            check(shared, inner)?;
        }
        Ok(Experts {
            block,
            hidden,
            intermediate,
            routed,
            shared,
        })
    }

    /// How many routed experts there are.
    pub fn count(&self) -> usize {
        self.routed.len()
    }

    /// Intermediate size of the shared expert; 0 if there is none.
    pub fn shared_intermediate(&self) -> usize {
        let gate = self.shared.as_ref().map(|[gate, ..]| gate);
        gate.and_then(|gate| gate.shape.first().copied())
            .unwrap_or(0)
    }

    /// Gate, up and down of an expert; each is read whole.
    pub fn routed(&self, expert: usize) -> Result<[Vec<bf16>; 3]> {
        let matrices = self.routed.get(expert);
        read(matrices.with_context(|| format!("there is no expert {expert}"))?)
    }

    /// Those of the shared expert.
    pub fn shared(&self) -> Result<Option<[Vec<bf16>; 3]>> {
        self.shared.as_ref().map(read).transpose()
    }

    /// The types that are not bf16 in the file.
    pub fn rounded(&self) -> Option<&Tensor> {
        let all = self.routed.iter().chain(&self.shared).flatten();
        all.into_iter().find(|tensor| tensor.is_rounded())
    }
}

fn read(matrices: &[Tensor; 3]) -> Result<[Vec<bf16>; 3]> {
    let [gate, up, down] = matrices.each_ref().map(|tensor| {
        let elements = tensor.shape.iter().product();
        tensor.bf16(0, elements)
    });
    Ok([gate?, up?, down?])
}

const EXPECTED: &str = "a matrix of BF16, F32 or F16 (weights with scales are not known here)";

/// For whoever has named theirs otherwise.
pub const LOOKED_FOR: &str = "looked for are [model.]layers.N.mlp.experts.E.{gate_proj,up_proj,\
    down_proj}.weight (Qwen3-MoE, DeepSeek) and \
    [model.]layers.N.block_sparse_moe.experts.E.{w1,w3,w2}.weight (Mixtral)";
