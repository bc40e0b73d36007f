//! What the emulator takes for true where the ISA leaves it open: the same on a GPU.

use libtest_mimic::Trial;
use mok::launch::{KernelSpec, Param};
use mok::tensor_map::{DataType, OutOfBounds, Swizzle, TensorMapSpec};
use mok::{Buffer, Module};
use mok_tests::Probes;

use crate::{Outcome, expect_equal, trial};

static PTX: &str = include_str!("facts.ptx");

/// PTX ISA, "atom": f32 sums flush in device memory, not in shared memory; `.noftz` keeps, and so do
/// bulk reductions, of which the ISA says otherwise.
fn subnormal_sums() -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let mut words = vec![0u32; 10];
    words[0] = 5;
    words[1] = 0x8000_0005;
    words[4..8].copy_from_slice(&[5, 0x8000_0005, 1f32.to_bits(), 0x0080_0000]);
    words[8] = 0x0003_0003;
    words[9] = 0x0003_0003;
    let buffer = device.buffer_from(&words)?;
    let spec = KernelSpec::new("fact_subnormal_sums", 1).with_params(&[Param::Bytes(8)]);
    let kernel = Module::from_ptx(device, PTX)?.kernel(spec)?;
    let launch = kernel.launch().grid([1, 1, 1]).arg(&buffer.ptr().as_raw());
    // SAFETY: the buffer has the ten words that the kernel uses.
    unsafe { launch.enqueue(&stream)? };
    stream.synchronize()?;
    let one = 1f32.to_bits();
    let want = [
        0,
        0x8000_0000,
        8,
        0,
        10,
        0,
        one,
        0x0080_0005,
        0x0004_0004,
        0x0004_0004,
    ];
    expect_equal("sums", &buffer.to_vec()?, &want)
}

/// The bytes of a box at (x, y), with 0xa5 where it wrote nothing.
fn show(
    probes: &Probes,
    map: TensorMapSpec,
    at: [i32; 2],
    bytes: u32,
    room: u32,
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let out: Buffer<u8> = device.buffer_filled(room as usize, 0)?;
    let word = Param::Bytes(4);
    let params = [Param::TensorMap, Param::Bytes(8), word, word, word, word];
    let spec = KernelSpec::new("fact_box", 1)
        .with_params(&params)
        .with_max_shared(room);
    let kernel = Module::from_ptx(device, PTX)?.kernel(spec)?;
    let launch = kernel
        .launch()
        .grid([1, 1, 1])
        .shared(room)
        .map(&device.tensor_map(&map)?)
        .arg(&out.ptr().as_raw())
        .arg(&at[0])
        .arg(&at[1])
        .arg(&bytes)
        .arg(&room);
    // SAFETY: the map is of a live buffer, shared memory and the output have room.
    unsafe { launch.enqueue(&stream)? };
    stream.synchronize()?;
    Ok(out.to_vec()?)
}

/// A NaN outside is one of 16 bits, again and again.
fn nan_fill() -> Outcome {
    let probes = Probes::load()?;
    let mut wrong = Vec::new();
    for (dtype, nan) in [
        (DataType::F16, &0x7ff7u16.to_le_bytes()[..]),
        (DataType::Bf16, &0x7ff7u16.to_le_bytes()[..]),
        (DataType::F32, &0x7ff7_7ff7u32.to_le_bytes()[..]),
        (DataType::F64, &0x7ff7_7ff7_7ff7_7ff7u64.to_le_bytes()[..]),
    ] {
        let size = nan.len() as u32;
        let input = probes.device.buffer_filled::<u8>(64 * nan.len(), 0)?;
        let map = TensorMapSpec::new(dtype, input.ptr())
            .with_dims(&[16, 4])
            .with_strides(&[16 * u64::from(size)])
            .with_tile(&[16, 2])
            .with_swizzle(Swizzle::None)
            .with_fill(OutOfBounds::Nan);
        let got = show(&probes, map, [8, 0], 32 * size, 32 * size)?;
        let row = [vec![0; 8 * nan.len()], nan.repeat(8)].concat();
        if got != row.repeat(2) {
            let nan = &got[8 * nan.len()..][..nan.len()];
            wrong.push(format!("{dtype:?} is filled with {nan:02x?}"));
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join(", ").into())
    }
}

/// Rows that are narrower than the swizzle's are as far apart, and the swizzle acts on addresses.
fn narrow_rows() -> Outcome {
    let probes = Probes::load()?;
    let values: Vec<u8> = (0..=255).cycle().take(64 * 32).collect();
    let input = probes.device.buffer_from(&values)?;
    let map = TensorMapSpec::new(DataType::U8, input.ptr())
        .with_dims(&[64, 32])
        .with_strides(&[64])
        .with_tile(&[32, 16])
        .with_swizzle(Swizzle::B128);
    let got = show(&probes, map, [0, 0], 512, 4096)?;
    let mut want = vec![0xa5; 4096];
    for row in 0..16usize {
        for column in 0..32 {
            let at = 128 * row + column;
            want[at ^ (at >> 7 & 7) << 4] = values[64 * row + column];
        }
    }
    if got != want {
        // Which 16 bytes of the input lie where.
        let pieces = got
            .chunks(16)
            .enumerate()
            .filter(|(_, piece)| piece[0] != 0xa5);
        let pieces: Vec<_> = pieces.map(|(at, piece)| (16 * at, piece[0])).collect();
        return Err(format!("box: {pieces:?}").into());
    }
    Ok(())
}

/// With an element stride the box has one of so many rows, rounded up; along a row it has no effect.
fn element_strides() -> Outcome {
    let probes = Probes::load()?;
    let values: Vec<u8> = (0..32 * 32)
        .map(|at| (at / 32 * 7 + at % 32) as u8)
        .collect();
    let input = probes.device.buffer_from(&values)?;
    let map = TensorMapSpec::new(DataType::U8, input.ptr())
        .with_dims(&[32, 32])
        .with_strides(&[32])
        .with_tile(&[32, 5])
        .with_element_strides(&[1, 2])
        .with_swizzle(Swizzle::None);
    let got = show(&probes, map, [0, 3], 96, 256)?;
    let mut want = vec![0xa5; 256];
    for row in 0..3 {
        want[32 * row..][..32].copy_from_slice(&values[32 * (3 + 2 * row)..][..32]);
    }
    expect_equal("box", &got, &want)
}

pub fn trials() -> Vec<Trial> {
    vec![
        trial("facts::subnormal_sums", subnormal_sums),
        trial("facts::nan_fill", nan_fill),
        trial("facts::narrow_rows", narrow_rows),
        trial("facts::element_strides", element_strides),
    ]
}
