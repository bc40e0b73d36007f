//! What ranks do in the tests: the same as threads and as processes.

use std::time::{Duration, Instant};

use mok_comm::{Group, Rendezvous, Result};

/// Joins the job of the environment, then runs a body.
pub fn run_process(body: &str) -> String {
    let deadline = std::env::var("MOK_COMM_TEST_DEADLINE_MS").expect("set by the launcher");
    let deadline = Duration::from_millis(deadline.parse().expect("a number"));
    let joined = Rendezvous::from_env()
        .and_then(|rendezvous| Group::connect(&rendezvous.deadline(deadline)));
    match joined {
        Ok(group) => run(body, group),
        Err(error) => format!("join: {error}"),
    }
}

/// Runs a body: `ok` with what it says, or the error.
pub fn run(body: &str, group: Group) -> String {
    group.set_timeout(Duration::from_secs(20));
    let result = match body {
        "everything" => everything(&group),
        "many" => many(&group),
        "mismatch" => mismatch(&group),
        "late" => late(&group),
        "abort" => abort(&group),
        "leave" => leave(group),
        "panic" => panic_in(&group),
        "barriers" => barriers(&group),
        "barriers briefly" => {
            group.set_timeout(Duration::from_millis(500));
            barriers(&group)
        }
        "watch" => watch(&group),
        "large" => large(&group),
        other => panic!("no body {other}"),
    };
    match result {
        Ok(said) => format!("ok {said}"),
        Err(error) => error.to_string(),
    }
}

/// Each call once, with values that tell ranks apart.
fn everything(group: &Group) -> Result<String> {
    let (rank, world) = (group.rank(), group.world_size());
    group.barrier()?;
    let own = vec![rank as u8; rank % 5];
    let all = group.all_gather(&own)?;
    let expected: Vec<_> = (0..world).map(|rank| vec![rank as u8; rank % 5]).collect();
    assert_eq!(all, expected);
    let root = world - 1;
    let said = group.broadcast(root, &[rank as u8, 7])?;
    assert_eq!(said, [root as u8, 7]);

    assert_eq!(group.agree(Ok::<_, String>(rank)), Ok(rank));
    let check = if rank >= world / 2 {
        Err(format!("check of {rank}"))
    } else {
        Ok(())
    };
    let first = world / 2;
    let error = group.agree(check).expect_err("some failed");
    assert_eq!(
        error.to_string(),
        format!("rank {first} failed: check of {first}")
    );
    let error = group.broadcast(world, b"").expect_err("no such rank");
    assert!(error.to_string().contains("root"), "{error}");

    // Neighbours, the higher one first.
    let pair = group.split(rank as u64 / 2, (world - rank) as u64)?;
    let alone = world % 2 == 1 && rank == world - 1;
    assert_eq!(pair.world_size(), if alone { 1 } else { 2 });
    assert_eq!(pair.rank(), if alone { 0 } else { 1 - rank % 2 });
    let ranks = pair.all_gather(&[rank as u8])?;
    let base = (rank / 2 * 2) as u8;
    let expected = if alone {
        vec![vec![base]]
    } else {
        vec![vec![base + 1], vec![base]]
    };
    assert_eq!(ranks, expected);
    let again = pair.split(0, 0)?;
    assert_eq!((again.rank(), again.world_rank()), (pair.rank(), rank));
    drop((again, pair));

    let same: Vec<bool> = (0..world)
        .map(|other| group.share_host(rank, other))
        .collect();
    assert!(same.iter().all(|same| *same));
    assert_eq!(group.local_rank(), rank);
    assert_eq!(group.failed(), None);
    group.barrier()?;
    Ok(format!("{rank} of {world}"))
}

fn many(group: &Group) -> Result<String> {
    for round in 0..200u32 {
        let all = group.all_gather(&round.to_le_bytes())?;
        assert!(all.iter().all(|bytes| *bytes == round.to_le_bytes()));
    }
    Ok(String::new())
}

fn mismatch(group: &Group) -> Result<String> {
    group.barrier()?;
    if group.rank() == 1 {
        group.all_gather(b"x")?;
    } else {
        group.barrier()?;
    }
    Ok("agreed?".into())
}

/// The last rank never comes to the second barrier, and leaves only once the others have given up.
fn late(group: &Group) -> Result<String> {
    group.barrier()?;
    group.set_timeout(Duration::from_millis(300));
    if group.rank() + 1 == group.world_size() {
        std::thread::sleep(Duration::from_millis(900));
    }
    group.barrier()?;
    Ok("came".into())
}

fn abort(group: &Group) -> Result<String> {
    group.barrier()?;
    if group.rank() == 1 {
        group.abort("bad shape");
    }
    group.barrier()?;
    Ok("went on".into())
}

fn leave(group: Group) -> Result<String> {
    group.barrier()?;
    if group.rank() == 1 {
        return Ok("left".into());
    }
    group.barrier()?;
    Ok("went on".into())
}

fn panic_in(group: &Group) -> Result<String> {
    group.barrier()?;
    assert!(group.rank() != 1, "a planted panic");
    group.barrier()?;
    Ok("went on".into())
}

/// Barriers until one fails.
fn barriers(group: &Group) -> Result<String> {
    let until = Instant::now() + Duration::from_secs(15);
    while Instant::now() < until {
        group.barrier()?;
    }
    Ok("nobody died".into())
}

/// No call at all, but watching: as a host does that waits for its device.
fn watch(group: &Group) -> Result<String> {
    group.barrier()?;
    println!("watching");
    let until = Instant::now() + Duration::from_secs(15);
    while Instant::now() < until {
        if let Some(error) = group.failed() {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok("nobody died".into())
}

fn large(group: &Group) -> Result<String> {
    let all = group.all_gather(&vec![group.rank() as u8; mok_comm::MAX_BYTES])?;
    let right = all.iter().enumerate().all(|(rank, bytes)| {
        bytes.len() == mok_comm::MAX_BYTES && bytes.iter().all(|byte| *byte == rank as u8)
    });
    assert!(right);
    // The longest that goes, and one more: an error for all, the group stays usable.
    group.set_timeout(Duration::MAX);
    let all = group.try_all_gather(Ok::<_, String>(vec![1; mok_comm::MAX_BYTES]))?;
    assert!(all.iter().all(|bytes| bytes.len() == mok_comm::MAX_BYTES));
    let over = vec![1; mok_comm::MAX_BYTES + group.rank()];
    let error = group
        .try_all_gather(Ok::<_, String>(over))
        .expect_err("too long");
    let expected = format!(
        "rank 1 failed: {} bytes are more than",
        mok_comm::MAX_BYTES + 1
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
    let too_much = vec![0; mok_comm::MAX_BYTES + usize::from(group.rank() == 0)];
    group.all_gather(&too_much)?;
    Ok("sent?".into())
}
