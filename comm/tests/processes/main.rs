//! Ranks as processes and as threads, with the same bodies; what goes wrong; who intrudes.

mod bodies;
mod collectives;
mod deaths;
mod launch;
mod rendezvous;
