extern crate std;
use super::*;
use std::vec::Vec;

/// As large a share of the blocks begins with few rows as there are such tiles; none where there are none.
#[test]
fn blocks_begin_with_few_rows_by_their_share() {
    const BLOCKS: u32 = 132;
    let begin = |problem: Problem, rows: &[u32]| {
        let table = Table::new::<ByBlock>(&problem, rows, u32::MAX);
        let tiles: Tiles<_, ByBlock> = Tiles::new(&table, problem);
        let few = |block: &u32| tiles.first_class(*block) == Class::Few;
        (0..BLOCKS).filter(few).count()
    };
    let forward = Problem::new(Form::Forward, 0, 256, 64, 0);
    let wgrad = Problem::new(Form::Wgrad, 256, 256, 0, 0);
    assert_eq!(begin(forward, &[]), 0);
    assert_eq!(begin(forward, &[1000, 200]), 0);
    assert_eq!(begin(forward, &[7, 160]), 132);
    // Three tiles of 192 at most for 576 rows, one for 100.
    assert_eq!(begin(forward, &[576, 100]), 33);
    assert_eq!(begin(wgrad, &[576, 100]), 66);
}

struct Group {
    first_tile: [u32; 2],
    row_start: u32,
    rows: u32,
}

struct Table(Vec<Group>, [u32; 2]);

impl Table {
    fn new<S: Tiling>(problem: &Problem, rows: &[u32], capacity: u32) -> Table {
        let (mut groups, mut tiles, mut start) = (Vec::new(), [0; 2], 0u64);
        for &rows in rows {
            let inside = clamp_rows(start, rows, capacity);
            groups.push(Group {
                first_tile: tiles,
                row_start: start.min(capacity as u64) as u32,
                rows: inside,
            });
            tiles[Class::of(inside) as usize] += problem.tiles::<S>(inside);
            start += padded(rows);
        }
        Table(groups, tiles)
    }
}

impl GroupTable for &Table {
    fn groups(&self) -> u32 {
        self.0.len() as u32
    }
    fn first_tile(&self, class: Class, group: u32) -> u32 {
        let at = self.0.get(group as usize);
        at.map_or(self.1, |group| group.first_tile)[class as usize]
    }
    fn rows(&self, group: u32) -> (u32, u32) {
        let group = &self.0[group as usize];
        (group.row_start, group.rows)
    }
}

/// Every element of D once, on both sides, and by as few tiles as the widest would take.
fn check_cover<S: Tiling>(problem: Problem, rows: &[u32], step: u32) {
    let table = Table::new::<S>(&problem, rows, u32::MAX);
    // Numbers grow from one call to the next where a block draws them, but by any step.
    let mut seen: Vec<Tile> = Vec::new();
    for class in Class::ALL {
        for first in 0..step {
            let mut tiles: Tiles<_, S> = Tiles::new(&table, problem);
            let total = tiles.total(class);
            seen.extend(
                (first..total)
                    .step_by(step as usize)
                    .map(|n| tiles.get(class, n).unwrap()),
            );
            assert_eq!(tiles.get(class, total), None);
            assert_eq!(tiles.get(class, u32::MAX), None);
        }
    }
    assert!(
        seen.iter()
            .all(|tile| tile.rows == rows[tile.group as usize])
    );
    seen.sort_by_key(|tile| (tile.group, tile.fixed, tile.wide));
    let mut seen = seen.into_iter();
    for (group, &rows) in rows.iter().enumerate() {
        let (fixed, wide) = match problem.form {
            Form::Wgrad if problem.adds && rows == 0 => (0, 0),
            Form::Wgrad => (problem.m, problem.n),
            _ => (problem.n, rows),
        };
        let widest = S::WIDEST;
        let starts = (0..fixed).step_by(SIDE as usize);
        let second = |start: u32| {
            let start = start + gate_up::HALF;
            (problem.paired && start < fixed).then_some(start)
        };
        // Each block's start, of which a tile has the first.
        let starts: Vec<u32> = starts
            .flat_map(|start| [Some(start), second(start)])
            .flatten()
            .collect();
        for of_blocks in starts.chunks(S::BLOCKS as usize) {
            let fixed = of_blocks[0];
            if let [first, second] = of_blocks {
                assert_eq!(first + problem.apart(), *second);
            }
            let mut covered = 0;
            for _ in 0..wide.div_ceil(widest) {
                let tile = seen.next().unwrap();
                assert_eq!(
                    (tile.group, tile.rows, tile.fixed, tile.wide),
                    (group as u32, rows, fixed, covered)
                );
                assert!((1..=widest).contains(&tile.count), "{tile:?}");
                assert!(tile.width() <= widest && tile.width() >= tile.count);
                let covers = problem.share::<S>(tile.count) * S::BLOCKS;
                assert!((tile.count..=widest).contains(&covers) && covers.is_multiple_of(S::STEP));
                assert!(tile.wide.is_multiple_of(problem.unit::<S>()));
                covered += tile.count;
            }
            assert_eq!(covered, wide);
        }
    }
    assert_eq!(seen.next(), None);
}

#[test]
fn every_tile_once_in_any_steps() {
    let sizes: [&[u32]; 6] = [
        &[],
        &[0],
        &[1, 0, 0, 300, 0],
        &[0, 0, 128],
        &[5000, 1],
        &[0; 9],
    ];
    for form in Form::ALL {
        for sink in Sink::ALL {
            for rows in sizes {
                for (m, n) in [(64, 64), (448, 1000), (2304, 8)] {
                    for step in [1, 2, 7, 132] {
                        for problem in [
                            Problem::new(form, m, n, 192, sink as u32),
                            Problem::gate_up(n, 192),
                        ] {
                            check_cover::<ByBlock>(problem, rows, step);
                            check_cover::<ByPair>(problem, rows, step);
                            if problem.form == Form::Forward {
                                check_cover::<ByPairMxfp8>(problem, rows, step);
                            }
                        }
                    }
                }
            }
        }
    }
}

proptest::proptest! {
    #[test]
    fn every_tile_once_for_any_sizes(
        rows in proptest::collection::vec(proptest::prop_oneof![proptest::strategy::Just(0), 0u32..3000], 0..40),
        (m, n) in (1u32..2000, 1u32..4000),
        step in 1u32..200,
        form in proptest::sample::select(&Form::ALL[..]),
        sink in proptest::sample::select(&Sink::ALL[..]),
    ) {
        let problem = Problem::new(form, m, n, 64, sink as u32);
        check_cover::<ByBlock>(problem, &rows, step);
        check_cover::<ByPair>(problem, &rows, step);
        if form == Form::Forward {
            check_cover::<ByPairMxfp8>(problem, &rows, step);
        }
    }
}

/// The largest part is at most one unit larger than the smallest.
#[test]
fn parts_are_even() {
    let unit = NonZeroU32::new(8).unwrap();
    let parts = |extent: u32, parts: u32| -> Vec<(u32, u32)> {
        (0..parts)
            .map(|index| part(extent, unit, NonZeroU32::new(parts).unwrap(), index))
            .collect()
    };
    assert_eq!(parts(299, 2), [(0, 152), (152, 147)]);
    assert_eq!(parts(193, 2), [(0, 104), (104, 89)]);
    assert_eq!(parts(512, 3), [(0, 176), (176, 168), (344, 168)]);
    assert_eq!(parts(1, 1), [(0, 1)]);
}

#[test]
fn widths_are_the_products_that_exist() {
    assert_eq!(
        [1, 16, 17, 64, 65, 72, 185, 192].map(width),
        [16, 16, 32, 64, 72, 72, 192, 192]
    );
}

#[test]
fn rows_past_the_capacity_are_left_out() {
    assert_eq!(clamp_rows(0, 300, 256), 256);
    assert_eq!(clamp_rows(256, 300, 256), 0);
    assert_eq!(clamp_rows(u64::MAX, 1, 256), 0);
    assert_eq!(padded(u32::MAX), 1 << 32);
}
