//! The machine's own instructions: those that touch memory, control, other threads or time.
//!
//! [`OPCODES`] is what the decoder dispatches on, so nothing decodes that is not in it; a test
//! decodes every name of [`ROWS`] and asks a row, here or in [`crate::tensor`], of every opcode.
//!
//! A pattern is the opcode, then its parts in order: `a|b` one of these must be there, `[a|b]`
//! one of these may be. Capitals name a set of [`set`].

/// What the decoder does with an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Move,
    Load,
    Store,
    Atomic,
    Fence,
    Branch,
    BranchIndexed,
    Call,
    Exit,
    Trap,
    Barrier,
    Shuffle,
    Vote,
    Match,
    Reduce,
    ActiveMask,
    Elect,
    Matrix,
    Wgmma,
    Tcgen05,
    Cancel,
    Mbarrier,
    Copy,
    Nanosleep,
    Window,
    IsSpace,
    MapAddress,
    BlockRank,
    SetMaxRegisters,
    TensorMap,
    Hint,
    CachePolicy,
}

/// The opcodes that are not operations on registers alone.
const OPCODES: &[(&str, Family)] = &[
    ("mov", Family::Move),
    ("ld", Family::Load),
    ("ldu", Family::Load),
    ("st", Family::Store),
    ("atom", Family::Atomic),
    ("red", Family::Atomic),
    ("fence", Family::Fence),
    ("membar", Family::Fence),
    ("bra", Family::Branch),
    ("brx", Family::BranchIndexed),
    ("call", Family::Call),
    ("ret", Family::Exit),
    ("exit", Family::Exit),
    ("trap", Family::Trap),
    ("brkpt", Family::Trap),
    ("bar", Family::Barrier),
    ("barrier", Family::Barrier),
    ("shfl", Family::Shuffle),
    ("vote", Family::Vote),
    ("match", Family::Match),
    ("redux", Family::Reduce),
    ("activemask", Family::ActiveMask),
    ("elect", Family::Elect),
    ("mma", Family::Matrix),
    ("wmma", Family::Matrix),
    ("ldmatrix", Family::Matrix),
    ("stmatrix", Family::Matrix),
    ("movmatrix", Family::Matrix),
    ("wgmma", Family::Wgmma),
    ("tcgen05", Family::Tcgen05),
    ("clusterlaunchcontrol", Family::Cancel),
    ("mbarrier", Family::Mbarrier),
    ("cp", Family::Copy),
    ("nanosleep", Family::Nanosleep),
    ("cvta", Family::Window),
    ("isspacep", Family::IsSpace),
    ("mapa", Family::MapAddress),
    ("getctarank", Family::BlockRank),
    ("setmaxnreg", Family::SetMaxRegisters),
    ("tensormap", Family::TensorMap),
    ("griddepcontrol", Family::Hint),
    ("pmevent", Family::Hint),
    ("prefetch", Family::Hint),
    ("prefetchu", Family::Hint),
    ("applypriority", Family::Hint),
    ("discard", Family::Hint),
    ("createpolicy", Family::CachePolicy),
];

impl Family {
    /// The family of an instruction's first part; `None` for operations on registers alone.
    pub(super) fn of(opcode: &str) -> Option<Family> {
        OPCODES
            .iter()
            .find(|(name, _)| *name == opcode)
            .map(|&(_, family)| family)
    }
}

/// A form: its pattern, and operands with which it decodes. `$` stands for a register (`$q`: of 128
/// bits), or for as many in braces as the form's vector has.
struct Row(&'static str, &'static str);

/// What a set of the patterns stands for.
fn set(name: &str) -> Option<&'static str> {
    Some(match name {
        "SPACE" => "global|shared|shared::cta|shared::cluster|local|const|param",
        "SHARED" => "shared|shared::cta|shared::cluster",
        "OWN" => "shared|shared::cta",
        "STRONG" => "global|shared|shared::cta|shared::cluster",
        "SCOPE" => "cta|cluster|gpu|sys",
        "PAIRS" => "cta_group::1|cta_group::2",
        "ORDER" => "relaxed|acquire|release|acq_rel",
        "TYPES" => "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64",
        "HINTS" => {
            "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"
        }
        "AHEAD" => "L2::64B|L2::128B|L2::256B",
        "POLICY" => "L2::cache_hint",
        _ => return None,
    })
}

/// Every form.
const ROWS: &[Row] = &[
    // Moves of vectors, and of registers that change by themselves; the others are scalar.
    Row("mov b16|b32|b64", "%r0, {%r1, %r2}"),
    Row("mov b32|b64", "{%r0, %r1, _, %r3}, %r4"),
    Row("mov u32", "%r0, %clock"),
    Row("mov u64", "%r0, %globaltimer"),
    // Loads and stores.
    Row("ld [weak|volatile] [SPACE] [v2|v4] TYPES", "$, [%r8]"),
    Row(
        "ld relaxed|acquire SCOPE [STRONG] [v2|v4] TYPES",
        "$, [%r8]",
    ),
    Row("ld mmio relaxed sys [global] TYPES", "$, [%r8]"),
    Row(
        "ld [global] [ca|cg|cs|lu|cv] [HINTS] [AHEAD] [POLICY] TYPES",
        "$, [%r8]",
    ),
    Row(
        "ld global [ca|cg|cs] nc [HINTS] [POLICY] [v2|v4] TYPES",
        "$, [%r8]",
    ),
    Row("ld global [nc] v8 b32|u32|s32|f32", "$, [%r8]"),
    Row("ldu [global] [v2|v4] TYPES", "$, [%r8]"),
    Row(
        "st [weak|volatile] [global|SHARED|local] [v2|v4] TYPES",
        "[%r8], $",
    ),
    Row(
        "st relaxed|release SCOPE [STRONG] [v2|v4] TYPES",
        "[%r8], $",
    ),
    Row("st mmio relaxed sys [global] TYPES", "[%r8], $"),
    Row(
        "st [global] [wb|cg|cs|wt] [HINTS] [POLICY] TYPES",
        "[%r8], $",
    ),
    Row("st global v8 b32|u32|s32|f32", "[%r8], $"),
    Row("mov b128", "%q0, {%r1, %r2}"),
    Row("mov b128", "{%r1, _}, %q0"),
    Row("ld [relaxed|acquire] [SCOPE] global [v2] b128", "$q, [%r8]"),
    Row("st [relaxed|release] [SCOPE] global [v2] b128", "[%r8], $q"),
    Row("ld OWN b128", "$q, [%r8]"),
    Row(
        "st async [weak] [shared::cluster] mbarrier::complete_tx::bytes [v2|v4] b32|b64|u32|u64|s32|s64|f32|f64",
        "[%r8], $, [%r9]",
    ),
    Row(
        "red async relaxed cluster [shared::cluster] mbarrier::complete_tx::bytes and|or|xor b32",
        "[%r8], %r1, [%r9]",
    ),
    Row(
        "red async relaxed cluster [shared::cluster] mbarrier::complete_tx::bytes add u32|s32|u64",
        "[%r8], %r1, [%r9]",
    ),
    Row(
        "red async relaxed cluster [shared::cluster] mbarrier::complete_tx::bytes inc|dec u32",
        "[%r8], %r1, [%r9]",
    ),
    Row(
        "red async relaxed cluster [shared::cluster] mbarrier::complete_tx::bytes min|max u32|s32",
        "[%r8], %r1, [%r9]",
    ),
    // Read-modify-write.
    Row(
        "atom [ORDER] [SCOPE] [STRONG] exch [POLICY] b128",
        "%q0, [%r8], %q1",
    ),
    Row(
        "atom [ORDER] [SCOPE] [STRONG] cas [POLICY] b128",
        "%q0, [%r8], %q1, %q2",
    ),
    Row(
        "atom [ORDER] [SCOPE] [STRONG] and|or|xor|exch [POLICY] b32|b64",
        "%r0, [%r8], %r1",
    ),
    Row(
        "atom [ORDER] [SCOPE] [STRONG] cas [POLICY] b16|b32|b64",
        "%r0, [%r8], %r1, %r2",
    ),
    Row(
        "atom [ORDER] [SCOPE] [STRONG] add [POLICY] u32|s32|u64|f32|f64",
        "%r0, [%r8], %r1",
    ),
    Row(
        "atom [ORDER] [SCOPE] [STRONG] add noftz [POLICY] f16|bf16|f16x2|bf16x2",
        "%r0, [%r8], %r1",
    ),
    Row(
        "atom [ORDER] [SCOPE] [STRONG] inc|dec [POLICY] u32",
        "%r0, [%r8], %r1",
    ),
    Row(
        "atom [ORDER] [SCOPE] [STRONG] min|max [POLICY] u32|s32|u64|s64",
        "%r0, [%r8], %r1",
    ),
    Row(
        "atom [ORDER] [SCOPE] global add [POLICY] v2|v4 f32",
        "$, [%r8], $",
    ),
    Row(
        "atom [ORDER] [SCOPE] global add|min|max noftz [POLICY] v2|v4|v8 f16|bf16",
        "$, [%r8], $",
    ),
    Row(
        "atom [ORDER] [SCOPE] global add|min|max noftz [POLICY] v2|v4 f16x2|bf16x2",
        "$, [%r8], $",
    ),
    Row(
        "red [relaxed|release] [SCOPE] [STRONG] and|or|xor [POLICY] b32|b64",
        "[%r8], %r1",
    ),
    Row(
        "red [relaxed|release] [SCOPE] [STRONG] add [POLICY] u32|s32|u64|f32|f64",
        "[%r8], %r1",
    ),
    Row(
        "red [relaxed|release] [SCOPE] [STRONG] add noftz [POLICY] f16|bf16|f16x2|bf16x2",
        "[%r8], %r1",
    ),
    Row(
        "red [relaxed|release] [SCOPE] [STRONG] inc|dec [POLICY] u32",
        "[%r8], %r1",
    ),
    Row(
        "red [relaxed|release] [SCOPE] [STRONG] min|max [POLICY] u32|s32|u64|s64",
        "[%r8], %r1",
    ),
    Row(
        "red [relaxed|release] [SCOPE] global add [POLICY] v2|v4 f32",
        "[%r8], $",
    ),
    Row(
        "red [relaxed|release] [SCOPE] global add|min|max noftz [POLICY] v2|v4|v8 f16|bf16",
        "[%r8], $",
    ),
    Row(
        "red [relaxed|release] [SCOPE] global add|min|max noftz [POLICY] v2|v4 f16x2|bf16x2",
        "[%r8], $",
    ),
    // Fences.
    Row("fence [sc|acq_rel|acquire|release] SCOPE", ""),
    Row("fence mbarrier_init release cluster", ""),
    Row("fence proxy alias", ""),
    Row("fence proxy async [global|shared::cta|shared::cluster]", ""),
    Row(
        "tensormap replace tile global_address [SHARED|global] b1024 b64",
        "[%r8], %r0",
    ),
    Row(
        "tensormap replace tile rank|elemtype|interleave_layout|swizzle_mode|fill_mode|swizzle_atomicity [SHARED|global] b1024 b32",
        "[%r8], 0",
    ),
    Row(
        "tensormap replace tile box_dim|global_dim|element_stride [SHARED|global] b1024 b32",
        "[%r8], 1, %r0",
    ),
    Row(
        "tensormap replace tile global_stride [SHARED|global] b1024 b64",
        "[%r8], 0, %r0",
    ),
    Row(
        "tensormap cp_fenceproxy global shared::cta tensormap::generic release SCOPE sync aligned",
        "[%r8], [%r9], 128",
    ),
    Row(
        "fence proxy async::generic acquire sync_restrict::shared::cluster cluster",
        "",
    ),
    Row(
        "fence proxy async::generic release sync_restrict::shared::cta cluster",
        "",
    ),
    Row("fence proxy tensormap::generic release SCOPE", ""),
    Row("fence proxy tensormap::generic acquire SCOPE", "[%r8], 128"),
    Row("membar cta|gl|sys", ""),
    // Control.
    Row("bra [uni]", "end"),
    Row("brx idx [uni]", "%r0, table"),
    Row("call [uni]", "callee, ()"),
    Row("ret [uni]", ""),
    Row("exit", ""),
    Row("trap", ""),
    Row("brkpt", ""),
    // Among the threads of a block, a cluster, a warp.
    Row("bar [cta] sync", "1, 64"),
    Row("bar [cta] arrive", "1, 64"),
    Row("bar [cta] red popc u32", "%r0, 1, 64, %p0"),
    Row("bar [cta] red and|or pred", "%p1, 1, %p0"),
    Row("bar warp sync", "%r0"),
    Row("barrier [cta] sync|arrive [aligned]", "1, 64"),
    Row("barrier [cta] red popc [aligned] u32", "%r0, 1, 64, %p0"),
    Row("barrier [cta] red and|or [aligned] pred", "%p1, 1, %p0"),
    Row("barrier cluster arrive [release|relaxed] [aligned]", ""),
    Row("barrier cluster wait [acquire] [aligned]", ""),
    Row("shfl sync up|down|bfly|idx b32", "%r0|%p0, %r1, 1, 31, -1"),
    Row("vote sync all|any|uni pred", "%p1, !%p0, -1"),
    Row("vote sync ballot b32", "%r0, %p0, -1"),
    Row("match any sync b32|b64", "%r0, %r1, -1"),
    Row("match all sync b32|b64", "%r0|%p0, %r1, -1"),
    Row("redux sync add|min|max u32|s32", "%r0, %r1, -1"),
    Row("redux sync and|or|xor b32", "%r0, %r1, -1"),
    Row("activemask b32", "%r0"),
    Row("elect sync", "_|%p0, -1"),
    // mbarriers.
    Row("mbarrier init [OWN] b64", "[%r8], 1"),
    Row("mbarrier inval [OWN] b64", "[%r8]"),
    Row(
        "mbarrier arrive|arrive_drop [release|relaxed] [cta|cluster] [OWN] b64",
        "%r0, [%r8], 2",
    ),
    Row(
        "mbarrier arrive|arrive_drop [release|relaxed] [cta|cluster] shared::cluster b64",
        "_, [%r8]",
    ),
    Row(
        "mbarrier arrive|arrive_drop noComplete [release] [cta] [OWN] b64",
        "%r0, [%r8], 2",
    ),
    Row(
        "mbarrier arrive|arrive_drop expect_tx [release|relaxed] [cta|cluster] [SHARED] b64",
        "_, [%r8], 64",
    ),
    Row(
        "mbarrier expect_tx|complete_tx [relaxed] [cta|cluster] [SHARED] b64",
        "[%r8], 64",
    ),
    Row(
        "mbarrier test_wait [parity] [acquire|relaxed] [cta|cluster] [OWN] b64",
        "%p0, [%r8], %r0",
    ),
    Row(
        "mbarrier try_wait [parity] [acquire|relaxed] [cta|cluster] [OWN] b64",
        "%p0, [%r8], %r0, 100",
    ),
    Row("mbarrier pending_count b64", "%r0, %r1"),
    // Asynchronous copies; those through tensor maps, and reductions to global memory, are in
    // the tensor tables.
    Row(
        "cp async ca|cg OWN global [POLICY] [AHEAD]",
        "[%r8], [%r9], 16",
    ),
    Row("cp async mbarrier arrive [noinc] [OWN] b64", "[%r8]"),
    Row("cp async commit_group|wait_all", ""),
    Row("cp async wait_group", "1"),
    Row(
        "cp async bulk shared::cluster|shared::cta global mbarrier::complete_tx::bytes [POLICY]",
        "[%r8], [%r9], %r0, [%r10]",
    ),
    Row(
        "cp async bulk shared::cluster global mbarrier::complete_tx::bytes multicast::cluster [POLICY]",
        "[%r8], [%r9], %r0, [%r10], %r1",
    ),
    Row(
        "cp async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes",
        "[%r8], [%r9], %r0, [%r10]",
    ),
    Row(
        "cp async bulk global shared::cta bulk_group [POLICY]",
        "[%r8], [%r9], %r0",
    ),
    Row("cp async bulk commit_group", ""),
    Row("cp async bulk wait_group [read]", "0"),
    Row("cp async bulk prefetch L2 global [POLICY]", "[%r8], %r0"),
    Row(
        "cp async bulk prefetch tensor 1d|2d|3d|4d|5d L2 global [tile] [POLICY]",
        "[%r8, {%r0}]",
    ),
    Row(
        "cp reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes and|or|xor b32",
        "[%r8], [%r9], %r0, [%r10]",
    ),
    Row(
        "cp reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes add u32|s32|u64",
        "[%r8], [%r9], %r0, [%r10]",
    ),
    Row(
        "cp reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes inc|dec u32",
        "[%r8], [%r9], %r0, [%r10]",
    ),
    Row(
        "cp reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes min|max u32|s32",
        "[%r8], [%r9], %r0, [%r10]",
    ),
    // Matrix products are in the tensor tables.
    Row("wgmma fence|commit_group sync aligned", ""),
    Row("wgmma wait_group sync aligned", "0"),
    Row(
        "tcgen05 alloc PAIRS sync aligned [shared::cta] b32",
        "[%r8], 64",
    ),
    Row("tcgen05 dealloc PAIRS sync aligned b32", "%r0, 64"),
    Row("tcgen05 relinquish_alloc_permit PAIRS sync aligned", ""),
    Row("tcgen05 wait::ld|wait::st sync aligned", ""),
    Row(
        "tcgen05 fence::before_thread_sync|fence::after_thread_sync",
        "",
    ),
    Row(
        "tcgen05 commit PAIRS mbarrier::arrive::one [shared::cluster] b64",
        "[%r8]",
    ),
    Row(
        "tcgen05 commit PAIRS mbarrier::arrive::one [shared::cluster] multicast::cluster b64",
        "[%r8], %r0",
    ),
    Row(
        "clusterlaunchcontrol try_cancel async [shared::cta] mbarrier::complete_tx::bytes [multicast::cluster::all] b128",
        "[%r8], [%r9]",
    ),
    Row(
        "clusterlaunchcontrol query_cancel is_canceled pred b128",
        "%p0, %q0",
    ),
    Row(
        "clusterlaunchcontrol query_cancel get_first_ctaid v4 b32 b128",
        "{%r0, %r1, %r2, _}, %q0",
    ),
    Row(
        "clusterlaunchcontrol query_cancel get_first_ctaid::x|get_first_ctaid::y|get_first_ctaid::z b32 b128",
        "%r0, %q0",
    ),
    // Addresses.
    Row(
        "cvta [to] global|OWN|shared::cluster|local|const|param u32|u64",
        "%r0, %r1",
    ),
    Row("isspacep SPACE", "%p0, %r0"),
    Row("mapa [shared::cluster] u32|u64", "%r0, %r1, %r2"),
    Row("getctarank [shared::cluster] u32|u64", "%r0, %r1"),
    // What changes no value.
    Row("nanosleep u32", "100"),
    Row("setmaxnreg inc|dec sync aligned u32", "40"),
    Row("pmevent [mask]", "1"),
    Row("griddepcontrol launch_dependents|wait", ""),
    Row("prefetch [global|local] L1|L2", "[%r8]"),
    Row("prefetch [const|param] tensormap", "[%r8]"),
    Row("prefetchu L1", "[%r8]"),
    Row("applypriority [global] L2::evict_normal", "[%r8], 128"),
    Row("discard [global] L2", "[%r8], 128"),
    Row(
        "createpolicy fractional L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged b64",
        "%r0, 1.0",
    ),
    Row(
        "createpolicy range [global] L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged b64",
        "%r0, [%r8], 64, 128",
    ),
    Row("createpolicy cvt L2 b64", "%r0, %r1"),
];

/// A row of the table of the machine's own instructions.
#[derive(Clone, Debug)]
pub struct IsaRow {
    /// The opcode, without modifiers.
    pub opcode: &'static str,
    /// The alternatives for each further part, in order; true: it may be left out.
    pub parts: Vec<(Vec<&'static str>, bool)>,
    /// Operands such as it takes; `$` stands for a register or, in a vector form, for registers.
    pub operands: &'static str,
}

impl Row {
    fn parsed(&self) -> IsaRow {
        let mut words = self.0.split(' ');
        let opcode = words.next().unwrap_or_default();
        let parts = words
            .map(|word| {
                let inner = word.strip_prefix('[').and_then(|w| w.strip_suffix(']'));
                let names = inner
                    .unwrap_or(word)
                    .split('|')
                    .flat_map(|name| set(name).unwrap_or(name).split('|'))
                    .collect();
                (names, inner.is_some())
            })
            .collect();
        IsaRow {
            opcode,
            parts,
            operands: self.1,
        }
    }
}

impl IsaRow {
    /// Every dotted name of the row.
    pub fn names(&self) -> Vec<String> {
        let mut names = vec![self.opcode.to_owned()];
        for (alternatives, optional) in &self.parts {
            let mut next = if *optional { names.clone() } else { Vec::new() };
            for name in &names {
                next.extend(alternatives.iter().map(|part| format!("{name}.{part}")));
            }
            names = next;
        }
        names
    }
}

/// The lowest `sm_` that has an instruction of one of the tables, where that is later than Hopper.
pub fn later_arch(name: &str) -> Option<u16> {
    let opcode = name.split('.').next().unwrap_or("");
    let parts = [".cta_group::N", ".tile::gather4", ".tile::scatter4"];
    let later = matches!(opcode, "tcgen05" | "clusterlaunchcontrol")
        || parts.iter().any(|part| name.contains(part));
    // The reduction came with the next ones.
    later.then_some(if name.starts_with("tcgen05.ld.red") {
        103
    } else {
        100
    })
}

/// The machine's own instructions. Together with [`crate::scalar::isa`] and
/// [`crate::tensor::isa`] that is everything that loads.
pub fn isa() -> Vec<IsaRow> {
    ROWS.iter().map(Row::parsed).collect()
}

#[cfg(test)]
mod tests;
