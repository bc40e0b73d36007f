//! The one who collects: every collective call of a job meets here, in rank 0's process.
//!
//! No sockets and no clocks: requests go in with the time, replies come out. A group that has
//! failed stays so, since its ranks no longer agree about which call is next.

pub(crate) mod service;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::error::{Call, Departure};
use crate::wire::{Cause, LONGEST, Reply, Request};

/// The group of all ranks.
pub(crate) const WORLD: &str = "0";

/// A message to ranks of the job.
#[derive(Debug, PartialEq)]
pub(crate) struct Out {
    pub to: Vec<usize>,
    pub reply: Reply,
    pub parts: Vec<Vec<u8>>,
}

/// A collective call that some have reached.
struct Pending {
    call: Call,
    /// Whose call it is that the others are compared with.
    first: usize,
    since: Instant,
    deadline: Instant,
    parts: Vec<Option<Vec<u8>>>,
}

struct Room {
    /// Ranks of the job, in the group's order.
    members: Vec<usize>,
    number: u64,
    pending: Option<Pending>,
    failed: Option<Cause>,
    gone: Vec<bool>,
}

impl Room {
    fn new(members: Vec<usize>) -> Room {
        Room {
            gone: vec![false; members.len()],
            members,
            number: 0,
            pending: None,
            failed: None,
        }
    }

    /// Fails the group for all who are still in it; only the first cause counts.
    fn fail(&mut self, group: &str, cause: Cause) -> Vec<Out> {
        if self.failed.is_some() {
            return Vec::new();
        }
        self.failed = Some(cause.clone());
        self.pending = None;
        let present = self.members.iter().zip(&self.gone);
        let to: Vec<usize> = present
            .filter(|(_, gone)| !**gone)
            .map(|(&member, _)| member)
            .collect();
        vec![Out {
            to,
            reply: Reply::Failed {
                group: group.into(),
                cause,
            },
            parts: Vec::new(),
        }]
    }

    fn leave(&mut self, group: &str, rank: usize, how: Departure) -> Vec<Out> {
        let Some(at) = self.members.iter().position(|&member| member == rank) else {
            return Vec::new();
        };
        if std::mem::replace(&mut self.gone[at], true) {
            return Vec::new();
        }
        self.fail(group, Cause::Lost { rank, how })
    }
}

/// Members of each part of a split: ranks of the job by colour, in order of (key, old order).
pub(crate) fn split_members(
    members: &[usize],
    choices: &[(u64, u64)],
) -> BTreeMap<u64, Vec<usize>> {
    let mut parts: BTreeMap<u64, Vec<(u64, usize)>> = BTreeMap::new();
    for (&member, &(color, key)) in members.iter().zip(choices) {
        parts.entry(color).or_default().push((key, member));
    }
    let ordered = |mut part: Vec<(u64, usize)>| {
        // Stable: equal keys stay in the order of the group that is split.
        part.sort_by_key(|&(key, _)| key);
        part.into_iter().map(|(_, member)| member).collect()
    };
    parts
        .into_iter()
        .map(|(color, part)| (color, ordered(part)))
        .collect()
}

/// The name of one part of a split.
pub(crate) fn split_name(parent: &str, number: u64, color: u64) -> String {
    format!("{parent}/{number}.{color}")
}

/// How a rank's choice in a split is sent.
pub(crate) fn split_choice(part: &[u8]) -> Option<(u64, u64)> {
    let (color, key) = part.split_at_checked(8)?;
    Some((
        u64::from_le_bytes(color.try_into().ok()?),
        u64::from_le_bytes(key.try_into().ok()?),
    ))
}

/// The name of the call that makes new groups.
pub(crate) const SPLIT: &str = "split";

/// All groups of a job.
pub(crate) struct Hub {
    rooms: BTreeMap<String, Room>,
    here: Vec<bool>,
}

impl Hub {
    pub(crate) fn new(world: usize) -> Hub {
        Hub {
            rooms: BTreeMap::from([(WORLD.to_owned(), Room::new((0..world).collect()))]),
            here: vec![true; world],
        }
    }

    /// Whether any rank is still connected.
    pub(crate) fn in_use(&self) -> bool {
        self.here.contains(&true)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.rooms
            .values()
            .filter_map(|room| Some(room.pending.as_ref()?.deadline))
            .min()
    }

    /// Fails what has waited too long.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Out> {
        let mut out = Vec::new();
        for (name, room) in &mut self.rooms {
            let Some(pending) = room.pending.as_ref().filter(|p| p.deadline <= now) else {
                continue;
            };
            let missing = room
                .members
                .iter()
                .zip(&pending.parts)
                .filter(|(_, part)| part.is_none())
                .map(|(&member, _)| member)
                .collect();
            let cause = Cause::Timeout {
                call: pending.call.clone(),
                missing,
                seconds: (pending.deadline - pending.since).as_secs_f64(),
            };
            out.extend(room.fail(name, cause));
        }
        out
    }

    /// A rank is gone from every group.
    pub(crate) fn lost(&mut self, rank: usize, how: Departure) -> Vec<Out> {
        let Some(here) = self.here.get_mut(rank) else {
            return Vec::new();
        };
        if !std::mem::replace(here, false) {
            return Vec::new();
        }
        let rooms = self.rooms.iter_mut();
        let out = rooms
            .flat_map(|(name, room)| room.leave(name, rank, how))
            .collect();
        self.rooms.retain(|_, room| room.gone.contains(&false));
        out
    }

    pub(crate) fn request(
        &mut self,
        rank: usize,
        request: Request,
        payload: Vec<u8>,
        now: Instant,
    ) -> Vec<Out> {
        match request {
            Request::Call {
                group,
                call,
                timeout_ms,
            } => self.call(rank, &group, call, timeout_ms, payload, now),
            Request::Leave { group, how } => {
                let Some(room) = self.rooms.get_mut(&group) else {
                    return Vec::new();
                };
                let out = room.leave(&group, rank, how);
                if !room.gone.contains(&false) {
                    self.rooms.remove(&group);
                }
                out
            }
            Request::Abort { group, message } => match self.rooms.get_mut(&group) {
                Some(room) => room.fail(&group, Cause::Aborted { rank, message }),
                None => Vec::new(),
            },
            Request::Bye { how } => self.lost(rank, how),
        }
    }

    fn call(
        &mut self,
        rank: usize,
        group: &str,
        call: Call,
        timeout_ms: u64,
        payload: Vec<u8>,
        now: Instant,
    ) -> Vec<Out> {
        let protocol = |what: &str| Out {
            to: vec![rank],
            reply: Reply::Failed {
                group: group.into(),
                cause: Cause::Protocol {
                    rank,
                    what: what.into(),
                },
            },
            parts: Vec::new(),
        };
        let Some(room) = self.rooms.get_mut(group) else {
            return vec![protocol("a call on a group that all have left")];
        };
        let Some(at) = room.members.iter().position(|&member| member == rank) else {
            return vec![protocol("a call on a group that it is not in")];
        };
        if let Some(cause) = &room.failed {
            return vec![Out {
                to: vec![rank],
                reply: Reply::Failed {
                    group: group.into(),
                    cause: cause.clone(),
                },
                parts: Vec::new(),
            }];
        }
        let deadline = now + Duration::from_millis(timeout_ms).min(LONGEST);
        let world = room.members.len();
        let pending = room.pending.get_or_insert_with(|| Pending {
            call: call.clone(),
            first: rank,
            since: now,
            deadline,
            parts: vec![None; world],
        });
        if (&pending.call.name, pending.call.number) != (&call.name, call.number) {
            let cause = Cause::Mismatch {
                first: (pending.first, pending.call.clone()),
                second: (rank, call),
            };
            return room.fail(group, cause);
        }
        if call.number != room.number || pending.parts[at].is_some() {
            let what = format!("{call}, out of turn");
            return room.fail(group, Cause::Protocol { rank, what });
        }
        pending.deadline = pending.deadline.min(deadline);
        pending.parts[at] = Some(payload);
        if pending.parts.contains(&None) {
            return Vec::new();
        }
        let parts: Vec<Vec<u8>> = room
            .pending
            .take()
            .map(|pending| pending.parts.into_iter().flatten().collect())
            .unwrap_or_default();
        room.number += 1;
        let to = room.members.clone();
        let members = room.members.clone();
        if call.name == SPLIT {
            self.split(group, call.number, &members, &parts);
        }
        vec![Out {
            to,
            reply: Reply::Done {
                group: group.into(),
                number: call.number,
                lengths: parts.iter().map(Vec::len).collect(),
            },
            parts,
        }]
    }

    fn split(&mut self, parent: &str, number: u64, members: &[usize], parts: &[Vec<u8>]) {
        let choices: Vec<(u64, u64)> = parts
            .iter()
            .map(|part| split_choice(part).unwrap_or_default())
            .collect();
        for (color, members) in split_members(members, &choices) {
            self.rooms
                .insert(split_name(parent, number, color), Room::new(members));
        }
    }
}

#[cfg(test)]
mod tests;
