//! The architectures that kernels are built for.

/// A compilation target: architecture-specific features are on, so its code
/// runs on that architecture only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Arch {
    /// Hopper: H100, H200, GH200.
    Sm90a,
    /// Blackwell: B200, GB200.
    Sm100a,
    /// Blackwell Ultra: B300, GB300.
    Sm103a,
}

impl Arch {
    /// All of them, in order.
    pub const ALL: [Arch; 3] = [Arch::Sm90a, Arch::Sm100a, Arch::Sm103a];

    /// The name that PTX, rustc and ptxas use, such as `sm_90a`.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Sm90a => "sm_90a",
            Arch::Sm100a => "sm_100a",
            Arch::Sm103a => "sm_103a",
        }
    }

    /// The PTX version that the kernels are compiled to, as rustc names the feature.
    pub const fn ptx_feature(self) -> &'static str {
        match self {
            Arch::Sm90a => "ptx84",
            Arch::Sm100a => "ptx87",
            Arch::Sm103a => "ptx88",
        }
    }

    /// Compute capability, such as (9, 0).
    pub const fn capability(self) -> (u32, u32) {
        match self {
            Arch::Sm90a => (9, 0),
            Arch::Sm100a => (10, 0),
            Arch::Sm103a => (10, 3),
        }
    }

    /// Whether pairs of blocks multiply together (`tcgen05`): [`gemm::pair`](crate::gemm::pair).
    pub const fn pairs(self) -> bool {
        match self {
            Arch::Sm90a => false,
            Arch::Sm100a | Arch::Sm103a => true,
        }
    }

    /// The architecture with this name.
    pub fn from_name(name: &str) -> Option<Arch> {
        Arch::ALL.into_iter().find(|arch| arch.name() == name)
    }

    /// The architecture whose code runs on a device of this compute capability.
    pub fn from_capability(major: u32, minor: u32) -> Option<Arch> {
        Arch::ALL
            .into_iter()
            .find(|arch| arch.capability() == (major, minor))
    }
}
