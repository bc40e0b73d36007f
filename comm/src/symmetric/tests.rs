use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use super::*;
use crate::device::fake::{GRANULARITY, Machine, Setup};

/// Runs ranks as threads, each with a device of the machine.
fn ranks<T: Send>(
    machine: &Arc<Machine>,
    world: usize,
    run: impl Fn(Group, Arc<dyn Device>) -> T + Sync,
) -> Vec<T> {
    let groups = Group::threads(world).expect("groups");
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| {
                let device = machine.device(group.rank());
                group.set_timeout(Duration::from_secs(10));
                scope.spawn(move || run(group, device))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}

const KINDS: [HandleKind; 3] = [
    HandleKind::InProcess,
    HandleKind::Fabric,
    HandleKind::Descriptor,
];

#[test]
fn every_rank_reaches_every_buffer_by_every_kind() {
    for kind in KINDS {
        for world in [1, 2, 5] {
            let machine = Machine::new(world, Setup::default());
            ranks(&machine, world, |group, device| {
                let memory = allocate_on(&group, Ok(device), 100, Some(kind)).expect("memory");
                assert_eq!((memory.bytes(), memory.kind()), (2 * GRANULARITY, kind));
                let addresses = memory.addresses();
                assert_eq!(
                    (addresses.own, addresses.world_size()),
                    (group.rank(), world)
                );
                let at = |rank: usize, offset: usize| addresses.bases[rank] + offset as u64;
                let own = group.rank();
                // All zero, and this before anybody writes.
                for rank in 0..world {
                    let mut read = vec![1; memory.bytes()];
                    machine.access(own, at(rank, 0), None, &mut read);
                    assert!(read.iter().all(|byte| *byte == 0), "{kind}");
                }
                group.barrier().expect("all have looked");
                for rank in 0..world {
                    let said = [own as u8 + 1];
                    machine.access(own, at(rank, own), Some(&said), &mut [0]);
                }
                group.barrier().expect("all have written");
                let mut read = vec![0; world];
                machine.access(own, addresses.base(), None, &mut read);
                let expected: Vec<u8> = (1..=world as u8).collect();
                assert_eq!(read, expected, "{kind}");
                // No handle is held beyond the call, only mappings.
                group.barrier().expect("all have read");
                assert_eq!(machine.held(), [world, 0, world * world, world * world]);
                group.barrier().expect("all have counted");
            });
            assert_eq!(machine.held(), [0; 4], "{kind}, {world} ranks");
        }
    }
}

#[test]
fn a_buffer_lives_until_the_last_rank_frees_it() {
    let machine = Machine::new(3, Setup::default());
    let turn = Barrier::new(3);
    ranks(&machine, 3, |group, device| {
        let memory = allocate_on(&group, Ok(device), 1, None).expect("memory");
        let mut memory = Some(memory);
        // Every order is as good: 2, then 0, then 1.
        for last in [2, 0, 1] {
            if group.rank() == last {
                memory = None;
            }
            turn.wait();
            if let Some(memory) = &memory {
                for base in &memory.addresses().bases {
                    machine.access(group.rank(), *base, Some(&[7]), &mut [0]);
                }
            }
            turn.wait();
        }
    });
    assert_eq!(machine.held(), [0; 4]);
}

/// Every call of one rank fails in turn.
#[test]
fn a_failure_anywhere_is_everybodys_and_leaves_nothing() {
    for kind in KINDS {
        for victim in [0, 2] {
            let mut failures = 0;
            for at in 0.. {
                let failing = Some((victim, at));
                let machine = Machine::new(
                    3,
                    Setup {
                        failing,
                        ..Setup::default()
                    },
                );
                let results = ranks(&machine, 3, |group, device| {
                    let result = allocate_on(&group, Ok(device), 100, Some(kind));
                    // The group is still of use.
                    group.barrier().expect("a group that works");
                    result
                });
                let calls = machine.calls(victim);
                if calls.len() <= at {
                    assert!(results.iter().all(Result::is_ok), "{kind}, call {at}");
                    break;
                }
                // A granularity that the driver won't tell closes that way only.
                let call = calls[at];
                let closed = call == "cuMemGetAllocationGranularity" && results[0].is_ok();
                for (rank, result) in results.iter().enumerate() {
                    match result {
                        Ok(_) => assert!(closed, "{kind}: {call} failed unseen on rank {rank}"),
                        Err(Error::NoSharing { why }) => {
                            assert_eq!(call, "cuMemGetAllocationGranularity", "{why}");
                        }
                        Err(error @ Error::Driver { .. }) => {
                            assert_eq!(rank, victim);
                            let text = format!("{call} failed: CUDA_ERROR_UNKNOWN (999)");
                            assert_eq!(error.to_string(), text);
                        }
                        Err(error) => {
                            assert_ne!(rank, victim, "{error}");
                            let text =
                                format!("rank {victim} failed: {call} failed: CUDA_ERROR_UNKNOWN");
                            assert!(error.to_string().contains(&text), "{error}");
                        }
                    }
                }
                drop(results);
                assert_eq!(machine.held(), [0; 4], "{kind}: {call} left something");
                failures += 1;
            }
            assert!(failures >= 8, "{kind}: only {failures} calls could fail");
        }
    }
}

#[test]
fn without_an_imex_channel_descriptors_take_over() {
    let setup = Setup {
        no_imex: true,
        ..Setup::default()
    };
    let machine = Machine::new(2, setup.clone());
    let kinds = ranks(&machine, 2, |group, device| {
        let group = as_processes(group);
        let memory = allocate_on(&group, Ok(device), 1, None).expect("memory");
        group.barrier().expect("both");
        memory.kind()
    });
    assert_eq!(kinds, [HandleKind::Descriptor; 2]);
    assert_eq!(machine.held(), [0; 4]);
    // With nothing else left, the refusal is the answer.
    let machine = Machine::new(
        2,
        Setup {
            descriptors: false,
            ..setup
        },
    );
    let errors = ranks(&machine, 2, |group, device| {
        let group = as_processes(group);
        allocate_on(&group, Ok(device), 1, None)
            .expect_err("refused")
            .to_string()
    });
    assert_eq!(
        errors[0],
        "cuMemCreate failed: CUDA_ERROR_NOT_PERMITTED (800)"
    );
    assert_eq!(errors[1], format!("rank 0 failed: {}", errors[0]));
}

/// The group as it would be with a process for each rank.
fn as_processes(group: Group) -> Group {
    let mut roster: Vec<_> = (0..group.world_size())
        .map(|rank| crate::identity::person(rank, rank))
        .collect();
    for person in &mut roster {
        person.process = person.rank.to_string();
    }
    group.with_roster(roster)
}

#[test]
fn the_way_follows_from_what_all_have() {
    let group = Group::threads(2).expect("groups").remove(0);
    let card = |fabric, descriptors| Card {
        bytes: 1,
        wanted: None,
        granularity: 1,
        device: DeviceReport {
            name: "d".into(),
            uuid: "u".into(),
            bus: "b".into(),
            virtual_memory: true,
            descriptors,
            fabric,
            links: Vec::new(),
        },
    };
    let both = |fabric, descriptors| [card(true, true), card(fabric, descriptors)];
    assert_eq!(
        ways(&group, &both(true, true)),
        Ok(vec![HandleKind::InProcess])
    );
    let group = as_processes(group);
    let all = vec![HandleKind::Fabric, HandleKind::Descriptor];
    assert_eq!(ways(&group, &both(true, true)), Ok(all));
    assert_eq!(
        ways(&group, &both(false, true)),
        Ok(vec![HandleKind::Descriptor])
    );
    assert_eq!(
        ways(&group, &both(true, false)),
        Ok(vec![HandleKind::Fabric])
    );
    let error = ways(&group, &both(false, false))
        .expect_err("no way")
        .to_string();
    for part in [
        "rank 1 is another process",
        "fabric handles: the device of rank 1 has none",
    ] {
        assert!(error.contains(part), "{error}");
    }
    // Another host, or another container's network: descriptors are out.
    let mut roster: Vec<_> = (0..2)
        .map(|rank| crate::identity::person(rank, 0))
        .collect();
    roster[1].process = "another".into();
    roster[1].network = "net:[2]".into();
    let group = group.with_roster(roster);
    assert_eq!(
        ways(&group, &both(true, true)),
        Ok(vec![HandleKind::Fabric])
    );
    let error = ways(&group, &both(false, true))
        .expect_err("no way")
        .to_string();
    assert!(
        error.contains("rank 1 shares no local sockets with rank 0"),
        "{error}"
    );
}

#[test]
fn what_ranks_ask_for_must_agree_and_be_possible() {
    let machine = Machine::new(3, Setup::default());
    let errors = ranks(&machine, 3, |group, device| {
        let bytes = if group.rank() == 1 { 64 } else { 4096 };
        allocate_on(&group, Ok(device), bytes, None)
            .expect_err("unequal")
            .to_string()
    });
    let expected = "ranks disagree on the size of symmetric memory: \
                    4096 bytes on rank 0, rank 2; 64 bytes on rank 1";
    assert!(errors.iter().all(|error| error == expected), "{errors:?}");

    let errors = ranks(&machine, 3, |group, device| {
        let kind = (group.rank() == 2).then_some(HandleKind::Fabric);
        allocate_on(&group, Ok(device), 64, kind)
            .expect_err("unequal")
            .to_string()
    });
    assert!(
        errors[0].contains("any on rank 0, rank 1; fabric handles on rank 2"),
        "{errors:?}"
    );

    for bytes in [0, usize::MAX] {
        let errors = ranks(&machine, 2, |group, device| {
            allocate_on(&group, Ok(device), bytes, None)
                .expect_err("no size")
                .to_string()
        });
        assert!(
            errors[1].contains(&format!("{bytes} bytes: 1 to ")),
            "{errors:?}"
        );
    }

    // A rank without a driver, the others with one.
    let errors = ranks(&machine, 2, |group, device| {
        let device = if group.rank() == 1 {
            Err(Error::NoDriver)
        } else {
            Ok(device)
        };
        allocate_on(&group, device, 64, None).expect_err("no driver")
    });
    assert_eq!(errors[1], Error::NoDriver);
    assert!(
        errors[0]
            .to_string()
            .starts_with("rank 1 failed: no CUDA driver"),
        "{errors:?}"
    );
    assert_eq!(machine.held(), [0; 4]);
}

#[test]
fn devices_that_do_not_reach_each_other_are_named() {
    let setup = Setup {
        apart: vec![(0, 2)],
        ..Setup::default()
    };
    let machine = Machine::new(3, setup);
    let errors = ranks(&machine, 3, |group, device| {
        allocate_on(&group, Ok(device), 64, None).expect_err("apart")
    });
    for error in errors {
        let Error::NoPeerAccess { rank, peer, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((rank.rank, peer.rank), (0, 2));
        assert!(error.to_string().contains("0000:02:00.0"), "{error}");
    }
    let setup = Setup {
        virtual_memory: false,
        ..Setup::default()
    };
    let machine = Machine::new(1, setup);
    let errors = ranks(&machine, 1, |group, device| {
        allocate_on(&group, Ok(device), 64, None)
            .expect_err("too old")
            .to_string()
    });
    assert!(
        errors[0].contains("no virtual memory management"),
        "{errors:?}"
    );
}

/// A rank that dies at any point: the others get an error, and nothing of theirs is left.
#[test]
fn a_rank_that_is_lost_in_the_middle_leaves_nothing() {
    for kind in KINDS {
        for rounds in 0..2 {
            let machine = Machine::new(3, Setup::default());
            let errors = ranks(&machine, 3, |group, device| {
                if group.rank() == 1 {
                    // Takes part in some of the allocation's calls, then is gone.
                    let card = card(&*device, 64, Some(kind));
                    gather(&group, card).expect("cards");
                    if rounds == 1 {
                        group
                            .try_all_gather(Ok::<_, Error>(vec![0; 64]))
                            .expect("tickets");
                    }
                    return None;
                }
                allocate_on(&group, Ok(device), 64, Some(kind)).err()
            });
            for error in [&errors[0], &errors[2]] {
                assert!(error.is_some(), "{kind}: nobody noticed");
            }
            assert_eq!(machine.held(), [0; 4], "{kind}");
        }
    }
}
