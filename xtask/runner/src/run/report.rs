//! What a run of the layer says: one JSON object, or tables for people.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use mok::oracle::{EXACT, ROUNDED};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::problem::{Origin, Problem};
use super::rank::{Finished, LinkBytes, RankReport};
use super::shape::LayerShape;
use super::verify::Distance;
use crate::report::Check;

/// Where it ran.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Place {
    /// `cuda`, `emulator`, or `none`: host only.
    pub backend: &'static str,
    pub arch: Option<&'static str>,
    /// `threads` or `processes`.
    pub launch: &'static str,
    pub transport: &'static str,
    /// How the pass is launched: `unfused` or `fused`.
    pub path: &'static str,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    passed: bool,
    #[serde(flatten)]
    place: Place,
    dtype: &'static str,
    pass: &'static str,
    ranks: usize,
    shape: Option<Sizes>,
    seed: u64,
    origin: Option<Origin>,
    checks: Vec<Check>,
    per_rank: Vec<RankReport>,
    total: Option<Total>,
    notes: Vec<String>,
    /// Why it could not run to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Sizes {
    experts: u32,
    hidden: u32,
    intermediate: u32,
    top_k: u32,
    shared: u32,
    /// Of each rank.
    tokens: Vec<usize>,
}

/// All ranks together.
#[derive(Debug, Serialize)]
struct Total {
    tokens: usize,
    /// Routes with an expert.
    routes: u64,
    /// Tokens compared with both references.
    compared_tokens: usize,
    exact: Distance,
    rounded: Distance,
    differing_elements: usize,
    /// Floating-point operations of a pass.
    operations: f64,
    time: Option<TotalTime>,
    link_bytes: LinkBytes,
    /// SHA-256 of the SHA-256 of each token's output: the same for every number of ranks.
    out_sha256: Option<String>,
}

/// Medians of the slowest rank of each pass.
#[derive(Debug, Serialize)]
struct TotalTime {
    /// Whether it is the emulator's clock, which says nothing of a GPU.
    simulated: bool,
    passes: usize,
    schedule_ms: f32,
    forward_ms: f32,
    /// Of both together.
    pass_ms: f32,
    /// Of the forward pass, for each GPU; null where the time is simulated.
    tflops_per_gpu: Option<f64>,
}

impl Report {
    /// Of a run that came to its end. `more` are checks beside those of the outputs.
    pub fn new(
        place: Place,
        seed: u64,
        problem: &Problem,
        finished: Finished,
        more: Vec<Check>,
    ) -> Report {
        let total = Total::new(place, problem, &finished);
        let mut checks = more;
        if place.backend != "none" {
            checks.extend(total.checks(&finished.reports));
        }
        checks.extend(Check::validated());
        let LayerShape {
            experts,
            hidden,
            intermediate,
            top_k,
            shared,
            ..
        } = problem.shape;
        Report {
            passed: !checks.is_empty() && checks.iter().all(Check::passed),
            shape: Some(Sizes {
                experts,
                hidden,
                intermediate,
                top_k,
                shared,
                tokens: problem.tokens.clone(),
            }),
            origin: Some(problem.origin.clone()),
            checks,
            per_rank: finished.reports,
            total: Some(total),
            notes: problem.notes.clone(),
            ..Report::empty(place, problem.tokens.len(), seed)
        }
    }

    fn empty(place: Place, ranks: usize, seed: u64) -> Report {
        Report {
            schema: "mok-run/1",
            passed: false,
            place,
            dtype: "bf16",
            pass: "forward",
            ranks,
            shape: None,
            seed,
            origin: None,
            checks: Vec::new(),
            per_rank: Vec::new(),
            total: None,
            notes: Vec::new(),
            error: None,
        }
    }

    /// Of a run that could not run to its end.
    pub fn failed(place: Place, ranks: usize, seed: u64, error: &anyhow::Error) -> Report {
        Report {
            error: Some(format!("{error:#}")),
            ..Report::empty(place, ranks, seed)
        }
    }

    /// Whether everything passed.
    pub fn passed(&self) -> bool {
        self.passed
    }

    /// SHA-256 of the outputs.
    pub fn out_sha256(&self) -> Option<&str> {
        self.total.as_ref()?.out_sha256.as_deref()
    }

    /// One line of JSON, or tables, on standard output.
    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string(self)?);
        } else {
            println!("{}", self.tables());
        }
        Ok(())
    }

    fn tables(&self) -> String {
        let mut parts = Vec::new();
        if let Some(shape) = &self.shape {
            let shared = match shape.shared {
                0 => String::new(),
                shared => format!(", a shared expert of {shared}"),
            };
            parts.push(format!(
                "{} experts of {} over hidden size {}, {} for each token{shared}",
                shape.experts, shape.intermediate, shape.hidden, shape.top_k
            ));
        }
        if let Some(origin) = &self.origin {
            parts.push(format!(
                "x: {}; routing: {}; weights: {}",
                origin.x, origin.routing, origin.weights
            ));
        }
        parts.extend(self.notes.iter().map(|note| format!("note: {note}")));
        let mut checks = table(["check", "value", "limit", ""]);
        for check in &self.checks {
            checks.add_row(check.row());
        }
        parts.push(format!("\n{checks}\n"));
        parts.push(self.ranks_table().to_string());
        parts.push(String::new());
        parts.extend(self.total.as_ref().map(|total| total.told(self.ranks)));
        let arch = self
            .place
            .arch
            .map_or(String::new(), |arch| format!(", {arch}"));
        parts.push(format!(
            "backend: {}{arch}; {} ranks as {}, transport {}, {}",
            self.place.backend,
            self.ranks,
            self.place.launch,
            self.place.transport,
            self.place.path
        ));
        let failed = self.checks.iter().filter(|check| !check.passed()).count();
        parts.push(format!(
            "{} passed, {failed} failed",
            self.checks.len() - failed
        ));
        parts.join("\n")
    }

    fn ranks_table(&self) -> Table {
        let simulated = self.total.as_ref().and_then(|total| total.time.as_ref());
        let ms = match simulated {
            Some(time) if time.simulated => "simulated ms",
            _ => "forward ms",
        };
        let mut ranks = table([
            "rank", "tokens", "experts", "rows", "compared", "exact", "rounded", ms, "links in",
        ]);
        for column in 0..9 {
            if let Some(column) = ranks.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let most = 16;
        for rank in self.per_rank.iter().take(most) {
            let verdict = rank.verdict.as_ref();
            let off = |of: Option<&Distance>| {
                let whole = of.and_then(|distance| distance.whole);
                whole.map_or("-".into(), |whole| format!("{whole:.1e}"))
            };
            let links = rank.link_bytes;
            let time = rank.time.as_ref().map(|times| median(&times.forward_ms));
            ranks.add_row([
                rank.rank.to_string(),
                rank.tokens.to_string(),
                format!("{}..{}", rank.experts[0], rank.experts[1]),
                rank.rows.to_string(),
                verdict.map_or("-".into(), |verdict| verdict.compared.to_string()),
                off(verdict.map(|verdict| &verdict.exact)),
                off(verdict.map(|verdict| &verdict.rounded)),
                time.map_or("-".into(), |time| format!("{time:.3}")),
                size(links.routes + links.dispatch + links.combine),
            ]);
        }
        if self.per_rank.len() > most {
            ranks.add_row(["...".to_owned()]);
        }
        ranks
    }
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table
}

/// Bytes in words.
fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        bytes if bytes < 1e3 => format!("{bytes} B"),
        bytes if bytes < 1e6 => format!("{:.1} kB", bytes / 1e3),
        bytes if bytes < 1e9 => format!("{:.1} MB", bytes / 1e6),
        bytes => format!("{:.2} GB", bytes / 1e9),
    }
}

/// The middle of some times; 0 where there is none.
fn median(times: &[f32]) -> f32 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f32::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

impl Total {
    fn new(place: Place, problem: &Problem, finished: &Finished) -> Total {
        let reports = &finished.reports;
        let routes = reports.iter().map(|report| report.rows).sum();
        let tokens = problem.tokens.iter().sum();
        let verdicts = || reports.iter().filter_map(|report| report.verdict.as_ref());
        let operations = problem.shape.operations(routes, tokens as u64);
        let mut links = LinkBytes::default();
        for report in reports {
            links.routes += report.link_bytes.routes;
            links.dispatch += report.link_bytes.dispatch;
            links.combine += report.link_bytes.combine;
        }
        let exact = verdicts().map(|verdict| &verdict.exact);
        let rounded = verdicts().map(|verdict| &verdict.rounded);
        Total {
            tokens,
            routes,
            compared_tokens: verdicts().map(|verdict| verdict.compared).sum(),
            exact: exact.fold(Distance::none(), |all, own| all.and(own)),
            rounded: rounded.fold(Distance::none(), |all, own| all.and(own)),
            differing_elements: reports.iter().map(|report| report.differing_elements).sum(),
            operations,
            time: TotalTime::new(place.backend == "emulator", reports, operations),
            link_bytes: links,
            out_sha256: (place.backend != "none").then(|| {
                let hash = Sha256::digest(&finished.digests);
                hash.iter().map(|byte| format!("{byte:02x}")).collect()
            }),
        }
    }

    fn checks(&self, reports: &[RankReport]) -> Vec<Check> {
        let verdicts = || reports.iter().filter_map(|report| report.verdict.as_ref());
        let mut checks = vec![
            Check::none(
                "out.non_finite",
                verdicts().map(|verdict| verdict.non_finite).sum(),
            ),
            Check::none("out.differs_between_passes", self.differing_elements),
        ];
        let lost = verdicts().map(|verdict| verdict.poison_lost).sum();
        if verdicts().any(|verdict| verdict.poisoned > 0) {
            checks.push(Check::none("out.nan_lost", lost));
        }
        for (name, distance, limits) in [
            ("out.exact", &self.exact, EXACT),
            ("out.rounded", &self.rounded, ROUNDED),
        ] {
            let whole = distance.whole.unwrap_or(f64::INFINITY);
            let row = distance.row.unwrap_or(f64::INFINITY);
            checks.push(Check::at_most(format!("{name}.whole"), whole, limits.whole));
            checks.push(Check::at_most(format!("{name}.row"), row, limits.row));
        }
        checks
    }

    fn told(&self, ranks: usize) -> String {
        let mut lines = vec![format!(
            "{} tokens, {} routes, {:.3} GFLOP a pass; compared: {} tokens",
            self.tokens,
            self.routes,
            self.operations / 1e9,
            self.compared_tokens
        )];
        let links = self.link_bytes;
        if ranks > 1 {
            lines.push(format!(
                "over links in a pass: {} of choices, {} to experts, {} back",
                size(links.routes),
                size(links.dispatch),
                size(links.combine)
            ));
        }
        if let Some(time) = &self.time {
            let (schedule, forward) = (time.schedule_ms, time.forward_ms);
            let medians = format!("schedule {schedule:.3} ms, forward {forward:.3} ms");
            lines.push(match time.tflops_per_gpu {
                Some(tflops) => format!(
                    "{medians} (median of {} passes, the slowest rank); forward {tflops:.0} TFLOP/s a GPU",
                    time.passes
                ),
                None => format!("{medians} on the emulator's clock, which says nothing of a GPU"),
            });
        }
        if let Some(hash) = &self.out_sha256 {
            lines.push(format!("out: {hash}"));
        }
        lines.join("\n")
    }
}

impl TotalTime {
    fn new(simulated: bool, reports: &[RankReport], operations: f64) -> Option<TotalTime> {
        let times: Vec<_> = reports
            .iter()
            .filter_map(|report| report.time.as_ref())
            .collect();
        let passes = times.first()?.forward_ms.len();
        let slowest = |of: &dyn Fn(usize, usize) -> f32| -> f32 {
            let slowest = (0..passes).map(|pass| {
                let ranks = (0..times.len()).map(|rank| of(rank, pass));
                ranks.fold(0.0, f32::max)
            });
            median(&slowest.collect::<Vec<_>>())
        };
        let schedule = |rank: usize, pass: usize| times[rank].schedule_ms[pass];
        let forward = |rank: usize, pass: usize| times[rank].forward_ms[pass];
        let forward_ms = slowest(&forward);
        let tflops = operations / times.len() as f64 / f64::from(forward_ms) / 1e9;
        Some(TotalTime {
            simulated,
            passes,
            schedule_ms: slowest(&schedule),
            forward_ms,
            pass_ms: slowest(&|rank, pass| schedule(rank, pass) + forward(rank, pass)),
            tflops_per_gpu: (!simulated && tflops.is_finite()).then_some(tflops),
        })
    }
}
