//! What a run computes: every rank's tokens, routes and weights, from files or made up.

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use half::bf16;
use mok::fill;
use mok_kernel::route::first_expert;
use rayon::prelude::*;

use super::Args;
use super::input::{Experts, FLOATS, INTEGERS, Inputs, LOOKED_FOR, Router, Tensor};
use super::routing::{self, Routes, Routing};
use super::shape::LayerShape;

/// A layer and all ranks' tokens. Parts of it are made or read when they are asked for.
#[derive(Debug)]
pub struct Problem {
    /// Sizes of the layer.
    pub shape: LayerShape,
    /// Tokens of each rank.
    pub tokens: Vec<usize>,
    /// What people should know of it.
    pub notes: Vec<String>,
    /// Where tokens, routes and weights come from.
    pub origin: Origin,
    x: Option<Tensor>,
    routes: RouteSource,
    experts: Option<Experts>,
    /// Clamps the activation's inputs.
    pub swiglu_limit: Option<f32>,
    seed: u64,
}

/// Where things come from, for the report.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Origin {
    pub x: String,
    pub routing: String,
    pub weights: String,
}

#[derive(Debug)]
enum RouteSource {
    MadeUp(Routing),
    Given { experts: Tensor, weights: Tensor },
    Router(Router),
}

/// What a rank computes with.
#[derive(Debug)]
pub struct RankData {
    /// `[tokens][hidden]`.
    pub x: Vec<bf16>,
    /// `[tokens][top_k]`.
    pub routes: Routes,
}

/// Gate, up and down of an expert.
pub type Matrices = [Vec<bf16>; 3];

impl Problem {
    /// What the command line asks for; `default` is the layer where it does not say.
    pub fn new(args: &Args, ranks: usize, default: LayerShape) -> Result<Problem> {
        let inputs = Inputs::open(&args.input)?;
        let experts = Experts::find(&inputs, args.layer)?;
        let mut notes = Vec::new();
        let mut shape = match &experts {
            Some(experts) => of_experts(args, experts, &mut notes)?,
            None if inputs.is_empty() => args.shape.unwrap_or(default),
            None => args.shape.with_context(|| {
                format!(
                    "{} has no expert weights ({LOOKED_FOR}); with --shape they are made up",
                    inputs.shown()
                )
            })?,
        };
        if let (None, Some(shared)) = (&experts, args.shared) {
            shape.shared = shared;
        }
        let x = x_of(&inputs, &shape)?;
        let tokens = split(args, x.as_ref(), &shape, ranks, &inputs)?;
        let total: usize = tokens.iter().sum();
        let routes = RouteSource::find(args, &inputs, experts.as_ref(), total)?;
        match &routes {
            RouteSource::Given { experts, .. } => shape.top_k = columns(experts)?,
            RouteSource::Router(router) => shape.top_k = to_u32("top_k", router.top_k)?,
            RouteSource::MadeUp(_) if experts.is_some() && args.shape.is_none() => bail!(
                "--routing needs the number of experts of a token: give --shape E,H,I,K,T too"
            ),
            RouteSource::MadeUp(_) => {}
        }
        if let Some(x) = x.as_ref().filter(|x| x.is_rounded()) {
            notes.push(format!("x is {:?}, and rounded to bf16", x.dtype));
        }
        let most = tokens.iter().copied().max().unwrap_or(0);
        shape.config(most).check(ranks)?;
        let random = format!("random, seed {}", args.seed);
        let origin = Origin {
            x: x.as_ref().map_or(random.clone(), |_| "file".into()),
            routing: routes.name(args.seed),
            weights: match &experts {
                Some(experts) => format!("{}experts", experts.block),
                None => random,
            },
        };
        Ok(Problem {
            shape,
            tokens,
            notes,
            origin,
            x,
            routes,
            experts,
            swiglu_limit: args.swiglu_limit,
            seed: args.seed,
        })
    }

    /// A rank's tokens, by their numbers in the job.
    pub fn range(&self, rank: usize) -> Range<usize> {
        let start = self.tokens.iter().take(rank).sum();
        start..start + self.tokens.get(rank).copied().unwrap_or(0)
    }

    /// A rank's experts.
    pub fn local_experts(&self, rank: usize) -> Range<usize> {
        let (experts, ranks) = (self.shape.experts, self.tokens.len() as u32);
        let first = |rank: usize| first_expert(rank as u32, experts, ranks) as usize;
        first(rank)..first(rank + 1)
    }

    /// A rank's tokens and routes.
    pub fn rank_data(&self, rank: usize) -> Result<RankData> {
        let range = self.range(rank);
        let hidden = self.shape.hidden as usize;
        let x = match &self.x {
            Some(x) => x.bf16(range.start * hidden, range.len() * hidden)?,
            None => {
                // Each token by its own number, so that it is the same on whichever rank.
                let seed = self.seed_of(0);
                let of_token = |token| fill::normal(fill::hash(seed, token as u64), hidden, 1.0);
                let tokens: Vec<Vec<bf16>> = range.clone().into_par_iter().map(of_token).collect();
                tokens.concat()
            }
        };
        let routes = match &self.routes {
            RouteSource::MadeUp(routing) => {
                routing::made_up(*routing, self.seed_of(1), &self.shape, range)
            }
            RouteSource::Router(router) => router.routes(&x, range.start)?,
            RouteSource::Given { experts, weights } => {
                given(experts, weights, self.shape.experts, range)?
            }
        };
        Ok(RankData { x, routes })
    }

    /// A routed expert.
    pub fn routed(&self, expert: usize) -> Result<Matrices> {
        match &self.experts {
            Some(experts) => experts.routed(expert),
            None => Ok(self.random(expert as u64, self.shape.intermediate)),
        }
    }

    /// The shared expert, if the layer has one.
    pub fn shared(&self) -> Result<Option<Matrices>> {
        if self.shape.shared == 0 {
            return Ok(None);
        }
        match &self.experts {
            Some(experts) => experts.shared(),
            None => Ok(Some(self.random(u64::MAX, self.shape.shared))),
        }
    }

    fn seed_of(&self, what: u64) -> u64 {
        fill::hash(self.seed, what)
    }

    fn random(&self, expert: u64, inner: u32) -> Matrices {
        let (hidden, inner) = (self.shape.hidden as usize, inner as usize);
        let seed = fill::hash(self.seed_of(2), expert);
        [(0, hidden), (1, hidden), (2, inner)].map(|(which, columns)| {
            let deviation = 1.0 / (columns.max(1) as f32).sqrt();
            fill::normal(fill::hash(seed, which), hidden * inner, deviation)
        })
    }
}

impl RouteSource {
    fn find(
        args: &Args,
        inputs: &Inputs,
        experts: Option<&Experts>,
        tokens: usize,
    ) -> Result<RouteSource> {
        match args.routing {
            Some(routing) if routing != Routing::File => return Ok(RouteSource::MadeUp(routing)),
            None if inputs.is_empty() => return Ok(RouteSource::MadeUp(Routing::Uniform)),
            _ => {}
        }
        ensure!(!inputs.is_empty(), "--routing file needs --input");
        let chosen = inputs.tensor("topk_experts")?;
        let weights = inputs.tensor("router_weights")?;
        match (chosen, weights) {
            (Some(experts), Some(weights)) => {
                let expected = format!("[{tokens}, K] of I32 or I64, a row for each token");
                let extent = experts.matrix(&INTEGERS, &expected)?;
                if extent[0] != tokens {
                    return Err(experts.unfit(&expected));
                }
                let expected = format!("{extent:?} of F32, BF16 or F16, as topk_experts is");
                if weights.matrix(&FLOATS, &expected)? != extent {
                    return Err(weights.unfit(&expected));
                }
                Ok(RouteSource::Given { experts, weights })
            }
            (Some(there), None) | (None, Some(there)) => bail!(
                "{} is in {}, and its companion is not: topk_experts and router_weights come together",
                there.name,
                inputs.shown()
            ),
            (None, None) => {
                if let Some(experts) = experts
                    && let Some(router) = Router::find(inputs, experts)?
                {
                    return Ok(RouteSource::Router(router));
                }
                bail!(
                    "{} has neither topk_experts and router_weights nor a router ({}): choose with \
                     --routing uniform, zipf or one-expert",
                    inputs.shown(),
                    experts.map_or("of a checkpoint".into(), |e| format!(
                        "{}gate.weight",
                        e.block
                    ))
                )
            }
        }
    }

    fn name(&self, seed: u64) -> String {
        match self {
            RouteSource::MadeUp(Routing::Zipf) => format!("zipf, seed {seed}"),
            RouteSource::MadeUp(Routing::OneExpert) => "one expert".into(),
            RouteSource::MadeUp(_) => format!("uniform, seed {seed}"),
            RouteSource::Given { .. } => "file".into(),
            RouteSource::Router(_) => "the checkpoint's router".into(),
        }
    }
}

/// The sizes of a checkpoint's layer, which the command line may not contradict.
fn of_experts(args: &Args, experts: &Experts, notes: &mut Vec<String>) -> Result<LayerShape> {
    let own = LayerShape {
        experts: to_u32("experts", experts.count())?,
        hidden: to_u32("hidden", experts.hidden)?,
        intermediate: to_u32("intermediate", experts.intermediate)?,
        shared: match args.shared {
            Some(0) => 0,
            _ => to_u32("shared_intermediate", experts.shared_intermediate())?,
        },
        top_k: args.shape.map_or(1, |shape| shape.top_k),
        tokens: args.shape.map_or(0, |shape| shape.tokens),
    };
    if let Some(shape) = args.shape {
        for (what, there, asked) in [
            ("experts", own.experts, shape.experts),
            ("hidden size", own.hidden, shape.hidden),
            ("intermediate size", own.intermediate, shape.intermediate),
        ] {
            ensure!(
                there == asked,
                "--shape has {what} {asked}, and the experts of {}experts have {there}",
                experts.block
            );
        }
    }
    if let Some(shared) = args.shared.filter(|&shared| shared != 0) {
        ensure!(
            shared == own.shared,
            "--shared is {shared}, and the shared expert of {} has {}: leave it out, or give 0 for none",
            experts.block,
            own.shared
        );
    }
    if let Some(tensor) = experts.rounded() {
        notes.push(format!(
            "weights are {:?} ({}), and rounded to bf16",
            tensor.dtype, tensor.name
        ));
    }
    Ok(own)
}

/// The inputs' tokens.
fn x_of(inputs: &Inputs, shape: &LayerShape) -> Result<Option<Tensor>> {
    let Some(x) = inputs.tensor("x")? else {
        return Ok(None);
    };
    let expected = format!("[T, {}] of BF16, F32 or F16", shape.hidden);
    let [_, hidden] = x.matrix(&FLOATS, &expected)?;
    match hidden == shape.hidden as usize {
        true => Ok(Some(x)),
        false => Err(x.unfit(&expected)),
    }
}

/// Tokens of each rank.
fn split(
    args: &Args,
    x: Option<&Tensor>,
    shape: &LayerShape,
    ranks: usize,
    inputs: &Inputs,
) -> Result<Vec<usize>> {
    let there = x.and_then(|x| x.shape.first().copied());
    let given = args.tokens.as_deref();
    if let Some(tokens) = given {
        ensure!(
            tokens.len() == ranks,
            "--tokens has {} numbers for {ranks} ranks",
            tokens.len()
        );
        let tokens: Vec<usize> = tokens.iter().map(|&tokens| tokens as usize).collect();
        let total: usize = tokens.iter().sum();
        if let Some(there) = there {
            ensure!(
                total == there,
                "--tokens adds up to {total}, and x has {there} tokens"
            );
        }
        return Ok(tokens);
    }
    match there {
        Some(total) => Ok((0..ranks)
            .map(|rank| total / ranks + usize::from(rank < total % ranks))
            .collect()),
        None if inputs.is_empty() || args.shape.is_some() => Ok(vec![shape.tokens as usize; ranks]),
        None => bail!(
            "{} has no x: add a file that has one to --input, or say with --tokens how many are to \
             be made up",
            inputs.shown()
        ),
    }
}

fn columns(tensor: &Tensor) -> Result<u32> {
    to_u32("top_k", tensor.shape.get(1).copied().unwrap_or(0))
}

fn to_u32(what: &str, value: usize) -> Result<u32> {
    u32::try_from(value).with_context(|| format!("{what} is {value}, which is too many"))
}

/// The routes of a file, checked here so that the error names the file's token.
fn given(experts: &Tensor, weights: &Tensor, count: u32, range: Range<usize>) -> Result<Routes> {
    let top_k = columns(experts)? as usize;
    let (from, elements) = (range.start * top_k, range.len() * top_k);
    let chosen = experts.i64(from, elements)?;
    let checked = chosen.into_iter().enumerate().map(|(at, expert)| {
        let (token, k) = ((from + at) / top_k, (from + at) % top_k);
        let fits = (-1..i64::from(count)).contains(&expert);
        ensure!(
            fits,
            "{}[{token}, {k}] is {expert}, not -1 (none) to {}",
            experts.name,
            i64::from(count) - 1
        );
        Ok(expert as i32)
    });
    Ok(Routes {
        experts: checked.collect::<Result<_>>()?,
        weights: weights.f32(from, elements)?,
    })
}
