//! Rank 0's side: lets the ranks of its job in, and nobody else.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Joined, Rendezvous, Until, ports, refused, tune};
use crate::error::{Departure, Error, Result};
use crate::hub::Hub;
use crate::hub::service::{self, Host, Link, Sink};
use crate::mailbox::Mailbox;
use crate::wire::{self, GREETING, Hello, MAX_HELLO, Person, Refusal, Reply};

/// How long a connection may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Connections that may be saying who they are at one time; more are dropped, and ours try again.
const MAX_HANDSHAKES: usize = 512;
/// How often ranks that wait are looked at, and how often they are told who is missing.
const LOOK: Duration = Duration::from_millis(50);
const TELL: Duration = Duration::from_secs(1);
/// Strangers that an error mentions.
const MAX_NOTES: usize = 8;

enum Phase {
    Open,
    Complete,
    Failed(Refusal),
}

struct Seat {
    person: Person,
    /// `None` for rank 0 itself, and for all once the hub has the connections.
    stream: Option<TcpStream>,
}

struct State {
    phase: Phase,
    seats: Vec<Option<Seat>>,
    notes: Vec<String>,
    handshakes: usize,
}

impl State {
    fn missing(&self) -> Vec<usize> {
        let seats = self.seats.iter().enumerate();
        seats
            .filter(|(_, seat)| seat.is_none())
            .map(|(rank, _)| rank)
            .collect()
    }

    fn note(&mut self, note: String) {
        tracing::warn!("{note}");
        if self.notes.len() < MAX_NOTES {
            self.notes.push(note);
        }
    }
}

struct Lobby {
    hello: Hello,
    /// Whether jobs at this address can be told apart by more than their size.
    named: bool,
    state: Mutex<State>,
    changed: Condvar,
    closing: AtomicBool,
}

/// The listening socket, until dropped.
pub(crate) struct Door {
    lobby: Arc<Lobby>,
    at: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.lobby.closing.store(true, Ordering::SeqCst);
        let mut at = self.at;
        if at.ip().is_unspecified() {
            at.set_ip(match at.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        // A connection is what the acceptor waits for. Where none can be made it is left waiting.
        if TcpStream::connect_timeout(&at, Duration::from_secs(1)).is_ok()
            && let Some(acceptor) = self.acceptor.take()
        {
            let _ = acceptor.join();
        }
    }
}

/// Rank 0 of a job: returns once all ranks are there.
pub(super) fn host(rendezvous: &Rendezvous, hello: Hello) -> Result<Joined> {
    let started = Instant::now();
    let listener = ports::listen(rendezvous)?;
    let system = |what: &str| {
        let what = what.to_owned();
        move |error: std::io::Error| Error::system(what, &error)
    };
    let at = listener
        .local_addr()
        .map_err(system("the listening port"))?;
    tracing::debug!(%at, job = hello.job, "rank 0 listens");
    let own = Seat {
        person: hello.person.clone(),
        stream: None,
    };
    let mut seats: Vec<Option<Seat>> = (0..rendezvous.world).map(|_| None).collect();
    seats[0] = Some(own);
    let lobby = Arc::new(Lobby {
        hello,
        named: rendezvous.job.is_some(),
        state: Mutex::new(State {
            phase: Phase::Open,
            seats,
            notes: Vec::new(),
            handshakes: 0,
        }),
        changed: Condvar::new(),
        closing: AtomicBool::new(false),
    });
    let acceptor = lobby.clone();
    let acceptor = service::spawn("acceptor", move || acceptor.accept(&listener))
        .map_err(system("starting a thread"))?;
    let door = Door {
        lobby: lobby.clone(),
        at,
        acceptor: Some(acceptor),
    };
    lobby
        .wait(started, rendezvous.deadline)
        .map_err(|refusal| refused(refusal, rendezvous.world))?;
    open(&lobby, door).map_err(system("starting the threads of the hub"))
}

/// All are here: hands their connections to the hub.
fn open(lobby: &Lobby, door: Door) -> std::io::Result<Joined> {
    let mut state = lobby.state();
    let mut roster = Vec::new();
    let mut streams = Vec::new();
    for seat in state.seats.iter_mut().flatten() {
        roster.push(seat.person.clone());
        streams.push(seat.stream.take());
    }
    drop(state);
    let (events, received) = mpsc::channel();
    let mailbox = Arc::new(Mailbox::default());
    let welcome = wire::frame(
        &Reply::Welcome {
            roster: roster.clone(),
        },
        &[],
    );
    let mut sinks = Vec::new();
    for (rank, stream) in streams.into_iter().enumerate() {
        sinks.push(match stream {
            None => Sink::Local(mailbox.clone()),
            Some(mut stream) => {
                // A failure here is seen again by the reader, as the loss of that rank.
                let _ = stream.write_all(&welcome);
                service::attach(rank, stream, events.clone())?
            }
        });
    }
    let hub = Hub::new(roster.len());
    let (running, ended) = mpsc::channel();
    service::spawn("hub", move || {
        service::run(hub, &received, &sinks);
        drop(running);
    })?;
    let link = Link::Local {
        rank: 0,
        events,
        mailbox,
        host: Some(Host {
            door,
            ended: ended.into(),
        }),
    };
    Ok((link, roster.into()))
}

impl Lobby {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all ranks are there, or can't be.
    fn wait(&self, started: Instant, deadline: Duration) -> Result<(), Refusal> {
        let mut told = Instant::now();
        let mut state = self.state();
        loop {
            if matches!(state.phase, Phase::Open) {
                if state.missing().is_empty() {
                    state.phase = Phase::Complete;
                } else if let Some(rank) = state.seats.iter().position(gone) {
                    let how = Departure::Closed;
                    state.phase = Phase::Failed(Refusal::Lost { rank, how });
                } else if started.elapsed() >= deadline {
                    state.phase = Phase::Failed(Refusal::Missing {
                        missing: state.missing(),
                        seconds: deadline.as_secs_f64(),
                        notes: state.notes.clone(),
                    });
                }
            }
            match &state.phase {
                Phase::Open => {}
                Phase::Complete => return Ok(()),
                Phase::Failed(refusal) => {
                    let refusal = refusal.clone();
                    tell(&mut state, &Reply::Refused(refusal.clone()));
                    return Err(refusal);
                }
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                let missing = state.missing();
                tracing::debug!(?missing, "waiting for ranks");
                tell(&mut state, &Reply::Waiting { missing });
            }
            let left = deadline.saturating_sub(started.elapsed()).min(LOOK);
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.closing.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else {
                // Too many open files, most likely: some will be closed soon.
                std::thread::sleep(LOOK);
                continue;
            };
            let mut state = self.state();
            if state.handshakes >= MAX_HANDSHAKES {
                continue;
            }
            state.handshakes += 1;
            drop(state);
            let lobby = self.clone();
            // Each in its own thread, so that one that says nothing keeps nobody waiting.
            let greeter = service::spawn("greeter", move || {
                let from = stream.peer_addr().map_or("?".into(), |at| at.to_string());
                let dropped = lobby.greet(stream).err();
                let mut state = lobby.state();
                state.handshakes -= 1;
                if let Some(why) = dropped {
                    state.note(format!("a connection from {from} was dropped: {why}"));
                }
                drop(state);
                lobby.changed.notify_all();
            });
            if greeter.is_err() {
                self.state().handshakes -= 1;
            }
        }
    }

    /// Lets a connection say who it is, and in, if it is one of ours.
    fn greet(&self, stream: TcpStream) -> Result<(), String> {
        let no_hello = |error: std::io::Error| {
            if super::timed_out(&error) {
                "it did not say who it is".to_owned()
            } else {
                format!("it said something else than a rank does ({error})")
            }
        };
        tune(&stream)
            .and_then(|()| stream.set_write_timeout(Some(HANDSHAKE)))
            .map_err(no_hello)?;
        let mut from = Until {
            stream: &stream,
            moment: Instant::now() + HANDSHAKE,
        };
        let mut greeting = [0; GREETING];
        std::io::Read::read_exact(&mut from, &mut greeting).map_err(no_hello)?;
        let version = wire::version_of(greeting);
        let version = version.ok_or_else(|| no_hello(ErrorKind::InvalidData.into()))?;
        let answer = |reply: Option<&Reply>| {
            let mut bytes = wire::greeting().to_vec();
            if let Some(reply) = reply {
                bytes.extend(wire::frame(reply, &[]));
            }
            (&stream).write_all(&bytes)
        };
        if version != wire::VERSION {
            let why = format!(
                "rank 0 runs version {} of mok-comm's protocol, this rank {version}",
                wire::VERSION
            );
            let _ = answer(Some(&Reply::Refused(Refusal::Foreign { why: why.clone() })));
            return Err(why);
        }
        let (hello, _) = wire::read::<Hello>(&mut from, MAX_HELLO, 0).map_err(no_hello)?;
        let mut state = self.state();
        match self.admit(&mut state, &hello) {
            Ok(()) => {
                let rank = hello.person.rank;
                let seat = Seat {
                    person: hello.person,
                    stream: None,
                };
                state.seats[rank] = Some(seat);
                let missing = state.missing();
                let written = answer(Some(&Reply::Waiting { missing }));
                match (&mut state.seats[rank], written) {
                    (Some(seat), Ok(())) => seat.stream = Some(stream),
                    // It went away before it was let in.
                    (seat, _) => *seat = None,
                }
                Ok(())
            }
            Err(refusal) => {
                let note = match &refusal {
                    // Another job on this host: its ranks find their own rank 0.
                    Refusal::Foreign { .. } => None,
                    other => Some(refused(other.clone(), hello.world).to_string()),
                };
                let _ = answer(Some(&Reply::Refused(refusal)));
                match note {
                    Some(note) => Err(note),
                    None => Ok(()),
                }
            }
        }
    }

    /// Whether someone may take a seat. Some faults are those of the whole job: no rank of it need
    /// wait any longer.
    fn admit(&self, state: &mut State, hello: &Hello) -> Result<(), Refusal> {
        let person = &hello.person;
        if hello.job != self.hello.job || person.rank >= hello.world {
            return Err(Refusal::Foreign {
                why: format!(
                    "rank 0 there is of job {:?}, this rank of {:?}",
                    self.hello.job, hello.job
                ),
            });
        }
        let (refusal, of_the_job) = if hello.world != self.hello.world {
            let refusal = Refusal::WorldSize {
                rank: person.rank,
                theirs: hello.world,
                ours: self.hello.world,
            };
            // Without an id it may well be another job's.
            (refusal, self.named)
        } else {
            match &state.seats[person.rank] {
                None => return Ok(()),
                // It gave up waiting for the answer, and came again.
                Some(seat) if seat.person == *person && matches!(state.phase, Phase::Open) => {
                    return Ok(());
                }
                Some(seat) => {
                    let refusal = Refusal::Duplicate {
                        rank: person.rank,
                        first: seat.person.to_string(),
                        second: person.to_string(),
                    };
                    (refusal, true)
                }
            }
        };
        match &state.phase {
            Phase::Failed(earlier) => return Err(earlier.clone()),
            Phase::Open if of_the_job => state.phase = Phase::Failed(refusal.clone()),
            // A job that runs is not stopped by who comes late.
            Phase::Open | Phase::Complete => {}
        }
        Err(refusal)
    }
}

/// Says something to all who wait.
fn tell(state: &mut State, reply: &Reply) {
    let bytes = wire::frame(reply, &[]);
    for seat in state.seats.iter_mut().flatten() {
        if let Some(stream) = &mut seat.stream {
            // One that is gone is found by `gone`.
            let _ = stream.write_all(&bytes);
        }
    }
}

/// Whether a rank that waits has closed its connection.
fn gone(seat: &Option<Seat>) -> bool {
    let Some(Seat {
        stream: Some(stream),
        ..
    }) = seat
    else {
        return false;
    };
    // It has nothing to say while it waits, so that anything but "nothing yet" is its end.
    let peeked = stream
        .set_nonblocking(true)
        .and_then(|()| stream.peek(&mut [0]));
    let open = peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    stream.set_nonblocking(false).is_err() || !open
}
