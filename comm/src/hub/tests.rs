use std::time::{Duration, Instant};

use super::*;

fn call(name: &str, number: u64) -> Call {
    Call {
        name: name.into(),
        number,
        place: format!("{name}.rs:1"),
    }
}

fn ask(hub: &mut Hub, rank: usize, name: &str, number: u64, bytes: &[u8]) -> Vec<Out> {
    ask_in(hub, WORLD, rank, call(name, number), bytes)
}

fn ask_in(hub: &mut Hub, group: &str, rank: usize, call: Call, bytes: &[u8]) -> Vec<Out> {
    let request = Request::Call {
        group: group.into(),
        call,
        timeout_ms: 1000,
    };
    hub.request(rank, request, bytes.to_vec(), Instant::now())
}

fn failed(out: &[Out]) -> (&[usize], &Cause) {
    match out {
        [
            Out {
                to,
                reply: Reply::Failed { cause, .. },
                ..
            },
        ] => (to, cause),
        other => panic!("one failure expected, not {other:?}"),
    }
}

#[test]
fn the_last_to_come_frees_all() {
    let mut hub = Hub::new(3);
    assert_eq!(ask(&mut hub, 2, "all_gather", 0, b"cc"), []);
    assert_eq!(ask(&mut hub, 0, "all_gather", 0, b""), []);
    let out = ask(&mut hub, 1, "all_gather", 0, b"b");
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].to, [0, 1, 2]);
    assert_eq!(out[0].parts, [b"".to_vec(), b"b".to_vec(), b"cc".to_vec()]);
    assert_eq!(hub.next_deadline(), None);
}

#[test]
fn different_calls_are_both_named() {
    let mut hub = Hub::new(2);
    ask(&mut hub, 1, "barrier", 0, b"");
    let out = ask(&mut hub, 0, "all_gather", 0, b"x");
    let expected = Cause::Mismatch {
        first: (1, call("barrier", 0)),
        second: (0, call("all_gather", 0)),
    };
    assert_eq!(failed(&out), (&[0, 1][..], &expected));
    // The group stays failed, and only who asks is told again.
    let out = ask(&mut hub, 1, "barrier", 1, b"");
    assert_eq!(failed(&out), (&[1][..], &expected));
}

#[test]
fn calls_out_of_turn_and_of_strangers_are_refused() {
    let mut hub = Hub::new(2);
    let out = ask(&mut hub, 0, "barrier", 7, b"");
    assert!(matches!(failed(&out).1, Cause::Protocol { rank: 0, .. }));
    let mut hub = Hub::new(2);
    ask(&mut hub, 0, "barrier", 0, b"");
    let out = ask(&mut hub, 0, "barrier", 0, b"");
    assert!(matches!(failed(&out).1, Cause::Protocol { rank: 0, .. }));
    let mut hub = Hub::new(2);
    let out = ask_in(&mut hub, "nowhere", 1, call("barrier", 0), b"");
    assert!(matches!(
        failed(&out),
        ([1], Cause::Protocol { rank: 1, .. })
    ));
    let out = ask(&mut hub, 9, "barrier", 0, b"");
    assert!(matches!(
        failed(&out),
        ([9], Cause::Protocol { rank: 9, .. })
    ));
    assert_eq!(hub.lost(9, Departure::Closed), []);
}

#[test]
fn a_deadline_names_who_never_came() {
    let mut hub = Hub::new(4);
    ask(&mut hub, 1, "barrier", 0, b"");
    ask(&mut hub, 3, "barrier", 0, b"");
    let deadline = hub.next_deadline().expect("a deadline");
    assert_eq!(hub.tick(deadline - Duration::from_millis(1)), []);
    let out = hub.tick(deadline);
    let (to, cause) = failed(&out);
    assert_eq!(to, [0, 1, 2, 3]);
    let Cause::Timeout {
        call,
        missing,
        seconds,
    } = cause
    else {
        panic!("{cause:?}");
    };
    assert_eq!((call.name.as_str(), &missing[..]), ("barrier", &[0, 2][..]));
    assert!((0.9..=1.0).contains(seconds));
    assert_eq!(hub.next_deadline(), None);
}

#[test]
fn a_loss_fails_the_groups_that_the_rank_is_in() {
    let mut hub = Hub::new(4);
    for rank in 0..4u64 {
        let choice = [(rank / 2).to_le_bytes(), 0u64.to_le_bytes()].concat();
        ask(&mut hub, rank as usize, SPLIT, 0, &choice);
    }
    let (low, high) = (split_name(WORLD, 0, 0), split_name(WORLD, 0, 1));
    ask_in(&mut hub, &low, 0, call("barrier", 0), b"");
    let out = hub.lost(3, Departure::Closed);
    let mut told: Vec<_> = out.iter().map(|out| out.to.clone()).collect();
    told.sort();
    assert_eq!(told, [vec![0, 1, 2], vec![2]]);
    assert_eq!(hub.lost(3, Departure::Left), []);
    // The other pair goes on.
    let out = ask_in(&mut hub, &low, 1, call("barrier", 0), b"");
    assert_eq!((out.len(), &out[0].to[..]), (1, &[0, 1][..]));
    assert!(hub.rooms.contains_key(&high));
    hub.lost(2, Departure::Left);
    assert!(!hub.rooms.contains_key(&high));
    hub.lost(0, Departure::Left);
    assert!(hub.in_use());
    hub.lost(1, Departure::Left);
    assert!(!hub.in_use() && hub.rooms.is_empty());
}

#[test]
fn no_timeout_is_too_long() {
    let mut hub = Hub::new(2);
    let request = Request::Call {
        group: WORLD.into(),
        call: call("barrier", 0),
        timeout_ms: u64::MAX,
    };
    assert_eq!(hub.request(0, request, Vec::new(), Instant::now()), []);
    assert!(hub.next_deadline().is_some());
}

#[test]
fn an_abort_reaches_all_and_the_first_cause_stays() {
    let mut hub = Hub::new(2);
    ask(&mut hub, 0, "barrier", 0, b"");
    let abort = |message: &str| Request::Abort {
        group: WORLD.into(),
        message: message.into(),
    };
    let out = hub.request(1, abort("no"), Vec::new(), Instant::now());
    let expected = Cause::Aborted {
        rank: 1,
        message: "no".into(),
    };
    assert_eq!(failed(&out), (&[0, 1][..], &expected));
    assert_eq!(
        hub.request(0, abort("later"), Vec::new(), Instant::now()),
        []
    );
    assert_eq!(hub.lost(1, Departure::Closed), []);
}

#[test]
fn a_split_orders_by_key_then_by_rank() {
    let parts = split_members(&[4, 5, 6, 7], &[(1, 9), (0, 2), (1, 3), (0, 2)]);
    assert_eq!(parts, BTreeMap::from([(0, vec![5, 7]), (1, vec![6, 4])]));
    assert_eq!(split_choice(&[0; 15]), None);
}
