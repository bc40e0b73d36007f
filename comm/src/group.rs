//! The ranks of a job, or of a part of it, and what they can say to each other.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::error::{Call, Error, Member, Result};
use crate::hub::service::{self, Link, Sink, leaving};
use crate::hub::{self, Hub};
use crate::identity;
use crate::mailbox::{Arrival, Mailbox};
use crate::rendezvous::Rendezvous;
use crate::wire::{Cause, LONGEST, MAX_PAYLOAD, Person, Request};

/// The most ranks of a job.
pub const MAX_RANKS: usize = 4096;
/// The most bytes that one rank may give to one collective call.
pub const MAX_BYTES: usize = MAX_PAYLOAD - 1;
/// How long a collective call waits by default: healthy ranks can be minutes apart.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
/// How much longer than its timeout a rank waits for word from rank 0's process.
const GRACE: Duration = Duration::from_secs(5);
/// The most bytes of a failure's text that are sent.
const MAX_TEXT: usize = 64 << 10;

/// One rank's place in a group of ranks.
///
/// A group does the set-up and the errors of a job, over the host: a few bytes at a time, each call
/// with a deadline. (Tokens travel between devices.) All calls but [`failed`](Group::failed) and
/// [`abort`](Group::abort) are collective: every rank of the group makes the same calls in the same
/// order. After an error of [`RankLost`](Error::RankLost), [`Timeout`](Error::Timeout),
/// [`Mismatch`](Error::Mismatch) or an abort the group stays failed on every rank;
/// an error that came through [`agree`](Group::agree) leaves it usable.
///
/// Dropping a group gives up its place: others that still wait in it are told. Drop it after a last
/// [`barrier`](Group::barrier). Rank 0's process carries all messages, so it has to outlive the
/// others' use; dropping its last group waits up to a second for them to go first.
///
/// ```
/// use mok_comm::Group;
///
/// let ranks = Group::threads(4)?;
/// std::thread::scope(|scope| {
///     for group in ranks {
///         scope.spawn(move || {
///             let squares = group.all_gather(&[(group.rank() * group.rank()) as u8])?;
///             assert_eq!(squares, [[0], [1], [4], [9]]);
///             let checked = if group.rank() == 2 { Err("no room") } else { Ok(()) };
///             let error = group.agree(checked).unwrap_err(); // the same on every rank
///             assert_eq!(error.to_string(), "rank 2 failed: no room");
///             group.barrier()
///         });
///     }
/// });
/// # Ok::<(), mok_comm::Error>(())
/// ```
pub struct Group {
    link: Arc<Link>,
    name: String,
    /// Ranks of the job, in this group's order.
    members: Arc<[usize]>,
    rank: usize,
    roster: Arc<[Person]>,
    /// The next call's number; held during a call.
    number: Mutex<u64>,
    timeout_ms: AtomicU64,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("name", &self.name)
            .field("rank", &self.rank)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

impl Group {
    /// Ranks as threads of this process: one group for each, in order; give each to its thread.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless `ranks` is 1 to [`MAX_RANKS`].
    pub fn threads(ranks: usize) -> Result<Vec<Group>> {
        check_world("ranks", ranks)?;
        let (events, received) = mpsc::channel();
        let mailboxes: Vec<Arc<Mailbox>> = (0..ranks).map(|_| Arc::default()).collect();
        let sinks: Vec<Sink> = mailboxes.iter().cloned().map(Sink::Local).collect();
        let hub = Hub::new(ranks);
        service::spawn("hub", move || service::run(hub, &received, &sinks))
            .map_err(|error| Error::system("starting a thread", &error))?;
        let roster: Arc<[Person]> = (0..ranks)
            .map(|rank| identity::person(rank, rank))
            .collect();
        let links = mailboxes.into_iter().enumerate();
        let groups = links.map(|(rank, mailbox)| {
            let link = Link::Local {
                rank,
                events: events.clone(),
                mailbox,
                host: None,
            };
            Group::world(link, rank, roster.clone())
        });
        Ok(groups.collect())
    }

    /// Joins the job that the launcher's variables describe: see [`Rendezvous::from_env`].
    ///
    /// # Errors
    /// Of [`Rendezvous::from_env`] and [`Group::connect`].
    pub fn from_env() -> Result<Group> {
        Group::connect(&Rendezvous::from_env()?)
    }

    /// Joins a job of processes: returns once all ranks are there.
    ///
    /// # Errors
    /// [`Error::NoPort`], [`Error::NoRendezvous`], [`Error::MissingRanks`],
    /// [`Error::DuplicateRank`], [`Error::WorldSize`], [`Error::RankLost`], [`Error::OutOfRange`].
    pub fn connect(rendezvous: &Rendezvous) -> Result<Group> {
        rendezvous.join()
    }

    /// The same group, of ranks that say otherwise who they are.
    pub(crate) fn with_roster(mut self, roster: Vec<Person>) -> Group {
        self.roster = roster.into();
        self
    }

    pub(crate) fn world(link: Link, rank: usize, roster: Arc<[Person]>) -> Group {
        Group {
            link: Arc::new(link),
            name: hub::WORLD.into(),
            members: (0..roster.len()).collect(),
            rank,
            roster,
            number: Mutex::new(0),
            timeout_ms: AtomicU64::new(millis(DEFAULT_TIMEOUT)),
        }
    }

    /// This rank's number, 0 to [`world_size`](Group::world_size) - 1.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks the group has.
    pub fn world_size(&self) -> usize {
        self.members.len()
    }

    /// This rank's number among those that its launcher started on this host.
    pub fn local_rank(&self) -> usize {
        self.person(self.rank).map_or(0, |person| person.local_rank)
    }

    /// This rank's number in the whole job, which a [`split`](Group::split) leaves as it is.
    pub fn world_rank(&self) -> usize {
        self.members.get(self.rank).copied().unwrap_or(self.rank)
    }

    /// A rank of this group as errors name it.
    pub fn member(&self, rank: usize) -> Member {
        Member {
            rank,
            world_rank: self.members.get(rank).copied().unwrap_or(rank),
        }
    }

    /// Whether two ranks are threads of one process.
    pub fn share_process(&self, a: usize, b: usize) -> bool {
        self.share(a, b, |person| &person.process)
    }

    /// Whether two ranks run on one host.
    pub fn share_host(&self, a: usize, b: usize) -> bool {
        self.share(a, b, |person| &person.host)
    }

    /// Whether two ranks of one host see each other's local sockets (containers need not).
    pub fn share_sockets(&self, a: usize, b: usize) -> bool {
        self.share_host(a, b) && self.share(a, b, |person| &person.network)
    }

    fn share(&self, a: usize, b: usize, of: impl Fn(&Person) -> &String) -> bool {
        match (self.person(a), self.person(b)) {
            (Some(a), Some(b)) => of(a) == of(b),
            _ => false,
        }
    }

    /// The name of a rank's host, for people.
    pub fn host_name(&self, rank: usize) -> &str {
        self.person(rank).map_or("", |person| &person.host_name)
    }

    /// The process id of a rank.
    pub fn process_id(&self, rank: usize) -> u32 {
        self.person(rank).map_or(0, |person| person.pid)
    }

    fn person(&self, rank: usize) -> Option<&Person> {
        self.roster.get(*self.members.get(rank)?)
    }

    /// Sets how long each later call waits for the other ranks. Where ranks differ, the shortest
    /// counts.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout_ms.store(millis(timeout), Ordering::Relaxed);
    }

    /// How long a call waits for the other ranks.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed))
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// As for every collective call: [`Error::RankLost`], [`Error::Timeout`] (who never came),
    /// [`Error::Mismatch`] (who called what), [`Error::RankFailed`] after an abort,
    /// [`Error::Silent`].
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.exchange("barrier", Vec::new()).map(|_| ())
    }

    /// Every rank's bytes, in rank order, on every rank. Lengths may differ.
    ///
    /// # Errors
    /// As for [`barrier`](Group::barrier); [`Error::TooLarge`] for more than [`MAX_BYTES`], which
    /// aborts the group, since the others wait for these bytes.
    #[track_caller]
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.exchange("all_gather", bytes.to_vec())
    }

    /// The bytes of rank `root` on every rank; the other ranks' are ignored.
    ///
    /// # Errors
    /// As for [`all_gather`](Group::all_gather); [`Error::OutOfRange`] for a root that isn't a rank.
    #[track_caller]
    pub fn broadcast(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>> {
        let own = if self.rank == root { bytes } else { &[] };
        let mut parts = self.exchange(&format!("broadcast from rank {root}"), own.to_vec())?;
        // Checked after the exchange, so that all ranks make the same calls whatever the root.
        if root >= parts.len() {
            return Err(Error::OutOfRange {
                what: "root",
                value: root.to_string(),
                limit: format!("a rank of this group, below {}", parts.len()),
            });
        }
        Ok(parts.swap_remove(root))
    }

    /// Makes a local failure everybody's: the value if every rank has one, else on every rank the
    /// first failure in rank order. The group stays usable.
    ///
    /// # Errors
    /// [`Error::RankFailed`] with the rank and its text; and as for [`barrier`](Group::barrier).
    #[track_caller]
    pub fn agree<T, E: fmt::Display>(&self, result: Result<T, E>) -> Result<T> {
        let (value, own) = match result {
            Ok(value) => (Some(value), Ok(Vec::new())),
            Err(error) => (None, Err(error)),
        };
        self.try_exchange("agree", own)?;
        // A rank that failed found itself, or an earlier one, in what came back.
        value.ok_or_else(|| Error::RankFailed {
            rank: self.member(self.rank),
            message: "it failed".into(),
        })
    }

    /// [`all_gather`](Group::all_gather) and [`agree`](Group::agree) in one call: every rank's
    /// bytes, or the first failure.
    ///
    /// # Errors
    /// Of both.
    #[track_caller]
    pub fn try_all_gather<E: fmt::Display>(
        &self,
        result: Result<Vec<u8>, E>,
    ) -> Result<Vec<Vec<u8>>> {
        self.try_exchange("try_all_gather", result)
    }

    #[track_caller]
    fn try_exchange<E: fmt::Display>(
        &self,
        name: &str,
        result: Result<Vec<u8>, E>,
    ) -> Result<Vec<Vec<u8>>> {
        let own = match result {
            Ok(bytes) if bytes.len() > MAX_BYTES => {
                let limit = format!("{} bytes are more than {MAX_BYTES}", bytes.len());
                [limit.as_bytes(), &[0]].concat()
            }
            Ok(mut bytes) => {
                bytes.push(1);
                bytes
            }
            Err(error) => {
                let mut text = cut_text(error.to_string()).into_bytes();
                text.push(0);
                text
            }
        };
        let (_, mut parts) = self.numbered(name, own, MAX_PAYLOAD)?;
        for (rank, part) in parts.iter_mut().enumerate() {
            if part.pop() != Some(1) {
                return Err(Error::RankFailed {
                    rank: self.member(rank),
                    message: String::from_utf8_lossy(part).into_owned(),
                });
            }
        }
        Ok(parts)
    }

    /// Parts this group: ranks that give the same `color` form a new group, ordered by `key`, equal
    /// keys as they are here. A rank that is lost fails only the groups that it is in (and rank 0's
    /// process, which carries all messages, all of them).
    ///
    /// # Errors
    /// As for [`barrier`](Group::barrier).
    ///
    /// ```
    /// # use mok_comm::Group;
    /// # std::thread::scope(|scope| {
    /// #     for group in Group::threads(4).unwrap() {
    /// #         scope.spawn(move || {
    /// // Expert parallelism over pairs of neighbours.
    /// let pair = group.split(group.rank() as u64 / 2, 0)?;
    /// assert_eq!((pair.world_size(), pair.rank()), (2, group.rank() % 2));
    /// assert_eq!(pair.world_rank(), group.rank());
    /// #             group.barrier()
    /// #         });
    /// #     }
    /// # });
    /// ```
    #[track_caller]
    pub fn split(&self, color: u64, key: u64) -> Result<Group> {
        let own = [color.to_le_bytes(), key.to_le_bytes()].concat();
        let (number, parts) = self.numbered(hub::SPLIT, own, MAX_BYTES)?;
        let choices: Option<Vec<(u64, u64)>> =
            parts.iter().map(|part| hub::split_choice(part)).collect();
        let own_place = choices.and_then(|choices| {
            let members = hub::split_members(&self.members, &choices).remove(&color)?;
            let rank = members.iter().position(|&m| m == self.world_rank())?;
            Some((members, rank))
        });
        let (members, rank) = own_place.ok_or_else(|| Error::Protocol {
            rank: self.member(self.rank),
            what: "a split without this rank".into(),
        })?;
        Ok(Group {
            link: self.link.clone(),
            name: hub::split_name(&self.name, number, color),
            members: members.into(),
            rank,
            roster: self.roster.clone(),
            number: Mutex::new(0),
            timeout_ms: AtomicU64::new(self.timeout_ms.load(Ordering::Relaxed)),
        })
    }

    /// Whether the group has failed: a rank is lost, has aborted, or calls went wrong. Costs a lock;
    /// made to be polled by whoever waits for a device.
    pub fn failed(&self) -> Option<Error> {
        let cause = self.link.mailbox().failure(&self.name)?;
        Some(self.error(cause))
    }

    /// Tells every rank that this one has failed. What they wait for in this group, and all that
    /// they call later, ends with [`Error::RankFailed`]. Not collective; returns at once.
    pub fn abort(&self, why: impl fmt::Display) {
        let group = self.name.clone();
        let message = cut_text(why.to_string());
        self.link
            .send(Request::Abort { group, message }, Vec::new());
    }

    #[track_caller]
    fn exchange(&self, name: &str, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.numbered(name, own, MAX_BYTES).map(|(_, parts)| parts)
    }

    /// The one collective: gives bytes, returns all ranks' and the call's number.
    #[track_caller]
    fn numbered(&self, name: &str, own: Vec<u8>, limit: usize) -> Result<(u64, Vec<Vec<u8>>)> {
        let place = Location::caller();
        let mut next = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        let number = *next;
        let call = Call {
            name: name.into(),
            number,
            place: format!("{}:{}", place.file(), place.line()),
        };
        if own.len() > limit {
            let error = Error::TooLarge {
                call: call.into(),
                bytes: own.len(),
                limit,
            };
            self.abort(&error);
            return Err(error);
        }
        if let Some(error) = self.failed() {
            return Err(error);
        }
        let timeout = self.timeout();
        let until = Instant::now() + timeout + GRACE;
        let request = Request::Call {
            group: self.name.clone(),
            call: call.clone(),
            timeout_ms: millis(timeout),
        };
        self.link.send(request, own);
        match self.link.mailbox().wait(&self.name, number, until) {
            Arrival::Done(parts) if parts.len() == self.members.len() => {
                *next += 1;
                Ok((number, parts))
            }
            Arrival::Done(parts) => Err(Error::Protocol {
                rank: Member::of_world(0),
                what: format!("{} parts of {}", parts.len(), self.members.len()),
            }),
            Arrival::Failed(cause) => Err(self.error(cause)),
            Arrival::Nothing => {
                let seconds = (timeout + GRACE).as_secs_f64();
                let cause = Cause::Silent { call, seconds };
                // An answer that comes now would be taken for a later call's.
                self.link.mailbox().fail(&self.name, cause.clone());
                Err(self.error(cause))
            }
        }
    }

    /// A rank of the job as this group names it.
    fn named(&self, world_rank: usize) -> Member {
        let at = self.members.iter().position(|&m| m == world_rank);
        Member {
            rank: at.unwrap_or(world_rank),
            world_rank,
        }
    }

    fn error(&self, cause: Cause) -> Error {
        match cause {
            Cause::Lost { rank, how } if !self.members.contains(&rank) => {
                Error::CarrierLost { how }
            }
            Cause::Silent { call, seconds } => Error::Silent {
                call: call.into(),
                seconds,
            },
            Cause::Lost { rank, how } => Error::RankLost {
                rank: self.named(rank),
                how,
            },
            Cause::Aborted { rank, message } => Error::RankFailed {
                rank: self.named(rank),
                message,
            },
            Cause::Timeout {
                call,
                missing,
                seconds,
            } => Error::Timeout {
                call: call.into(),
                missing: missing.into_iter().map(|rank| self.named(rank)).collect(),
                seconds,
            },
            Cause::Mismatch { first, second } => Error::Mismatch {
                first: self.named(first.0),
                first_call: first.1.into(),
                second: self.named(second.0),
                second_call: second.1.into(),
            },
            Cause::Protocol { rank, what } => Error::Protocol {
                rank: self.named(rank),
                what,
            },
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let leave = Request::Leave {
            group: self.name.clone(),
            how: leaving(),
        };
        self.link.send(leave, Vec::new());
        self.link.mailbox().forget(&self.name);
    }
}

pub(crate) fn check_world(what: &'static str, ranks: usize) -> Result<()> {
    if (1..=MAX_RANKS).contains(&ranks) {
        return Ok(());
    }
    Err(Error::OutOfRange {
        what,
        value: ranks.to_string(),
        limit: format!("1 to {MAX_RANKS} ranks"),
    })
}

fn millis(time: Duration) -> u64 {
    time.min(LONGEST).as_millis() as u64
}

fn cut_text(mut text: String) -> String {
    let end = text.floor_char_boundary(MAX_TEXT);
    text.truncate(end);
    text
}
