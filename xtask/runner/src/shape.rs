//! The shape of a layer's three products, and its data.
//!
//! `x [rows, k]` times `w [group, n, k]` is the forward product; `dy [rows, n]`
//! goes back through `w` (dgrad) and with `x` makes the weight gradient (wgrad).

use std::fs;

use clap::Args;
use half::bf16;
use mok::Groups;
use mok::fill::{self, Element};
use mok::gemm::{Form, Sink};
use mok::oracle::{Operand, OracleError, Problem};

use crate::report::ShapeReport;

/// Sizes, from the command line.
#[derive(Args, Clone, Debug)]
pub struct Shape {
    /// Rows of each group, such as 300,0,77,1
    #[arg(long, value_delimiter = ',', default_value = "300,0,77,1,128")]
    pub groups: Vec<u32>,
    /// Columns of the forward product (multiple of 8)
    #[arg(long, default_value_t = 320)]
    pub n: u32,
    /// Depth of the forward product (multiple of 8)
    #[arg(long, default_value_t = 448)]
    pub k: u32,
    /// Seed of the data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Shape {
    /// As the report names it.
    pub fn report(&self) -> ShapeReport {
        ShapeReport {
            groups: self.groups.clone(),
            n: self.n as usize,
            k: self.k as usize,
        }
    }
}

/// Bytes of memory that can still be taken, where the system tells: running out of them would end
/// the process without a word.
pub fn available_memory() -> Option<u64> {
    let told = fs::read_to_string("/proc/meminfo").ok()?;
    let line = told
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What the numbers are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Near-normal.
    Normal,
    /// Small integers, whose products have one right bit pattern.
    Integers,
}

impl Numbers {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Numbers::Normal => "normal",
            Numbers::Integers => "integers",
        }
    }

    fn fill<T: Element>(self, seed: u64, len: usize, deviation: f32) -> Vec<T> {
        match self {
            Numbers::Normal => fill::normal(seed, len, deviation),
            Numbers::Integers => fill::integers(seed, len, 3),
        }
    }
}

/// A shape's data. Rows outside a group are NaN: they must never reach a result.
pub struct Data {
    pub groups: Groups,
    pub n: usize,
    pub k: usize,
    pub x: Vec<bf16>,
    pub dy: Vec<bf16>,
    pub w: Vec<bf16>,
    seed: u64,
    numbers: Numbers,
}

impl Data {
    /// Data for a shape.
    pub fn new(shape: &Shape, numbers: Numbers) -> anyhow::Result<Data> {
        anyhow::ensure!(shape.n > 0 && shape.k > 0, "--n and --k must be at least 8");
        let groups = Groups::new(&shape.groups)?;
        let (n, k, seed) = (shape.n as usize, shape.k as usize, shape.seed);
        let rows = groups.capacity() as usize;
        let len = |rows: usize, cols: usize| {
            rows.checked_mul(cols)
                .filter(|&len| len <= isize::MAX as usize / 2)
                .ok_or_else(|| anyhow::anyhow!("{rows} rows of {cols} do not fit in memory"))
        };
        let weights = len(len(groups.len(), n)?, k)?;
        let (x_len, dy_len) = (len(rows, k)?, len(rows, n)?);
        let bytes = 2 * [x_len, dy_len, weights]
            .map(|len| len as u128)
            .iter()
            .sum::<u128>();
        if let Some(there) = available_memory() {
            anyhow::ensure!(
                bytes <= there.into(),
                "the inputs take {bytes} bytes, and this machine has {there} available"
            );
        }
        let mut x = numbers.fill(seed, x_len, 1.0);
        let mut dy = numbers.fill(seed.wrapping_add(1), dy_len, 1.0);
        let w = numbers.fill(seed.wrapping_add(2), weights, 1.0 / (k as f32).sqrt());
        for row in (0..rows).filter(|&row| groups.group_of(row).is_none()) {
            x[row * k..][..k].fill(bf16::NAN);
            dy[row * n..][..n].fill(bf16::NAN);
        }
        Ok(Data {
            groups,
            n,
            k,
            x,
            dy,
            w,
            seed,
            numbers,
        })
    }

    /// A form, as the oracle takes it.
    pub fn problem(&self, form: Form) -> Result<Problem<'_>, OracleError> {
        let (n, k) = (self.n, self.k);
        let [x, dy, w] = [&self.x, &self.dy, &self.w].map(|values| Operand::new(values));
        match form {
            Form::Forward => Problem::forward(&self.groups, n, k, x, w),
            Form::Dgrad => Problem::dgrad(&self.groups, k, n, dy, w),
            Form::Wgrad => Problem::wgrad(&self.groups, n, k, dy, x),
        }
    }

    /// For each element of a wgrad's D, the sum of its products' sizes.
    #[cfg(test)]
    pub fn absolute(&self, form: Form) -> Result<Vec<f64>, OracleError> {
        assert_eq!(form, Form::Wgrad, "the other forms give bf16 only");
        let size = |values: &[bf16]| {
            values
                .iter()
                .map(|value| bf16::from_bits(value.to_bits() & 0x7fff))
                .collect::<Vec<_>>()
        };
        let (x, dy) = (size(&self.x), size(&self.dy));
        let problem = Problem::wgrad(
            &self.groups,
            self.n,
            self.k,
            Operand::new(&dy),
            Operand::new(&x),
        )?;
        let sums = problem.sums(&problem.all_rows())?.exact(None)?;
        Ok(sums
            .iter()
            .flat_map(|(_, values)| values.to_vec())
            .collect())
    }

    /// Rows and columns of D.
    pub fn d_extent(&self, form: Form) -> (usize, usize) {
        let rows = self.groups.capacity() as usize;
        match form {
            Form::Forward => (rows, self.n),
            Form::Dgrad => (rows, self.k),
            Form::Wgrad => (self.groups.len() * self.n, self.k),
        }
    }

    /// What D holds before, for a sink that adds.
    pub fn old(&self, form: Form, sink: Sink) -> Option<Vec<f32>> {
        let (rows, cols) = self.d_extent(form);
        sink.adds().then(|| {
            let mut old: Vec<f32> = self
                .numbers
                .fill(self.seed.wrapping_add(3), rows * cols, 1.0);
            if sink == Sink::AddBf16 {
                for value in &mut old {
                    *value = bf16::from_f32(*value).to_f32();
                }
            }
            old
        })
    }
}
