//! What `bench gemm` can time: shapes, routings, and what each product costs at least.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use mok::gemm::{Form, MAX_GROUPS, Sink};
use mok::{Groups, fill};
use mok_kernel::gemm::MAX_EXTENT;
use serde::Serialize;
use serde_json::{Value, json};

use crate::bench::BLOCK;
use crate::run::routing::uniform;

/// A layer whose products are timed, as one rank of two has them.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    pub name: &'static str,
    /// Experts of the rank.
    pub groups: u32,
    /// Rows of the rank: tokens times experts a token.
    pub rows: u32,
    pub hidden: u32,
    pub intermediate: u32,
}

/// The layers that speed is claimed on.
pub const LAYERS: [Layer; 3] = [
    layer("kimi-k2.7", 192, 57_344, 7168, 2048),
    layer("qwen3.5", 256, 71_680, 4096, 1024),
    layer("dsv3", 128, 65_536, 7168, 2048),
];

const fn layer(
    name: &'static str,
    groups: u32,
    rows: u32,
    hidden: u32,
    intermediate: u32,
) -> Layer {
    Layer {
        name,
        groups,
        rows,
        hidden,
        intermediate,
    }
}

/// The name of the case that is one large product.
pub const DENSE: &str = "dense";
/// Its rows, columns and depth.
const EDGE: u32 = 8192;

/// Which product of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gemm {
    /// Gate and up in one: n = 2 I, k = H
    GateUp,
    /// Down: n = H, k = I
    Down,
}

impl Gemm {
    const ALL: [Gemm; 2] = [Gemm::GateUp, Gemm::Down];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Gemm::GateUp => "gate-up",
            Gemm::Down => "down",
        }
    }

    /// Columns and depth of its forward product.
    fn sizes(self, layer: &Layer) -> (u32, u32) {
        match self {
            Gemm::GateUp => (2 * layer.intermediate, layer.hidden),
            Gemm::Down => (layer.hidden, layer.intermediate),
        }
    }
}

/// How rows are spread over the groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// At random, all groups alike
    Uniform,
    /// At random, the n-th of the groups in a random order with weight 1 / n
    Zipf,
}

impl Spread {
    const ALL: [Spread; 2] = [Spread::Uniform, Spread::Zipf];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Spread::Uniform => "uniform",
            Spread::Zipf => "zipf",
        }
    }

    /// Rows of each group.
    pub fn sizes(self, seed: u64, groups: u32, rows: u32) -> Vec<u32> {
        let mut sizes = vec![0u32; groups as usize];
        // The groups, the most wanted first.
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        let shuffle = fill::hash(seed, u64::MAX);
        order.sort_by_key(|&group| fill::hash(shuffle, group as u64));
        let weight = |place: usize| match self {
            Spread::Uniform => 1.0,
            Spread::Zipf => 1.0 / (place + 1) as f64,
        };
        let mut total = 0.0;
        let up_to: Vec<f64> = (0..sizes.len())
            .map(|place| {
                total += weight(place);
                total
            })
            .collect();
        for row in 0..rows {
            let drawn = uniform(seed, row.into()) * total;
            let place = up_to.partition_point(|&end| end < drawn);
            // Rounding may leave the draw a hair above the last.
            if let Some(&group) = order.get(place).or(order.last()) {
                sizes[group] += 1;
            }
        }
        sizes
    }
}

/// What is timed of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// One of the three products.
    Form(Form),
    /// Gate and up with SwiGLU behind them, in one launch.
    SwiGlu,
}

impl Product {
    /// All of them.
    pub const ALL: [Product; 4] = [
        Product::Form(Form::Forward),
        Product::Form(Form::Dgrad),
        Product::Form(Form::Wgrad),
        Product::SwiGlu,
    ];

    /// Its name in tables, and as `--form` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Product::Form(form) => form.name(),
            Product::SwiGlu => "swiglu",
        }
    }
}

/// Products, and where each one's results go.
pub type Products = Vec<(Product, Vec<Sink>)>;

/// The name of a sink, as `--sink` takes it.
pub const fn sink_name(sink: Sink) -> &'static str {
    match sink {
        Sink::Bf16 => "bf16",
        Sink::F32 => "f32",
        Sink::AddF32 => "add-f32",
        Sink::AddBf16 => "add-bf16",
    }
}

/// What the caller wants timed; everything where a list is empty.
#[derive(Clone, Debug, Default)]
pub struct Filter<'a> {
    pub cases: &'a [String],
    pub gemms: &'a [Gemm],
    pub routings: &'a [Spread],
    pub forms: &'a [String],
    pub sinks: &'a [String],
}

fn wanted<T: PartialEq>(list: &[T], one: &T) -> bool {
    list.is_empty() || list.contains(one)
}

impl Filter<'_> {
    /// The products, of the cases that have them.
    pub fn products(&self) -> Products {
        let named = |list: &[String], name: &str| wanted(list, &name.to_owned());
        let products = Product::ALL
            .into_iter()
            .filter(|product| named(self.forms, product.name()));
        let sinks = |product| match product {
            Product::Form(Form::Wgrad) => Sink::ALL
                .into_iter()
                .filter(|&sink| named(self.sinks, sink_name(sink)))
                .collect(),
            _ => vec![Sink::Bf16],
        };
        products.map(|product| (product, sinks(product))).collect()
    }

    /// The cases.
    pub fn cases(&self, seed: u64) -> Result<Vec<Case>> {
        let mut cases = Vec::new();
        if wanted(self.cases, &DENSE.to_owned()) {
            cases.push(Case::new(DENSE, None, None, &[EDGE], EDGE, EDGE)?);
        }
        for layer in LAYERS {
            if !wanted(self.cases, &layer.name.to_owned()) {
                continue;
            }
            for gemm in Gemm::ALL {
                for routing in Spread::ALL {
                    if wanted(self.gemms, &gemm) && wanted(self.routings, &routing) {
                        let sizes = routing.sizes(seed, layer.groups, layer.rows);
                        let (n, k) = gemm.sizes(&layer);
                        let (gemm, routing) = (Some(gemm), Some(routing));
                        cases.push(Case::new(layer.name, gemm, routing, &sizes, n, k)?);
                    }
                }
            }
        }
        Ok(cases)
    }

    /// A shape of the caller's own, in each routing.
    pub fn custom(&self, seed: u64, groups: u32, rows: u32, n: u32, k: u32) -> Result<Vec<Case>> {
        ensure!(
            (1..=MAX_GROUPS).contains(&groups),
            "--groups must be 1 to {MAX_GROUPS}"
        );
        ensure!(
            (1..=MAX_EXTENT).contains(&rows),
            "--rows must be 1 to {MAX_EXTENT}"
        );
        for (option, size) in [("--n", n), ("--k", k)] {
            ensure!(
                size > 0 && size.is_multiple_of(8),
                "{option} must be a positive multiple of 8, not {size}"
            );
        }
        let name = format!("{groups}x{n}x{k}");
        Spread::ALL
            .into_iter()
            // One group takes all rows in any routing.
            .filter(|routing| wanted(self.routings, routing))
            .take(if groups == 1 { 1 } else { usize::MAX })
            .map(|routing| {
                let sizes = routing.sizes(seed, groups, rows);
                let routing = (groups > 1).then_some(routing);
                Case::new(&name, None, routing, &sizes, n, k)
            })
            .collect()
    }
}

/// Case, product and routing in one.
pub fn title(name: &str, gemm: Option<Gemm>, routing: Option<Spread>) -> String {
    let parts = [Some(name), gemm.map(Gemm::name), routing.map(Spread::name)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// One product's sizes: its three forms are timed on the same tensors.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    /// `None` for what is no layer's.
    pub gemm: Option<Gemm>,
    /// `None` where all rows are one group.
    pub routing: Option<Spread>,
    pub groups: Groups,
    /// Columns of the forward product.
    pub n: u32,
    /// Its depth.
    pub k: u32,
}

/// Elements of the block at which each tensor starts, so that none is another's copy.
pub const FROM_X: usize = 0;
pub const FROM_DY: usize = BLOCK / 3;
pub const FROM_W: usize = 2 * (BLOCK / 3);

impl Case {
    fn new(
        name: &str,
        gemm: Option<Gemm>,
        routing: Option<Spread>,
        sizes: &[u32],
        n: u32,
        k: u32,
    ) -> Result<Case> {
        let groups = Groups::new(sizes)?;
        let name = name.to_owned();
        let case = Case {
            name,
            gemm,
            routing,
            groups,
            n,
            k,
        };
        let (n, k) = (n as usize, k as usize);
        let most = case.groups.capacity() as usize;
        for len in [
            case.groups
                .len()
                .checked_mul(n)
                .and_then(|len| len.checked_mul(k)),
            most.checked_mul(n.max(k)),
        ] {
            // A device with more memory than this is not in sight.
            ensure!(
                len.is_some_and(|len| len <= 1 << 44),
                "{}: {} groups, {most} rows, n = {n}, k = {k} fit no device's memory",
                case.name,
                case.groups.len()
            );
        }
        Ok(case)
    }

    /// Case, product and routing in one.
    pub fn title(&self) -> String {
        title(&self.name, self.gemm, self.routing)
    }

    /// Whether it is one plain product, which cuBLAS is for.
    pub fn is_plain(&self) -> bool {
        self.groups.len() == 1
    }

    /// Floating-point operations of each form: real rows only.
    pub fn operations(&self) -> f64 {
        2.0 * self.groups.real_rows() as f64 * f64::from(self.n) * f64::from(self.k)
    }

    /// Those of some products that it has.
    pub fn has(&self, products: &Products) -> Products {
        let gate_up = self.gemm == Some(Gemm::GateUp);
        let all = products.iter().cloned();
        all.filter(|(product, _)| gate_up || *product != Product::SwiGlu)
            .collect()
    }

    /// Bytes that a product has to move: each operand once, weights of groups without rows not at
    /// all.
    pub fn bytes(&self, product: Product, sink: Sink) -> f64 {
        let busy = self.groups.sizes().iter().filter(|&&size| size > 0).count() as f64;
        let (n, k) = (f64::from(self.n), f64::from(self.k));
        let rows = |columns: f64| 2.0 * self.groups.real_rows() as f64 * columns;
        let element = f64::from(sink.element_size());
        match product {
            Product::Form(Form::Forward | Form::Dgrad) => rows(n + k) + 2.0 * busy * n * k,
            // Groups without rows get zeros, or keep what they have.
            Product::Form(Form::Wgrad) if sink.adds() => rows(n + k) + 2.0 * element * busy * n * k,
            Product::Form(Form::Wgrad) => rows(n + k) + element * self.groups.len() as f64 * n * k,
            Product::SwiGlu => rows(n / 2.0 + k) + 2.0 * busy * n * k,
        }
    }

    /// Columns of a product's output.
    pub fn columns(&self, product: Product) -> usize {
        match product {
            Product::Form(Form::Forward) => self.n as usize,
            Product::Form(Form::Dgrad | Form::Wgrad) => self.k as usize,
            Product::SwiGlu => self.n as usize / 2,
        }
    }

    /// Rows of a product's output that are compared, in order: group * n + m of groups that have
    /// rows for wgrad, else real rows counted without padding. The first and the last are among them.
    pub fn sample(&self, product: Product, seed: u64) -> Vec<usize> {
        const SAMPLES: u64 = 96;
        let n = self.n as usize;
        let real = self.groups.real_rows() as usize;
        let sizes = self.groups.sizes();
        let busy: Vec<usize> = (0..sizes.len()).filter(|&group| sizes[group] > 0).collect();
        let (count, row): (usize, Box<dyn Fn(usize) -> usize>) = match product {
            Product::Form(Form::Wgrad) => (
                busy.len() * n,
                Box::new(|index| busy[index / n] * n + index % n),
            ),
            _ => (real, Box::new(|index| index)),
        };
        if count == 0 {
            return Vec::new();
        }
        let drawn = (0..SAMPLES).map(|at| (fill::hash(seed, at) % count as u64) as usize);
        let mut rows: Vec<usize> = drawn.chain([0, count - 1]).map(row).collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// The case as the baseline loads it.
    pub fn load(&self, products: &Products) -> Value {
        let products = self.has(products);
        let forms: Vec<&str> = products.iter().map(|(product, _)| product.name()).collect();
        json!({
            "n": self.n, "k": self.k, "sizes": self.groups.sizes(),
            "starts": self.groups.starts(), "capacity": self.groups.capacity(),
            "from_element": { "x": FROM_X, "dy": FROM_DY, "w": FROM_W },
            "forms": forms,
            "swiglu": self.gemm == Some(Gemm::GateUp),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORWARD: Product = Product::Form(Form::Forward);
    const DGRAD: Product = Product::Form(Form::Dgrad);
    const WGRAD: Product = Product::Form(Form::Wgrad);

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn of(sizes: &[u32]) -> Case {
        Case::new("own", None, None, sizes, 16, 24).expect("a case")
    }

    #[test]
    fn all_cases_are_the_dense_one_and_both_products_of_each_layer_in_both_routings() {
        let cases = Filter::default().cases(1).expect("cases");
        assert_eq!(cases.len(), 1 + 3 * 2 * 2);
        assert_eq!(cases[0].title(), "dense");
        assert!(cases[0].is_plain());
        let titles: Vec<String> = cases.iter().map(Case::title).collect();
        assert!(titles.contains(&"qwen3.5 down zipf".to_owned()));
        for case in &cases[1..] {
            let layer = LAYERS
                .iter()
                .find(|layer| layer.name == case.name)
                .expect("a layer");
            assert_eq!(case.groups.len(), layer.groups as usize);
            assert_eq!(case.groups.real_rows(), u64::from(layer.rows));
            match case.gemm {
                Some(Gemm::GateUp) => assert_eq!(case.n, 2 * layer.intermediate),
                _ => assert_eq!((case.n, case.k), (layer.hidden, layer.intermediate)),
            }
        }
    }

    #[test]
    fn filters_leave_what_they_name() {
        let (cases, sinks) = (strings(&["dsv3"]), strings(&["f32", "add-bf16"]));
        let filter = Filter {
            cases: &cases,
            gemms: &[Gemm::Down],
            routings: &[Spread::Zipf],
            sinks: &sinks,
            ..Filter::default()
        };
        let cases = filter.cases(1).expect("cases");
        assert_eq!(cases.len(), 1);
        assert_eq!(cases[0].title(), "dsv3 down zipf");
        assert_eq!(
            cases[0].has(&filter.products()),
            [
                (FORWARD, vec![Sink::Bf16]),
                (DGRAD, vec![Sink::Bf16]),
                (WGRAD, vec![Sink::F32, Sink::AddBf16]),
            ]
        );
        let forms = strings(&["dgrad"]);
        let filter = Filter {
            forms: &forms,
            ..Filter::default()
        };
        assert_eq!(filter.products(), [(DGRAD, vec![Sink::Bf16])]);
    }

    #[test]
    fn own_shapes_are_checked() {
        let filter = Filter::default();
        assert_eq!(filter.custom(1, 4, 100, 16, 8).expect("cases").len(), 2);
        assert_eq!(filter.custom(1, 1, 100, 16, 8).expect("a case").len(), 1);
        for (groups, rows, n, k, option) in [
            (0, 1, 8, 8, "--groups"),
            (MAX_GROUPS + 1, 1, 8, 8, "--groups"),
            (1, 0, 8, 8, "--rows"),
            (1, u32::MAX, 8, 8, "--rows"),
            (1, 1, 12, 8, "--n"),
            (1, 1, 8, 0, "--k"),
            (1024, 1, 4_294_967_288, 4_294_967_288, "memory"),
        ] {
            let told = filter.custom(1, groups, rows, n, k).expect_err(option);
            assert!(told.to_string().contains(option), "{told}");
        }
    }

    #[test]
    fn zipf_gives_the_n_th_group_an_n_th() {
        let rows = 65_536;
        let mut zipf = Spread::Zipf.sizes(1, 64, rows);
        assert_eq!(zipf, Spread::Zipf.sizes(1, 64, rows));
        assert_ne!(zipf, Spread::Zipf.sizes(2, 64, rows));
        assert!(!zipf.is_sorted_by(|a, b| a >= b), "in a random order");
        assert_eq!(zipf.iter().sum::<u32>(), rows);
        zipf.sort_unstable_by(|a, b| b.cmp(a));
        let harmonic: f64 = (1..=64).map(|place| 1.0 / f64::from(place)).sum();
        for (place, &size) in zipf.iter().take(8).enumerate() {
            let expected = f64::from(rows) / harmonic / (place + 1) as f64;
            let off = f64::from(size) / expected - 1.0;
            assert!(off.abs() < 0.1, "place {place}: {size}, not {expected}");
        }
        let uniform = Spread::Uniform.sizes(1, 64, rows);
        assert_eq!(uniform.iter().sum::<u32>(), rows);
        assert!(uniform.iter().all(|size| (850..1200).contains(size)));
    }

    #[test]
    fn work_and_bytes_count_real_rows() {
        let case = of(&[100, 0, 28]);
        assert_eq!(case.operations(), 2.0 * 128.0 * 16.0 * 24.0);
        let rows = 128.0 * 40.0 * 2.0;
        let bytes = |form, sink| case.bytes(form, sink);
        assert_eq!(bytes(FORWARD, Sink::Bf16), rows + 2.0 * 2.0 * 16.0 * 24.0);
        assert_eq!(bytes(DGRAD, Sink::Bf16), bytes(FORWARD, Sink::Bf16));
        // Fresh: all three groups once; added: the two with rows, read and written.
        let wgrad = |sink| (bytes(WGRAD, sink) - rows) / (16.0 * 24.0);
        assert_eq!(
            Sink::ALL.map(wgrad),
            [3.0 * 2.0, 3.0 * 4.0, 2.0 * 2.0 * 4.0, 2.0 * 2.0 * 2.0]
        );
    }

    #[test]
    fn samples_are_real_rows() {
        let case = of(&[0, 3, 0, 2]);
        assert_eq!(case.sample(FORWARD, 1), [0, 1, 2, 3, 4]);
        let rows = case.sample(WGRAD, 1);
        let (first, last) = (rows[0], rows[rows.len() - 1]);
        assert_eq!((first, last), (16, 63));
        assert!(rows.iter().all(|row| [1, 3].contains(&(row / 16))));
        assert!(of(&[0]).sample(DGRAD, 1).is_empty());
    }

    #[test]
    fn the_baseline_is_told_where_groups_start() {
        let load = of(&[5, 0, 200]).load(&vec![(DGRAD, vec![Sink::Bf16])]);
        assert_eq!(load["starts"], json!([0, 128, 128]));
        assert_eq!(load["capacity"], 384);
        assert_eq!(load["forms"], json!(["dgrad"]));
        assert_eq!(load["swiglu"], false);
        // Gate and up alone have an activation behind them.
        let gate_up = Case {
            gemm: Some(Gemm::GateUp),
            ..of(&[5, 0, 200])
        };
        let wanted = strings(&["forward", "swiglu"]);
        let filter = Filter {
            forms: &wanted,
            ..Filter::default()
        };
        let load = gate_up.load(&filter.products());
        assert_eq!(load["forms"], json!(["forward", "swiglu"]));
        assert_eq!(
            of(&[1]).load(&filter.products())["forms"],
            json!(["forward"])
        );
        let (full, half) = (
            gate_up.bytes(FORWARD, Sink::Bf16),
            gate_up.bytes(Product::SwiGlu, Sink::Bf16),
        );
        assert_eq!(full - half, 2.0 * 205.0 * 8.0);
        assert_eq!(gate_up.columns(Product::SwiGlu), 8);
    }
}
