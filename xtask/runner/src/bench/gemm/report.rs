//! What `bench gemm` found: a file, and a table for people.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use mok::gemm::{Form, Sink};
use serde::Serialize;
use serde_json::Value;

use super::baseline::{DEEP_GEMM, SWIGLU};
use super::cases::{Case, Gemm, Product, Spread, sink_name, title};
use crate::bench::median;
use crate::machine::Machine;

/// Everything that was measured, on what.
#[derive(Serialize)]
pub struct Report {
    pub schema: &'static str,
    #[serde(flatten)]
    pub machine: Machine,
    /// SMs that this library's products used.
    pub sms: u32,
    /// Versions; null with --ours-only.
    pub baseline: Value,
    /// What was left out on purpose.
    pub without: Vec<String>,
    pub arguments: Vec<String>,
    pub results: Vec<Timing>,
}

/// One case.
#[derive(Serialize)]
pub struct Timing {
    pub case: String,
    pub gemm: Option<Gemm>,
    pub routing: Option<Spread>,
    pub groups: usize,
    pub rows: u64,
    pub largest_group: u32,
    pub n: u32,
    pub k: u32,
    /// What this machine gave in the same rounds; null with --ours-only.
    pub yardsticks: Option<Yardsticks>,
    pub forms: Vec<Contest>,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
}

/// The rates that a roofline is made of.
#[derive(Serialize)]
pub struct Yardsticks {
    /// cuBLAS, bf16, 8192^3.
    pub tflops: f64,
    /// A copy on the device, bytes read and written.
    pub copy_bytes_per_second: f64,
    pub matmul_samples_ms: Vec<Vec<f32>>,
    pub copy_samples_ms: Vec<Vec<f32>>,
}

/// One form, by all who compute it.
#[derive(Serialize)]
pub struct Contest {
    pub form: &'static str,
    pub ours: Vec<Own>,
    pub theirs: Vec<Rival>,
}

/// This library, with one sink.
#[derive(Serialize)]
pub struct Own {
    pub sink: &'static str,
    pub median_ms: f32,
    /// Real rows only.
    pub tflops: f64,
    /// What the yardsticks allow at best, and its part of our time.
    pub roofline_ms: Option<f64>,
    pub roofline: Option<f64>,
    /// How many times as fast as each of the others.
    pub ratios: BTreeMap<String, f64>,
    /// Of the activation in the same launch: how many times as fast it is as our forward product and
    /// then PyTorch's compiled SwiGLU.
    pub apart: Option<f64>,
    /// From each of the others' outputs, by norm.
    pub differences: BTreeMap<String, f64>,
    /// Milliseconds, round by round.
    pub samples_ms: Vec<Vec<f32>>,
}

/// Somebody else.
#[derive(Clone, Serialize)]
pub struct Rival {
    pub name: String,
    pub median_ms: f32,
    /// Real rows only; none of what is no product.
    pub tflops: Option<f64>,
    /// Milliseconds, round by round.
    pub samples_ms: Vec<Vec<f32>>,
}

impl Yardsticks {
    /// From samples of both.
    pub fn new(
        operations: f64,
        matmul_samples_ms: Vec<Vec<f32>>,
        bytes: f64,
        copy_samples_ms: Vec<Vec<f32>>,
    ) -> Yardsticks {
        let of = |samples: &[Vec<f32>]| f64::from(median(&samples.concat()));
        Yardsticks {
            tflops: operations / of(&matmul_samples_ms) / 1e9,
            copy_bytes_per_second: bytes / of(&copy_samples_ms) * 1e3,
            matmul_samples_ms,
            copy_samples_ms,
        }
    }

    /// The least milliseconds in which this machine could do so much.
    pub fn roofline_ms(&self, operations: f64, bytes: f64) -> f64 {
        let arithmetic = operations / self.tflops / 1e9;
        let memory = bytes / self.copy_bytes_per_second * 1e3;
        arithmetic.max(memory)
    }
}

impl Rival {
    /// From its samples.
    pub fn new(name: &str, operations: f64, samples_ms: Vec<Vec<f32>>) -> Rival {
        let median_ms = median(&samples_ms.concat());
        Rival {
            name: name.to_owned(),
            median_ms,
            tflops: (name != SWIGLU).then(|| operations / f64::from(median_ms) / 1e9),
            samples_ms,
        }
    }
}

impl Own {
    /// From the samples of both sides.
    pub fn new(
        case: &Case,
        product: Product,
        sink: Sink,
        samples_ms: Vec<Vec<f32>>,
        theirs: &[Rival],
        yardsticks: Option<&Yardsticks>,
    ) -> Own {
        let median_ms = median(&samples_ms.concat());
        let roofline_ms =
            yardsticks.map(|rates| rates.roofline_ms(case.operations(), case.bytes(product, sink)));
        let ratio = |rival: &Rival| f64::from(rival.median_ms) / f64::from(median_ms);
        let products = theirs.iter().filter(|rival| rival.name != SWIGLU);
        Own {
            sink: sink_name(sink),
            median_ms,
            tflops: case.operations() / f64::from(median_ms) / 1e9,
            roofline_ms,
            roofline: roofline_ms.map(|least| least / f64::from(median_ms)),
            ratios: products
                .map(|rival| (rival.name.clone(), ratio(rival)))
                .collect(),
            apart: None,
            differences: BTreeMap::new(),
            samples_ms,
        }
    }
}

/// Compares the fused activation with our forward product followed by PyTorch's, where both were
/// measured.
pub fn set_apart(contests: &mut [Contest]) {
    let of = |form: Product| contests.iter().position(|one| one.form == form.name());
    let forward = of(Product::Form(Form::Forward)).map(|at| &contests[at]);
    let apart = forward.and_then(|forward| {
        let swiglu = forward.theirs.iter().find(|rival| rival.name == SWIGLU)?;
        Some(forward.ours.first()?.median_ms + swiglu.median_ms)
    });
    if let (Some(apart), Some(at)) = (apart, of(Product::SwiGlu)) {
        for own in &mut contests[at].ours {
            own.apart = Some(f64::from(apart) / f64::from(own.median_ms));
        }
    }
}

/// Whether a rival's output goes where ours goes: only then does a ratio compare like with like.
fn same_sink(form: &str, sink: &str, rival: &str) -> bool {
    let theirs = match (form, rival) {
        ("wgrad", DEEP_GEMM) => sink_name(Sink::AddF32),
        _ => sink_name(Sink::Bf16),
    };
    sink == theirs
}

impl Timing {
    /// Case, product and routing in one.
    pub fn title(&self) -> String {
        title(&self.case, self.gemm, self.routing)
    }

    /// The largest difference of any two outputs.
    pub fn difference(&self) -> f64 {
        let own = self.forms.iter().flat_map(|contest| &contest.ours);
        let all = own.flat_map(|own| own.differences.values());
        all.copied().fold(0.0, f64::max)
    }
}

/// The least ratio of a case to a rival, and where it was.
#[derive(Debug, PartialEq)]
struct Least {
    ratio: f64,
    at: String,
}

impl Report {
    /// For each case and rival, in order of the cases, the least of the ratios that compare like
    /// with like; and of all cases together.
    fn least(&self) -> Vec<(String, BTreeMap<String, Least>)> {
        const ALL: &str = "all";
        let mut groups: Vec<(String, BTreeMap<String, Least>)> = Vec::new();
        for timing in &self.results {
            for group in [timing.case.as_str(), ALL] {
                if !groups.iter().any(|(name, _)| name == group) {
                    groups.push((group.to_owned(), BTreeMap::new()));
                }
            }
            for contest in &timing.forms {
                for own in &contest.ours {
                    for (rival, &ratio) in &own.ratios {
                        if !same_sink(contest.form, own.sink, rival) {
                            continue;
                        }
                        let at = format!("{} {}", timing.title(), contest.form);
                        for (name, least) in &mut groups {
                            let here = *name == timing.case || name == ALL;
                            let less = least.get(rival).is_none_or(|old| ratio < old.ratio);
                            if here && less {
                                let at = at.clone();
                                least.insert(rival.clone(), Least { ratio, at });
                            }
                        }
                    }
                }
            }
        }
        // All of them last.
        groups.sort_by_key(|(name, _)| name == ALL);
        if groups.len() == 2 {
            groups.truncate(1);
        }
        groups
    }

    /// For people.
    pub fn show(&self) {
        println!("{}\n", self.table());
        let mut bracketed = false;
        for timing in &self.results {
            for note in &timing.notes {
                println!("{}: {note}", timing.title());
            }
            for contest in &timing.forms {
                bracketed |= contest.ours.iter().any(|own| {
                    let rivals = own.ratios.keys();
                    rivals
                        .into_iter()
                        .any(|rival| !same_sink(contest.form, own.sink, rival))
                });
                for apart in contest.ours.iter().filter_map(|own| own.apart) {
                    println!(
                        "{}: swiglu is {apart:.3} times as fast as forward and then PyTorch's \
                         compiled SwiGLU",
                        timing.title()
                    );
                }
            }
        }
        if bracketed {
            println!(
                "(in brackets: their product goes elsewhere, cuBLAS's and PyTorch's to fresh bf16, \
                 DeepGEMM's wgrad is added to f32)"
            );
        }
        for left in &self.without {
            println!("left out with --without: {left}");
        }
        println!();
        for (name, least) in self.least() {
            let parts: Vec<String> = least
                .iter()
                .map(|(rival, least)| format!("{:.3} of {rival} ({})", least.ratio, least.at))
                .collect();
            if !parts.is_empty() {
                println!("{name}: least ratio {}", parts.join(", "));
            }
        }
        println!("\n{}, {} SMs", self.machine, self.sms);
        if !self.baseline.is_null() {
            println!("baseline {}", self.baseline);
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header([
            "case",
            "gemm",
            "routing",
            "form",
            "sink",
            "ms",
            "TFLOP/s",
            "x torch/cuBLAS",
            "x DeepGEMM",
            "of roofline",
            "differs",
        ]);
        for column in table.column_iter_mut().skip(5) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let none = || "-".to_owned();
        for timing in &self.results {
            for contest in &timing.forms {
                for own in &contest.ours {
                    let ratio = |deep: bool| {
                        let mut ratios = own.ratios.iter();
                        let found = ratios.find(|(rival, _)| (*rival == DEEP_GEMM) == deep);
                        found.map_or_else(none, |(rival, ratio)| {
                            match same_sink(contest.form, own.sink, rival) {
                                true => format!("{ratio:.3}"),
                                false => format!("({ratio:.3})"),
                            }
                        })
                    };
                    let deep = match self.without.iter().any(|left| left == DEEP_GEMM) {
                        true => "left out".to_owned(),
                        false => ratio(true),
                    };
                    let difference = own.differences.values().copied().reduce(f64::max);
                    table.add_row([
                        timing.case.clone(),
                        timing.gemm.map_or_else(none, |gemm| gemm.name().to_owned()),
                        timing
                            .routing
                            .map_or_else(none, |one| one.name().to_owned()),
                        contest.form.to_owned(),
                        own.sink.to_owned(),
                        format!("{:.3}", own.median_ms),
                        format!("{:.0}", own.tflops),
                        ratio(false),
                        deep,
                        own.roofline.map_or_else(none, |part| format!("{part:.2}")),
                        difference.map_or_else(none, |most| format!("{most:.0e}")),
                    ]);
                }
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::gemm::cases::Filter;

    fn rivals() -> Vec<Rival> {
        [("torch", 4.0), (DEEP_GEMM, 3.0), (SWIGLU, 1.0)]
            .map(|(name, ms)| Rival::new(name, 1e12, vec![vec![ms, 9.0], vec![0.5]]))
            .to_vec()
    }

    fn timing(case: &str, ms: f32) -> Timing {
        let own = Filter::default().custom(1, 2, 10, 8, 8).expect("cases");
        let contest = |form, sinks: &[Sink]| Contest {
            form: Form::name(form),
            ours: sinks
                .iter()
                .map(|&sink| {
                    Own::new(
                        &own[0],
                        Product::Form(form),
                        sink,
                        vec![vec![ms]],
                        &rivals(),
                        None,
                    )
                })
                .collect(),
            theirs: rivals(),
        };
        Timing {
            case: case.to_owned(),
            gemm: Some(Gemm::Down),
            routing: Some(Spread::Zipf),
            groups: 2,
            rows: 10,
            largest_group: 9,
            n: 8,
            k: 8,
            yardsticks: None,
            forms: vec![
                contest(Form::Forward, &[Sink::Bf16]),
                contest(Form::Wgrad, &[Sink::Bf16, Sink::AddF32]),
            ],
            notes: Vec::new(),
        }
    }

    fn report(results: Vec<Timing>) -> Report {
        Report {
            schema: "test",
            machine: Machine {
                device: "none".to_owned(),
                driver: String::new(),
                arch: "sm_90a",
                image: "ptx",
                ptx_sha256: String::new(),
                commit: None,
            },
            sms: 1,
            baseline: Value::Null,
            without: Vec::new(),
            arguments: Vec::new(),
            results,
        }
    }

    #[test]
    fn the_roofline_is_the_slower_of_arithmetic_and_memory() {
        // 2e12 operations in 4 ms: 500 TFLOP/s; 8e9 bytes in 2 ms: 4 TB/s.
        let samples = |ms: f32| vec![vec![ms, 99.0], vec![0.1]];
        let rates = Yardsticks::new(2e12, samples(4.0), 8e9, samples(2.0));
        assert!((rates.tflops - 500.0).abs() < 1e-9);
        assert!((rates.copy_bytes_per_second - 4e12).abs() < 1.0);
        assert!((rates.roofline_ms(1e12, 4e9) - 2.0).abs() < 1e-9);
        assert!((rates.roofline_ms(1e12, 4e10) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn ratios_are_of_medians_over_all_rounds() {
        let timing = timing("own", 2.0);
        let own = &timing.forms[0].ours[0];
        // The medians are 4 and 3 ms; the activation is no product.
        let ratios: Vec<(&str, f64)> = own.ratios.iter().map(|(k, &v)| (k.as_str(), v)).collect();
        assert_eq!(ratios, [(DEEP_GEMM, 1.5), ("torch", 2.0)]);
        assert_eq!(timing.forms[0].theirs[0].tflops, Some(250.0));
        assert_eq!(timing.forms[0].theirs[2].tflops, None);
    }

    #[test]
    fn the_fused_activation_is_compared_with_both_steps() {
        let mut timing = timing("own", 2.0);
        timing.forms[1].form = "swiglu";
        set_apart(&mut timing.forms);
        // Ours takes 2 ms, and PyTorch's activation 1 ms.
        assert_eq!(timing.forms[1].ours[0].apart, Some(1.5));
        assert_eq!(timing.forms[0].ours[0].apart, None);
        timing.forms.remove(0);
        timing.forms[0].ours[0].apart = None;
        set_apart(&mut timing.forms);
        assert_eq!(timing.forms[0].ours[0].apart, None);
    }

    #[test]
    fn the_least_ratio_compares_like_with_like() {
        let report = report(vec![timing("a", 2.0), timing("b", 4.0), timing("a", 1.0)]);
        let least = report.least();
        let names: Vec<&str> = least.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "all"]);
        let ratio = |group: usize, rival: &str| least[group].1[rival].ratio;
        assert_eq!((ratio(0, "torch"), ratio(0, DEEP_GEMM)), (2.0, 1.5));
        assert_eq!((ratio(1, "torch"), ratio(1, DEEP_GEMM)), (1.0, 0.75));
        assert_eq!(ratio(2, "torch"), 1.0);
        assert_eq!(least[2].1["torch"].at, "b down zipf forward");
        assert!(same_sink("wgrad", "add-f32", DEEP_GEMM));
        assert!(!same_sink("wgrad", "add-f32", "torch"));
        assert!(!same_sink("wgrad", "bf16", DEEP_GEMM));
        assert!(same_sink("dgrad", "bf16", DEEP_GEMM));
        // One case alone needs no sum of all.
        assert_eq!(
            super::tests::report(vec![timing("a", 2.0)]).least().len(),
            1
        );
    }

    #[test]
    fn the_table_tells_what_was_left_out() {
        let mut report = report(vec![timing("own", 2.0)]);
        let text = report.table().to_string();
        assert!(
            text.contains("(2.000)") && text.contains(" 1.500"),
            "{text}"
        );
        assert!(!text.contains("left out"));
        report.without.push(DEEP_GEMM.to_owned());
        assert!(report.table().to_string().contains("left out"));
    }

    #[test]
    fn one_bad_output_is_the_difference_of_its_case() {
        let mut timing = timing("own", 2.0);
        assert_eq!(timing.difference(), 0.0);
        let bad = &mut timing.forms[1].ours[1].differences;
        bad.insert("torch".to_owned(), f64::MAX);
        bad.insert(DEEP_GEMM.to_owned(), 1e-3);
        assert_eq!(timing.difference(), f64::MAX);
    }
}
