//! The grouped GEMM's limits.

use mok_kernel::arch::Arch;
use mok_kernel::gemm::{Form, MAX_EXTENT, MAX_GROUPS, ROW_ALIGN, Sink};
use mok_kernel::mxfp8::TILE;

use super::{GemmCall, GroupRows, Placed};
use crate::error::Result;
use crate::memory::DevicePtr;

/// A grouped GEMM that breaks a limit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GemmError {
    /// Too many groups.
    #[error("grouped GEMM: {groups} groups are over {MAX_GROUPS}")]
    Groups {
        /// Groups.
        groups: u32,
    },
    /// The capacity is not whole blocks of rows.
    #[error("grouped GEMM: a capacity of {capacity} rows is not a multiple of {ROW_ALIGN}")]
    Capacity {
        /// Rows.
        capacity: u32,
    },
    /// A size is 0 or not a multiple of 8.
    #[error("grouped GEMM: {what} is {value}, not a positive multiple of 8")]
    Size {
        /// `"m"`, `"n"` or `"k"`.
        what: &'static str,
        /// The size.
        value: u32,
    },
    /// A size that isn't whole tiles of scales.
    #[error("grouped GEMM: {what} is {value}, and MXFP8 takes positive multiples of {TILE}")]
    Mxfp8Size {
        /// `"n"` or `"k"`.
        what: &'static str,
        /// The size.
        value: u32,
    },
    /// An architecture whose tensor cores have no block scaling, and no memory to do without.
    #[error(
        "grouped GEMM: {} multiplies MXFP8 in bf16, and needs {bytes} bytes for that: give them by \
         Mxfp8Call::with_workspace", arch.name()
    )]
    Mxfp8Workspace {
        /// The device's.
        arch: Arch,
        /// Bytes.
        bytes: u128,
    },
    /// More rows than are brought back to bf16 in one launch.
    #[error("grouped GEMM: {rows} rows of B are over 2^32 - 1, where MXFP8 is multiplied in bf16")]
    Mxfp8Rows {
        /// Rows of all groups.
        rows: u64,
    },
    /// A size that the kernels' coordinates don't reach.
    #[error("grouped GEMM: {what} is {value}, over {MAX_EXTENT}")]
    Extent {
        /// `"capacity"`, `"m"`, `"n"` or `"k"`.
        what: &'static str,
        /// The size.
        value: u32,
    },
    /// The form takes fresh bf16 only.
    #[error("grouped GEMM: {} takes no sink but Bf16, not {sink:?}", form.name())]
    Sink {
        /// The form.
        form: Form,
        /// The sink.
        sink: Sink,
    },
    /// An address is null.
    #[error("grouped GEMM: the address of {what} is null")]
    Null {
        /// Which.
        what: &'static str,
    },
    /// An address is not aligned.
    #[error("grouped GEMM: the address {address:?} of {what} is not a multiple of {align} bytes")]
    Align {
        /// Which.
        what: &'static str,
        /// The address.
        address: DevicePtr,
        /// The alignment.
        align: u64,
    },
    /// A row stride shorter than a row.
    #[error("grouped GEMM: the row stride of {what} is {stride} elements, under a row's {cols}")]
    RowStride {
        /// Which.
        what: &'static str,
        /// Elements from row to row.
        stride: u64,
        /// Elements of a row.
        cols: u64,
    },
    /// A group stride with which groups overlap.
    #[error("grouped GEMM: with a group stride of {stride} elements the groups of {what} overlap")]
    GroupStride {
        /// Which.
        what: &'static str,
        /// Elements from group to group.
        stride: u64,
    },
    /// A stride that is not a multiple of 16 bytes.
    #[error(
        "grouped GEMM: the {kind} stride of {what} is {stride} elements, not a multiple of 16 bytes"
    )]
    StrideAlign {
        /// Which.
        what: &'static str,
        /// `"row"` or `"group"`.
        kind: &'static str,
        /// Elements.
        stride: u64,
    },
    /// Gate and up with different strides.
    #[error(
        "gate-and-up: the {what} stride of gate is {gate} elements and up's is {up}; \
         one launch takes weights with the same strides"
    )]
    Unlike {
        /// `"row"` or `"group"`.
        what: &'static str,
        /// Elements.
        gate: u64,
        /// Elements.
        up: u64,
    },
    /// Gate and up at a distance that no tensor map states.
    #[error(
        "gate-and-up: gate and up are {bytes} bytes apart; one launch takes a positive multiple of 16 \
         under 2^40"
    )]
    Apart {
        /// Bytes.
        bytes: u64,
    },
    /// A clamp that isn't one.
    #[error("gate-and-up: the limit is {limit}, not a positive number")]
    Limit {
        /// The limit.
        limit: f32,
    },
    /// A matrix that reaches past its buffer.
    #[error("grouped GEMM: {what} needs {needed} bytes, and its buffer has {bytes}")]
    Bytes {
        /// Which.
        what: &'static str,
        /// Bytes it needs.
        needed: u128,
        /// Bytes of the buffer.
        bytes: u64,
    },
    /// A matrix that reaches past the address space.
    #[error(
        "grouped GEMM: {what} needs {needed} bytes from {address:?} on, past the address space"
    )]
    AddressSpace {
        /// Which.
        what: &'static str,
        /// Bytes it needs.
        needed: u128,
        /// Where it starts.
        address: DevicePtr,
    },
    /// More tiles than the kernels count.
    #[error("grouped GEMM: {tiles} tiles are over 2^32 - 1")]
    Tiles {
        /// Tiles.
        tiles: u64,
    },
    /// A number of SMs that is no grid.
    #[error("grouped GEMM: {sms} SMs are not 1 to {limit}")]
    Sms {
        /// SMs.
        sms: u32,
        /// The device's largest grid.
        limit: u32,
    },
    /// Calls on too many streams.
    #[error(
        "grouped GEMM: calls are captured on {limit} streams already; make another GroupedGemm"
    )]
    Streams {
        /// Most streams.
        limit: u32,
    },
    /// The groups, as found on the device, need more rows than there is room for.
    #[error("grouped GEMM: the groups need {needed} rows, and the capacity is {capacity}")]
    Overflow {
        /// Rows needed.
        needed: u64,
        /// Rows there is room for.
        capacity: u32,
    },
}

impl GemmCall {
    /// Checks every limit, without a device.
    pub fn check(&self) -> Result<()> {
        self.check_sizes(1)?;
        if self.rows.groups == 0 {
            return Ok(());
        }
        self.check_group_rows()?;
        self.placed_a().check("A", 2)?;
        self.placed_b().check("B", 2)?;
        self.placed_d()
            .check("D", self.sink.element_size().into())?;
        if self.launches() {
            for map in self.tensor_maps() {
                map.check()?;
            }
        }
        Ok(())
    }

    /// Where the groups' sizes are and an overflow is told.
    pub(super) fn check_group_rows(&self) -> Result<(), GemmError> {
        address("group sizes", self.rows.sizes, 4)?;
        match self.rows.overflow {
            Some(word) => address("overflow word", word, 8),
            None => Ok(()),
        }
    }

    /// The limits on sizes, were there room for so many rows.
    pub(crate) fn check_rows(&self, capacity: u32) -> Result<(), GemmError> {
        self.with_capacity(capacity).check_sizes(1)
    }

    pub(super) fn with_capacity(&self, capacity: u32) -> GemmCall {
        GemmCall {
            rows: GroupRows {
                capacity,
                ..self.rows
            },
            ..*self
        }
    }

    pub(super) fn check_sizes(&self, times: u64) -> Result<(), GemmError> {
        let rows = &self.rows;
        if rows.groups > MAX_GROUPS {
            return Err(GemmError::Groups {
                groups: rows.groups,
            });
        }
        if !rows.capacity.is_multiple_of(ROW_ALIGN) {
            return Err(GemmError::Capacity {
                capacity: rows.capacity,
            });
        }
        let wgrad = self.form == Form::Wgrad;
        let third = if wgrad { ("m", self.m) } else { ("k", self.k) };
        for (what, value) in [("n", self.n), third] {
            if value == 0 || !value.is_multiple_of(8) {
                return Err(GemmError::Size { what, value });
            }
        }
        for (what, value) in [("capacity", rows.capacity), ("n", self.n), third] {
            if value > MAX_EXTENT {
                return Err(GemmError::Extent { what, value });
            }
        }
        if !wgrad && self.sink != Sink::Bf16 {
            return Err(GemmError::Sink {
                form: self.form,
                sink: self.sink,
            });
        }
        match self.tiles(times) {
            tiles if tiles > u32::MAX.into() => Err(GemmError::Tiles { tiles }),
            _ => Ok(()),
        }
    }
}

fn address(what: &'static str, address: DevicePtr, align: u64) -> Result<(), GemmError> {
    match address.as_raw() {
        0 => Err(GemmError::Null { what }),
        raw if raw.is_multiple_of(align) => Ok(()),
        _ => Err(GemmError::Align {
            what,
            address,
            align,
        }),
    }
}

impl Placed {
    pub(super) fn check(&self, what: &'static str, element: u64) -> Result<(), GemmError> {
        // Nothing is there, so nothing is read; an empty buffer's address is null.
        if self.rows == 0 {
            return Ok(());
        }
        let start = self.matrix.ptr;
        address(what, start, 16)?;
        let (row, group) = (self.row_stride, self.group_stride);
        if row < self.cols {
            return Err(GemmError::RowStride {
                what,
                stride: row,
                cols: self.cols,
            });
        }
        let wide = u128::from;
        let rows = (wide(self.rows) - 1) * wide(row) + wide(self.cols);
        let groups = (wide(self.groups) - 1) * wide(group);
        // One group after the other, or the groups side by side within each row.
        let apart =
            wide(group) >= rows || (group >= self.cols && wide(row) >= groups + wide(self.cols));
        if self.groups > 1 && !apart {
            return Err(GemmError::GroupStride {
                what,
                stride: group,
            });
        }
        for (kind, stride) in [("row", row), ("group", group)] {
            if !(wide(stride) * wide(element)).is_multiple_of(16) {
                return Err(GemmError::StrideAlign { what, kind, stride });
            }
        }
        let needed = (groups + rows) * wide(element);
        if let Some(bytes) = self.matrix.bytes.filter(|&bytes| needed > wide(bytes)) {
            return Err(GemmError::Bytes {
                what,
                needed,
                bytes,
            });
        }
        if wide(start.as_raw()) + needed > wide(u64::MAX) {
            return Err(GemmError::AddressSpace {
                what,
                needed,
                address: start,
            });
        }
        Ok(())
    }
}
