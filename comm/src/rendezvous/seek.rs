//! The other ranks' side: finds rank 0.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{Joined, Rendezvous, Until, ports, refused, timed_out, tune};
use crate::error::{Departure, Error, Member, Result};
use crate::hub::service::Link;
use crate::wire::{self, GREETING, Hello, Person, Refusal, Reply};

/// How long one address may take to be reached, and to say who it is.
const CONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(5);
/// The time between rounds over all addresses, which doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// How much longer than its own deadline a rank waits for rank 0's word on who is missing.
const GRACE: Duration = Duration::from_secs(2);

/// Why an address was left.
enum Left {
    /// Not the rank 0 that is looked for, or not yet.
    Next(String),
    /// There is no use in going on.
    Stop(Error),
}

/// Any rank but 0: returns once all ranks are there.
pub(super) fn join(rendezvous: &Rendezvous, hello: &Hello) -> Result<Joined> {
    let started = Instant::now();
    let deadline = started + rendezvous.deadline;
    let ports = ports::candidates(rendezvous);
    let mut tried = BTreeMap::new();
    let mut pause = FIRST_PAUSE;
    loop {
        match ports::resolve(rendezvous) {
            Err(error) => {
                tried.insert(rendezvous.addr.clone(), error.to_string());
            }
            Ok(ips) => {
                tried.remove(&rendezvous.addr);
                for &port in &ports {
                    for &ip in &ips {
                        let at = SocketAddr::new(ip, port);
                        match visit(at, hello, deadline) {
                            Ok((stream, roster)) => {
                                return Ok((link(stream, roster.len())?, roster.into()));
                            }
                            Err(Left::Stop(error)) => return Err(error),
                            Err(Left::Next(why)) => tried.insert(at.to_string(), why),
                        };
                    }
                }
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let tried = tried.into_iter().map(|(at, why)| format!("{at}: {why}"));
            return Err(Error::NoRendezvous {
                rank: rendezvous.rank,
                seconds: started.elapsed().as_secs_f64(),
                tried: tried.collect(),
            });
        }
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

fn link(stream: TcpStream, world: usize) -> Result<Link> {
    Link::remote(stream, world).map_err(|error| Error::system("starting a thread", &error))
}

/// Asks one address whether it is the rank 0 of this job, and if so waits there for the others.
fn visit(
    at: SocketAddr,
    hello: &Hello,
    deadline: Instant,
) -> Result<(TcpStream, Vec<Person>), Left> {
    let next = |error: std::io::Error| {
        Left::Next(if timed_out(&error) {
            "no answer".into()
        } else {
            error.to_string()
        })
    };
    let left = deadline.saturating_duration_since(Instant::now());
    let patience = left.clamp(Duration::from_millis(1), CONNECT);
    let stream = TcpStream::connect_timeout(&at, patience).map_err(next)?;
    // On one host, a connection to a free port can be given that very port as its own end.
    if stream.local_addr().is_ok_and(|own| own == at) {
        return Err(Left::Next("nobody listens".into()));
    }
    tune(&stream)
        .and_then(|()| stream.set_write_timeout(Some(ANSWER)))
        .map_err(next)?;
    let mut said = wire::greeting().to_vec();
    said.extend(wire::frame(hello, &[]));
    (&stream).write_all(&said).map_err(next)?;

    let mut from = Until {
        stream: &stream,
        moment: Instant::now() + ANSWER.min(left.max(Duration::from_millis(1))),
    };
    let mut greeting = [0; GREETING];
    from.read_exact(&mut greeting).map_err(next)?;
    match wire::version_of(greeting) {
        None => return Err(Left::Next("another program listens there".into())),
        Some(wire::VERSION) => {}
        Some(version) => {
            let own = wire::VERSION;
            let why = format!("a rank 0 of protocol version {version}, this rank's is {own}");
            return Err(Left::Next(why));
        }
    }
    let world = hello.world;
    let mut missing = match reply(&mut from).map_err(next)? {
        Reply::Waiting { missing } => missing,
        Reply::Refused(Refusal::Foreign { why }) => return Err(Left::Next(why)),
        Reply::Refused(refusal) => return Err(Left::Stop(refused(refusal, world))),
        other => return Err(Left::Next(format!("an answer out of turn: {other:?}"))),
    };
    // This is the one: from here on its end is the job's.
    from.moment = deadline + GRACE;
    let started = Instant::now();
    loop {
        match reply(&mut from) {
            Ok(Reply::Waiting { missing: now }) => missing = now,
            Ok(Reply::Welcome { roster }) if roster.len() == world => {
                return Ok((stream, roster));
            }
            Ok(Reply::Refused(refusal)) => return Err(Left::Stop(refused(refusal, world))),
            Ok(other) => {
                return Err(Left::Stop(Error::Protocol {
                    rank: Member::of_world(0),
                    what: format!("{other:?}"),
                }));
            }
            Err(error) if timed_out(&error) => {
                return Err(Left::Stop(Error::MissingRanks {
                    missing,
                    world,
                    seconds: started.elapsed().as_secs_f64(),
                    notes: vec!["rank 0 itself still waits: its deadline is longer".into()],
                }));
            }
            Err(_) => {
                return Err(Left::Stop(Error::RankLost {
                    rank: Member::of_world(0),
                    how: Departure::Closed,
                }));
            }
        }
    }
}

fn reply(from: &mut Until<'_>) -> std::io::Result<Reply> {
    wire::read::<Reply>(from, wire::MAX_HEADER, 0).map(|(reply, _)| reply)
}
