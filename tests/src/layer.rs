//! A layer's data on all ranks, and its run on any devices.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use mok::layer::{Group, MoeConfig, Transport};
use mok::oracle::{Comparison, EXACT, Expert, Layer, Limits, ROUNDED, Tokens};
use mok::{Device, Result, fill};
use mok_kernel::route::first_expert;

use crate::rank::{Rank, on_ranks};

/// How tokens choose experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// Different experts, all alike.
    Uniform,
    /// Low numbers far more often.
    Zipf,
    /// One for everything.
    OneExpert,
    /// Uniform, with repeats and with -1.
    Loose,
    /// None at all.
    Nobody,
}

/// What all ranks compute together.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The layer.
    pub config: MoeConfig,
    /// Tokens of each rank.
    pub tokens: Vec<usize>,
    /// The choice of experts of each token, all ranks' after each other.
    pub topk_experts: Vec<i32>,
    /// As many weights.
    pub router_weights: Vec<f32>,
    /// All tokens.
    pub x: Vec<bf16>,
    /// All routed experts: gate, up, down.
    pub routed: [Vec<bf16>; 3],
    /// The shared expert's, if the layer has one.
    pub shared: [Vec<bf16>; 3],
}

impl Problem {
    /// Random data for a layer.
    pub fn new(config: MoeConfig, tokens: &[usize], routing: Routing, seed: u64) -> Problem {
        let count: usize = tokens.iter().sum();
        let (hidden, inner) = (config.hidden as usize, config.intermediate as usize);
        let (experts, top_k) = (config.experts as usize, config.top_k as usize);
        let shared = config.shared_intermediate as usize;
        let seed = 1000 * seed;
        let deviation = |columns: usize| 1.0 / (columns.max(1) as f32).sqrt();
        let matrices = |seed, count: usize, inner: usize| {
            [(1, hidden), (2, hidden), (3, inner)].map(|(which, columns)| {
                fill::normal(seed + which, count * inner * hidden, deviation(columns))
            })
        };
        let bits = |index: usize| fill::hash(seed + 9, index as u64);
        let routes = (0..count * top_k).map(|index| {
            let (token, k) = (index / top_k, index % top_k);
            let any = bits(index) as usize % experts;
            match routing {
                // A walk with a step that no multiple of the experts divides visits each once.
                Routing::Uniform => ((bits(token) as usize + k) % experts) as i32,
                Routing::Zipf => (any * any / experts * any / experts) as i32,
                Routing::OneExpert => (experts / 2) as i32,
                Routing::Loose => any as i32 - i32::from(bits(index) >> 60 < 4) * (any as i32 + 1),
                Routing::Nobody => -1,
            }
        });
        Problem {
            config,
            tokens: tokens.to_vec(),
            topk_experts: routes.collect(),
            // Positive, as routers give them: weights that cancel would magnify every rounding.
            router_weights: fill::normal::<f32>(seed + 5, count * top_k, 0.2)
                .into_iter()
                .map(|weight| weight.abs() + 0.05)
                .collect(),
            x: fill::normal(seed + 6, count * hidden, 1.0),
            routed: matrices(seed + 10, experts, inner),
            shared: matrices(seed + 20, 1, shared),
        }
    }

    /// The same tokens on other ranks.
    pub fn split(&self, tokens: &[usize]) -> Problem {
        assert_eq!(
            tokens.iter().sum::<usize>(),
            self.tokens.iter().sum::<usize>()
        );
        Problem {
            tokens: tokens.to_vec(),
            ..self.clone()
        }
    }

    /// The same tokens on so many ranks, each all of them.
    pub fn repeated(&self, ranks: usize) -> Problem {
        Problem {
            tokens: self.tokens.repeat(ranks),
            topk_experts: self.topk_experts.repeat(ranks),
            router_weights: self.router_weights.repeat(ranks),
            x: self.x.repeat(ranks),
            ..self.clone()
        }
    }

    /// With room for all its tokens on one rank.
    pub fn alone(mut self) -> Problem {
        self.config.max_tokens = self.tokens.iter().sum::<usize>() as u32;
        self
    }

    /// By another transport.
    pub fn by(mut self, transport: Transport) -> Problem {
        self.config.transport = transport;
        self
    }

    /// Where a rank's tokens start.
    pub fn start(&self, rank: usize) -> usize {
        self.tokens[..rank].iter().sum()
    }

    /// Where a rank's part of `x` is, and where that of its routes.
    pub fn parts(&self, rank: usize) -> [Range<usize>; 2] {
        let (start, tokens) = (self.start(rank), self.tokens[rank]);
        let part = |width: u32| start * width as usize..(start + tokens) * width as usize;
        [part(self.config.hidden), part(self.config.top_k)]
    }

    /// Other tokens for the experts of seed 0.
    pub fn round(config: MoeConfig, tokens: &[usize], routing: Routing, seed: u64) -> Problem {
        let experts = Problem::new(config, &[], Routing::Nobody, 0);
        Problem {
            routed: experts.routed,
            shared: experts.shared,
            ..Problem::new(config, tokens, routing, seed)
        }
    }

    /// Runs a rank: `times` passes, of which it gives the outputs.
    pub fn run(&self, device: &Device, group: &Arc<Group>, times: usize) -> Result<Vec<Vec<bf16>>> {
        let mut rank = Rank::new(self, device, group)?;
        let outputs = (0..times).map(|_| rank.output()).collect::<Result<_>>()?;
        self.check_rows(group.rank(), &rank.schedule.to_rows()?, group.world_size());
        // Nobody's region goes while a peer may still use it.
        group.barrier()?;
        Ok(outputs)
    }

    /// The schedule's rows are the contract's: by expert, then (token, rank, k).
    fn check_rows(&self, rank: usize, rows: &[Option<(u32, u32, u32)>], ranks: usize) {
        let config = &self.config;
        let first = |rank: usize| first_expert(rank as u32, config.experts, ranks as u32) as i32;
        let top_k = config.top_k as usize;
        let mut expected: Vec<Option<(u32, u32, u32)>> = Vec::new();
        for expert in first(rank)..first(rank + 1) {
            let most = self.tokens.iter().copied().max().unwrap_or(0);
            for token in 0..most {
                for source in 0..ranks {
                    for k in 0..top_k {
                        let route = (self.start(source) + token) * top_k + k;
                        if token < self.tokens[source] && self.topk_experts[route] == expert {
                            expected.push(Some((source as u32, token as u32, k as u32)));
                        }
                    }
                }
            }
            expected.resize(expected.len().next_multiple_of(128), None);
        }
        assert_eq!(rows, expected, "rank {rank} of {ranks}");
    }

    /// All ranks on threads of their own: each one's outputs.
    pub fn run_all(&self, devices: &[Device], times: usize) -> Vec<Result<Vec<Vec<bf16>>>> {
        on_ranks(devices.iter().cloned(), |device, group| {
            self.run(&device, &group, times)
        })
    }

    /// The outputs of all tokens; every pass must give the same bits.
    pub fn outputs(&self, devices: &[Device], times: usize) -> Vec<bf16> {
        let mut all = Vec::new();
        let results = self.run_all(devices, times);
        let errors = results.iter().enumerate();
        let errors: Vec<String> = errors
            .filter_map(|(rank, result)| Some(format!("rank {rank}: {}", result.as_ref().err()?)))
            .collect();
        assert!(
            errors.is_empty(),
            "{}\n{:?}",
            errors.join("\n"),
            self.config
        );
        for (rank, passes) in results.into_iter().flatten().enumerate() {
            for pass in &passes {
                assert!(pass == &passes[0], "rank {rank}: passes differ");
            }
            all.extend_from_slice(&passes[0]);
        }
        all
    }

    /// Compares all outputs with three references: without rounding, rounded, and rounded to either
    /// side; and the second of them with the first.
    fn compare(&self, outputs: &[bf16]) -> [Comparison; 4] {
        let rows: &[usize] = &(0..self.tokens.iter().sum()).collect::<Vec<_>>();
        let matrix = (self.config.hidden * self.config.intermediate) as usize;
        let of = |index: usize| {
            let [gate, up, down] =
                [0, 1, 2].map(|which| &self.routed[which][index * matrix..][..matrix]);
            Expert { gate, up, down }
        };
        let experts = (0..self.config.experts as usize).map(of).collect();
        let shared = (self.config.shared_intermediate != 0).then(|| Expert {
            gate: &self.shared[0],
            up: &self.shared[1],
            down: &self.shared[2],
        });
        let mut layer = Layer::new(self.config.hidden as usize, experts, shared).expect("a layer");
        if let Some(limit) = self.config.swiglu_limit {
            layer = layer.with_swiglu_limit(limit);
        }
        let tokens = Tokens {
            x: &self.x,
            topk_experts: &self.topk_experts,
            router_weights: &self.router_weights,
        };
        let exact = layer.exact(&tokens, rows).expect("sizes that fit");
        let rounded = layer.rounded(&tokens, rows).expect("sizes that fit");
        let either = layer.rounded_to_either_side(&tokens, rows);
        let either = either.expect("sizes that fit");
        let values: Vec<f64> = rounded.iter().flat_map(|(_, row)| row.to_vec()).collect();
        let least = exact.compare(&values).expect("sizes that fit");
        let [exact, rounded, either] = [exact, rounded, either]
            .map(|reference| reference.compare(outputs).expect("sizes that fit"));
        [exact, rounded, either, least]
    }

    /// Fails unless all outputs are within the contract's accuracy.
    pub fn check(&self, outputs: &[bf16]) {
        let [exact, rounded, ..] = self.compare(outputs);
        assert!(
            exact.passes(EXACT) && rounded.passes(ROUNDED),
            "unrounded: {exact:?}\nrounded: {rounded:?}\n{:?}",
            self.config
        );
    }

    /// The same of any small layer, where one rounding can be more of a row than the contract allows:
    /// sums may be rounded to either side where f32 can't tell, and from unrounded ones the outputs
    /// may be half as far again as the contract's own rounding points are.
    pub fn check_but_for_ties(&self, outputs: &[bf16]) {
        let [exact, _, either, least] = self.compare(outputs);
        let from_exact = Limits {
            whole: EXACT.whole.max(1.5 * least.whole),
            row: EXACT.row.max(1.5 * least.row_error()),
        };
        assert!(
            exact.passes(from_exact) && either.passes(ROUNDED),
            "unrounded: {exact:?}\neither side: {either:?}\nthe rounding points: {least:?}\n{:?}",
            self.config
        );
    }
}
