//! Operations of the machine, beyond those on registers alone.

use super::{Slot, Tcgen05};
use crate::ptx::ast::Space;
use crate::scalar::{ScalarOp, Ty};
use crate::tensor::map::Field;
use crate::tensor::matrix::Matrix;
use crate::tensor::mma::Mma;
use crate::tensor::wgmma::{Modifiers, Wgmma};
use crate::tensor::wmma::{Product, Wmma};

/// What an instruction does.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Op {
    Scalar(Box<Scalar>),
    /// A vector of parts into one register, low part first.
    Pack {
        dst: Slot,
        parts: Vec<Slot>,
        bits: u32,
    },
    /// Registers to registers: those of 128 bits are two.
    Moves(Vec<(Slot, Slot)>),
    /// One register into a vector of parts.
    Unpack {
        parts: Vec<Option<Slot>>,
        src: Slot,
        bits: u32,
    },
    Load(Box<Access>),
    Store(Box<Access>),
    Atomic(Box<Atomic>),
    Branch(u32),
    BranchIndexed {
        index: Slot,
        targets: Vec<u32>,
    },
    Exit,
    Trap,
    /// A failed `assert`: where in local memory the addresses of its text and its file, its line,
    /// and the address of its function's name lie.
    AssertFail([u32; 4]),
    BlockBarrier {
        id: Slot,
        threads: Option<Slot>,
        wait: bool,
        /// The reduction, where its result goes, the predicate, and whether that is negated.
        reduce: Option<(BarrierReduce, Slot, Slot, bool)>,
        aligned: bool,
    },
    WarpBarrier {
        mask: Slot,
    },
    ClusterBarrier {
        wait: bool,
        relaxed: bool,
        aligned: bool,
    },
    Shuffle(Box<Shuffle>),
    Vote {
        kind: VoteKind,
        dst: Slot,
        src: Slot,
        negated: bool,
        mask: Slot,
    },
    Match {
        all: bool,
        wide: bool,
        dst: Slot,
        pred: Option<Slot>,
        src: Slot,
        mask: Slot,
    },
    Reduce {
        op: ReduceOp,
        signed: bool,
        dst: Slot,
        src: Slot,
        mask: Slot,
    },
    ActiveMask {
        dst: Slot,
    },
    Elect {
        dst: Option<Slot>,
        pred: Slot,
        mask: Slot,
    },
    Fence(Fence),
    /// `fence.proxy.tensormap::generic.acquire` of a map.
    MapFence {
        map: Address,
        scope: Scope,
    },
    /// `tensormap.replace`.
    MapReplace {
        map: Address,
        field: Field,
        ordinal: u32,
        value: Slot,
    },
    /// `tensormap.cp_fenceproxy`: a copy of a map to device memory, and a release.
    MapCopy {
        dst: Address,
        src: Address,
        scope: Scope,
    },
    Mbarrier(Box<Mbarrier>),
    Bulk(Box<Bulk>),
    Tensor(Box<TensorCopy>),
    BulkCommit,
    BulkWait {
        pending: u32,
        read: bool,
    },
    CopyAsync {
        dst: Address,
        src: Address,
        bytes: u32,
        from: Option<Slot>,
    },
    /// `st.async` and `red.async`.
    StoreAsync(Box<StoreAsync>),
    CopyCommit,
    /// Whether it is `wait_all`, which covers what is not committed, too.
    CopyWait {
        pending: u32,
        all: bool,
    },
    CopyArrive {
        bar: Address,
        increments: bool,
    },
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait {
        pending: u32,
    },
    Wgmma(Box<WgmmaCall>),
    Mma {
        mma: Mma,
        d: Vec<Slot>,
        a: Vec<Slot>,
        b: Vec<Slot>,
        c: Vec<Slot>,
    },
    /// `wmma.load` and `wmma.store`: registers, address, elements from row to row.
    WmmaMove {
        op: Wmma,
        slots: Vec<Slot>,
        address: Address,
        stride: Option<Slot>,
    },
    WmmaProduct {
        op: Product,
        d: Vec<Slot>,
        a: Vec<Slot>,
        b: Vec<Slot>,
        c: Vec<Slot>,
    },
    LoadMatrix {
        op: Matrix,
        dst: Vec<Slot>,
        address: Address,
    },
    StoreMatrix {
        op: Matrix,
        src: Vec<Slot>,
        address: Address,
    },
    MoveMatrix {
        dst: Slot,
        src: Slot,
    },
    /// `clusterlaunchcontrol.try_cancel`: where the response goes, the mbarrier, and whether all blocks
    /// of the cluster get it.
    TryCancel {
        to: Address,
        bar: Address,
        all: bool,
    },
    QueryCancel {
        query: Query,
        dst: Vec<Option<Slot>>,
        /// Its two halves.
        response: [Slot; 2],
    },
    /// Tensor memory and its products.
    Tcgen05(Box<Tcgen05>),
    /// `%clock`, `%clock64`, `%globaltimer`: whether it is the device's timer.
    Clock {
        dst: Slot,
        global: bool,
        bits: u32,
        high: bool,
    },
    Nanosleep(Slot),
    /// To the generic window of a space, or back.
    Window {
        dst: Slot,
        src: Slot,
        window: u64,
        to: bool,
    },
    IsSpace {
        dst: Slot,
        src: Slot,
        space: Space,
    },
    MapAddress {
        dst: Slot,
        src: Slot,
        rank: Slot,
        generic: bool,
    },
    BlockRank {
        dst: Slot,
        src: Slot,
        generic: bool,
    },
    SetMaxRegisters {
        increase: bool,
        count: u32,
    },
    /// Hints: prefetches, cache operations.
    Nothing,
}

/// An operation on registers alone.
#[derive(Debug)]
pub struct Scalar {
    /// The operation.
    pub op: ScalarOp,
    /// Destinations.
    pub dst: [Option<Slot>; 2],
    /// Sources.
    pub src: Vec<Slot>,
    /// Predicate sources that are negated, by position.
    pub negated: u32,
    /// Results that are sign-extended, and to how many bits.
    pub extend: [Option<(Ty, u32)>; 2],
}

/// A register plus an offset in a state space.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// Where the address counts.
    pub space: Space,
    /// The register, 64 bits wide or 32.
    pub base: Slot,
    /// Added to it.
    pub offset: i64,
}

/// How far an access is seen, and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// `.relaxed`, `.acquire`, `.release`, `.acq_rel`, `.volatile`: not weak.
    pub strong: bool,
    /// What comes after it comes after what it saw.
    pub acquire: bool,
    /// What came before it is seen by who acquires it.
    pub release: bool,
    /// Among whom.
    pub scope: Scope,
}

/// What is asked of the response to a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// Whether a cluster was cancelled.
    IsCanceled,
    /// Its first block.
    First,
    /// Its first block, along one axis.
    Axis(u8),
}

/// Who sees an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Scope {
    #[default]
    Block,
    Cluster,
    Gpu,
    System,
}

/// A load or a store.
#[derive(Debug)]
pub struct Access {
    /// Where.
    pub address: Address,
    /// Bytes of one element.
    pub bytes: u32,
    /// Whether a loaded element is sign-extended.
    pub signed: bool,
    /// Elements; `None` drops one.
    pub values: Vec<Option<Slot>>,
    /// Bits of the registers that a load writes.
    pub bits: u32,
    /// Its order.
    pub order: Order,
}

/// Values that reach shared memory of the cluster later, counted by an mbarrier.
#[derive(Debug)]
pub struct StoreAsync {
    /// Where to.
    pub dst: Address,
    /// Bytes of one value.
    pub bytes: u32,
    /// The values.
    pub values: Vec<Slot>,
    /// The mbarrier.
    pub bar: Address,
    /// How they are combined with what is there.
    pub reduce: Option<(AtomicOp, Number, u32)>,
}

/// Read-modify-write operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AtomicOp {
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Add,
    Inc,
    Dec,
    Min,
    Max,
}

/// Number formats of read-modify-write operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Number {
    Unsigned,
    Signed,
    F16,
    Bf16,
    F32,
    F64,
}

/// `atom` or `red`.
#[derive(Debug)]
pub struct Atomic {
    /// What is done.
    pub op: AtomicOp,
    /// The elements' format.
    pub number: Number,
    /// Bytes of one element.
    pub bytes: u32,
    /// Elements in one access: 2 for packed halves, more for vectors.
    pub lanes: u32,
    /// Where.
    pub address: Address,
    /// The value before; `None` for `red`.
    pub dst: Vec<Option<Slot>>,
    /// The operand (for `cas`, the expected value).
    pub a: Vec<Slot>,
    /// The new value of `cas`.
    pub b: Option<Slot>,
    /// Whether its elements are the halves of one of 128 bits.
    pub halves: bool,
    /// Its order.
    pub order: Order,
}

/// Reductions of a block barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BarrierReduce {
    Popc,
    And,
    Or,
}

/// `vote.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum VoteKind {
    All,
    Any,
    Uni,
    Ballot,
}

/// `redux.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ReduceOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// `shfl.sync`.
#[derive(Debug)]
pub struct Shuffle {
    /// Which lane each reads.
    pub mode: ShuffleMode,
    /// What was read.
    pub dst: Slot,
    /// Whether the source lane was in range.
    pub pred: Option<Slot>,
    /// What is read.
    pub src: Slot,
    /// Lane, distance or mask.
    pub b: Slot,
    /// Clamp and segment mask.
    pub c: Slot,
    /// Lanes that take part.
    pub mask: Slot,
}

/// Which lane a shuffle reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// Fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fence {
    Memory {
        scope: Scope,
        acquire: bool,
        release: bool,
    },
    ProxyAsync {
        shared: bool,
        global: bool,
    },
    MbarrierInit,
}

/// What is done with an mbarrier.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum MbarrierOp {
    Init {
        count: Slot,
    },
    Invalidate,
    Arrive {
        state: Option<Slot>,
        count: Option<Slot>,
        expect: Option<Slot>,
        drop: bool,
        complete: bool,
    },
    ExpectTx {
        bytes: Slot,
    },
    CompleteTx {
        bytes: Slot,
    },
    /// `wait`: may suspend. The state is a parity or a token.
    Wait {
        done: Slot,
        state: Slot,
        parity: bool,
        suspend: bool,
    },
    PendingCount {
        dst: Slot,
        state: Slot,
    },
}

/// An mbarrier instruction.
#[derive(Debug)]
pub struct Mbarrier {
    /// What is done.
    pub op: MbarrierOp,
    /// The mbarrier.
    pub address: Address,
    /// Its order.
    pub order: Order,
}

/// A contiguous bulk copy.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Bulk {
    /// Global memory to shared memory, counted by an mbarrier.
    Load {
        dst: Address,
        src: Address,
        bytes: Slot,
        bar: Address,
        mask: Option<Slot>,
    },
    /// Shared memory to global memory, in a bulk group; with an operation, added there.
    Store {
        dst: Address,
        src: Address,
        bytes: Slot,
        reduce: Option<(AtomicOp, Number, u32)>,
    },
    /// Shared memory to shared memory of the cluster.
    Copy {
        dst: Address,
        src: Address,
        bytes: Slot,
        bar: Address,
        reduce: Option<(AtomicOp, Number, u32)>,
    },
}

/// A tensor copy through a map.
#[derive(Debug)]
pub struct TensorCopy {
    /// The map's generic address.
    pub map: Address,
    /// Coordinates, innermost first.
    pub coordinates: Vec<Slot>,
    /// Whether it is of four rows, whose numbers follow the first coordinate.
    pub four: bool,
    /// Which way.
    pub kind: TensorKind,
}

/// Which way a tensor copy goes.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum TensorKind {
    Load {
        dst: Address,
        bar: Address,
        mask: Option<Slot>,
        /// `.cta_group::2`: the mbarrier may be in the peer block.
        pair: bool,
    },
    Store {
        src: Address,
        reduce: Option<AtomicOp>,
    },
}

/// A wgmma with its operands.
#[derive(Debug)]
pub struct WgmmaCall {
    /// Shape and types.
    pub op: Wgmma,
    /// The accumulators.
    pub d: Vec<Slot>,
    /// A's descriptor, or its registers.
    pub a: Vec<Slot>,
    /// Whether A comes from registers.
    pub a_registers: bool,
    /// B's descriptor.
    pub b: Slot,
    /// The predicate that keeps the old sums.
    pub scale_d: Slot,
    /// The immediates. The predicate is read when it is issued.
    pub modifiers: Modifiers,
}
