//! How processes that know only an address find each other.
//!
//! Rank 0 listens on MASTER_PORT. Where that port is another's (torchrun's agent keeps its own
//! store there, so under torchrun it isn't even tried), it takes the first free one of a list
//! that follows from the job's id, and the others try the same list. A job is known by its id, port
//! and world size, which every rank says first: who comes to the wrong job is sent on, and who
//! says nothing or something else is dropped. Without an id there is no list, since two jobs that
//! differ in nothing could not be told apart on it.

mod env;
mod lobby;
mod ports;
mod seek;

use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use self::lobby::Door;
use crate::error::{Error, Member, Result};
use crate::group::{DEFAULT_TIMEOUT, Group, check_world};
use crate::hub::service::Link;
use crate::identity;
use crate::wire::{Hello, LONGEST, Person, Refusal};

/// Where and as whom a process joins its job.
///
/// ```no_run
/// use std::time::Duration;
/// use mok_comm::{Group, Rendezvous};
///
/// // As torchrun or srun set it, but not waiting longer than a minute:
/// let group = Group::connect(&Rendezvous::from_env()?.deadline(Duration::from_secs(60)))?;
///
/// // With nothing from the environment: rank 1 of 2.
/// let rendezvous = Rendezvous::new("10.0.0.5", 29500, 1, 2).local_rank(1).job("run 7");
/// let group = Group::connect(&rendezvous)?;
/// # Ok::<(), mok_comm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    addr: String,
    port: u16,
    rank: usize,
    world: usize,
    local_rank: usize,
    job: Option<String>,
    deadline: Duration,
    /// Whether MASTER_PORT is the launcher's own.
    port_taken: bool,
}

impl Rendezvous {
    /// Rank `rank` of `world`, with rank 0 at `addr` (a host name or an IPv4 or IPv6 address) and
    /// `port`. The local rank is 0, there is no job id, and the deadline is 10 minutes.
    pub fn new(addr: impl Into<String>, port: u16, rank: usize, world: usize) -> Rendezvous {
        let addr = addr.into();
        let bare = addr
            .strip_prefix('[')
            .and_then(|addr| addr.strip_suffix(']'));
        Rendezvous {
            addr: bare.unwrap_or(&addr).to_owned(),
            port,
            rank,
            world,
            local_rank: 0,
            job: None,
            deadline: DEFAULT_TIMEOUT,
            port_taken: false,
        }
    }

    /// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; the job's id from
    /// MOK_JOB_ID, or from what torchrun or the batch system sets.
    ///
    /// # Errors
    /// [`Error::Environment`], which names the variable and says what to do.
    pub fn from_env() -> Result<Rendezvous> {
        env::read(&|name| std::env::var_os(name))
    }

    /// Sets this process's number on its host.
    #[must_use]
    pub fn local_rank(mut self, local_rank: usize) -> Rendezvous {
        self.local_rank = local_rank;
        self
    }

    /// Sets what tells this job from others at the same address. All ranks need the same. It is no
    /// password: whoever reaches the port and knows it can join.
    #[must_use]
    pub fn job(mut self, id: impl Into<String>) -> Rendezvous {
        self.job = Some(id.into());
        self
    }

    /// Sets how long to wait for the others.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Rendezvous {
        self.deadline = deadline.min(LONGEST);
        self
    }

    fn check(&self) -> Result<()> {
        check_world("the number of ranks", self.world)?;
        if self.rank >= self.world {
            return Err(Error::OutOfRange {
                what: "the rank",
                value: self.rank.to_string(),
                limit: format!("0 to {} in a job of {}", self.world - 1, self.world),
            });
        }
        if self.job.as_ref().is_some_and(|job| job.len() > 1024) {
            return Err(Error::OutOfRange {
                what: "the job's id",
                value: "too long".into(),
                limit: "at most 1024 bytes".into(),
            });
        }
        Ok(())
    }

    fn hello(&self) -> Hello {
        // Jobs with equal ids are still told apart by their port.
        let job = self.job.as_deref().unwrap_or_default();
        Hello {
            job: format!("{job} (MASTER_PORT {})", self.port),
            world: self.world,
            person: identity::person(self.rank, self.local_rank),
        }
    }

    pub(crate) fn join(&self) -> Result<Group> {
        self.check()?;
        let hello = self.hello();
        let (link, roster) = if self.world == 1 {
            return Ok(Group::threads(1)?.remove(0).with_roster(vec![hello.person]));
        } else if self.rank == 0 {
            lobby::host(self, hello)?
        } else {
            seek::join(self, &hello)?
        };
        tracing::info!(
            rank = self.rank,
            world = self.world,
            hosts = hosts(&roster),
            "all ranks are here"
        );
        Ok(Group::world(link, self.rank, roster))
    }
}

/// How many different hosts ranks run on.
fn hosts(roster: &[Person]) -> usize {
    let hosts: std::collections::BTreeSet<_> = roster.iter().map(|person| &person.host).collect();
    hosts.len()
}

/// A connection to the hub, and who is there.
type Joined = (Link, Arc<[Person]>);

/// Small messages at once; a host that vanished is noticed though nothing is sent.
fn tune(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    #[cfg(unix)]
    {
        use rustix::net::sockopt;
        sockopt::set_socket_keepalive(stream, true)?;
        #[cfg(target_os = "linux")]
        {
            sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
            sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
            sockopt::set_tcp_keepcnt(stream, 4)?;
        }
    }
    Ok(())
}

/// A stream that is read until a moment, however slowly the bytes drip.
struct Until<'a> {
    stream: &'a TcpStream,
    moment: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = self.moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(to)
    }
}

/// Whether a read ended because its time was over.
fn timed_out(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    )
}

/// What a refusal means for the rank that gets it.
fn refused(refusal: Refusal, world: usize) -> Error {
    match refusal {
        Refusal::Foreign { why } => Error::Protocol {
            rank: Member::of_world(0),
            what: why,
        },
        Refusal::Duplicate {
            rank,
            first,
            second,
        } => Error::DuplicateRank {
            rank,
            first,
            second,
        },
        Refusal::WorldSize { rank, theirs, ours } => Error::WorldSize { rank, theirs, ours },
        Refusal::Missing {
            missing,
            seconds,
            notes,
        } => Error::MissingRanks {
            missing,
            world,
            seconds,
            notes,
        },
        Refusal::Lost { rank, how } => Error::RankLost {
            rank: Member::of_world(rank),
            how,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_read_ends_in_time_whether_nothing_comes_or_too_little() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        for drips in [0, 50] {
            let mut theirs = TcpStream::connect(at).expect("connected");
            let (ours, _) = listener.accept().expect("accepted");
            let started = Instant::now();
            thread::scope(|scope| {
                scope.spawn(move || {
                    for _ in 0..drips {
                        let _ = theirs.write_all(&[1]);
                        thread::sleep(Duration::from_millis(10));
                    }
                    thread::sleep(Duration::from_millis(500) - 10 * Duration::from_millis(drips));
                });
                let mut until = Until {
                    stream: &ours,
                    moment: started + Duration::from_millis(100),
                };
                let error = until.read_exact(&mut [0; 4096]).expect_err("too little");
                assert!(timed_out(&error), "{error}");
                assert!(
                    started.elapsed() < Duration::from_millis(400),
                    "{drips} drips"
                );
            });
        }
    }
}
