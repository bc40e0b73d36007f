//! This library's side: one case's tensors, and its products.

use anyhow::{Result, ensure};
use bytemuck::Pod;
use half::bf16;
use mok::gemm::{Form, GateUpCall, GemmCall, GroupedGemm, Matrix, Sink};
use mok::{Buffer, Device, Stream};

use super::cases::{Case, FROM_DY, FROM_W, FROM_X, Product, Products};
use crate::bench::tiled;

/// Every byte of padding, and of outputs before what is compared: a NaN in every type.
const MARK: u8 = 0xFF;

/// What is enqueued.
enum Call {
    Plain(GemmCall),
    GateUp(GateUpCall),
}

/// One case on the device. What adds has an output of its own, which starts as zeros.
pub struct Ours<'a> {
    device: Device,
    gemm: &'a GroupedGemm,
    stream: Stream,
    case: &'a Case,
    sizes: Buffer<u32>,
    x: Buffer<bf16>,
    dy: Buffer<bf16>,
    w: Buffer<bf16>,
    /// Of all but wgrad.
    rows: Buffer<bf16>,
    /// Of wgrad, in the two types.
    bf16: Buffer<bf16>,
    f32: Buffer<f32>,
}

impl<'a> Ours<'a> {
    /// Tensors that hold what the baseline's do, in this library's layout.
    pub fn new(
        device: &Device,
        gemm: &'a GroupedGemm,
        case: &'a Case,
        products: &Products,
        block: &Buffer<bf16>,
    ) -> Result<Ours<'a>> {
        let stream = device.stream()?;
        let (n, k) = (case.n as usize, case.k as usize);
        let weights = case.groups.len() * n * k;
        let products = case.has(products);
        let has = |product| products.iter().any(|&(wanted, _)| wanted == product);
        let is = |form| has(Product::Form(form));
        let forward = is(Form::Forward) || has(Product::SwiGlu);
        // The length of what is needed, or nothing.
        let len = |needed: bool, len: usize| if needed { len } else { 0 };
        let sinks = |size| {
            let wgrad = Product::Form(Form::Wgrad);
            let mut all = products.iter().filter(|(product, _)| *product == wgrad);
            all.any(|(_, sinks)| sinks.iter().any(|sink| sink.element_size() == size))
        };
        let columns = match (forward, is(Form::Dgrad)) {
            (true, true) => n.max(k),
            (true, false) => n,
            (false, true) => k,
            (false, false) => 0,
        };
        let padded = |columns, start| padded(device, case, block, columns, start, &stream);
        let w = len(forward || is(Form::Dgrad), weights);
        let ours = Ours {
            device: device.clone(),
            gemm,
            case,
            sizes: device.buffer_from(case.groups.sizes())?,
            x: padded(len(forward || is(Form::Wgrad), k), FROM_X)?,
            dy: padded(len(is(Form::Dgrad) || is(Form::Wgrad), n), FROM_DY)?,
            w: tiled(device, block, FROM_W, w)?,
            rows: device.buffer_filled(case.groups.capacity() as usize * columns, MARK)?,
            bf16: device.buffer_zeroed(len(sinks(2), weights))?,
            f32: device.buffer_zeroed(len(sinks(4), weights))?,
            stream,
        };
        ours.stream.synchronize()?;
        Ok(ours)
    }

    fn call(&self, product: Product, sink: Sink) -> Result<Call> {
        let (n, k) = (self.case.n, self.case.k);
        let at = self.case.groups.at(self.sizes.ptr());
        let [x, dy, w, rows] = [&self.x, &self.dy, &self.w, &self.rows].map(Matrix::of);
        Ok(Call::Plain(match product {
            Product::Form(Form::Forward) => GemmCall::forward(at, n, k, x, w, rows),
            Product::Form(Form::Dgrad) => GemmCall::dgrad(at, k, n, dy, w, rows),
            Product::Form(Form::Wgrad) => {
                let d = match sink {
                    Sink::Bf16 | Sink::AddBf16 => Matrix::of(&self.bf16),
                    Sink::F32 | Sink::AddF32 => Matrix::of(&self.f32),
                };
                GemmCall::wgrad(at, n, k, dy, x, d).with_sink(sink)
            }
            Product::SwiGlu => {
                let (half, stride) = (u64::from(n / 2) * u64::from(k), u64::from(n) * u64::from(k));
                let up = self.w.slice(half as usize..)?;
                let both = [w, Matrix::in_slice(&up)].map(|one| one.with_group_stride(stride));
                return Ok(Call::GateUp(GateUpCall::new(at, n / 2, k, x, both, rows)));
            }
        }))
    }

    /// Milliseconds of each timed launch; the launches follow one another without a gap.
    pub fn time(
        &mut self,
        product: Product,
        sink: Sink,
        warmup: usize,
        timed: usize,
    ) -> Result<Vec<f32>> {
        let call = self.call(product, sink)?;
        let events = (0..timed)
            .map(|_| Ok((self.device.event()?, self.device.event()?)))
            .collect::<Result<Vec<_>>>()?;
        for _ in 0..warmup {
            self.enqueue(&call)?;
        }
        for (start, end) in &events {
            start.record(&self.stream)?;
            self.enqueue(&call)?;
            end.record(&self.stream)?;
        }
        self.stream.synchronize()?;
        let elapsed = events.iter().map(|(start, end)| start.elapsed_ms(end));
        Ok(elapsed.collect::<mok::Result<_>>()?)
    }

    fn enqueue(&self, call: &Call) -> mok::Result<()> {
        // SAFETY: all buffers live as long as the stream, which alone works on them, and no output
        // is an input.
        unsafe {
            match call {
                Call::Plain(call) => self.gemm.enqueue(call, &self.stream),
                Call::GateUp(call) => self.gemm.enqueue_gate_up(call, &self.stream),
            }
        }
    }

    /// Rows of one product, counted as [`Case::sample`] does. The output is cleared before, so that
    /// no earlier product is taken for this one.
    pub fn rows(&mut self, product: Product, sink: Sink, wanted: &[usize]) -> Result<Vec<f32>> {
        // What adds must find zeros.
        let before = if sink.adds() { 0 } else { MARK };
        let wgrad = product == Product::Form(Form::Wgrad);
        match (wgrad, sink.element_size()) {
            (false, _) => self.rows.fill(before)?,
            (true, 2) => self.bf16.fill(before)?,
            (true, _) => self.f32.fill(before)?,
        }
        self.enqueue(&self.call(product, sink)?)?;
        self.stream.synchronize()?;
        let columns = self.case.columns(product);
        Ok(match (wgrad, sink.element_size()) {
            (false, _) => {
                let placed = wanted.iter().map(|&row| placed(self.case, row));
                let wanted = placed.collect::<Result<Vec<_>>>()?;
                read(&self.rows, columns, &wanted, bf16::to_f32)?
            }
            (true, 2) => read(&self.bf16, columns, wanted, bf16::to_f32)?,
            (true, _) => read(&self.f32, columns, wanted, |value| value)?,
        })
    }
}

/// Where a row stands among padded ones, by its number among the real ones.
fn placed(case: &Case, row: usize) -> Result<usize> {
    let mut first = 0;
    for (&size, &start) in case.groups.sizes().iter().zip(case.groups.starts()) {
        let size = size as usize;
        if row < first + size {
            return Ok(start as usize + row - first);
        }
        first += size;
    }
    anyhow::bail!("row {row} is in no group")
}

fn read<T: Pod>(
    from: &Buffer<T>,
    columns: usize,
    rows: &[usize],
    value: impl Fn(T) -> f32,
) -> Result<Vec<f32>> {
    let mut values = Vec::with_capacity(rows.len() * columns);
    for &row in rows {
        let start = row * columns;
        let part = from.slice(start..start + columns)?.to_vec()?;
        ensure!(part.len() == columns, "a row of another length");
        values.extend(part.into_iter().map(&value));
    }
    Ok(values)
}

/// The rows that the baseline has one after another, each group where it starts here. Padding is
/// NaN: no product may look at it.
fn padded(
    device: &Device,
    case: &Case,
    block: &Buffer<bf16>,
    columns: usize,
    start: usize,
    stream: &Stream,
) -> Result<Buffer<bf16>> {
    let real = case.groups.real_rows() as usize * columns;
    let packed = tiled(device, block, start, real)?;
    let len = case.groups.capacity() as usize * columns;
    let mut all = device.buffer_filled(len, MARK)?;
    let mut first = 0;
    for group in 0..case.groups.len() {
        let rows = case.groups.rows_of(group);
        let count = rows.len() * columns;
        let from = packed.slice(first..first + count)?;
        all.slice_mut(rows.start * columns..rows.end * columns)?
            .copy_from_device(from, stream)?;
        first += count;
    }
    stream.synchronize()?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use mok::{EmulatorConfig, fill};

    use super::*;
    use crate::bench::gemm::cases::{Filter, Gemm};

    /// The products of packed tensors, as the baseline has them.
    fn expected(case: &Case, block: &[bf16], product: Product) -> Vec<f32> {
        let form = match product {
            Product::Form(form) => form,
            Product::SwiGlu => {
                let sums = expected(case, block, Product::Form(Form::Forward));
                let rows = sums.chunks(case.n as usize);
                return rows.flat_map(swiglu).collect();
            }
        };
        let (n, k) = (case.n as usize, case.k as usize);
        let value = |from: usize, at: usize| block[(from + at) % block.len()].to_f32();
        let x = |row: usize, col: usize| value(FROM_X, row * k + col);
        let dy = |row: usize, col: usize| value(FROM_DY, row * n + col);
        let w = |group: usize, row: usize, col: usize| value(FROM_W, (group * n + row) * k + col);
        let mut out = Vec::new();
        let mut first = 0;
        for (group, &size) in case.groups.sizes().iter().enumerate() {
            let rows = first..first + size as usize;
            first = rows.end;
            let (height, columns, depth) = match form {
                Form::Forward => (rows.len(), n, k),
                Form::Dgrad => (rows.len(), k, n),
                Form::Wgrad => (n, k, rows.len()),
            };
            let start = rows.start;
            for (row, col) in (0..height).flat_map(|row| (0..columns).map(move |col| (row, col))) {
                let product = |at: usize| match form {
                    Form::Forward => x(start + row, at) * w(group, col, at),
                    Form::Dgrad => dy(start + row, at) * w(group, at, col),
                    Form::Wgrad => dy(start + at, row) * x(start + at, col),
                };
                out.push((0..depth).map(product).sum::<f32>());
            }
        }
        out
    }

    /// Of a row of gate and up.
    fn swiglu(sums: &[f32]) -> Vec<f32> {
        let (gate, up) = sums.split_at(sums.len() / 2);
        let both = gate.iter().zip(up);
        let rounded = both.map(|(&gate, &up)| [gate, up].map(|sum| bf16::from_f32(sum).to_f64()));
        let values = rounded.map(|[gate, up]| gate / (1.0 + (-gate).exp()) * up);
        values.map(|value| value as f32).collect()
    }

    #[test]
    fn products_are_those_of_the_packed_tensors() {
        let device = Device::emulated(EmulatorConfig::default()).expect("an emulator");
        let gemm = GroupedGemm::new(&device).expect("kernels");
        // Small integers, so that sums are exact in any order; short, so that tensors wrap.
        let values: Vec<bf16> = fill::integers(5, 3001, 2);
        let block = device.buffer_from(&values).expect("memory");
        let filter = Filter::default();
        let mut cases = filter.custom(3, 3, 150, 16, 24).expect("cases");
        cases[0].gemm = Some(Gemm::GateUp);
        let products = filter.products();
        for case in &cases {
            let mut ours = Ours::new(&device, &gemm, case, &products, &block).expect("tensors");
            for (form, sinks) in &case.has(&products) {
                let expected = expected(case, &values, *form);
                let wanted = case.sample(*form, 1);
                for &sink in sinks {
                    // What was added before must not show.
                    let times = ours.time(*form, sink, 1, 2).expect("times");
                    assert_eq!(times.len(), 2);
                    let rows = ours.rows(*form, sink, &wanted).expect("rows");
                    let columns = case.columns(*form);
                    for (row, got) in wanted.iter().zip(rows.chunks(columns)) {
                        let right = &expected[row * columns..][..columns];
                        let right: Vec<f32> = match sink.element_size() {
                            2 => right
                                .iter()
                                .map(|&value| bf16::from_f32(value).to_f32())
                                .collect(),
                            _ => right.to_vec(),
                        };
                        assert_eq!(got, right, "{} {sink:?}, row {row}", form.name());
                    }
                }
            }
        }
    }
}
