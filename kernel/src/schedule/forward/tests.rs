extern crate std;

use core::marker::PhantomData;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::schedule::grouped::padded;

struct Table<S> {
    tiling: PhantomData<S>,
    /// First strip, first row and rows of each group.
    groups: Vec<(u32, u32, u32)>,
    strips: u32,
    rows: u32,
}

impl<S: Tiling> Table<S> {
    fn new(sizes: &[u32]) -> Table<S> {
        let (mut groups, mut strips, mut start) = (Vec::new(), 0, 0);
        for &rows in sizes {
            groups.push((strips, start, rows));
            strips += STRIPS.tiles::<ByStrip<S>>(rows);
            start += padded(rows) as u32;
        }
        Table {
            tiling: PhantomData,
            groups,
            strips,
            rows: start,
        }
    }
}

impl<S: Tiling> GroupTable for &Table<S> {
    fn groups(&self) -> u32 {
        self.groups.len() as u32
    }
    fn first_tile(&self, class: Class, group: u32) -> u32 {
        assert_eq!(class, Class::Many);
        let at = self.groups.get(group as usize);
        at.map_or(self.strips, |group| group.0)
    }
    fn rows(&self, group: u32) -> (u32, u32) {
        let (_, start, rows) = self.groups[group as usize];
        (start, rows)
    }
}

/// One worker of each kind, which does its tasks one after the other and waits where it must: the least
/// that can be resident. Every task must be done once, and all of them must end.
fn check<S: Tiling + Copy>(
    sizes: &[u32],
    (inner, hidden): (u32, u32),
    places: Places,
    tokens: u32,
) {
    let minibatch = places.minibatch;
    assert!(minibatch >= 1 && MINIBATCHES * minibatch <= places.count);
    let table = Table::<S>::new(sizes);
    let (gate_up, down) = (
        Problem::gate_up(inner, hidden),
        Problem::new(crate::gemm::Form::Forward, 0, hidden, inner, 0),
    );
    let per_strip = [&gate_up, &down].map(|problem| problem.fixed_tiles::<ByStrip<S>>());
    let mut strips = Strips::<_, S>::new(&table, minibatch);
    let mut moved = Strips::<_, S>::new(&table, minibatch);
    assert_eq!(strips.total(), table.strips);
    let line = Line::new(table.strips, minibatch, per_strip[0], per_strip[1]);
    assert_eq!(
        line.total(),
        u64::from(table.strips * (per_strip[0] + per_strip[1]))
    );
    let moves = Moves::<S>::new(tokens, table.strips, minibatch);
    let all = pieces_of_strip::<S>();
    let none = || vec![0; table.strips as usize];
    let (mut arrived, mut activated, mut computed) = (none(), none(), none());
    let mut rows_of = none();
    let mut seen: [Vec<Tile>; 2] = [Vec::new(), Vec::new()];
    let (mut ticket, mut number, mut met) = (0, 0, 0);
    let (mut staged, mut combined) = (0, 0);
    let mut returned = none();
    // Whose rows lie in each place.
    let mut held: BTreeMap<u32, usize> = BTreeMap::new();
    let mut moving = vec![0u32; table.rows as usize];
    loop {
        let mut stuck = true;
        while ticket < line.total() {
            let (stage, index) = line.get(ticket);
            let problem = [&gate_up, &down][stage as usize];
            let (tile, strip) = strips.tile(problem, index).unwrap();
            let strip = strip as usize;
            rows_of[strip] = tile.count;
            let ready = match stage {
                Stage::GateUp => arrived[strip] == pieces(tile.count),
                Stage::Down => activated[strip] == per_strip[0],
            };
            assert!(!ready || held[&places.row(strip as u32)] == strip);
            if !ready {
                break;
            }
            match stage {
                Stage::GateUp => activated[strip] += 1,
                Stage::Down => computed[strip] += 1,
            }
            seen[stage as usize].push(tile);
            ticket += 1;
            stuck = false;
        }
        loop {
            let (what, index) = moves.get(number);
            match what {
                Move::Stage => {
                    assert_eq!((index, met), (staged, 0));
                    staged += 1;
                }
                Move::Tokens => {
                    assert_eq!((staged, met), (pieces(tokens), 0));
                    met = 1;
                }
                Move::Results => {
                    assert_eq!((combined, met), (moves.combined(), 1));
                    met = 2;
                }
                Move::Dispatch | Move::Combine => {
                    assert_eq!(met, 1);
                    let (strip, piece) = (index / all, index % all);
                    let piece = moved.piece(strip, piece);
                    let combines = what == Move::Combine;
                    let at = strip as usize;
                    if let Some(piece) = piece {
                        if combines && computed[at] != per_strip[1] {
                            break;
                        }
                        if !combines && strip >= places.count {
                            let before = at - places.count as usize;
                            if returned[before] != all {
                                break;
                            }
                        }
                        let holder = held.entry(places.row(strip)).or_insert(at);
                        match combines {
                            true => assert_eq!(*holder, at),
                            false => *holder = at,
                        }
                        assert!(piece.rows <= PIECE);
                        for row in piece.row..piece.row + piece.rows {
                            assert_eq!(moving[row as usize], u32::from(combines));
                            moving[row as usize] += 1;
                        }
                        arrived[at] += u32::from(!combines);
                    }
                    returned[at] += u32::from(combines);
                    combined += u32::from(combines);
                }
                Move::End => break,
            }
            number += 1;
            stuck = false;
        }
        if moves.get(number).0 == Move::End && ticket == line.total() {
            break;
        }
        assert!(!stuck, "ticket {ticket} and move {number} wait for ever");
    }
    assert_eq!(met, 2);
    assert_eq!(moves.get(number + 1000), (Move::End, 0));
    // Each row was moved twice, padding never.
    for &(_, start, rows) in &table.groups {
        let segment = start..start + padded(rows) as u32;
        for row in segment {
            assert_eq!(moving[row as usize], 2 * u32::from(row - start < rows));
        }
    }
    // Tiles of a product cover all columns of all rows, once.
    for (problem, seen) in [&gate_up, &down].into_iter().zip(&mut seen) {
        seen.sort_by_key(|tile| (tile.row_start + tile.wide, tile.fixed));
        seen.dedup();
        let fixed = problem.fixed_tiles::<ByStrip<S>>() as usize;
        assert_eq!(seen.len(), table.strips as usize * fixed);
        for strip in seen.chunks(fixed) {
            for (index, tile) in strip.iter().enumerate() {
                assert_eq!(tile.fixed, problem.fixed_start(index as u32 * S::BLOCKS));
                assert_eq!((tile.wide, tile.count), (strip[0].wide, strip[0].count));
            }
        }
        let rows: u32 = seen.iter().step_by(fixed).map(|tile| tile.count).sum();
        assert_eq!(rows, sizes.iter().sum::<u32>());
    }
    assert_eq!(rows_of.iter().sum::<u32>(), sizes.iter().sum::<u32>());
}

#[test]
fn one_block_and_one_warp_do_every_task() {
    let sizes: [&[u32]; 9] = [
        &[],
        &[0, 0],
        &[1],
        &[0, 300, 0, 0, 1, 0],
        &[128; 5],
        &[192, 193, 1, 1, 1],
        &[5000, 1],
        &[7; 40],
        &[3000, 0, 3001, 2, 900],
    ];
    for sizes in sizes {
        for minibatch in [1, 2, 3, 5, 16, 17, 1000, u32::MAX / 192] {
            for more in [0, 1, 7, 1000] {
                let count = (MINIBATCHES * minibatch).saturating_add(more);
                let places = Places { count, minibatch };
                for columns in [(64, 64), (96, 128), (448, 1024)] {
                    check::<ByBlock>(sizes, columns, places, sizes.len() as u32);
                    check::<ByPair>(sizes, columns, places, sizes.len() as u32);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn they_do_for_any_sizes(
        sizes in proptest::collection::vec(prop_oneof![Just(0), 0u32..20, 0u32..700], 0..30),
        columns in (1u32..6, 1u32..6),
        macrobatch in 0u32..20_000,
        minibatch in 0u32..8_000,
        tokens in 0u32..40,
    ) {
        let columns = (64 * columns.0, 64 * columns.1);
        let places = |widest| Places::new(macrobatch, minibatch, widest);
        check::<ByBlock>(&sizes, columns, places(ByBlock::WIDEST), tokens);
        check::<ByPair>(&sizes, columns, places(ByPair::WIDEST), tokens);
    }
}

#[test]
fn batches_have_no_more_rows_than_they_are_called_for() {
    for macrobatch in (1024..20_000).step_by(128) {
        for minibatch in (256..20_000).step_by(128) {
            for widest in [ByBlock::WIDEST, ByPair::WIDEST] {
                let places = Places::new(macrobatch, minibatch, widest);
                assert!(places.count * PLACE <= macrobatch && places.count >= LEAST_PLACES);
                assert!(places.minibatch * widest <= minibatch && places.minibatch >= 1);
                assert!(MINIBATCHES * places.minibatch <= places.count);
            }
        }
    }
    let all = Places::new(u32::MAX, u32::MAX, PLACE);
    assert_eq!(all.row(all.count), 0);
    assert_eq!(all.row(all.count - 1), (all.count - 1) * PLACE);
}

#[test]
fn one_group_is_a_table() {
    for rows in [1, 8, 192, 193, 4000] {
        let (one, table) = (
            OneGroup::<ByBlock>::new(rows),
            Table::<ByBlock>::new(&[rows]),
        );
        let problem = Problem::gate_up(320, 64);
        let mut strips = Strips::<_, ByBlock>::new(one, 3);
        let mut others = Strips::<_, ByBlock>::new(&table, 3);
        assert_eq!(strips.total(), others.total());
        for number in 0..strips.total() * problem.fixed_tiles::<ByStrip<ByBlock>>() + 3 {
            assert_eq!(strips.tile(&problem, number), others.tile(&problem, number));
        }
    }
    let nobody = OneGroup::<ByPair>::new(0);
    assert_eq!(Strips::<_, ByPair>::new(nobody, 3).total(), 0);
}
