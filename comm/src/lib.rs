//! Ranks, symmetric memory over peers, cross-rank barriers. Nothing here yet.
#![deny(missing_docs)]
