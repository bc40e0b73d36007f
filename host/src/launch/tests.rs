use super::*;

const H200: DeviceLimits = DeviceLimits {
    sm_count: 132,
    max_threads: 1024,
    max_block: [1024, 1024, 64],
    max_shared: 227 * 1024,
    max_grid: [i32::MAX as u32, 65535, 65535],
    clusters: true,
};

/// Blocks that are limited by their dimensions alone.
const LARGE_BLOCKS: DeviceLimits = DeviceLimits {
    max_threads: 4096,
    ..H200
};

fn spec() -> KernelSpec {
    KernelSpec::new("entry", 384)
        .with_params(&[Param::TensorMap, Param::Bytes(8)])
        .with_cluster(2)
        .with_max_shared(1000)
}

fn request() -> Request {
    Request {
        grid: Some([4, 1, 1]),
        threads: None,
        shared: 1000,
        args: vec![Param::TensorMap, Param::Bytes(8)],
    }
}

fn entry() -> String {
    "entry".into()
}

#[test]
fn a_launch_as_the_spec_says_passes() {
    assert_eq!(request().check(&spec(), &H200), Ok(()));
    let threads = Some([384, 1, 1]);
    assert_eq!(
        Request {
            threads,
            ..request()
        }
        .check(&spec(), &H200),
        Ok(())
    );
}

#[test]
fn grids() {
    let with = |grid| Request { grid, ..request() }.check(&spec(), &H200);
    assert_eq!(with(None), Err(LaunchError::NoGrid { entry: entry() }));
    let grid = |dim, value, limit| {
        Err(LaunchError::Grid {
            entry: entry(),
            dim,
            value,
            limit,
        })
    };
    assert_eq!(with(Some([0, 1, 1])), grid('x', 0, i32::MAX as u32));
    assert_eq!(with(Some([2, 65536, 1])), grid('y', 65536, 65535));
    assert_eq!(with(Some([2, 65535, 0])), grid('z', 0, 65535));
    assert_eq!(
        with(Some([3, 1, 1])),
        Err(LaunchError::GridCluster {
            entry: entry(),
            value: 3,
            cluster: 2
        })
    );
}

#[test]
fn threads_are_exact() {
    for threads in [[256, 1, 1], [1, 384, 1], [0, 0, 0]] {
        let check = Request {
            threads: Some(threads),
            ..request()
        }
        .check(&spec(), &H200);
        let spec = [384, 1, 1];
        assert_eq!(
            check,
            Err(LaunchError::Threads {
                entry: entry(),
                threads,
                spec
            })
        );
    }
}

#[test]
fn shared_memory() {
    let with = |shared, spec: &KernelSpec| {
        Request {
            shared,
            ..request()
        }
        .check(spec, &H200)
    };
    let over = |bytes, limit, of| {
        Err(LaunchError::Shared {
            entry: entry(),
            bytes,
            limit,
            of,
        })
    };
    assert_eq!(with(1001, &spec()), over(1001, 1000, "spec"));
    let wide = spec().with_max_shared(u32::MAX);
    assert_eq!(
        with(H200.max_shared + 1, &wide),
        over(H200.max_shared + 1, H200.max_shared, "device")
    );
    assert_eq!(with(H200.max_shared, &wide), Ok(()));
}

#[test]
fn arguments() {
    let with = |args: &[Param]| {
        Request {
            args: args.to_vec(),
            ..request()
        }
        .check(&spec(), &H200)
    };
    let arity = |given| {
        Err(LaunchError::Arity {
            entry: entry(),
            given,
            spec: 2,
        })
    };
    assert_eq!(with(&[]), arity(0));
    assert_eq!(
        with(&[Param::TensorMap, Param::Bytes(8), Param::Bytes(8)]),
        arity(3)
    );
    for other in [Param::TensorMaps(1), Param::TensorMaps(2)] {
        assert!(with(&[other, Param::Bytes(8)]).is_err(), "{other:?}");
    }
    let (map, bytes) = (Param::TensorMap, Param::Bytes(128));
    assert_eq!(
        with(&[bytes, Param::Bytes(8)]),
        Err(LaunchError::Argument {
            entry: entry(),
            index: 0,
            given: bytes,
            spec: map
        }),
        "128 bytes are no tensor map"
    );
    assert_eq!(
        with(&[map, Param::Bytes(4)]),
        Err(LaunchError::Argument {
            entry: entry(),
            index: 1,
            given: Param::Bytes(4),
            spec: Param::Bytes(8)
        })
    );
}

#[test]
fn specs_are_checked_against_device_and_code() {
    let check = |spec: KernelSpec| spec.check(&H200, 1024, 0, Some(&[128, 8]));
    assert_eq!(check(spec()), Ok(()));
    for threads in [[0, 1, 1], [1025, 1, 1], [u32::MAX; 3]] {
        let error = LaunchError::SpecThreads {
            entry: entry(),
            threads,
            limit: 1024,
        };
        assert_eq!(check(spec().with_threads(threads)), Err(error));
    }
    for (threads, dim, value, limit) in
        [([2, 1, 65], 'z', 65, 64), ([1, 0x401, 1], 'y', 0x401, 1024)]
    {
        let check = spec()
            .with_threads(threads)
            .check(&LARGE_BLOCKS, 4096, 0, None);
        assert_eq!(
            check,
            Err(LaunchError::SpecBlock {
                entry: entry(),
                dim,
                value,
                limit
            })
        );
    }
    let compiled_for_less = spec().check(&H200, 256, 0, None);
    assert!(matches!(
        compiled_for_less,
        Err(LaunchError::SpecThreads { limit: 256, .. })
    ));
    for cluster in [0, 17] {
        let error = LaunchError::SpecCluster {
            entry: entry(),
            cluster,
            limit: 16,
        };
        assert_eq!(check(spec().with_cluster(cluster)), Err(error));
    }
    let old = DeviceLimits {
        clusters: false,
        ..H200
    };
    assert!(matches!(
        spec().check(&old, 1024, 0, None),
        Err(LaunchError::SpecCluster { limit: 1, .. })
    ));
    let with_static = spec()
        .with_max_shared(H200.max_shared)
        .check(&H200, 1024, 16, None);
    assert!(matches!(
        with_static,
        Err(LaunchError::Shared { of: "device", .. })
    ));
    let large = [Param::Bytes(32760), Param::Bytes(8)];
    let bytes = 32768;
    assert_eq!(
        check(spec().with_params(&large)),
        Err(LaunchError::ParamBytes {
            entry: entry(),
            bytes,
            limit: MAX_PARAM_BYTES
        })
    );
    assert_eq!(
        spec().check(&H200, 1024, 0, Some(&[128])),
        Err(LaunchError::CodeArity {
            entry: entry(),
            spec: 2,
            code: 1
        })
    );
    assert_eq!(
        spec().check(&H200, 1024, 0, Some(&[128, 4])),
        Err(LaunchError::CodeParam {
            entry: entry(),
            index: 1,
            spec: 8,
            code: 4
        })
    );
}

#[test]
fn shipped_specs_fit_an_h200() {
    let archs = mok_kernel::arch::Arch::ALL.into_iter();
    for spec in archs.flat_map(mok_kernel::entries) {
        let sizes: Vec<u32> = spec.params.iter().map(|param| param.size()).collect();
        let threads = spec.threads;
        assert_eq!(
            KernelSpec::from(*spec).check(&H200, threads, 0, Some(&sizes)),
            Ok(())
        );
    }
}
