//! The thread that runs a [`Hub`], and the connections to it.

use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Hub, Out};
use crate::error::Departure;
use crate::mailbox::Mailbox;
use crate::rendezvous::Door;
use crate::wire::{self, Cause, Reply, Request};

/// How long a connection may take no data before its rank counts as lost.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long rank 0's process stays for the others to go first. If it ended with something of theirs
/// unread, the system would cut the connection, and what it told them last could be lost.
const LINGER: Duration = Duration::from_secs(1);
/// Each thread moves bytes and little else.
const STACK: usize = 256 << 10;

/// What happens at the hub.
pub(crate) struct Event {
    pub rank: usize,
    pub what: What,
    /// Dropped once the event is dealt with and all have been told.
    pub handled: Option<Sender<()>>,
}

pub(crate) enum What {
    Request(Request, Vec<u8>),
    Lost(Departure),
}

/// The way to a rank.
pub(crate) enum Sink {
    Local(Arc<Mailbox>),
    Remote(Sender<Parcel>),
}

/// Bytes for a connection.
pub(crate) struct Parcel {
    bytes: Arc<[u8]>,
    /// Dropped once written.
    _written: Sender<()>,
}

/// A named thread; an error if the system gives none.
pub(crate) fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new()
        .name(format!("mok-comm {name}"))
        .stack_size(STACK)
        .spawn(run)
}

/// Runs until every rank has gone.
pub(crate) fn run(mut hub: Hub, events: &Receiver<Event>, sinks: &[Sink]) {
    while hub.in_use() {
        let event = match hub.next_deadline() {
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                events.recv_timeout(left)
            }
            None => events.recv().map_err(RecvTimeoutError::from),
        };
        match event {
            Ok(Event {
                rank,
                what,
                handled,
            }) => {
                let out = match what {
                    What::Request(request, payload) => {
                        hub.request(rank, request, payload, Instant::now())
                    }
                    What::Lost(how) => hub.lost(rank, how),
                };
                deliver(out, sinks);
                drop(handled);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        deliver(hub.tick(Instant::now()), sinks);
    }
}

/// Remote ranks first: when a rank of this process hears of a result, it may end the process, and
/// must not take the others' result with it.
fn deliver(out: Vec<Out>, sinks: &[Sink]) {
    for Out { to, reply, parts } in out {
        let (written, all_written) = mpsc::channel();
        let mut bytes: Option<Arc<[u8]>> = None;
        for &rank in &to {
            if let Some(Sink::Remote(writer)) = sinks.get(rank) {
                let bytes = bytes.get_or_insert_with(|| wire::frame(&reply, &parts).into());
                // Its writer is gone only if its connection is; the reader reports that.
                let _ = writer.send(Parcel {
                    bytes: bytes.clone(),
                    _written: written.clone(),
                });
            }
        }
        drop(written);
        let _ = all_written.recv_timeout(WRITE_TIMEOUT);
        for &rank in &to {
            if let Some(Sink::Local(mailbox)) = sinks.get(rank) {
                match &reply {
                    Reply::Done { group, number, .. } => {
                        mailbox.done(group, *number, parts.clone());
                    }
                    Reply::Failed { group, cause } => mailbox.fail(group, cause.clone()),
                    Reply::Refused(_) | Reply::Waiting { .. } | Reply::Welcome { .. } => {}
                }
            }
        }
    }
}

/// Starts the two threads that serve a remote rank.
pub(crate) fn attach(
    rank: usize,
    stream: TcpStream,
    events: Sender<Event>,
) -> std::io::Result<Sink> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    stream.set_read_timeout(None)?;
    let mut reader = stream.try_clone()?;
    let lost = events.clone();
    let (sender, parcels) = mpsc::channel::<Parcel>();
    spawn("reader", move || {
        let how = loop {
            match wire::read::<Request>(&mut reader, wire::MAX_HEADER, wire::MAX_PAYLOAD) {
                Ok((request, payload)) => {
                    let event = Event {
                        rank,
                        what: What::Request(request, payload),
                        handled: None,
                    };
                    if events.send(event).is_err() {
                        return;
                    }
                }
                Err(_) => break Departure::Closed,
            }
        };
        let _ = reader.shutdown(Shutdown::Both);
        let _ = events.send(Event {
            rank,
            what: What::Lost(how),
            handled: None,
        });
    })?;
    spawn("writer", move || {
        let mut stream = stream;
        for parcel in parcels {
            let Err(error) = std::io::Write::write_all(&mut stream, &parcel.bytes) else {
                continue;
            };
            // A connection that broke is the reader's to report, behind what the rank said last.
            if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
                let _ = lost.send(Event {
                    rank,
                    what: What::Lost(Departure::Stuck),
                    handled: None,
                });
            }
            break;
        }
        let _ = stream.shutdown(Shutdown::Both);
    })?;
    Ok(Sink::Remote(sender))
}

/// Rank 0's part in a job of processes.
pub(crate) struct Host {
    /// Where others may still knock; closed with the link.
    pub door: Door,
    /// Closed when the hub has ended.
    pub ended: Mutex<Receiver<()>>,
}

/// A rank's side of its connection.
pub(crate) enum Link {
    /// The hub is in this process.
    Local {
        rank: usize,
        events: Sender<Event>,
        mailbox: Arc<Mailbox>,
        /// What rank 0 has where the others are processes.
        host: Option<Host>,
    },
    /// The hub is in rank 0's process.
    Remote {
        stream: Mutex<TcpStream>,
        mailbox: Arc<Mailbox>,
    },
}

impl Link {
    /// A connection that has been welcomed.
    pub(crate) fn remote(stream: TcpStream, world: usize) -> std::io::Result<Link> {
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        stream.set_read_timeout(None)?;
        let mailbox = Arc::new(Mailbox::default());
        let mut reader = stream.try_clone()?;
        let inbox = mailbox.clone();
        spawn("replies", move || {
            let limit = wire::MAX_PAYLOAD.saturating_mul(world);
            let cause = loop {
                match wire::read::<Reply>(&mut reader, wire::MAX_HEADER, limit) {
                    Ok((reply, payload)) => match receive(&inbox, reply, &payload) {
                        Ok(()) => {}
                        Err(what) => break Cause::Protocol { rank: 0, what },
                    },
                    Err(error) if error.kind() == ErrorKind::InvalidData => {
                        let what = error.to_string();
                        break Cause::Protocol { rank: 0, what };
                    }
                    Err(_) => {
                        break Cause::Lost {
                            rank: 0,
                            how: Departure::Closed,
                        };
                    }
                }
            };
            inbox.close(cause);
        })?;
        Ok(Link::Remote {
            stream: stream.into(),
            mailbox,
        })
    }

    pub(crate) fn mailbox(&self) -> &Mailbox {
        match self {
            Link::Local { mailbox, .. } | Link::Remote { mailbox, .. } => mailbox,
        }
    }

    /// Sends a request. If it can't be sent the connection is gone, and the mailbox says so.
    pub(crate) fn send(&self, request: Request, payload: Vec<u8>) {
        let closed = Cause::Lost {
            rank: 0,
            how: Departure::Closed,
        };
        match self {
            Link::Local {
                rank,
                events,
                mailbox,
                ..
            } => {
                let event = Event {
                    rank: *rank,
                    what: What::Request(request, payload),
                    handled: None,
                };
                if events.send(event).is_err() {
                    mailbox.close(closed);
                }
            }
            Link::Remote { stream, .. } => {
                let mut stream = lock(stream);
                if wire::write(&mut *stream, &request, &[payload]).is_err() {
                    // A message that was cut off can't be followed by another. Why the connection
                    // broke may still be on its way: the reader closes the mailbox behind it.
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn receive(inbox: &Mailbox, reply: Reply, payload: &[u8]) -> Result<(), String> {
    match reply {
        Reply::Done {
            group,
            number,
            lengths,
        } => {
            let parts = wire::cut(payload, &lengths)
                .ok_or_else(|| format!("{} bytes for parts of {lengths:?}", payload.len()))?;
            inbox.done(&group, number, parts);
        }
        Reply::Failed { group, cause } => inbox.fail(&group, cause),
        Reply::Waiting { .. } => {}
        other @ (Reply::Refused(_) | Reply::Welcome { .. }) => return Err(format!("{other:?}")),
    }
    Ok(())
}

/// How this thread is leaving.
pub(crate) fn leaving() -> Departure {
    if thread::panicking() {
        Departure::Panicked
    } else {
        Departure::Left
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let bye = Request::Bye { how: leaving() };
        match self {
            Link::Local {
                rank, events, host, ..
            } => {
                let ended = host.take().map(|Host { door, ended }| {
                    drop(door);
                    ended
                });
                let (handled, done) = mpsc::channel();
                let event = Event {
                    rank: *rank,
                    what: What::Request(bye, Vec::new()),
                    handled: Some(handled),
                };
                // The process may end after this: the others should have been told.
                if events.send(event).is_ok() {
                    let _ = done.recv_timeout(WRITE_TIMEOUT);
                }
                if let Some(ended) = ended {
                    let _ = lock(&ended).recv_timeout(LINGER);
                }
            }
            Link::Remote { stream, .. } => {
                let mut stream = lock(stream);
                let _ = wire::write(&mut *stream, &bye, &[]);
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::mailbox::Arrival;

    /// Else the process could end with the others' result still in it.
    #[test]
    fn a_rank_of_this_process_hears_of_a_result_after_the_others_have_it() {
        let mailbox = Arc::new(Mailbox::default());
        let (writer, parcels) = mpsc::channel();
        let sinks = [Sink::Local(mailbox.clone()), Sink::Remote(writer)];
        let done = Out {
            to: vec![0, 1],
            reply: Reply::Done {
                group: "0".into(),
                number: 0,
                lengths: vec![0, 0],
            },
            parts: vec![Vec::new(); 2],
        };
        thread::scope(|scope| {
            scope.spawn(|| deliver(vec![done], &sinks));
            let parcel = parcels.recv().expect("a parcel");
            let soon = Instant::now() + Duration::from_millis(50);
            assert_eq!(mailbox.wait("0", 0, soon), Arrival::Nothing);
            drop(parcel);
            let later = Instant::now() + Duration::from_secs(5);
            assert!(matches!(mailbox.wait("0", 0, later), Arrival::Done(_)));
        });
    }

    /// It goes with a message unread and another on its way to it, so that reader and writer both
    /// meet the broken connection.
    #[test]
    fn a_rank_that_goes_is_not_taken_for_one_that_takes_no_data() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        for round in 0..300 {
            let peer = TcpStream::connect(at).expect("connected");
            let (hub, _) = listener.accept().expect("accepted");
            let (events, happened) = mpsc::channel();
            let Ok(Sink::Remote(writer)) = attach(1, hub, events) else {
                panic!("no threads");
            };
            let send = || {
                let (written, _) = mpsc::channel();
                let parcel = Parcel {
                    bytes: vec![0; 64].into(),
                    _written: written,
                };
                let _ = writer.send(parcel);
            };
            send();
            peer.peek(&mut [0]).expect("a message");
            let event = thread::scope(|scope| {
                scope.spawn(|| drop(peer));
                loop {
                    send();
                    if let Ok(event) = happened.try_recv() {
                        break event;
                    }
                }
            });
            let closed = matches!(event.what, What::Lost(Departure::Closed));
            assert!(closed, "round {round}: it counts as stuck");
        }
    }

    /// The hub's process says why, and ends with a message of this rank's unread.
    #[test]
    fn the_reason_that_was_sent_counts_though_the_connection_broke() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let cause = Cause::Aborted {
            rank: 0,
            message: "no".into(),
        };
        let failed = Reply::Failed {
            group: "0".into(),
            cause: cause.clone(),
        };
        for _ in 0..300 {
            let stream = TcpStream::connect(at).expect("connected");
            let (mut hub, _) = listener.accept().expect("accepted");
            let link = Link::remote(stream, 2).expect("a link");
            thread::scope(|scope| {
                scope.spawn(|| {
                    hub.peek(&mut [0]).expect("a message");
                    wire::write(&mut hub, &failed, &[]).expect("sent");
                    drop(hub);
                });
                let leave = Request::Leave {
                    group: "0".into(),
                    how: Departure::Left,
                };
                link.send(leave, vec![0; wire::MAX_PAYLOAD]);
                let later = Instant::now() + Duration::from_secs(5);
                let arrival = link.mailbox().wait("0", 0, later);
                assert_eq!(arrival, Arrival::Failed(cause.clone()));
            });
        }
    }
}
