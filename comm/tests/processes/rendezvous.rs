//! Who is let in: missing, late and double ranks, other jobs, strangers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::launch::{Job, Rank, finish, free_port};

const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_rank_that_never_comes_is_named_on_all_others() {
    let mut job = Job::of(4);
    job.deadline_ms = 700;
    let ranks = [0, 1, 3].map(|rank| job.start(rank, "everything"));
    for result in finish(ranks.into()) {
        let expected = "of 4 ranks these never came within 0.7 s: 2; their own logs";
        assert!(result.contains(expected), "{result}");
    }
}

#[test]
fn without_rank_0_the_others_say_where_they_looked() {
    let mut job = Job::of(2);
    job.deadline_ms = 300;
    let result = job.start(1, "everything").result(LONG);
    assert!(
        result.contains("rank 1 found no rank 0 of its job within"),
        "{result}"
    );
    assert!(
        result.contains(&format!("127.0.0.1:{}: ", job.port)),
        "{result}"
    );
}

#[test]
fn a_late_rank_is_still_in_time() {
    let job = Job::of(3);
    let mut ranks = vec![job.start(2, "everything")];
    thread::sleep(Duration::from_millis(200));
    ranks.push(job.start(0, "everything"));
    thread::sleep(Duration::from_millis(200));
    ranks.push(job.start(1, "everything"));
    assert_eq!(finish(ranks), ["ok 2 of 3", "ok 0 of 3", "ok 1 of 3"]);
}

#[test]
fn a_rank_that_comes_twice_ends_the_rendezvous_for_all() {
    let job = Job::of(3);
    let ranks = [0, 1, 1].map(|rank| job.start(rank, "everything"));
    for result in finish(ranks.into()) {
        assert!(result.contains("rank 1 came twice: process "), "{result}");
    }
}

#[test]
fn a_rank_that_comes_when_all_are_there_is_turned_away_and_harms_nobody() {
    let job = Job::of(2);
    let ranks = job.start_all("watch");
    thread::sleep(Duration::from_millis(300));
    let late = job.start(1, "everything").result(LONG);
    assert!(late.contains("rank 1 came twice"), "{late}");
    let mut ranks = ranks;
    assert!(
        ranks
            .iter_mut()
            .all(|rank| rank.child.try_wait().expect("a child").is_none())
    );
}

#[test]
fn another_world_size_is_named() {
    let job = Job::of(3);
    let other = Job {
        world: 4,
        ..job.clone()
    };
    let ranks = [job.start(0, "everything"), other.start(1, "everything")];
    for result in finish(ranks.into()) {
        let expected = "rank 1 has WORLD_SIZE 4, rank 0 has 3";
        assert!(result.contains(expected), "{result}");
    }
}

/// Two jobs that share a host and a port, their ranks started in turn.
#[test]
fn two_jobs_on_one_port_never_meet() {
    let jobs = [Job::of(3), Job::of(3)];
    let jobs = [
        jobs[0].clone(),
        Job {
            port: jobs[0].port,
            ..jobs[1].clone()
        },
    ];
    let order = [(0, 1), (1, 2), (1, 0), (0, 2), (1, 1), (0, 0)];
    let mut ranks: Vec<(usize, Rank)> = Vec::new();
    for (job, rank) in order {
        let body = ["many", "everything"][job];
        ranks.push((job, jobs[job].start(rank, body)));
        thread::sleep(Duration::from_millis(20));
    }
    for (job, rank) in ranks {
        let number = rank.rank;
        let expected = ["ok ".to_owned(), format!("ok {number} of 3")];
        assert_eq!(rank.result(LONG), expected[job]);
    }
}

#[test]
fn without_an_id_a_second_job_on_the_port_is_told_what_to_do() {
    let first = Job {
        id: None,
        ..Job::of(2)
    };
    let ranks = first.start_all("watch");
    thread::sleep(Duration::from_millis(300));
    let second = first.start(0, "everything").result(LONG);
    assert!(second.contains("rank 0 can listen on no port"), "{second}");
    assert!(second.contains("MOK_JOB_ID"), "{second}");
    drop(ranks);
}

/// Under torchrun the agent's own store listens on MASTER_PORT.
#[test]
fn torchruns_store_on_the_port_is_left_alone() {
    let store = TcpListener::bind("127.0.0.1:0").expect("a port");
    store.set_nonblocking(true).expect("a listener");
    let mut job = Job {
        id: None,
        ..Job::of(3)
    };
    job.port = store.local_addr().expect("bound").port();
    job.more = vec![
        ("TORCHELASTIC_RUN_ID", "none".into()),
        ("TORCHELASTIC_RESTART_COUNT", "0".into()),
        ("TORCHELASTIC_USE_AGENT_STORE", "True".into()),
    ];
    let results = job.run("everything");
    assert_eq!(results, ["ok 0 of 3", "ok 1 of 3", "ok 2 of 3"]);
    assert!(store.accept().is_err(), "somebody spoke to the store");
}

/// A port that another program holds, which answers in its own way or not at all.
#[test]
fn another_program_on_the_port_is_passed_over() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = other.local_addr().expect("bound").port();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for stream in other.incoming() {
                if done.load(Ordering::SeqCst) {
                    return;
                }
                let _ = stream
                    .expect("accepted")
                    .write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n");
            }
        });
        let job = Job { port, ..Job::of(2) };
        let results = job.run("everything");
        done.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", port));
        assert_eq!(results, ["ok 0 of 2", "ok 1 of 2"]);
    });
}

/// A port that another program holds without ever answering.
#[test]
fn a_silent_program_on_the_port_is_passed_over() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let job = Job { port, ..Job::of(2) };
    assert_eq!(job.run("everything"), ["ok 0 of 2", "ok 1 of 2"]);
}

/// Connections that say nothing, the wrong thing, half a thing or far too much.
#[test]
fn strangers_neither_block_nor_kill_the_rendezvous() {
    let job = Job::of(3);
    let first = job.start(0, "everything");
    let connect = || {
        let until = Instant::now() + LONG;
        loop {
            match TcpStream::connect(("127.0.0.1", job.port)) {
                Ok(stream) => return stream,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            thread::sleep(Duration::from_millis(5));
        }
    };
    let greeting = [b"mok-comm".as_slice(), &1u32.to_le_bytes()].concat();
    let hello = |header: u32, payload: u64, text: &[u8]| {
        let header = header.to_le_bytes();
        [&greeting, &header[..], &payload.to_le_bytes(), text].concat()
    };
    let noise: Vec<u8> = (0..4096u32)
        .map(|i| (i.wrapping_mul(2654435761) >> 13) as u8)
        .collect();
    let mut open = Vec::new();
    for said in [
        Vec::new(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        noise,
        b"mok-".to_vec(),
        greeting.clone(),
        [b"mok-comm".as_slice(), &9u32.to_le_bytes()].concat(),
        hello(u32::MAX, u64::MAX, b""),
        hello(4, 0, b"{}{}"),
        hello(2, 0, b"{}"),
        hello(100, 0, b"{\"job\":"),
    ] {
        let mut stream = connect();
        // It may have been thrown out already.
        let _ = stream.write_all(&said);
        open.push(stream);
        drop(connect());
    }
    let started = Instant::now();
    let ranks = vec![
        first,
        job.start(1, "everything"),
        job.start(2, "everything"),
    ];
    assert_eq!(finish(ranks), ["ok 0 of 3", "ok 1 of 3", "ok 2 of 3"]);
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "strangers held it up"
    );
    // Who spoke another version was told so.
    let mut answer = Vec::new();
    let _ = open[5].read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.starts_with("mok-comm") && answer.contains("version 1"),
        "{answer}"
    );
}

#[test]
fn names_and_ipv6_addresses_work() {
    for addr in ["localhost", "::1", "[::1]"] {
        if addr != "localhost" && TcpListener::bind("[::1]:0").is_err() {
            eprintln!("no IPv6 here: {addr} is not tried");
            continue;
        }
        let job = Job { addr, ..Job::of(2) };
        assert_eq!(job.run("everything"), ["ok 0 of 2", "ok 1 of 2"], "{addr}");
    }
}

#[test]
fn a_name_that_is_nowhere_is_said() {
    let mut job = Job {
        addr: "no-such-host.invalid",
        ..Job::of(2)
    };
    job.deadline_ms = 200;
    let result = job.start(1, "everything").result(LONG);
    assert!(result.contains("no-such-host.invalid: "), "{result}");
}

#[test]
fn one_process_can_join_job_after_job() {
    let port = free_port();
    for _ in 0..3 {
        let join = |rank| {
            let rendezvous = mok_comm::Rendezvous::new("127.0.0.1", port, rank, 2);
            let group =
                mok_comm::Group::connect(&rendezvous.deadline(Duration::MAX)).expect("joined");
            group.barrier().expect("all there");
        };
        thread::scope(|scope| {
            scope.spawn(|| join(0));
            scope.spawn(|| join(1));
        });
    }
}
