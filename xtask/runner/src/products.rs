//! The three products on a device.

use anyhow::Result;
use bytemuck::Pod;
use half::bf16;
use mok::gemm::{Form, GemmCall, GroupRows, GroupedGemm, Matrix, OverflowWord, Sink};
use mok::oracle::{Comparison, OracleError, Reference};
use mok::{Buffer, Device, Stream};

use crate::shape::Data;

/// The byte that D is filled with: a NaN in every type, and a mark for what is never written.
pub const MARK: u8 = 0xFF;

/// D as it came back.
#[derive(Debug, PartialEq)]
pub enum Product {
    Bf16(Vec<bf16>),
    F32(Vec<f32>),
}

impl Product {
    /// Reads bytes as the sink's elements.
    pub fn new(sink: Sink, bytes: &[u8]) -> Product {
        fn read<T: Pod>(bytes: &[u8]) -> Vec<T> {
            bytes
                .chunks_exact(size_of::<T>())
                .map(bytemuck::pod_read_unaligned)
                .collect()
        }
        match sink.element_size() {
            2 => Product::Bf16(read(bytes)),
            _ => Product::F32(read(bytes)),
        }
    }

    /// How far it is from a reference.
    pub fn compare(&self, reference: &Reference) -> Result<Comparison, OracleError> {
        match self {
            Product::Bf16(values) => reference.compare(values),
            Product::F32(values) => reference.compare(values),
        }
    }
}

/// Data on a device, ready to be multiplied.
pub struct Products<'a> {
    data: &'a Data,
    device: Device,
    pub stream: Stream,
    gemm: GroupedGemm,
    sizes: Buffer<u32>,
    overflow: OverflowWord,
    x: Buffer<bf16>,
    dy: Buffer<bf16>,
    w: Buffer<bf16>,
}

impl<'a> Products<'a> {
    /// Copies the data there.
    pub fn new(device: &Device, data: &'a Data) -> Result<Products<'a>> {
        Ok(Products {
            data,
            device: device.clone(),
            stream: device.stream()?,
            gemm: GroupedGemm::new(device)?,
            sizes: device.buffer_from(data.groups.sizes())?,
            overflow: OverflowWord::new(device)?,
            x: device.buffer_from(&data.x)?,
            dy: device.buffer_from(&data.dy)?,
            w: device.buffer_from(&data.w)?,
        })
    }

    /// D of a form, as it is before the launch.
    fn old<T: Pod>(&self, form: Form, values: Option<&[T]>, sink: Sink) -> Result<Buffer<u8>> {
        let (rows, cols) = self.data.d_extent(form);
        Ok(match values {
            Some(values) => self.device.buffer_from(bytemuck::cast_slice(values))?,
            None => {
                let bytes = rows * cols * sink.element_size() as usize;
                self.device.buffer_filled(bytes, MARK)?
            }
        })
    }

    /// The bytes of D after one launch, on at most this many SMs.
    pub fn bytes(&self, form: Form, sink: Sink, sms: u32) -> Result<Vec<u8>> {
        let old = self.data.old(form, sink);
        let d = match sink {
            Sink::AddBf16 => {
                let old: Option<Vec<bf16>> =
                    old.map(|old| old.into_iter().map(bf16::from_f32).collect());
                self.old(form, old.as_deref(), sink)?
            }
            _ => self.old(form, old.as_deref(), sink)?,
        };
        let rows = self.data.groups.at(self.sizes.ptr());
        let call = call(
            self.data,
            form,
            rows.with_overflow(self.overflow.ptr()),
            [&self.x, &self.dy, &self.w].map(Matrix::of),
            Matrix::of(&d),
        )
        .with_sink(sink);
        let gemm = self.gemm.clone().with_sms(sms)?;
        // SAFETY: the buffers live until the synchronisation, and nothing else uses them.
        unsafe { gemm.enqueue(&call, &self.stream) }?;
        self.stream.synchronize()?;
        self.overflow.check(&rows)?;
        Ok(d.to_vec()?)
    }
}

/// The call of a form.
pub fn call(data: &Data, form: Form, rows: GroupRows, inputs: [Matrix; 3], d: Matrix) -> GemmCall {
    let [x, dy, w] = inputs;
    // Sizes come from 32-bit arguments.
    let (n, k) = (data.n as u32, data.k as u32);
    match form {
        Form::Forward => GemmCall::forward(rows, n, k, x, w, d),
        Form::Dgrad => GemmCall::dgrad(rows, k, n, dy, w, d),
        Form::Wgrad => GemmCall::wgrad(rows, n, k, dy, x, d),
    }
}
