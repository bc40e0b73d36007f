//! Where each group's rows stand.

use std::ops::Range;

use mok_kernel::gemm::ROW_ALIGN;

use crate::gemm::GroupRows;
use crate::memory::DevicePtr;

/// Sizes of groups, and the layout that follows from them: each group starts at
/// the next multiple of 128 rows ([`ROW_ALIGN`]).
///
/// ```
/// let groups = mok::Groups::new(&[5, 0, 200])?;
/// assert_eq!(groups.starts(), [0, 128, 128]);
/// assert_eq!(groups.rows_of(2), 128..328);
/// assert_eq!((groups.real_rows(), groups.capacity()), (205, 384));
/// # Ok::<(), mok::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    sizes: Vec<u32>,
    starts: Vec<u32>,
    capacity: u32,
}

/// Group sizes that have no layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupsError {
    /// The rows do not fit 32 bits.
    #[error(
        "groups: the rows up to group {group}, each group rounded up to {ROW_ALIGN}, are over 2^32 - 1"
    )]
    TooManyRows {
        /// The group that does not fit.
        group: usize,
    },
}

impl Groups {
    /// Lays groups of these sizes out.
    pub fn new(sizes: &[u32]) -> Result<Groups, GroupsError> {
        let mut starts = Vec::with_capacity(sizes.len());
        let mut next = 0u32;
        for (group, &size) in sizes.iter().enumerate() {
            starts.push(next);
            next = size
                .checked_next_multiple_of(ROW_ALIGN)
                .and_then(|padded| next.checked_add(padded))
                .ok_or(GroupsError::TooManyRows { group })?;
        }
        Ok(Groups {
            sizes: sizes.to_vec(),
            starts,
            capacity: next,
        })
    }

    /// Rows of each group.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// First row of each group.
    pub fn starts(&self) -> &[u32] {
        &self.starts
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Rows with padding: what the matrices need.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Rows without padding.
    pub fn real_rows(&self) -> u64 {
        self.sizes.iter().map(|&size| u64::from(size)).sum()
    }

    /// The rows of one group; empty for a group that isn't there.
    pub fn rows_of(&self, group: usize) -> Range<usize> {
        match (self.starts.get(group), self.sizes.get(group)) {
            (Some(&start), Some(&size)) => start as usize..start as usize + size as usize,
            _ => 0..0,
        }
    }

    /// The group that a row belongs to; `None` for padding.
    pub fn group_of(&self, row: usize) -> Option<usize> {
        // Empty groups share their start with the next one, so look from the last start on.
        let group = self
            .starts
            .partition_point(|&start| start as usize <= row)
            .checked_sub(1)?;
        self.rows_of(group).contains(&row).then_some(group)
    }

    /// The groups as a GEMM takes them, with these sizes in device memory.
    pub fn at(&self, sizes: DevicePtr) -> GroupRows {
        GroupRows {
            sizes,
            // More groups than 32 bits would not pass the GEMM's check either.
            groups: u32::try_from(self.sizes.len()).unwrap_or(u32::MAX),
            capacity: self.capacity,
            overflow: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_is_aligned_and_every_row_has_its_group() {
        let groups = Groups::new(&[0, 1, 128, 129, 0, 0, 7]).unwrap();
        assert_eq!(groups.starts(), [0, 0, 128, 256, 512, 512, 512]);
        assert_eq!(groups.capacity(), 640);
        for row in 0..groups.capacity() as usize {
            let expected = (0..groups.len()).find(|&group| groups.rows_of(group).contains(&row));
            assert_eq!(groups.group_of(row), expected, "row {row}");
        }
        assert_eq!(groups.group_of(640), None);
        assert_eq!(groups.rows_of(7), 0..0);
    }

    #[test]
    fn no_groups_need_no_rows() {
        let groups = Groups::new(&[]).unwrap();
        assert_eq!((groups.capacity(), groups.group_of(0)), (0, None));
    }

    #[test]
    fn rows_over_32_bits_are_an_error() {
        let limit = u32::MAX / ROW_ALIGN * ROW_ALIGN;
        assert_eq!(Groups::new(&[limit]).unwrap().capacity(), limit);
        assert_eq!(
            Groups::new(&[limit + 1]),
            Err(GroupsError::TooManyRows { group: 0 })
        );
        assert_eq!(
            Groups::new(&[limit, 0, 1]),
            Err(GroupsError::TooManyRows { group: 2 })
        );
    }
}
