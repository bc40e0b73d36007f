//! What the machine finds wrong.

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingKind {
    /// An access outside every allocation, or to constant memory.
    OutOfBounds,
    /// An address that is not a multiple of the access.
    Misaligned,
    /// A collective instruction that not all of its threads reach.
    Divergent,
    /// An mbarrier used against its state: too many arrivals, not initialised, wrong parity.
    Mbarrier,
    /// Operands that the hardware does not take: shapes, descriptors, tensor maps.
    Illegal,
    /// Nothing can run any more.
    Deadlock,
    /// A kernel ended with asynchronous work pending.
    Pending,
    /// Accesses to the same bytes, one a write, that nothing orders.
    Race,
    /// Ordinary accesses and asynchronous ones with no proxy fence between, or before the
    /// asynchronous one was known to be complete.
    Proxy,
    /// A value that nobody wrote is used.
    Uninitialised,
    /// Registers of a product that is in flight.
    InFlight,
    /// `trap`.
    Trap,
    /// A limit of the emulator's own.
    Limit,
}

impl FindingKind {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::OutOfBounds => "out-of-bounds",
            FindingKind::Misaligned => "misaligned",
            FindingKind::Divergent => "divergent",
            FindingKind::Mbarrier => "mbarrier",
            FindingKind::Illegal => "illegal",
            FindingKind::Deadlock => "deadlock",
            FindingKind::Pending => "pending",
            FindingKind::Race => "race",
            FindingKind::Proxy => "proxy",
            FindingKind::Uninitialised => "uninitialised",
            FindingKind::InFlight => "in-flight",
            FindingKind::Trap => "trap",
            FindingKind::Limit => "limit",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind.
    pub kind: FindingKind,
    /// The kernel.
    pub entry: String,
    /// Line of the instruction in the PTX.
    pub line: u32,
    /// The GPU.
    pub gpu: usize,
    /// The block.
    pub block: [u32; 3],
    /// The thread in the block, if it is one.
    pub thread: Option<u32>,
    /// What happened.
    pub message: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [x, y, z] = self.block;
        write!(
            f,
            "{}: {}, line {}, block ({x}, {y}, {z})",
            self.kind.name(),
            self.entry,
            self.line
        )?;
        if let Some(thread) = self.thread {
            write!(f, ", thread {thread}")?;
        }
        if self.gpu > 0 {
            write!(f, ", GPU {}", self.gpu)?;
        }
        write!(f, ": {}", self.message)
    }
}
