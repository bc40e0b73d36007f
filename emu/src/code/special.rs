//! Special registers (PTX ISA, "Special Registers").

use super::{LaneMask, Special};

/// Registers that hold the same value for a thread's whole life: name, and what makes it of an
/// axis.
type Fixed = (&'static str, fn(u8) -> Special);

/// Those with an `.x`, a `.y` and a `.z`.
const VECTORS: &[Fixed] = &[
    ("%tid", Special::Tid),
    ("%ntid", Special::Ntid),
    ("%ctaid", Special::Ctaid),
    ("%nctaid", Special::Nctaid),
    ("%clusterid", Special::ClusterId),
    ("%nclusterid", Special::NClusterId),
    ("%cluster_ctaid", Special::ClusterCtaid),
    ("%cluster_nctaid", Special::ClusterNctaid),
];

/// The others.
const SINGLE: &[(&str, Special)] = &[
    ("%laneid", Special::LaneId),
    ("%warpid", Special::WarpId),
    ("%nwarpid", Special::NWarpId),
    ("%smid", Special::SmId),
    ("%nsmid", Special::NSmId),
    ("%gridid", Special::GridId),
    ("%is_explicit_cluster", Special::IsExplicitCluster),
    ("%cluster_ctarank", Special::ClusterCtarank),
    ("%cluster_nctarank", Special::ClusterNctarank),
    ("%lanemask_eq", Special::LaneMask(LaneMask::Eq)),
    ("%lanemask_lt", Special::LaneMask(LaneMask::Lt)),
    ("%lanemask_le", Special::LaneMask(LaneMask::Le)),
    ("%lanemask_gt", Special::LaneMask(LaneMask::Gt)),
    ("%lanemask_ge", Special::LaneMask(LaneMask::Ge)),
    ("%dynamic_smem_size", Special::DynamicSharedSize),
    ("%total_smem_size", Special::TotalSharedSize),
    ("%aggr_smem_size", Special::TotalSharedSize),
    ("%reserved_smem_offset_begin", Special::Zero),
    ("%reserved_smem_offset_end", Special::SharedStart),
    ("%reserved_smem_offset_cap", Special::SharedStart),
    ("%current_graph_exec", Special::Zero),
    ("WARP_SZ", Special::WarpSize),
];

/// Registers that change by themselves: name, whether it is the device's timer (else the clock),
/// bits, whether they are the upper half.
const CLOCKS: &[(&str, (bool, u32, bool))] = &[
    ("%clock", (false, 32, false)),
    ("%clock_hi", (false, 32, true)),
    ("%clock64", (false, 64, false)),
    ("%globaltimer", (true, 64, false)),
    ("%globaltimer_lo", (true, 32, false)),
    ("%globaltimer_hi", (true, 32, true)),
];

/// A special register that never changes.
pub(super) fn fixed(name: &str) -> Option<Special> {
    if let Some((_, special)) = SINGLE.iter().find(|(single, _)| *single == name) {
        return Some(*special);
    }
    // Registers that the driver fills, and performance counters: nothing is counted here.
    let numbered = |prefix: &str, count: u32| {
        let number = name.strip_prefix(prefix)?.parse::<u32>().ok()?;
        (number < count).then_some(Special::Zero)
    };
    let others = numbered("%envreg", 32)
        .or_else(|| numbered("%pm", 8))
        .or_else(|| numbered("%reserved_smem_offset_", 2).map(|_| Special::Reserved));
    if others.is_some() {
        return others;
    }
    let (base, axis) = name.rsplit_once('.')?;
    let axis = ["x", "y", "z"].iter().position(|known| *known == axis)?;
    let (_, of) = VECTORS.iter().find(|(vector, _)| *vector == base)?;
    Some(of(axis as u8))
}

/// A register that changes by itself.
pub(super) fn clock(name: &str) -> Option<(bool, u32, bool)> {
    let found = CLOCKS.iter().find(|(clock, _)| *clock == name);
    found.map(|(_, clock)| *clock)
}

/// Every special register's name, as `--isa` lists them.
#[must_use]
pub fn special_registers() -> Vec<String> {
    let vectors = VECTORS.iter().map(|(name, _)| format!("{name}.(x|y|z)"));
    let others = SINGLE.iter().map(|(name, _)| (*name).to_owned());
    let clocks = CLOCKS.iter().map(|(name, _)| (*name).to_owned());
    let numbered =
        ["%envreg(0..31)", "%pm(0..7)", "%reserved_smem_offset_(0|1)"].map(str::to_owned);
    vectors
        .chain(others)
        .chain(clocks)
        .chain(numbered)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_meaning() {
        assert_eq!(fixed("%tid.y"), Some(Special::Tid(1)));
        assert_eq!(fixed("%envreg31"), Some(Special::Zero));
        assert_eq!(fixed("%laneid"), Some(Special::LaneId));
        assert_eq!(clock("%clock64"), Some((false, 64, false)));
        for unknown in [
            "%tid",
            "%tid.w",
            "%laneid.x",
            "%envreg32",
            "%pm8",
            "%r1",
            "",
        ] {
            assert_eq!(fixed(unknown), None, "{unknown}");
        }
        assert!(clock("%clock.x").is_none());
    }
}
