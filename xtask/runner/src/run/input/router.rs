//! The router of a checkpoint, computed in f32 as its family's own code does in f32.

use anyhow::{Context, Result, bail, ensure};
use half::bf16;
use rayon::prelude::*;
use safetensors::Dtype;

use super::{Config, Experts, FLOATS, Inputs};
use crate::run::routing::Routes;

/// What chooses the experts of a token.
#[derive(Debug)]
pub struct Router {
    /// `[experts][hidden]`.
    weight: Vec<f32>,
    hidden: usize,
    pub top_k: usize,
    family: Family,
}

/// How scores become choices and weights.
#[derive(Debug, PartialEq)]
enum Family {
    /// Qwen3-MoE, Mixtral: softmax over all experts, the best are chosen, and their weights are
    /// made to add up to 1 if `normalize`.
    Softmax { normalize: bool },
    /// DeepSeek-V3: sigmoid of each score; chosen by score plus bias, among the groups whose two
    /// best add up to most; weighed by score, normalized if `normalize`, times a factor.
    Sigmoid {
        bias: Vec<f32>,
        groups: usize,
        chosen_groups: usize,
        normalize: bool,
        factor: f32,
    },
}

impl Router {
    /// The router of a layer, if it has one.
    pub fn find(inputs: &Inputs, experts: &Experts) -> Result<Option<Router>> {
        let name = format!("{}gate.weight", experts.block);
        let Some(tensor) = inputs.tensor(&name)? else {
            return Ok(None);
        };
        let extent = [experts.count(), experts.hidden];
        let expected = format!("{extent:?} of BF16, F32 or F16");
        if tensor.matrix(&FLOATS, &expected)? != extent {
            return Err(tensor.unfit(&expected));
        }
        let config = inputs.config(&name)?.with_context(|| {
            format!(
                "{name} is a router, and there is no config.json beside it that says how it \
                 chooses: put it there, or give topk_experts and router_weights"
            )
        })?;
        config.only("hidden_act", "silu", "the layer computes silu")?;
        let top_k = config.count("num_experts_per_tok")?;
        ensure!(
            top_k <= experts.count(),
            "config.json chooses {top_k} experts of a token, and there are {}",
            experts.count()
        );
        let family = Family::find(inputs, experts, &config, top_k)?;
        let weight = tensor.f32(0, extent.iter().product())?;
        ensure!(
            weight.iter().all(|value| value.is_finite()),
            "{name} is not finite"
        );
        Ok(Some(Router {
            weight,
            hidden: experts.hidden,
            top_k,
            family,
        }))
    }

    /// The routes of tokens, numbered from `first` in errors.
    pub fn routes(&self, x: &[bf16], first: usize) -> Result<Routes> {
        let tokens = x.par_chunks(self.hidden).with_min_len(8).enumerate();
        let routes = tokens.map(|(token, x)| {
            let logits = self.logits(x);
            let finite = logits.iter().all(|logit| logit.is_finite());
            let number = first + token;
            ensure!(
                finite,
                "x is not finite in token {number}: the router can't choose its experts"
            );
            Ok(self.family.choose(&logits, self.top_k))
        });
        Ok(Routes::of_tokens(routes.collect::<Result<_>>()?))
    }

    /// Sums in f64, so that no order of summing is meant; then f32, as scores are.
    fn logits(&self, x: &[bf16]) -> Vec<f32> {
        let x: Vec<f64> = x.iter().map(|value| value.to_f64()).collect();
        let rows = self.weight.chunks_exact(self.hidden);
        rows.map(|row| {
            let products = row.iter().zip(&x).map(|(&weight, x)| f64::from(weight) * x);
            products.sum::<f64>() as f32
        })
        .collect()
    }
}

impl Family {
    fn find(inputs: &Inputs, experts: &Experts, config: &Config, top_k: usize) -> Result<Family> {
        if experts.block.ends_with("block_sparse_moe.") {
            return Ok(Family::Softmax { normalize: true });
        }
        let bias = format!("{}gate.e_score_correction_bias", experts.block);
        let Some(tensor) = inputs.tensor(&bias)? else {
            let family = config.family();
            if family != "qwen3_moe" {
                bail!(
                    "the router of a {family} model is not known here (known are qwen3_moe, mixtral, \
                     and with a tensor {bias} deepseek_v3): give topk_experts and router_weights"
                );
            }
            let normalize = config.flag("norm_topk_prob")?;
            return Ok(Family::Softmax { normalize });
        };
        let count = experts.count();
        let known = "only DeepSeek-V3's router has a bias";
        config.only("scoring_func", "sigmoid", known)?;
        config.only("topk_method", "noaux_tc", known)?;
        if tensor.shape != [count] || !FLOATS.contains(&tensor.dtype) {
            return Err(tensor.unfit(&format!("{:?} [{count}]", Dtype::F32)));
        }
        let groups = config.count("n_group")?;
        let chosen_groups = config.count("topk_group")?;
        let each = count / groups;
        ensure!(
            count.is_multiple_of(groups) && each >= 2,
            "config.json: n_group is {groups}, and {count} experts are not that many groups of two or more"
        );
        ensure!(
            chosen_groups <= groups && top_k <= chosen_groups * each,
            "config.json: topk_group is {chosen_groups} of {groups} groups of {each} experts, of which \
             {top_k} are to be chosen"
        );
        let bias = tensor.f32(0, count)?;
        ensure!(
            bias.iter().all(|value| value.is_finite()),
            "{} is not finite",
            tensor.name
        );
        Ok(Family::Sigmoid {
            bias,
            groups,
            chosen_groups,
            normalize: config.flag("norm_topk_prob")?,
            factor: config.number("routed_scaling_factor")?,
        })
    }

    fn choose(&self, logits: &[f32], top_k: usize) -> Vec<(i32, f32)> {
        let weighed = match self {
            Family::Softmax { normalize } => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let powers: Vec<f32> = logits.iter().map(|logit| (logit - most).exp()).collect();
                let sum: f32 = powers.iter().sum();
                let scores: Vec<f32> = powers.iter().map(|power| power / sum).collect();
                let mut chosen = weights(&best(&scores, top_k), &scores);
                if *normalize {
                    let sum: f32 = chosen.iter().map(|(_, weight)| weight).sum();
                    chosen.iter_mut().for_each(|(_, weight)| *weight /= sum);
                }
                chosen
            }
            Family::Sigmoid {
                bias,
                groups,
                chosen_groups,
                normalize,
                factor,
            } => {
                let scores: Vec<f32> = logits
                    .iter()
                    .map(|logit| 1.0 / (1.0 + (-logit).exp()))
                    .collect();
                let mut biased: Vec<f32> = scores
                    .iter()
                    .zip(bias)
                    .map(|(score, bias)| score + bias)
                    .collect();
                let each = biased.len() / groups;
                let of_groups: Vec<f32> = biased
                    .chunks_exact(each)
                    .map(|group| best(group, 2).iter().map(|&at| group[at]).sum())
                    .collect();
                let chosen = best(&of_groups, *chosen_groups);
                for (group, scores) in biased.chunks_exact_mut(each).enumerate() {
                    if !chosen.contains(&group) {
                        scores.fill(f32::NEG_INFINITY);
                    }
                }
                let mut chosen = weights(&best(&biased, top_k), &scores);
                if *normalize {
                    let sum: f32 = chosen.iter().map(|(_, weight)| weight).sum();
                    chosen
                        .iter_mut()
                        .for_each(|(_, weight)| *weight /= sum + 1e-20);
                }
                chosen.iter_mut().for_each(|(_, weight)| *weight *= factor);
                chosen
            }
        };
        weighed
            .into_iter()
            .map(|(expert, weight)| (expert as i32, weight))
            .collect()
    }
}

/// The places of the largest, in falling order; of equals the first.
fn best(values: &[f32], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..values.len()).collect();
    places.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    places.truncate(count);
    places
}

fn weights(chosen: &[usize], scores: &[f32]) -> Vec<(usize, f32)> {
    chosen
        .iter()
        .map(|&expert| (expert, scores[expert]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_takes_the_best_in_order() {
        let logits = [0.0, 2.0, 1.0, 2.0];
        let sum: f32 = logits.iter().map(|logit: &f32| logit.exp()).sum();
        let plain = Family::Softmax { normalize: false }.choose(&logits, 3);
        let experts: Vec<i32> = plain.iter().map(|(expert, _)| *expert).collect();
        assert_eq!(experts, [1, 3, 2]);
        assert!((plain[0].1 - 2f32.exp() / sum).abs() < 1e-6);
        let normal = Family::Softmax { normalize: true }.choose(&logits, 3);
        let total: f32 = normal.iter().map(|(_, weight)| weight).sum();
        assert!((total - 1.0).abs() < 1e-6);
        // Large scores do not overflow.
        let large = Family::Softmax { normalize: true }.choose(&[1000.0, -1000.0], 1);
        assert_eq!(large, [(0, 1.0)]);
    }

    #[test]
    fn sigmoid_chooses_by_bias_and_weighs_without() {
        let family = |bias: [f32; 6], chosen_groups| Family::Sigmoid {
            bias: bias.to_vec(),
            groups: 3,
            chosen_groups,
            normalize: false,
            factor: 2.0,
        };
        let logits = [9.0, -9.0, 1.0, 1.0, 0.0, 0.0];
        // One group: the second, though the best expert is in the first.
        let chosen = family([0.0; 6], 1).choose(&logits, 2);
        let weight = 2.0 / (1.0 + (-1f32).exp());
        assert_eq!(chosen, [(2, weight), (3, weight)]);
        // The bias moves the choice, and leaves the weight.
        let chosen = family([0.0, 0.0, 0.0, 0.0, 0.0, 3.0], 1).choose(&logits, 1);
        assert_eq!(chosen, [(5, 1.0)]);
    }
}
