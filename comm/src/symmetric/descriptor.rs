//! File descriptors from process to process.
//!
//! Each rank listens on a socket in Linux's abstract namespace, which vanishes with the process, so
//! that a killed rank leaves no file behind. Its name and a secret go to the ranks of the group
//! only; who connects must run as the same user and know the secret.

#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::{Server, fetch};
#[cfg(target_os = "linux")]
pub(super) use linux::{Server, fetch};

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;
    use std::time::{Duration, Instant};

    use rustix::net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    };

    use crate::error::{Error, Result};
    use crate::group::Group;
    use crate::hub::service;
    use crate::identity;

    /// Bytes of a name, and of a secret: hexadecimal digits of [`identity::nonce`].
    const PART: usize = 32;
    /// How long a connection may take to say the secret.
    const PATIENCE: Duration = Duration::from_secs(2);
    /// How often a wait looks at what else may have happened.
    const LOOK: Duration = Duration::from_millis(50);

    /// Hands a descriptor to whoever knows the secret, until dropped.
    pub(in crate::symmetric) struct Server {
        name: String,
        stop: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    }

    fn address(name: &str) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("mok-comm-{name}"))
    }

    impl Server {
        /// The server, and the ticket by which [`fetch`] finds it.
        pub(in crate::symmetric) fn start(descriptor: OwnedFd) -> Result<(Server, Vec<u8>)> {
            let (name, secret) = (identity::nonce(), identity::nonce());
            let ticket = [name.as_bytes(), secret.as_bytes()].concat();
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = stop.clone();
            let thread = address(&name)
                .and_then(|address| UnixListener::bind_addr(&address))
                .and_then(|listener| {
                    service::spawn("descriptors", move || {
                        for stream in listener.incoming() {
                            if stopped.load(Ordering::SeqCst) {
                                return;
                            }
                            match stream.and_then(|stream| hand(&stream, &secret, &descriptor)) {
                                Ok(()) => {}
                                // The rank that should have got it finds the connection closed.
                                Err(error) => {
                                    tracing::warn!("a descriptor was not handed on: {error}")
                                }
                            }
                        }
                    })
                })
                .map_err(|error| Error::system("a local socket for file descriptors", &error))?;
            let server = Server {
                name,
                stop,
                thread: Some(thread),
            };
            Ok((server, ticket))
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::SeqCst);
            // A connection is what the thread waits for. Where none can be made it is left waiting.
            let woken = address(&self.name).and_then(|address| UnixStream::connect_addr(&address));
            if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
                let _ = thread.join();
            }
        }
    }

    fn hand(stream: &UnixStream, secret: &str, descriptor: &OwnedFd) -> io::Result<()> {
        let refuse = |why: &str| Err(io::Error::new(ErrorKind::PermissionDenied, why));
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let peer = rustix::net::sockopt::socket_peercred(stream)?;
        if peer.uid != rustix::process::geteuid() {
            return refuse("another user asked for it");
        }
        let mut said = [0; PART];
        (&mut &*stream).read_exact(&mut said)?;
        if said != secret.as_bytes() {
            return refuse("somebody without the secret asked for it");
        }
        let descriptors = [descriptor.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return refuse("no space for it");
        }
        // A byte has to go along: ancillary data alone isn't sent.
        sendmsg(
            stream,
            &[IoSlice::new(&[1])],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// Gets the descriptor that rank `peer` serves.
    pub(in crate::symmetric) fn fetch(
        group: &Group,
        peer: usize,
        ticket: &[u8],
    ) -> Result<OwnedFd> {
        let failed = |error: io::Error| {
            Error::system(
                format!("the file descriptor of {}", group.member(peer)),
                &error,
            )
        };
        let parts = ticket.split_at_checked(PART);
        let (name, secret) = parts.ok_or_else(|| failed(ErrorKind::InvalidData.into()))?;
        let name = String::from_utf8_lossy(name);
        let until = Instant::now() + group.timeout();
        let stream = address(&name)
            .and_then(|address| UnixStream::connect_addr(&address))
            .and_then(|mut stream| {
                stream.write_all(secret)?;
                stream.set_read_timeout(Some(LOOK))?;
                Ok(stream)
            })
            .map_err(failed)?;
        loop {
            match receive(&stream) {
                Ok(descriptor) => return Ok(descriptor),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
                {
                    if let Some(error) = group.failed() {
                        return Err(error);
                    }
                    if Instant::now() >= until {
                        return Err(failed(ErrorKind::TimedOut.into()));
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    fn receive(stream: &UnixStream) -> io::Result<OwnedFd> {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut byte)];
        // Not inherited by what this process starts: it would keep the memory alive.
        recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
                && let Some(descriptor) = descriptors.next()
            {
                return Ok(descriptor);
            }
        }
        Err(io::Error::new(
            ErrorKind::UnexpectedEof,
            "the rank closed the connection without sending it",
        ))
    }

    #[cfg(test)]
    mod tests {
        use std::os::unix::fs::FileExt;

        use super::*;

        #[test]
        fn a_descriptor_goes_to_who_knows_the_secret() {
            let group = Group::threads(1).expect("a group").remove(0);
            let file = tempfile::tempfile().expect("a file");
            file.write_all_at(b"memory", 0).expect("written");
            let (server, ticket) = Server::start(file.into()).expect("a server");
            for _ in 0..3 {
                let got = fetch(&group, 0, &ticket).expect("handed over");
                let mut text = [0; 6];
                std::fs::File::from(got)
                    .read_exact_at(&mut text, 0)
                    .expect("read");
                assert_eq!(&text, b"memory");
            }
            // A wrong secret, half of one, a client that says nothing.
            let mut wrong = ticket.clone();
            wrong[PART] ^= 1;
            let error = fetch(&group, 0, &wrong).expect_err("refused").to_string();
            assert!(
                error.starts_with("the file descriptor of rank 0: "),
                "{error}"
            );
            let at = address(std::str::from_utf8(&ticket[..PART]).expect("hex")).expect("a name");
            let silent = UnixStream::connect_addr(&at).expect("connected");
            drop(UnixStream::connect_addr(&at).expect("connected"));
            assert!(fetch(&group, 0, &ticket).is_ok());
            drop(silent);
            drop(server);
            // The name is gone with the server.
            assert!(UnixStream::connect_addr(&at).is_err());
            assert!(fetch(&group, 0, &ticket).is_err());
            assert!(fetch(&group, 0, &ticket[..PART - 1]).is_err());
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use crate::device::Descriptor;
    use crate::error::{Error, Result};
    use crate::group::Group;

    /// Never made.
    pub(in crate::symmetric) enum Server {}

    fn none<T>() -> Result<T> {
        Err(Error::NoSharing {
            why: "file descriptors are handed on under Linux only".into(),
        })
    }

    impl Server {
        pub(in crate::symmetric) fn start(_: Descriptor) -> Result<(Server, Vec<u8>)> {
            none()
        }
    }

    pub(in crate::symmetric) fn fetch(_: &Group, _: usize, _: &[u8]) -> Result<Descriptor> {
        none()
    }
}
