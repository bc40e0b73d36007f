//! Bulk and tensor copies, clusters.

use libtest_mimic::Trial;
use mok::tensor_map::{DataType, Swizzle, TensorMapSpec};
use mok::{Buffer, DevicePtr};
use mok_kernel::launch::LaunchSpec;
use mok_probes::spec::{self, ProbeArgs};
use mok_tests::Probes;

use crate::{Outcome, expect_equal, trial};

/// f32 tensors, innermost dimension first, and boxes that reach over their edges.
struct Case {
    dims: &'static [u64],
    tile: &'static [u32],
    at: [i32; 5],
}

const CASES: [(Case, &LaunchSpec, &LaunchSpec); 5] = [
    (
        Case {
            dims: &[1000],
            tile: &[256],
            at: [900, 0, 0, 0, 0],
        },
        &spec::TMA_1D,
        &spec::MULTICAST_1D,
    ),
    (
        Case {
            dims: &[40, 30],
            tile: &[32, 16],
            at: [20, 20, 0, 0, 0],
        },
        &spec::TMA_2D,
        &spec::MULTICAST_2D,
    ),
    (
        Case {
            dims: &[20, 9, 7],
            tile: &[8, 4, 4],
            at: [16, 7, 5, 0, 0],
        },
        &spec::TMA_3D,
        &spec::MULTICAST_3D,
    ),
    (
        Case {
            dims: &[12, 5, 6, 3],
            tile: &[8, 3, 2, 2],
            at: [8, 3, 5, 2, 0],
        },
        &spec::TMA_4D,
        &spec::MULTICAST_4D,
    ),
    (
        Case {
            dims: &[12, 5, 4, 3, 3],
            tile: &[4, 3, 2, 2, 2],
            at: [8, 3, 3, 2, 2],
        },
        &spec::TMA_5D,
        &spec::MULTICAST_5D,
    ),
];

/// Boxes that start before the tensor does: in the inner dimension, the outer one, both.
static BEFORE_INNER: Case = Case::plane([-4, 3]);
static BEFORE_OUTER: Case = Case::plane([4, -3]);
static BEFORE_BOTH: Case = Case::plane([-4, -3]);

impl Case {
    const fn plane(at: [i32; 2]) -> Case {
        Case {
            dims: &[40, 30],
            tile: &[32, 16],
            at: [at[0], at[1], 0, 0, 0],
        }
    }

    fn len(&self) -> usize {
        self.dims.iter().product::<u64>() as usize
    }

    fn map(&self, ptr: DevicePtr) -> TensorMapSpec {
        let mut strides = Vec::new();
        let mut stride = 4;
        for dim in &self.dims[..self.dims.len() - 1] {
            stride *= dim;
            strides.push(stride);
        }
        TensorMapSpec::new(DataType::F32, ptr)
            .with_dims(self.dims)
            .with_strides(&strides)
            .with_tile(self.tile)
            .with_swizzle(Swizzle::None)
    }

    fn args(&self) -> ProbeArgs {
        ProbeArgs {
            at: self.at,
            bytes: self.tile.iter().product::<u32>() * 4,
            ..ProbeArgs::default()
        }
    }

    /// For each element of the box, innermost first: where it lies in the tensor, if it does.
    fn elements(&self) -> Vec<Option<usize>> {
        let count = self.tile.iter().product::<u32>();
        (0..count)
            .map(|mut index| {
                let (mut offset, mut stride) = (0i64, 1i64);
                for ((&tile, &dim), &at) in self.tile.iter().zip(self.dims).zip(&self.at) {
                    let coordinate = i64::from(at) + i64::from(index % tile);
                    if !(0..dim as i64).contains(&coordinate) {
                        return None;
                    }
                    offset += coordinate * stride;
                    stride *= dim as i64;
                    index /= tile;
                }
                Some(offset as usize)
            })
            .collect()
    }
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|index| index as f32 + 1.0).collect()
}

/// Load, store and reduction of one box.
fn tensor_copy(case: &Case, spec: &'static LaunchSpec, mode: u32) -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let input = device.buffer_from(&numbers(case.len()))?;
    let output = device.buffer_from(&vec![-1f32; case.len()])?;
    let sum = device.buffer_from(&vec![0.5f32; case.len()])?;
    let kernel = probes.kernel(spec)?;
    let mut launch = kernel.launch().grid([1, 1, 1]).shared(spec.max_shared);
    for buffer in [&input, &output, &sum] {
        launch = launch.map(&device.tensor_map(&case.map(buffer.ptr()))?);
    }
    // SAFETY: the maps are of live buffers, the box is `bytes` long.
    unsafe {
        launch
            .arg(&ProbeArgs {
                mode,
                ..case.args()
            })
            .enqueue(&stream)?
    };
    stream.synchronize()?;

    let (mut stored, mut added) = (vec![-1f32; case.len()], vec![0.5f32; case.len()]);
    for at in case.elements().into_iter().flatten() {
        stored[at] = if mode == 2 { -1.0 } else { at as f32 + 1.0 };
        added[at] += if mode == 1 { 0.0 } else { at as f32 + 1.0 };
    }
    expect_equal("stored", &output.to_vec()?, &stored)?;
    expect_equal("added", &sum.to_vec()?, &added)
}

/// A box that lands in both blocks of two clusters.
fn multicast(case: &Case, spec: &'static LaunchSpec) -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let input = device.buffer_from(&numbers(case.len()))?;
    let elements = case.elements();
    let output = device.buffer_filled::<f32>(2 * elements.len(), 0xff)?;
    let map = device.tensor_map(&case.map(input.ptr()))?;
    let args = ProbeArgs {
        output: output.ptr().as_raw(),
        ..case.args()
    };
    let kernel = probes.kernel(spec)?;
    let launch = kernel.launch().grid([2, 1, 1]).shared(spec.max_shared);
    // SAFETY: as above; the output has room for two boxes.
    unsafe {
        launch
            .map(&map)
            .map(&map)
            .map(&map)
            .arg(&args)
            .enqueue(&stream)?
    };
    stream.synchronize()?;
    let one: Vec<f32> = elements
        .iter()
        .map(|at| at.map_or(0.0, |at| at as f32 + 1.0))
        .collect();
    expect_equal(
        "both blocks",
        &output.to_vec()?,
        &[one.clone(), one].concat(),
    )
}

/// Bulk copies in both directions, both parities, all ways of waiting.
fn bulk() -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let words = 1000;
    let values: Vec<u32> = (0..words).map(|word| word * 3).collect();
    let input = device.buffer_from(&values)?;
    let output: Buffer<u32> = device.buffer_filled(2 * words as usize, 0xff)?;
    let args = ProbeArgs {
        input: input.ptr().as_raw(),
        output: output.ptr().as_raw(),
        bytes: 4 * words,
        ..ProbeArgs::default()
    };
    let kernel = probes.kernel(&spec::BULK)?;
    // SAFETY: the buffers have the sizes that `bytes` says.
    unsafe {
        kernel
            .launch()
            .grid([1, 1, 1])
            .shared(spec::BULK.max_shared)
            .arg(&args)
            .enqueue(&stream)?
    };
    stream.synchronize()?;
    let want: Vec<u32> = [1, 2]
        .iter()
        .flat_map(|add| values.iter().map(move |value| value + add))
        .collect();
    expect_equal("copies", &output.to_vec()?, &want)
}

/// A map that the host wrote to device memory.
fn map_in_memory() -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let case = &CASES[1].0;
    let input = device.buffer_from(&numbers(case.len()))?;
    let elements = case.elements();
    let output = device.buffer_filled::<f32>(elements.len(), 0xff)?;
    let map = device.buffer_from(device.tensor_map(&case.map(input.ptr()))?.as_bytes())?;
    let args = ProbeArgs {
        input: map.ptr().as_raw(),
        output: output.ptr().as_raw(),
        ..case.args()
    };
    let kernel = probes.kernel(&spec::MAP_IN_MEMORY)?;
    // SAFETY: the map is valid and lives; the output has room for the box.
    unsafe {
        kernel
            .launch()
            .grid([1, 1, 1])
            .shared(spec::BULK.max_shared)
            .arg(&args)
            .enqueue(&stream)?
    };
    stream.synchronize()?;
    let want: Vec<f32> = elements
        .iter()
        .map(|at| at.map_or(0.0, |at| at as f32 + 1.0))
        .collect();
    expect_equal("box", &output.to_vec()?, &want)
}

/// Distributed shared memory and copies between the blocks of three clusters.
fn cluster() -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let values: Vec<u32> = (0..64).map(|word| 5000 + word).collect();
    let input = device.buffer_from(&values)?;
    let output: Buffer<u32> = device.buffer_zeroed(12 * 260)?;
    let args = ProbeArgs {
        input: input.ptr().as_raw(),
        output: output.ptr().as_raw(),
        ..ProbeArgs::default()
    };
    let kernel = probes.kernel(&spec::CLUSTER)?;
    // SAFETY: the buffers have the sizes that the probe states.
    unsafe {
        kernel
            .launch()
            .grid([12, 1, 1])
            .shared(spec::CLUSTER.max_shared)
            .arg(&args)
            .enqueue(&stream)?
    };
    stream.synchronize()?;
    let mut want = Vec::new();
    for block in 0..12u32 {
        let previous = block / 4 * 4 + (block + 3) % 4;
        want.extend((0..64).map(|thread| 100 * previous + thread));
        // The next block got this block's stores.
        want.extend((0..64).map(|thread| 100 * block + thread));
        want.extend((0..64).map(|thread| 1000 * previous + thread));
        want.extend(&values);
        want.extend([block % 4, 4, block / 4, 0]);
    }
    expect_equal("blocks", &output.to_vec()?, &want)
}

/// A fault by its name.
pub type Fault = (&'static str, fn() -> Outcome);

/// Tensor stores and additions that start before the tensor: a GPU refuses them, and its context
/// is lost.
pub const FAULTS: [Fault; 4] = [
    ("store_before_inner", || {
        tensor_copy(&BEFORE_INNER, &spec::TMA_2D, 1)
    }),
    ("store_before_outer", || {
        tensor_copy(&BEFORE_OUTER, &spec::TMA_2D, 1)
    }),
    ("add_before_inner", || {
        tensor_copy(&BEFORE_INNER, &spec::TMA_2D, 2)
    }),
    ("add_before_outer", || {
        tensor_copy(&BEFORE_OUTER, &spec::TMA_2D, 2)
    }),
];

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("copies::bulk", bulk),
        trial("copies::map_in_memory", map_in_memory),
        trial("copies::cluster", cluster),
    ];
    trials.push(trial("copies::before_the_start", || {
        multicast(&BEFORE_BOTH, &spec::MULTICAST_2D)
    }));
    for (index, (case, plain, cast)) in CASES.iter().enumerate() {
        let rank = index + 1;
        trials.push(trial(format!("copies::tensor_{rank}d"), move || {
            tensor_copy(case, plain, 0)
        }));
        trials.push(trial(format!("copies::multicast_{rank}d"), move || {
            multicast(case, cast)
        }));
    }
    trials
}
